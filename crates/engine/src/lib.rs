//! The daemon's heart: it owns the pools, knows the members of each topic, and cleans up after processes that died.
//!
//! [`Engine`] is the whole state and does no I/O with clients: requests go in, answers come out, so its rules are tested
//! without sockets, with clients that break the protocol. [`Reactor`] is the one thread around it: sockets, ends of
//! processes, signals, time. No message passes through either.
//!
//! A zone is a list of owners; each keeps its state to itself. `Clients` has the client processes, `Topics` the topics with
//! their publishers and subscribers, `Control` the control segment with its doorbells and timelines, `Memory` the pools and
//! their leases, `History` what publishers left behind, `DeferredReleases` the slots of subscribers that left before their
//! GPU work ended, `Adoption` what the clients of a dead daemon hand back, `RegistryFile` what a successor needs to know.
//!
//! Everything that a client sends is an allegation: the engine checks it against what it knows itself, and never trusts
//! shared memory. It writes what it knows to the zone's registry before it acts on it, so a successor can go on from there
//! when this process is killed between any two steps.

#![warn(clippy::too_many_lines)]

mod adoption;
mod cleanup;
mod clients;
mod closer;
mod control;
mod deferred_release;
mod departed;
mod devices;
mod doorbells;
mod engine;
mod granule_set;
mod granules;
mod hand_back;
mod history;
mod join;
mod kept_history;
mod leases;
mod leave;
mod links;
mod links_report;
mod listing;
mod maintenance;
mod matching;
mod membership;
mod memory;
mod numa;
mod paths;
mod pools;
mod qos;
mod quarantine;
mod random;
mod ranges;
mod reactor;
mod records;
mod recovery;
mod refuse;
mod registry;
mod requests;
mod restore;
mod saved_state;
mod seats;
mod sessions;
mod snapshot;
mod sources;
mod state_file;
mod step;
mod tenures;
mod timelines;
mod topic;
mod topics;
mod zone;
mod zones;

pub use engine::{Engine, Setup, Verdict};
pub use reactor::{Reactor, ReactorError};
pub use sessions::{Peer, SessionId};
pub use snapshot::{snapshots, Snapshot, SnapshotAsker, SnapshotSource, TopicFigures};
pub use sources::{Opened, Sources, SystemSources};
pub use state_file::state_path;

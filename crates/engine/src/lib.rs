//! The daemon's heart: it owns the pools, knows who is in which topic, and cleans up after those
//! who are gone.
//!
//! [`Engine`] is the whole state and does no I/O with clients: requests go in, answers come out,
//! so its rules are tested without sockets, with clients that lie. [`Reactor`] is the one thread
//! around it: sockets, processes' ends, signals, time. Nothing of it is on a message's way.
//!
//! Everything that a client says is an allegation: what it sends is checked against what the
//! engine itself knows, and what stands in shared memory is never taken for granted. What the
//! engine knows is written to the zone's registry before it is acted upon, so that a successor
//! can go on from there when this process is killed between any two steps.

mod adoption;
mod cleanup;
mod clients;
mod closer;
mod control;
mod deferred_release;
mod departed;
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
mod near;
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

//! The daemon's logic: it owns the pools, knows the members of each topic, and cleans up after processes that died.
//!
//! [`Engine`] is the whole state and does no I/O with clients: requests go in, answers come out, so its rules are tested
//! without sockets, with clients that break the protocol. [`Reactor`] is the one thread around it: sockets, ends of
//! processes, signals, time. No message passes through either.
//!
//! Each state has one owner, and private fields. `Engine` has the state of the daemon: `Sessions`, `Zones`, `Recovery` (zones of
//! a predecessor that are still to be handed back), the quarantine, `LinksReport` and `Maintenance`. The files in `engine/`
//! serve its requests. A `Zone` is a list of owners, which the files in `zone/` change together: `Clients` has the client
//! processes, `Topics` the topics with their publishers and subscribers, `Control` the control segment with its doorbells and
//! timelines, `Memory` the pools and their leases, `History` the messages of publishers that left or died, `DeferredReleases`
//! the slots of subscribers that left before publishers finished their deferred releases, `Adoption` the claims of clients of
//! a dead daemon, `RegistryFile` the records for a successor.
//!
//! The engine checks everything that a client sends against its own state, and never trusts shared memory. It writes each
//! change to the zone's registry before it acts on it, so a successor can go on from there when this process is killed
//! between any two steps.

#![warn(clippy::too_many_lines)]

mod adoption;
mod clients;
mod closer;
mod control;
mod deferred_release;
mod departed;
mod doorbells;
mod engine;
mod granule_set;
mod granules;
mod history;
mod links_report;
mod maintenance;
mod matching;
mod membership;
mod memory;
mod numa;
mod paths;
mod pools;
mod qos;
mod random;
mod ranges;
mod reactor;
mod records;
mod recovery;
mod refuse;
mod registry;
mod seats;
mod sessions;
mod sources;
mod state_file;
mod step;
mod tenures;
mod timelines;
mod topic;
mod topics;
mod zone;
mod zones;

pub use engine::{
    snapshots, Engine, Setup, Snapshot, SnapshotAsker, SnapshotSource, TopicFigures, Verdict,
};
pub use reactor::{Reactor, ReactorError};
pub use sessions::{Peer, SessionId};
pub use sources::{Opened, Sources, SystemSources};
pub use state_file::state_path;

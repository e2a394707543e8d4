//! The figures of rgaps, each beside its floor in the same run.
//!
//! A figure alone says little on a machine that does other things meanwhile. So every benchmark alternates, block by
//! block and between the same processes, between rgaps and its *floor*: the least that could do the same job. For a
//! message that is a 64-byte slot in shared memory, for which receivers wait in the same way as for a message. A
//! disturbance of the machine then affects both.
//!
//! The processes run the same program ([`crew::member`]) and share a [`board`] of memory for turns, results and the
//! floor. Each run has a daemon and a folder of its own, so it does not disturb the user's realm. Every message has
//! different contents, and every receiver verifies all of them outside of the timed sections.
//!
//! The public modules serve the unpublished crate `compare`, which measures designs of papers beside
//! these benchmarks.

#![warn(clippy::too_many_lines)]

pub mod alloc;
mod bar;
pub mod board;
pub mod contents;
mod copied;
mod copies;
pub mod crew;
mod enqueue;
mod exchange;
mod fanin;
mod fanout;
pub mod floor;
pub mod gpu;
mod handoff;
mod handover;
mod latency;
pub mod link;
mod machine;
mod memory;
mod path;
mod spread;
mod stage;
pub mod summary;
mod throughput;

pub use alloc::{alloc, Alloc};
pub use bar::{bar, Bar};
pub use copies::{copies, Copies};
pub use exchange::Wait;
pub use fanin::{fanin, Fanin};
pub use fanout::{fanout, Fanout};
pub use handoff::{handoff, Handoff};
pub use handover::{handover, Handover};
pub use latency::{latency, Latency, LatencyOptions};
pub use link::{link, tree, LinkOptions, LinkReport, Namespaces, TreeOptions, TreeReport};
pub use machine::Machine;
pub use memory::{memory, Memory};
pub use path::{path, Path};
pub use spread::{spread, Spread};
pub use throughput::{throughput, Throughput};

/// Runs a member of `rgaps bench`, with the argument of the hidden command as its orders.
pub fn member(orders: &str) -> anyhow::Result<()> {
    crew::member::<crew::Job>(orders)
}

//! The figures of rgaps, each beside its floor in the same run.
//!
//! A figure alone says little on a machine that does other things meanwhile. So every benchmark
//! alternates, block by block and between the same processes, between rgaps and the least that
//! could do the same job: a 64-byte slot in shared memory, waited for in the same way. What they
//! are compared with is disturbed by what disturbs them.
//!
//! The processes are this program again ([`crew::member`]), with a [`board`] of shared memory between
//! them for turns, results and the floor. Each run has a daemon of its own, in a folder of its
//! own, so that neither disturbs what else runs in the realm. Contents differ in every message
//! and are verified whole by every receiver, outside of what is timed.
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

/// What the hidden command of `rgaps` that runs a member does with its argument.
pub fn member(orders: &str) -> anyhow::Result<()> {
    crew::member::<crew::Job>(orders)
}

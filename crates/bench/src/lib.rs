//! The figures of rgaps, each beside its floor in the same run.
//!
//! A figure alone says little on a machine that does other things meanwhile. So every benchmark
//! alternates, block by block and between the same processes, between rgaps and the least that
//! could do the same job: a 64-byte slot in shared memory, waited for in the same way. What they
//! are compared with is disturbed by what disturbs them.
//!
//! The processes are this program again ([`member`]), with a [`board`] of shared memory between
//! them for turns, results and the floor. Each run has a daemon of its own, in a folder of its
//! own, so that neither disturbs what else runs in the realm. Contents differ in every message
//! and are verified whole by every receiver, outside of what is timed.

mod alloc;
mod board;
mod contents;
mod copied;
mod copies;
mod crew;
mod enqueue;
mod exchange;
mod fanin;
mod fanout;
mod floor;
mod gpu;
mod handoff;
mod handover;
mod latency;
mod link;
mod locks;
mod machine;
mod memory;
mod path;
mod shared_tlsf;
mod spread;
mod stage;
mod summary;
mod throughput;

pub use alloc::{alloc, Alloc};
pub use copies::{copies, Copies};
pub use crew::member;
pub use exchange::Wait;
pub use fanin::{fanin, Fanin};
pub use fanout::{fanout, Fanout};
pub use handoff::{handoff, Handoff};
pub use handover::{handover, Handover};
pub use latency::{latency, Latency, LatencyOptions};
pub use link::{link, LinkOptions, LinkReport, Namespaces};
pub use memory::{memory, Memory};
pub use path::{path, Path};
pub use spread::{spread, Spread};
pub use throughput::{throughput, Throughput};

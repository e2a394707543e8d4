//! Topics: descriptor rings, holder words, doorbells. No I/O but the futex.
//!
//! A publisher owns a ring of descriptors and a table of blocks in the control segment. Only the publisher writes them, except for
//! holder words and returned bits. Each subscriber reads the ring at its own cursor, and holds a block by setting its bit in the block's
//! *holder word*; the block is in use as long as any bit is set. Each bit belongs to one member. When a process dies, the daemon clears
//! its bits, so nothing leaks and nothing is freed twice. See `docs/decisions/0007-holder-words.md`.
//!
//! All code is generic over a [`Storage`], so that the models in `tests/loom` run the same code.

#![warn(clippy::too_many_lines)]

mod aborts;
mod admit;
mod backlog;
mod block_use;
mod deferred_release;
mod dropped;
mod free_slots;
mod holder;
mod metadata;
mod missed_so_far;
mod orphan;
mod point;
mod queue;
mod reader;
mod replica;
#[cfg(not(loom))]
mod shared;
mod step;
mod storage;
mod view;
mod wake;
mod writer;

pub use aborts::{queued_points, settle_points, PointSource};
pub use admit::{admit_subscriber, Admission};
pub use backlog::{published_after, published_ns};
pub use block_use::{block_uses, BlockUse};
pub use deferred_release::ReleaseList;
pub use free_slots::FreeSlots;
pub use holder::{Holders, Outcome};
pub use metadata::Metadata;
pub use missed_so_far::last_of_gaps;
pub use orphan::{
    abandon, clear_deferred_releases, clear_holder, clear_strangers, empty_deferred_releases,
    evict_lost, evict_through, live_blocks, ring_range, Abandoned,
};
pub use point::{bytes_there, progress, Point, Progress};
pub use queue::wanted_from;
pub use reader::{Held, Reader, Start, Taken};
pub use replica::{replicas, Copied};
#[cfg(not(loom))]
pub use shared::Shared;
#[cfg(feature = "crash-steps")]
pub use step::{reached as crash_step_reached, set_crash_hook};
pub use storage::Storage;
pub use view::{
    pool_copies, timeline, BlockView, DeferredReleaseView, DescriptorView, PublisherView,
    RegionView, SubscriberView, TimelineView, TopicView,
};
pub use wake::{ring, ring_ahead, ring_publishers, ring_sleepers, Sleeper};
pub use writer::{Freed, Loan, LoanError, Message, PublishError, Tensor, With, Writer};

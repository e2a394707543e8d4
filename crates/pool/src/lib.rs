//! Pools: shared segments, the address range that a process maps them into, and the
//! allocator that runs inside a leased arena.
mod segment;

pub use segment::{Access, Mapping, Numa, PageSize, Placement, PoolError, Segment, SegmentSource, Stream};

//! Pools: shared segments, the address range that a process maps them into, and the allocator
//! that runs inside a leased arena.
//!
//! The daemon makes segments with a [`SegmentSource`] and passes their descriptors to clients,
//! which map them with a [`Mapping`]. Other crates use memory through these two traits.
//! [`HostSource`] and [`HostMapping`] implement them for host memory, `rgaps-cuda` for GPU memory, and
//! `conformance` is one test suite for both.

#![warn(clippy::too_many_lines)]

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod dma_buf;
mod dmaplane;
mod fork;
mod host_config;
mod host_mapping;
mod host_source;
#[cfg(test)]
mod host_tests;
mod memfd;
mod numa;
mod segment;
mod shared_map;
mod tlsf;
mod udmabuf;
mod word_file;

pub use dma_buf::is_dma_buf;
pub use host_config::{HostConfig, HugePages};
pub use host_mapping::HostMapping;
pub use host_source::HostSource;
pub use memfd::{create_sealed_memfd, verify_memfd};
pub use segment::{
    Access, Mapping, Numa, PageSize, Placement, PoolError, Provider, Segment, SegmentSource, Stream,
};
pub use shared_map::SharedMap;
pub use tlsf::{Allocation, RegionError, Tlsf, TlsfStats, UnknownHandle};
pub use word_file::WordFile;

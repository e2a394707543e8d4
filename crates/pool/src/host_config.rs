//! The configuration of host memory: provider, page size, NUMA node, quota.

use crate::segment::Provider;

/// Whether segments consist of 2 MiB pages from the system's reserve (`vm.nr_hugepages`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugePages {
    /// No. The kernel may still merge pages if `transparent_hugepage/shmem_enabled` allows it.
    #[default]
    Off,
    /// Yes if there are enough, otherwise ordinary pages and a warning.
    Try,
    /// Yes; otherwise creating a segment fails.
    Require,
}

/// How a [`HostSource`](crate::HostSource) makes segments of host memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostConfig {
    /// The part of the system that gives the memory.
    pub provider: Provider,
    /// Size of the pages.
    pub huge_pages: HugePages,
    /// The NUMA node to take the memory from. None: any. Implies `prefault`, since only allocated pages
    /// have a node that can be verified.
    pub numa_node: Option<u32>,
    /// Allocates all memory of a segment when it is created, so that a system without memory refuses
    /// the segment instead of killing the process that touches it. Huge pages are always allocated so.
    pub prefault: bool,
    /// The most bytes of all segments of a source together, for providers whose kernel part enforces it. None: no limit.
    pub quota_bytes: Option<u64>,
}

impl HostConfig {
    /// Whether creating a segment of ordinary pages allocates its memory. For a dma-buf it always does.
    pub(crate) fn takes_memory(&self) -> bool {
        self.prefault || self.numa_node.is_some() || !self.provider.gives_files()
    }
}

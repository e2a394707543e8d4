//! What segments of host memory should be like.

use crate::segment::Provider;

/// Whether segments are made of 2 MiB pages from the system's reserve (`vm.nr_hugepages`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugePages {
    /// No. The kernel may still merge pages where `transparent_hugepage/shmem_enabled` says so.
    #[default]
    Off,
    /// Yes where there are enough, else ordinary pages and a warning.
    Try,
    /// Yes, or creating a segment fails.
    Require,
}

/// What segments of host memory should be like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostConfig {
    /// Who gives the memory.
    pub provider: Provider,
    /// Size of the pages.
    pub huge_pages: HugePages,
    /// NUMA node to take the memory from. Implies `prefault`, since only memory that is there can
    /// be looked at.
    pub numa_node: Option<u32>,
    /// Takes all memory of a segment when it is created, so that a system without memory refuses
    /// the segment instead of killing the process that touches it. Huge pages always are.
    pub prefault: bool,
    /// Most bytes of all segments of a source, for providers that have the kernel refuse more.
    pub quota_bytes: Option<u64>,
}

impl HostConfig {
    /// Whether the memory of a segment of ordinary pages is taken when it is created. A dma-buf consists of pages.
    pub(crate) fn takes_memory(&self) -> bool {
        self.prefault || self.numa_node.is_some() || !self.provider.gives_files()
    }
}

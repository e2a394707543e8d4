//! Makes segments of host memory: sealed memfds, with huge pages and on a NUMA node if configured, or dma-bufs.
//!
//! The memory of a dma-buf is allocated when it is made, and freed only with the whole segment. udmabuf makes a dma-buf of a
//! memfd, so NUMA nodes work as for memfds; it maps ordinary pages even of a memfd of huge ones, so we do not use huge pages
//! with it. The module dmaplane allocates memory itself (see `dmaplane`).

use crate::dma_buf::inspect_segment;
use crate::dmaplane;
use crate::host_config::{HostConfig, HugePages};
use crate::memfd::{create_memfd, seal, HUGE_BYTES};
use crate::numa;
use crate::segment::{Access, PageSize, Placement, PoolError, Provider, Segment, SegmentSource};
use crate::shared_map::SharedMap;
use crate::udmabuf;
use rgaps_dmaplane::Realm;
use rgaps_layout::{Domain, MAX_POOL_BYTES, SEGMENT_UNIT_BYTES};
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes per `fallocate` call: a signal undoes only the call in progress.
const ALLOCATE_STEP_BYTES: u64 = 256 << 20;
/// Interrupted `fallocate` calls in a row before giving up.
const ALLOCATE_RETRIES: u32 = 100;

const _: () = assert!(SEGMENT_UNIT_BYTES % HUGE_BYTES == 0);

/// Makes segments of host memory.
#[derive(Debug)]
pub struct HostSource {
    config: HostConfig,
    /// Opened when memory of the module dmaplane is first made or adopted.
    realm: Option<Realm>,
    /// Added to the warnings of every segment.
    warning: Option<String>,
}

impl HostSource {
    /// A source of segments as configured.
    pub fn new(config: HostConfig) -> Self {
        HostSource {
            config,
            realm: None,
            warning: None,
        }
    }

    /// Adds `warning` to the placement of every segment, for example that part of the configuration could not be determined.
    pub fn warning(mut self, warning: String) -> Self {
        self.warning = Some(warning);
        self
    }

    /// Creates a memfd of `bytes` bytes, not sealed yet. Allocates its memory if so configured.
    fn allocate(&self, bytes: u64, pages: PageSize) -> Result<(OwnedFd, Placement), PoolError> {
        let mut placement = Placement {
            provider: Some(self.config.provider),
            pages,
            numa: None,
            warnings: self.warning.iter().cloned().collect(),
        };
        let fd = match pages {
            PageSize::Huge(_) => {
                let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
                create_memfd("rgaps-pool-huge", bytes, flags)?
            }
            _ => create_memfd("rgaps-pool", bytes, MemfdFlags::empty())?,
        };
        // The policy decides on which node `take_memory` allocates the pages, so it is set first.
        let map = match self.config.numa_node {
            Some(node) => {
                let map = SharedMap::map_unchecked(fd.as_fd(), bytes, Access::ReadWrite)?;
                placement.warnings.extend(numa::prefer(&map, node).err());
                Some((node, map))
            }
            None => None,
        };
        if self.config.takes_memory() || pages != PageSize::Base {
            take_memory(&fd, bytes, pages)?;
        }
        if let Some((node, map)) = map {
            let (found, warning) = numa::verify(&map, node, page_bytes(pages));
            placement.numa = Some(found);
            placement.warnings.extend(warning);
        }
        Ok((fd, placement))
    }

    fn realm(&mut self) -> Result<&Realm, PoolError> {
        let realm = match self.realm.take() {
            Some(realm) => realm,
            None => dmaplane::open(&self.config)?,
        };
        Ok(self.realm.insert(realm))
    }

    /// A sealed memfd.
    fn memfd(&self, bytes: u64) -> Result<(OwnedFd, Placement), PoolError> {
        let (fd, placement) = self.allocate_or_fall_back(bytes)?;
        seal(&fd)?;
        Ok((fd, placement))
    }

    fn allocate_or_fall_back(&self, bytes: u64) -> Result<(OwnedFd, Placement), PoolError> {
        if self.config.huge_pages == HugePages::Off {
            return self.allocate(bytes, PageSize::Base);
        }
        if !self.config.provider.gives_files() {
            return self.allocate_without_huge(bytes);
        }
        let refused = match self.allocate(bytes, PageSize::Huge(HUGE_BYTES)) {
            Ok(made) => return Ok(made),
            Err(refused) if self.config.huge_pages == HugePages::Require => return Err(refused),
            Err(refused) => refused,
        };
        let (fd, mut placement) = self.allocate(bytes, PageSize::Base)?;
        placement
            .warnings
            .push(format!("ordinary pages instead of huge ones: {refused}"));
        Ok((fd, placement))
    }

    /// For providers whose memory is mapped by ordinary pages.
    fn allocate_without_huge(&self, bytes: u64) -> Result<(OwnedFd, Placement), PoolError> {
        let provider = self.config.provider.name();
        if self.config.huge_pages == HugePages::Require {
            let hint = format!(
                "pool.host.provider = \"{provider}\" maps ordinary pages only; set pool.host.hugepages to \"try\", or the \
                 provider to \"memfd\""
            );
            return Err(PoolError::system("mmap", Errno::OPNOTSUPP, hint));
        }
        let (fd, mut placement) = self.allocate(bytes, PageSize::Base)?;
        placement.warnings.push(format!(
            "ordinary pages instead of huge ones: the provider {provider} maps no others"
        ));
        Ok((fd, placement))
    }
}

impl SegmentSource for HostSource {
    fn domain(&self) -> Domain {
        Domain::Host
    }

    fn granularity(&self) -> u64 {
        SEGMENT_UNIT_BYTES
    }

    fn create(&mut self, bytes: u64) -> Result<Segment, PoolError> {
        check_segment_bytes(bytes)?;
        let (fd, placement) = match self.config.provider {
            Provider::Memfd => self.memfd(bytes)?,
            Provider::Udmabuf => {
                // Opened first, so that a failure allocates no memory.
                let device = udmabuf::open(bytes)?;
                let (memfd, placement) = self.memfd(bytes)?;
                let fd = udmabuf::export(device.as_fd(), memfd.as_fd(), bytes)?;
                (fd, placement)
            }
            Provider::Dmaplane => {
                let config = self.config;
                let (fd, mut placement) = dmaplane::create(self.realm()?, &config, bytes)?;
                placement.warnings.extend(self.warning.clone());
                (fd, placement)
            }
        };
        for warning in &placement.warnings {
            tracing::warn!(bytes, "host segment: {warning}");
        }
        let inode = inspect_segment(fd.as_fd(), bytes)?.inode;
        Ok(Segment {
            fd,
            bytes,
            inode,
            placement,
        })
    }

    fn adopt(&mut self, fd: OwnedFd, bytes: u64, inode: u64) -> Result<Segment, PoolError> {
        check_segment_bytes(bytes)?;
        let found = inspect_segment(fd.as_fd(), bytes)?;
        let uid = rustix::process::geteuid().as_raw();
        if found.uid != uid {
            let why = format!("it belongs to user {} instead of {uid}", found.uid);
            return Err(PoolError::Untrusted(why));
        }
        if inode != 0 && found.inode != inode {
            let why = format!("it is inode {} instead of {inode}", found.inode);
            return Err(PoolError::Untrusted(why));
        }
        let mut pages = found.pages;
        if found.provider == Provider::Dmaplane {
            match self.realm() {
                Ok(realm) => pages = dmaplane::adopt(realm, fd.as_fd(), bytes),
                Err(error) => tracing::warn!(%error, "memory of a previous daemon is not adopted"),
            }
        }
        // The provider is the segment's: the earlier daemon may have been configured with another one.
        let placement = Placement {
            provider: Some(found.provider),
            pages,
            numa: None,
            warnings: Vec::new(),
        };
        Ok(Segment {
            fd,
            bytes,
            inode: found.inode,
            placement,
        })
    }

    /// Frees ordinary pages of memfds only. Keeps huge pages and prefaulted memory: if other processes took the freed
    /// memory, the next access would kill the process that makes it. A dma-buf cannot have holes.
    fn discard(&mut self, segment: &Segment, offset: u64, bytes: u64) {
        let is_file = segment
            .placement
            .provider
            .is_some_and(Provider::gives_files);
        let kept =
            self.config.takes_memory() || segment.placement.pages != PageSize::Base || !is_file;
        let inside = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= segment.bytes);
        if kept || !inside || bytes == 0 {
            return;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = rustix::fs::fallocate(&segment.fd, flags, offset, bytes) {
            tracing::warn!(%error, offset, bytes, "memory of a pool could not be given back");
        }
    }
}

fn check_segment_bytes(bytes: u64) -> Result<(), PoolError> {
    if bytes == 0 || bytes % SEGMENT_UNIT_BYTES != 0 || bytes > MAX_POOL_BYTES {
        let (unit, most) = (SEGMENT_UNIT_BYTES, MAX_POOL_BYTES);
        return Err(PoolError::BadSize {
            what: "segment",
            bytes,
            unit,
            most,
        });
    }
    Ok(())
}

fn page_bytes(pages: PageSize) -> u64 {
    match pages {
        PageSize::Huge(bytes) => bytes,
        _ => rustix::param::page_size() as u64,
    }
}

/// Allocates every page of the file, so that later accesses cannot fail.
fn take_memory(fd: &OwnedFd, bytes: u64, pages: PageSize) -> Result<(), PoolError> {
    if pages == PageSize::Base {
        check_available(bytes)?;
    }
    let (mut done, mut interrupted) = (0, 0);
    while done < bytes {
        let step = ALLOCATE_STEP_BYTES.min(bytes - done);
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), done, step) {
            Ok(()) => (done, interrupted) = (done + step, 0),
            Err(Errno::INTR) if interrupted < ALLOCATE_RETRIES => interrupted += 1,
            Err(error) => {
                return Err(PoolError::system(
                    "fallocate",
                    error,
                    no_memory(pages, bytes),
                ))
            }
        }
    }
    Ok(())
}

/// Fails if less than `bytes` bytes are available. The kernel would not refuse to allocate more, but start the OOM killer.
fn check_available(bytes: u64) -> Result<(), PoolError> {
    match available_bytes() {
        Some(available) if available < bytes => {
            let hint =
                format!("{available} bytes are available; ask for less, or without prefault");
            Err(PoolError::system("fallocate", Errno::NOMEM, hint))
        }
        _ => Ok(()),
    }
}

fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

fn no_memory(pages: PageSize, bytes: u64) -> String {
    match pages {
        PageSize::Huge(huge) => format!(
            "{} huge pages of {} KiB are needed beyond those in use: raise vm.nr_hugepages \
             (sysctl -w vm.nr_hugepages=N), or set huge pages to off",
            bytes / huge,
            huge >> 10
        ),
        _ => "free memory, raise the memory limit of this cgroup, or ask for less".to_owned(),
    }
}

//! Memory of the kernel module dmaplane: dma-bufs with a quota, in blocks of one NUMA node.
//!
//! A source has a *realm* of the module, whose quota is the cap of its pool: the kernel refuses memory beyond it. When a
//! daemon dies, its memory belongs to no realm. The next daemon adopts the memory, which then counts against its quota.
//!
//! The module reports the node of a buffer's pages, so pages need not be sampled unless that is another node than asked.

use crate::host_config::{HostConfig, HugePages};
use crate::memfd::HUGE_BYTES;
use crate::numa;
use crate::segment::{Access, Numa, PageSize, Placement, PoolError, Provider};
use crate::shared_map::SharedMap;
use rgaps_dmaplane::{Allocated, Error, Realm, Wanted};
use rgaps_layout::Domain;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The quota that the module treats as unlimited.
const NO_QUOTA: u64 = i64::MAX as u64;

/// Opens a realm with the configuration's quota.
pub(crate) fn open(config: &HostConfig) -> Result<Realm, PoolError> {
    let realm = Realm::open().map_err(refused)?;
    let quota = config.quota_bytes.unwrap_or(NO_QUOTA);
    realm.set_quota(quota).map_err(refused)?;
    Ok(realm)
}

/// Makes a dma-buf of `bytes` zeros as configured.
pub(crate) fn create(
    realm: &Realm,
    config: &HostConfig,
    bytes: u64,
) -> Result<(OwnedFd, Placement), PoolError> {
    let mut warnings = Vec::new();
    let wanted = Wanted {
        bytes,
        node: config.numa_node,
        huge: config.huge_pages != HugePages::Off,
        strict_node: false,
    };
    let made = match alloc(realm, &wanted, &mut warnings) {
        Err(error) if config.huge_pages == HugePages::Try => {
            warnings.push(format!("ordinary pages instead of huge ones: {error}"));
            let wanted = Wanted {
                huge: false,
                ..wanted
            };
            alloc(realm, &wanted, &mut warnings)
        }
        made => made,
    }
    .map_err(refused)?;
    let numa = match config.numa_node {
        Some(node) => Some(found_on(node, &made, bytes, &mut warnings)?),
        None => None,
    };
    let placement = Placement {
        provider: Some(Provider::Dmaplane),
        pages: page_size(made.block_bytes),
        numa,
        warnings,
    };
    Ok((made.dma_buf, placement))
}

/// Allocates memory; if the wanted node does not exist, on any node, with a warning.
fn alloc(realm: &Realm, wanted: &Wanted, warnings: &mut Vec<String>) -> Result<Allocated, Error> {
    match (realm.alloc(wanted), wanted.node) {
        (Err(error), Some(node)) if error.errno() == Some(Errno::INVAL.raw_os_error()) => {
            let made = realm.alloc(&Wanted {
                node: None,
                ..*wanted
            })?;
            warnings.push(numa::unknown(node));
            Ok(made)
        }
        (made, _) => made,
    }
}

/// How many pages are on `node`: from the module's report, or by sampling if it names another node.
fn found_on(
    node: u32,
    made: &Allocated,
    bytes: u64,
    warnings: &mut Vec<String>,
) -> Result<Numa, PoolError> {
    let page = rustix::param::page_size() as u64;
    if made.actual_node == Some(node) {
        let pages = (bytes / page) as u32;
        return Ok(Numa {
            asked: node,
            sampled: pages,
            on_node: pages,
        });
    }
    let map = SharedMap::map_unchecked(made.dma_buf.as_fd(), bytes, Access::ReadWrite)?;
    let (found, warning) = numa::verify(&map, node, page);
    warnings.extend(warning);
    Ok(found)
}

/// Adopts a dma-buf of an earlier daemon, so that it counts against the quota again; raises the quota if it is too small,
/// since the memory exists already. A failure is only logged: the memory stays usable. Returns the page size.
pub(crate) fn adopt(realm: &Realm, dma_buf: BorrowedFd<'_>, bytes: u64) -> PageSize {
    let adopted = realm.info(dma_buf).and_then(|info| {
        if !info.is_mine {
            let usage = realm.usage()?;
            let needed = usage.used_bytes.saturating_add(bytes);
            if needed > usage.quota_bytes {
                realm.set_quota(needed)?;
            }
            realm.adopt(dma_buf)?;
        }
        Ok(info)
    });
    match adopted {
        Ok(info) => page_size(info.block_bytes),
        Err(error) => {
            tracing::warn!(%error, bytes, "memory of a previous daemon does not count against the quota of its pool");
            PageSize::Base
        }
    }
}

fn page_size(block_bytes: u64) -> PageSize {
    match block_bytes {
        HUGE_BYTES.. => PageSize::Huge(HUGE_BYTES),
        _ => PageSize::Base,
    }
}

fn refused(error: Error) -> PoolError {
    match error {
        Error::Open { source, hint, .. } => {
            PoolError::provider("open(/dev/dmaplane-pool)", source, hint)
        }
        Error::Call { call, source, hint } => PoolError::provider(call, source, hint),
        other => PoolError::Unavailable {
            domain: Domain::Host,
            reason: other.to_string(),
        },
    }
}

//! The memory of a zone: its pools, and who leases what of them.
//!
//! Pools have the numbers 0, 1, ... in the order in which their domains were first used, and are never removed. The registry has
//! each change before anyone may use it, so that a successor knows of it.

use crate::granule_set::GranuleSet;
use crate::granules::FREE;
use crate::pools::{LeaseError, Pool};
use crate::refuse::{bad, memory, refuse, system};
use crate::registry::RegistryFile;
use crate::sources::Sources;
use rgaps_layout::{
    Domain, GpuUuid, PoolRecord, MAX_POOLS, MAX_POOL_BYTES, MAX_SEGMENTS, RECORD_LIVE,
    SEGMENT_UNIT_BYTES,
};
use rgaps_session::{Range, Refusal, RefusalCode};
use std::collections::HashSet;
use std::os::fd::OwnedFd;

/// The pools of a zone.
#[derive(Default)]
pub(crate) struct Memory {
    pools: Vec<Pool>,
}

impl Memory {
    /// The pools that a predecessor recorded; their segments are still to be handed back.
    pub(crate) fn load(
        registry: &RegistryFile,
        sources: &mut dyn Sources,
    ) -> Result<Memory, Refusal> {
        let mut pools = Vec::new();
        for index in 0..MAX_POOLS as u32 {
            let record = registry
                .pool(index)
                .map_err(|e| system("read the registry", e))?;
            if record.state != RECORD_LIVE {
                break;
            }
            check_record(&record)?;
            let domain = match record.domain_kind {
                0 => Domain::Host,
                _ => Domain::Cuda(GpuUuid(record.gpu_uuid)),
            };
            let opened = sources.open(domain).map_err(memory)?;
            // The recorded cap, not today's: clients have reserved that much address space.
            let mut pool = Pool::new(index, opened.source, record.cap_bytes, opened.segment_bytes);
            pool.expect(&record.segments[..record.segment_count as usize]);
            pool.pinned = record.pinned != 0;
            pools.push(pool);
        }
        Ok(Memory { pools })
    }

    /// Restores the leases that a predecessor recorded. Frees granules that belong to none of `owners`.
    pub(crate) fn load_leases(
        &mut self,
        registry: &RegistryFile,
        owners: &HashSet<u32>,
    ) -> std::io::Result<()> {
        for pool in &mut self.pools {
            let recorded = registry.granules(pool.index, pool.granule_count())?;
            let mut at = 0;
            for run in recorded.chunk_by(|owner, next| owner == next) {
                let (first, count, owner) = (at, run.len(), run[0]);
                at += count;
                if owner == FREE {
                    continue;
                }
                pool.restore_owner(first, count, owner);
                if !owners.contains(&owner) {
                    pool.free(registry, first, count);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter()
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Pool> {
        self.pools.get(index as usize)
    }

    /// A pool by the number that a client sent, or a refusal.
    pub(crate) fn require(&self, index: u32) -> Result<&Pool, Refusal> {
        self.get(index).ok_or_else(|| no_pool(index))
    }

    fn require_mut(&mut self, index: u32) -> Result<&mut Pool, Refusal> {
        let pool = self.pools.get_mut(index as usize);
        pool.ok_or_else(|| no_pool(index))
    }

    /// The pool of a topic or member of the zone. It exists, since pools are never removed.
    pub(crate) fn pool(&self, index: u32) -> &Pool {
        &self.pools[index as usize]
    }

    pub(crate) fn domain(&self, index: u32) -> Domain {
        self.pool(index).domain
    }

    /// The pool of a domain. Creates it if there is none.
    pub(crate) fn pool_for(
        &mut self,
        domain: Domain,
        registry: &RegistryFile,
        sources: &mut dyn Sources,
    ) -> Result<u32, Refusal> {
        if let Some(pool) = self.pools.iter().find(|pool| pool.domain == domain) {
            return Ok(pool.index);
        }
        if self.pools.len() >= MAX_POOLS {
            return Err(refuse(
                RefusalCode::LimitReached,
                format!("the limit of pools in {MAX_POOLS} domains is reached"),
            ));
        }
        let opened = sources.open(domain).map_err(memory)?;
        let index = self.pools.len() as u32;
        let pool = Pool::new(index, opened.source, opened.cap_bytes, opened.segment_bytes);
        registry
            .set_pool(index, &pool.record())
            .map_err(|e| system("write its registry", e))?;
        self.pools.push(pool);
        Ok(index)
    }

    /// Takes a predecessor's segments of a pool, from number `from` on.
    pub(crate) fn adopt(
        &mut self,
        index: u32,
        from: u32,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        let pool = self.require_mut(index)?;
        for (fd, number) in fds.into_iter().zip(from..) {
            pool.adopt(number, fd)?;
        }
        Ok(())
    }

    /// Whether clients have still to hand back segments of a predecessor.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.pools.iter().any(Pool::is_incomplete)
    }

    /// Gives up segments that were not handed back. Returns the pools that lost some, and how many bytes of each are left.
    pub(crate) fn drop_missing(&mut self, registry: &RegistryFile) -> Vec<(u32, u64)> {
        let incomplete = self.pools.iter_mut().filter(|pool| pool.is_incomplete());
        incomplete
            .map(|pool| (pool.index, pool.drop_missing(registry)))
            .collect()
    }

    /// Leases at least `bytes` contiguous bytes to `owner`.
    pub(crate) fn lease(
        &mut self,
        index: u32,
        registry: &RegistryFile,
        bytes: u64,
        owner: u32,
    ) -> Result<Range, LeaseError> {
        let pool = self.require_mut(index).map_err(LeaseError::Other)?;
        pool.lease(registry, bytes, owner)
    }

    /// Frees ranges that `owner` returns: all or none. `live`: granules with blocks in use, which it refuses to free.
    pub(crate) fn give_back(
        &mut self,
        index: u32,
        registry: &RegistryFile,
        owner: u32,
        ranges: &[Range],
        live: &GranuleSet,
    ) -> Result<(), Refusal> {
        let pool = self.require_mut(index)?;
        let mut owned = Vec::new();
        for range in ranges {
            let (first, count) = pool.owned(range, owner).ok_or_else(|| {
                bad(format!(
                    "{1} bytes at {0} are not whole leases of this publisher",
                    range.offset, range.bytes
                ))
            })?;
            if live.touches(first, count) {
                return Err(bad(format!(
                    "blocks in the {} bytes at {} are still loaned, kept in a history or held",
                    range.bytes, range.offset
                )));
            }
            owned.push((first, count));
        }
        for (first, count) in owned {
            pool.free(registry, first, count);
        }
        Ok(())
    }

    /// Frees those of `owner`'s granules that are not in what `keep` returns for their pool. Returns how many.
    pub(crate) fn free_except<'a>(
        &mut self,
        registry: &RegistryFile,
        owner: u32,
        keep: impl Fn(u32) -> &'a GranuleSet,
    ) -> usize {
        let pools = self.pools.iter_mut();
        pools
            .map(|pool| pool.free_except(registry, owner, keep(pool.index)))
            .sum()
    }

    /// Bytes of a pool that `owner` leases.
    pub(crate) fn leased(&self, index: u32, owner: u32) -> u64 {
        self.get(index)
            .map_or(0, |pool| pool.leased_bytes_of(owner))
    }

    /// Notes that a client registers the pages of a pool with a driver, so that the pool does not shrink.
    pub(crate) fn pin(&mut self, index: u32, registry: &RegistryFile) -> Result<(), Refusal> {
        self.require_mut(index)?.pin(registry)
    }
}

fn no_pool(index: u32) -> Refusal {
    refuse(
        RefusalCode::NotFound,
        format!("the zone has no pool {index}"),
    )
}

fn check_record(record: &PoolRecord) -> Result<(), Refusal> {
    let count = record.segment_count as usize;
    let segments = record
        .segments
        .get(..count.min(MAX_SEGMENTS))
        .unwrap_or_default();
    let sizes = segments
        .iter()
        .all(|s| s.bytes > 0 && s.bytes % SEGMENT_UNIT_BYTES == 0 && s.bytes <= MAX_POOL_BYTES);
    let total: u128 = segments.iter().map(|s| u128::from(s.bytes)).sum();
    let sound = count <= MAX_SEGMENTS
        && sizes
        && record.cap_bytes <= MAX_POOL_BYTES
        && total <= u128::from(record.cap_bytes)
        && record.domain_kind <= 1;
    sound.then_some(()).ok_or_else(|| {
        refuse(
            RefusalCode::ZoneLost,
            "the registry's records of pools are invalid; restart the clients",
        )
    })
}

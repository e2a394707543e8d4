//! The conductor's records of its zones, pools and members: everything that it must hand back to the next daemon.

use super::mapping::PoolMapping;
use super::{ClientError, ZoneView};
use rgaps_layout::{Domain, GRANULE_BYTES, MAX_SEGMENTS, SEGMENT_UNIT_BYTES};
use rgaps_pool::{Access, Mapping};
use rgaps_session::{Member, PoolGrant, Range};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

/// The records of one zone.
pub(super) struct ZoneBook {
    pub(super) view: Arc<ZoneView>,
    pub(super) pools: BTreeMap<u32, PoolBook>,
    pub(super) members: HashMap<Member, MemberBook>,
    /// Doorbells of this process's wait sets.
    pub(super) doorbells: BTreeSet<u32>,
    /// Timelines of this process's streams.
    pub(super) timelines: BTreeSet<u32>,
}

/// A publisher or subscriber of this process.
#[derive(Default)]
pub(super) struct MemberBook {
    /// A publisher's leases by pool: its own pool, and those that it copies to. Empty for a subscriber.
    pub(super) leases: BTreeMap<u32, Vec<Range>>,
    /// The pool that a subscriber reads in. None: it reads messages in the topic's pool.
    pub(super) reads: Option<u32>,
    /// How a subscriber's messages reach it, for listings. None: it has reported nothing.
    pub(super) path: Option<String>,
    /// The allocators over a publisher's leases.
    pub(super) arena: Option<Weak<dyn Arena>>,
}

/// A publisher's leased memory, cut into blocks. The conductor's thread upgrades weak references to it and may drop the last strong
/// one, so dropping it must not wait for the conductor.
pub(crate) trait Arena: Send + Sync {
    /// Takes the free memory of a pool out of the allocator, for the caller to return to the daemon.
    fn take_free(&self, pool: u32) -> Vec<Range>;
}

impl ZoneBook {
    pub(super) fn new(view: Arc<ZoneView>) -> ZoneBook {
        ZoneBook {
            view,
            pools: BTreeMap::new(),
            members: HashMap::new(),
            doorbells: BTreeSet::new(),
            timelines: BTreeSet::new(),
        }
    }

    /// The records of a pool, made if there are none. Keeps the first grant: a pool's number, domain and cap never change.
    pub(super) fn pool(&mut self, grant: &PoolGrant) -> &mut PoolBook {
        self.pools
            .entry(grant.pool)
            .or_insert_with(|| PoolBook::new(*grant))
    }

    /// Whether this process has a publisher that writes in the pool, so that it may map the pool for writing.
    pub(super) fn publishes_in(&self, pool: u32) -> bool {
        self.members
            .values()
            .any(|member| member.leases.contains_key(&pool))
    }

    /// Whether a member of this process may read messages in the pool. Does not count a subscriber that reads in another pool: it maps
    /// this one when a message has no replica there.
    pub(super) fn reads_in(&self, pool: u32) -> bool {
        let mut members = self.members.values();
        members.any(|member| member.reads.is_none_or(|reads| reads == pool))
    }

    /// Whether this process has no member and no doorbell in the zone.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.doorbells.is_empty()
    }
}

/// The records of a pool: its segments' descriptors, kept to hand them back to the next daemon, and its mappings.
pub(super) struct PoolBook {
    pub(super) grant: PoolGrant,
    segments: Vec<KnownSegment>,
    /// One mapping for each access and each CPU or GPU that uses the pool.
    mappings: Vec<Mapped>,
}

struct KnownSegment {
    fd: OwnedFd,
    bytes: u64,
    /// Whether the descriptor allows writing. Descriptors that arrived while this process had no publisher in the pool do not.
    writable: bool,
}

struct Mapped {
    mapping: Arc<PoolMapping>,
    /// How many of `PoolBook::segments` are mapped.
    segments: usize,
}

impl PoolBook {
    fn new(grant: PoolGrant) -> PoolBook {
        PoolBook {
            grant,
            segments: Vec::new(),
            mappings: Vec::new(),
        }
    }

    /// The descriptors of all segments that this process has, in order.
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.segments
            .iter()
            .map(|segment| segment.fd.as_fd())
            .collect()
    }

    /// Number of the first segment that this process does not have, or with `to_write` has only for reading.
    pub(super) fn first_wanted(&self, to_write: bool) -> u32 {
        let known = self
            .segments
            .iter()
            .take_while(|segment| segment.writable || !to_write);
        known.count() as u32
    }

    pub(super) fn is_mapped(&self) -> bool {
        !self.mappings.is_empty()
    }

    pub(super) fn mapping(&self, access: Access, at: Domain) -> Option<&Arc<PoolMapping>> {
        let mut known = self.mappings.iter().map(|mapped| &mapped.mapping);
        known.find(|mapping| mapping.access() == access && mapping.at() == at)
    }

    pub(super) fn add_mapping(&mut self, mapping: Arc<PoolMapping>) {
        self.mappings.push(Mapped {
            mapping,
            segments: 0,
        });
    }

    pub(super) fn remove_mapping(&mut self, mapping: &Arc<PoolMapping>) {
        self.mappings
            .retain(|mapped| !Arc::ptr_eq(&mapped.mapping, mapping));
    }

    /// Whether every mapping for writing covers the offsets up to `end`.
    pub(super) fn is_written_to(&self, end: u64) -> bool {
        let mut known = self.mappings.iter().map(|mapped| &mapped.mapping);
        known.all(|mapping| mapping.access() == Access::ReadOnly || mapping.mapped() >= end)
    }

    /// Whether this process maps the pool for writing.
    pub(super) fn is_written(&self) -> bool {
        let mut known = self.mappings.iter();
        known.any(|mapped| mapped.mapping.access() == Access::ReadWrite)
    }

    /// Records segments that the daemon sent, from number `from` on. They replace the descriptors of known segments; mappings stay as
    /// they are.
    pub(super) fn enter(
        &mut self,
        from: u32,
        bytes: &[u64],
        fds: Vec<OwnedFd>,
        writable: bool,
    ) -> Result<(), ClientError> {
        let wrong = |what: &str| Err(ClientError::Protocol(what.to_owned()));
        if bytes.len() != fds.len() {
            return wrong("it sent another number of segments than of file descriptors");
        }
        for (at, (fd, bytes)) in (from as usize..).zip(fds.into_iter().zip(bytes.iter().copied())) {
            if bytes == 0 || bytes % SEGMENT_UNIT_BYTES != 0 || at >= MAX_SEGMENTS {
                return wrong("it sent a segment of an invalid size, or more than a pool can have");
            }
            let segment = KnownSegment {
                fd,
                bytes,
                writable,
            };
            match self.segments.get_mut(at) {
                Some(known) if known.bytes != bytes => {
                    return wrong("the size of a segment has changed")
                }
                Some(known) => *known = segment,
                None => self.segments.push(segment),
            }
        }
        let total = self
            .segments
            .iter()
            .fold(0u64, |sum, segment| sum.saturating_add(segment.bytes));
        if total > self.grant.cap_bytes.next_multiple_of(SEGMENT_UNIT_BYTES) {
            return wrong("it sent segments beyond the pool's cap");
        }
        Ok(())
    }

    /// Maps recorded segments in all mappings that lack them. A mapping for writing stops at the first read-only descriptor.
    pub(super) fn extend_mappings(&mut self) -> Result<(), ClientError> {
        for mapped in &mut self.mappings {
            let to_write = mapped.mapping.access() == Access::ReadWrite;
            for segment in self.segments.iter().skip(mapped.segments) {
                if to_write && !segment.writable {
                    break;
                }
                let fd = segment.fd.as_fd();
                mapped.mapping.extend_reported(fd, segment.bytes)?;
                mapped.segments += 1;
            }
        }
        Ok(())
    }
}

/// Removes `returned` from `ranges`. It may cover parts of several ranges.
pub(crate) fn subtract(ranges: &mut Vec<Range>, returned: Range) {
    let returned_end = returned.offset.saturating_add(returned.bytes);
    let mut left = Vec::with_capacity(ranges.len() + 1);
    for range in ranges.iter() {
        let end = range.offset.saturating_add(range.bytes);
        let before = returned.offset.clamp(range.offset, end);
        let after = returned_end.clamp(range.offset, end).max(before);
        for (from, to) in [(range.offset, before), (after, end)] {
            if from < to {
                left.push(Range {
                    offset: from,
                    bytes: to - from,
                });
            }
        }
    }
    *ranges = left;
}

/// Checks that the daemon leased whole granules inside the pool, and that the first range has the `wanted` bytes.
pub(super) fn check_lease(ranges: &[Range], wanted: u64, cap: u64) -> Result<(), ClientError> {
    let sound = |range: &Range| {
        range.bytes != 0
            && range.offset % GRANULE_BYTES == 0
            && range.bytes % GRANULE_BYTES == 0
            && range
                .offset
                .checked_add(range.bytes)
                .is_some_and(|end| end <= cap)
    };
    if ranges.first().is_none_or(|first| first.bytes < wanted) || !ranges.iter().all(sound) {
        return Err(ClientError::Protocol(format!(
            "it leased {ranges:?} to a publisher that wanted {wanted} bytes of a pool of {cap}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: u64, to: u64) -> Range {
        Range {
            offset: from,
            bytes: to - from,
        }
    }

    #[test]
    fn subtracting_leases() {
        let cases = [
            (vec![range(0, 10)], range(0, 10), vec![]),
            (
                vec![range(0, 10)],
                range(2, 4),
                vec![range(0, 2), range(4, 10)],
            ),
            (vec![range(0, 10)], range(0, 4), vec![range(4, 10)]),
            (vec![range(0, 10)], range(8, 12), vec![range(0, 8)]),
            (
                vec![range(2, 4), range(4, 6)],
                range(3, 5),
                vec![range(2, 3), range(5, 6)],
            ),
            (vec![range(2, 4)], range(4, 9), vec![range(2, 4)]),
            (vec![range(2, 4)], range(0, 2), vec![range(2, 4)]),
            (vec![range(2, 4), range(8, 9)], range(0, u64::MAX), vec![]),
        ];
        for (mut ranges, gone, left) in cases {
            subtract(&mut ranges, gone);
            assert_eq!(ranges, left, "without {gone:?}");
        }
    }

    #[test]
    fn leases_are_checked() {
        let g = GRANULE_BYTES;
        let cap = 8 * g;
        assert!(check_lease(&[range(g, 3 * g), range(4 * g, 5 * g)], 2 * g, cap).is_ok());
        assert!(check_lease(&[range(6 * g, 8 * g)], 1, cap).is_ok());
        assert!(check_lease(&[], g, cap).is_err());
        assert!(check_lease(&[range(0, g)], 2 * g, cap).is_err());
        assert!(check_lease(&[range(7 * g, 9 * g)], g, cap).is_err());
        assert!(check_lease(&[range(1, g + 1)], g, cap).is_err());
        let wraps = Range {
            offset: u64::MAX - g + 1,
            bytes: g,
        };
        assert!(check_lease(&[range(0, g), wraps], g, cap).is_err());
    }
}

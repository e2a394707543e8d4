//! What the conductor knows of its zones: enough to hand everything back to another daemon.

use super::mapping::PoolMapping;
use super::{ClientError, ZoneView};
use rgaps_layout::{Domain, GRANULE_BYTES, MAX_SEGMENTS, SEGMENT_UNIT_BYTES};
use rgaps_pool::{Access, Mapping};
use rgaps_session::{Member, PoolGrant, Range};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

/// A zone's page in the book.
pub(super) struct ZoneBook {
    pub(super) view: Arc<ZoneView>,
    pub(super) pools: BTreeMap<u32, PoolBook>,
    pub(super) members: HashMap<Member, MemberBook>,
    /// Taken for wait sets.
    pub(super) doorbells: BTreeSet<u32>,
    /// Taken for streams.
    pub(super) timelines: BTreeSet<u32>,
}

/// A publisher or subscriber of this process.
#[derive(Default)]
pub(super) struct MemberBook {
    /// What a publisher has leased, by pool: its own, and those that it copies to.
    pub(super) leases: BTreeMap<u32, Vec<Range>>,
    /// The pool that a subscriber reads in, if it is one of its own.
    pub(super) reads: Option<u32>,
    /// How a subscriber's messages reach it, for listings.
    pub(super) path: Option<String>,
    /// The allocator over it.
    pub(super) arena: Option<Weak<dyn Arena>>,
}

/// What a publisher has leased and cut into blocks. Weak references to it are followed on the
/// conductor's thread, so dropping one must not wait for the conductor.
pub(crate) trait Arena: Send + Sync {
    /// Takes out what no message needs of a pool, to be given back.
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

    /// The pool's page, made if need be. The first word on it holds: a pool does not change.
    pub(super) fn pool(&mut self, grant: &PoolGrant) -> &mut PoolBook {
        self.pools
            .entry(grant.pool)
            .or_insert_with(|| PoolBook::new(*grant))
    }

    /// Whether this process publishes in the pool, so that it may have it for writing.
    pub(super) fn publishes_in(&self, pool: u32) -> bool {
        self.members
            .values()
            .any(|member| member.leases.contains_key(&pool))
    }

    /// Whether messages are read in the pool here: a subscriber that reads elsewhere needs it only for
    /// those that were not copied.
    pub(super) fn reads_in(&self, pool: u32) -> bool {
        let mut members = self.members.values();
        members.any(|member| member.reads.is_none_or(|reads| reads == pool))
    }

    /// Whether anything of this process is in the zone still.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.doorbells.is_empty()
    }
}

/// A pool's page in the book: its segments' descriptors, kept for a daemon to come, and how they
/// are mapped.
pub(super) struct PoolBook {
    pub(super) grant: PoolGrant,
    segments: Vec<KnownSegment>,
    /// One for each access and each CPU or GPU that uses the pool.
    mappings: Vec<Mapped>,
}

struct KnownSegment {
    fd: OwnedFd,
    bytes: u64,
    /// Whether the descriptor can be written through. Those that came while this process had no
    /// publisher in the pool cannot.
    writable: bool,
}

struct Mapped {
    mapping: Arc<PoolMapping>,
    /// Of `PoolBook::segments`, mapped so far.
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

    /// Descriptors of the segments that are known, in order.
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.segments
            .iter()
            .map(|segment| segment.fd.as_fd())
            .collect()
    }

    /// Number of the first segment that is not known, or not as it has to be.
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

    /// Whether all that is mapped for writing reaches to `end`.
    pub(super) fn is_written_to(&self, end: u64) -> bool {
        let mut known = self.mappings.iter().map(|mapped| &mapped.mapping);
        known.all(|mapping| mapping.access() == Access::ReadOnly || mapping.mapped() >= end)
    }

    /// Whether it is mapped for writing.
    pub(super) fn is_written(&self) -> bool {
        let mut known = self.mappings.iter();
        known.any(|mapped| mapped.mapping.access() == Access::ReadWrite)
    }

    /// Enters segments that the daemon sent, from number `from` on, in the place of those that
    /// are known there. What is mapped stays mapped.
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

    /// Maps what is not mapped yet, as far as the descriptors allow.
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

/// Takes `gone` out of a publisher's leases, whichever way they were cut when they were leased.
pub(crate) fn subtract(ranges: &mut Vec<Range>, gone: Range) {
    let gone_end = gone.offset.saturating_add(gone.bytes);
    let mut left = Vec::with_capacity(ranges.len() + 1);
    for range in ranges.iter() {
        let end = range.offset.saturating_add(range.bytes);
        let before = gone.offset.clamp(range.offset, end);
        let after = gone_end.clamp(range.offset, end).max(before);
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

/// A lease has to be whole granules within the pool.
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

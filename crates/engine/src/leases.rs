//! Publishers' memory: what they lease, and what they give back.

use crate::history::Room;
use crate::pools::LeaseError;
use crate::refuse::{bad, refuse};
use crate::zone::Zone;
use rgaps_layout::GRANULE_BYTES;
use rgaps_session::{Member, Range, Refusal, RefusalCode};

impl Zone {
    /// Leases memory to a publisher of the client's, in its own pool or one that its topic is read in;
    /// makes room for it if need be. Returns the range and, if the pool grew, the number of its first
    /// new segment.
    pub(crate) fn lease(
        &mut self,
        member: &Member,
        client: u32,
        index: u32,
        bytes: u64,
        limit: Option<u64>,
    ) -> Result<(Range, Option<u32>), Refusal> {
        let (topic, publisher) = self.publisher_of(member, client)?;
        if publisher.pool != index && !topic.is_read_in(index) {
            return Err(refuse(
                RefusalCode::NotPermitted,
                format!(
                    "pool {index} is neither the publisher's own pool nor that of a subscriber of its \
                     topic"
                ),
            ));
        }
        let owner = topic.granule_owner(member.slot);
        let pool = self.memory.require(index)?;
        let before = pool.segment_count();
        check_limit(pool.leased_bytes_of(owner), bytes, limit)?;
        loop {
            match self.memory.lease(index, &self.registry, bytes, owner) {
                Ok(range) => {
                    let grown = self.memory.pool(index).segment_count() != before;
                    return Ok((range, grown.then_some(before)));
                }
                Err(LeaseError::Other(refusal)) => return Err(refusal),
                // Each turn takes messages out of an orphan or ends it, so this ends.
                Err(LeaseError::Full(refusal)) => {
                    if !self.evict_oldest_orphan(Room::InPool(index)) {
                        return Err(refusal);
                    }
                }
            }
        }
    }

    /// Takes ranges back that a publisher of the client's does not need any more: all or none.
    pub(crate) fn return_leases(
        &mut self,
        member: &Member,
        client: u32,
        index: u32,
        ranges: &[Range],
    ) -> Result<(), Refusal> {
        let (topic, publisher) = self.publisher_of(member, client)?;
        let owner = topic.granule_owner(member.slot);
        let live = self.live_granules(topic, publisher);
        let pool = self.memory.require(index)?;
        let mut owned = Vec::new();
        for range in ranges {
            let (first, count) = pool.owned(range, owner).ok_or_else(|| {
                bad(format!(
                    "{1} bytes at {0} are not whole leases of this publisher",
                    range.offset, range.bytes
                ))
            })?;
            if live.of(index).touches(first, count) {
                return Err(bad(format!(
                    "blocks in the {} bytes at {} are still loaned, kept in a history or held",
                    range.bytes, range.offset
                )));
            }
            owned.push((first, count));
        }
        self.memory.free(index, &self.registry, owned)
    }
}

fn check_limit(has: u64, bytes: u64, limit: Option<u64>) -> Result<(), Refusal> {
    let wants = bytes
        .max(1)
        .checked_next_multiple_of(GRANULE_BYTES)
        .unwrap_or(u64::MAX);
    match limit {
        Some(limit) if has.saturating_add(wants) > limit => Err(refuse(
            RefusalCode::LimitReached,
            format!(
                "the publisher leases {has} bytes, and its limit is {limit}; release samples, or raise \
                 limits.lease_per_publisher in rgaps.toml, then run 'rgaps down'"
            ),
        )),
        _ => Ok(()),
    }
}

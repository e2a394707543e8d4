//! What publishers lease, and which clients may write a pool.

use super::Zone;
use crate::clients::QUARANTINED;
use crate::history::HistoryRoom;
use crate::pools::LeaseError;
use crate::refuse::refuse;
use crate::sessions::is_owner;
use rgaps_layout::GRANULE_BYTES;
use rgaps_session::{Member, Range, Refusal, RefusalCode, Side};

/// If dead clients of a user keep this part of a pool (one in so many bytes), the user gets no more of that pool.
const QUARANTINE_SHARE: u64 = 4;

impl Zone {
    /// Leases memory to a publisher of the client, in the publisher's own pool or in one in which a subscriber of its topic reads.
    /// Evicts history if the pool is full. Returns the range and, if the pool grew, the number of its first new segment.
    pub(crate) fn lease(
        &mut self,
        member: &Member,
        client: u32,
        index: u32,
        bytes: u64,
        limit: Option<u64>,
    ) -> Result<(Range, Option<u32>), Refusal> {
        let (topic, publisher) = self.topics.publisher_of(member, client)?;
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
                // Each turn evicts messages of an orphan or ends it, so the loop ends.
                Err(LeaseError::Full(refusal)) => {
                    if !self.make_room(HistoryRoom::InPool(index)) {
                        return Err(refusal);
                    }
                }
            }
        }
    }

    /// Evicts the oldest history that no reliable subscriber still needs. False: there is none.
    pub(crate) fn make_room(&mut self, room: HistoryRoom) -> bool {
        let (control, memory) = (&self.control, &mut self.memory);
        self.history
            .evict_oldest(room, &mut self.topics, control, memory, &self.registry)
    }

    /// Frees ranges that a publisher returns. Refuses if blocks in them are in use.
    pub(crate) fn give_back(
        &mut self,
        member: &Member,
        client: u32,
        pool: u32,
        ranges: &[Range],
    ) -> Result<(), Refusal> {
        let (topic, publisher) = self.topics.publisher_of(member, client)?;
        let owner = topic.granule_owner(publisher.slot);
        let live = self.control.live_granules(topic, publisher);
        self.memory
            .give_back(pool, &self.registry, owner, ranges, live.of(pool))
    }

    /// Refuses more memory to a user, other than root and the daemon's own, whose dead clients in quarantine have their
    /// share of a pool.
    pub(crate) fn check_quarantine(&self, client: u32, pool: u32) -> Result<(), Refusal> {
        let uid = self.clients.get(client).map_or(0, |client| client.uid);
        if is_owner(uid) {
            return Ok(());
        }
        let clients = self.clients.iter();
        let dead =
            clients.filter(|(_, client)| client.session == Some(QUARANTINED) && client.uid == uid);
        let members = dead.flat_map(|(index, _)| self.topics.members_of(index));
        let held: u64 = members
            .filter(|(_, side, _)| *side == Side::Publisher)
            .filter_map(|(topic, _, slot)| Some(self.topics.get(topic)?.granule_owner(slot)))
            .map(|owner| self.memory.leased(pool, owner))
            .sum();
        let cap = self.memory.get(pool).map_or(0, |pool| pool.cap_bytes);
        if held < cap / QUARANTINE_SHARE {
            return Ok(());
        }
        Err(refuse(
            RefusalCode::PoolFull,
            format!(
                "clients of user {uid} that died under MPS keep {held} bytes of this pool: the user gets no more until \
                 MPS confirms that they are gone"
            ),
        ))
    }

    /// Whether a client has a publisher whose messages, or copies of them, are in a pool.
    pub(crate) fn may_write(&self, client: u32, pool: u32) -> bool {
        let mut publishers = self.topics.publishers_of(client);
        let writes = publishers.any(|(topic, p)| p.pool == pool || topic.is_read_in(pool));
        writes || self.leases_in(client, pool)
    }

    /// Whether a client has a publisher with memory of a pool.
    pub(crate) fn leases_in(&self, client: u32, pool: u32) -> bool {
        let mut publishers = self.topics.publishers_of(client);
        publishers.any(|(topic, p)| self.memory.leased(pool, topic.granule_owner(p.slot)) > 0)
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

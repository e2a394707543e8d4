//! Publishers' memory: what they lease, and who may write it.

use crate::clients::{Clients, QUARANTINED};
use crate::history::HistoryRoom;
use crate::memory::Memory;
use crate::pools::LeaseError;
use crate::refuse::refuse;
use crate::sessions::is_owner;
use crate::topics::Topics;
use crate::zone::Zone;
use rgaps_layout::GRANULE_BYTES;
use rgaps_session::{Member, Range, Refusal, RefusalCode, Side};

/// A user whose dead clients keep this part of a pool (one in so many bytes) gets no more of it.
const QUARANTINE_SHARE: u64 = 4;

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
                // Each turn takes messages out of an orphan or ends it, so this ends.
                Err(LeaseError::Full(refusal)) => {
                    if !self.make_room(HistoryRoom::InPool(index)) {
                        return Err(refusal);
                    }
                }
            }
        }
    }

    /// Evicts the oldest history that nobody needs. False: there is none.
    pub(crate) fn make_room(&mut self, room: HistoryRoom) -> bool {
        let (control, memory) = (&self.control, &mut self.memory);
        self.history
            .evict_oldest(room, &mut self.topics, control, memory, &self.registry)
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

/// Refuses more memory to a user, other than root and the daemon's own, whose dead clients in quarantine have their
/// share of a pool.
pub(crate) fn check_quarantine(
    client: u32,
    pool: u32,
    clients: &Clients,
    topics: &Topics,
    memory: &Memory,
) -> Result<(), Refusal> {
    let uid = clients.get(client).map_or(0, |client| client.uid);
    if is_owner(uid) {
        return Ok(());
    }
    let dead = clients
        .iter()
        .filter(|(_, client)| client.session == Some(QUARANTINED) && client.uid == uid);
    let members = dead.flat_map(|(index, _)| topics.members_of(index));
    let held: u64 = members
        .filter(|(_, side, _)| *side == Side::Publisher)
        .filter_map(|(topic, _, slot)| Some(topics.get(topic)?.granule_owner(slot)))
        .map(|owner| memory.leased(pool, owner))
        .sum();
    let cap = memory.get(pool).map_or(0, |pool| pool.cap_bytes);
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
pub(crate) fn may_write(client: u32, pool: u32, topics: &Topics, memory: &Memory) -> bool {
    let mut publishers = topics.publishers_of(client);
    let writes = publishers.any(|(topic, p)| p.pool == pool || topic.is_read_in(pool));
    writes || leases_in(client, pool, topics, memory)
}

/// Whether a client has a publisher with memory of a pool.
pub(crate) fn leases_in(client: u32, pool: u32, topics: &Topics, memory: &Memory) -> bool {
    let mut publishers = topics.publishers_of(client);
    publishers.any(|(topic, p)| memory.leased(pool, topic.granule_owner(p.slot)) > 0)
}

//! Claims of the clients of a dead daemon, and the end of members, leases, segments and timelines that nobody claimed.

use super::Zone;
use crate::refuse::bad;
use crate::sessions::SessionId;
use crate::step::step;
use rgaps_session::{Member, Range, Refusal, Side, MAX_RANGES};
use std::os::fd::OwnedFd;
use std::time::Instant;

impl Zone {
    /// Attaches a predecessor's client to its new session, which then claims the client's members and leases.
    pub(crate) fn attach(
        &mut self,
        client: u32,
        id: u64,
        uid: u32,
        pid: u32,
        session: SessionId,
    ) -> Result<(), Refusal> {
        self.clients.attach(client, id, uid, pid, session)?;
        self.adoption.begin(client);
        Ok(())
    }

    /// Refuses unless the client is handing back.
    pub(crate) fn require_claiming(&self, client: u32) -> Result<(), Refusal> {
        self.adoption.require_claiming(client)
    }

    /// Takes segments of a pool, from number `from` on, that a client hands back.
    pub(crate) fn adopt_segments(
        &mut self,
        pool: u32,
        from: u32,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        self.memory.adopt(pool, from, fds)
    }

    /// Notes that a client still has a member, and that the member still has these leases of a pool.
    pub(crate) fn claim(
        &mut self,
        client: u32,
        member: &Member,
        pool: u32,
        ranges: &[Range],
    ) -> Result<(), Refusal> {
        let topic = self.topics.check_member(member, client)?;
        if ranges.len() > MAX_RANGES || (member.side == Side::Subscriber && !ranges.is_empty()) {
            return Err(bad(
                "the claim has too many ranges, or ranges of a subscriber",
            ));
        }
        if !ranges.is_empty() {
            let owner = topic.granule_owner(member.slot);
            let pool = self.memory.require(pool)?;
            let is_owned = |range| pool.owned(range, owner).is_some();
            if !ranges.iter().all(is_owned) {
                return Err(bad("a claimed range is not a lease of this publisher"));
            }
        }
        self.adoption.claim(client, member, pool, ranges);
        Ok(())
    }

    /// Ends a client's claims: removes members and frees leases that it did not claim, and reserves the doorbells and timelines
    /// that it names.
    pub(crate) fn end_claims(&mut self, client: u32, doorbells: &[u32], timelines: &[u32]) {
        step!("adopt.claimed");
        self.control.reserve_timelines(client, timelines);
        self.finish_claims(client);
        for doorbell in doorbells {
            if !self.control.doorbells.reserve(*doorbell, client) {
                // Two clients that share a doorbell only wake up more often than necessary.
                tracing::warn!(
                    doorbell,
                    "two clients claim the same doorbell; they may be woken needlessly"
                );
            }
        }
        self.give_up_unclaimed();
    }

    /// The predecessor's clients that have not returned and whose process has ended.
    pub(crate) fn find_dead(&mut self, now: Instant) -> Vec<u32> {
        self.clients.find_dead(&self.registry, now)
    }

    /// Removes the members of a client that it did not claim, and frees the leases that it did not claim.
    fn finish_claims(&mut self, index: u32) {
        let Some(claims) = self.adoption.finish(index) else {
            return;
        };
        for (topic, side, slot) in self.topics.members_of(index) {
            match claims.get(&(topic, side, slot)) {
                None => drop(self.remove_member(topic, side, slot)),
                // The client does not know of the other leases.
                Some(leased) if side == Side::Publisher => {
                    let owner = self.topics[topic].granule_owner(slot);
                    self.memory
                        .free_except(&self.registry, owner, |pool| leased.of(pool));
                }
                Some(_) => {}
            }
        }
    }

    /// Once all clients of a predecessor are back or dead, gives up segments that none of them handed back, and ends timelines
    /// that none of them claimed.
    pub(crate) fn give_up_unclaimed(&mut self) {
        if self.clients.are_awaited() || self.adoption.is_claimed_from() {
            return;
        }
        for (pool, bytes) in self.memory.drop_missing(&self.registry) {
            let (topics, control) = (&mut self.topics, &self.control);
            self.history.evict_lost(topics, control, pool, bytes);
        }
        // Timelines of dead clients in quarantine may be among them.
        if !self.clients.have_quarantined() {
            self.control.end_unclaimed_timelines(&mut self.topics);
        }
    }
}

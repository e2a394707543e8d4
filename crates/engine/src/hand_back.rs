//! The requests by which clients hand back what the last daemon left with them, and the end of those of its clients that do
//! not return.

use crate::engine::Engine;
use crate::refuse::{bad, refuse};
use crate::sessions::SessionId;
use crate::step::step;
use crate::timelines::MAX_CLIENT_TIMELINES;
use crate::zone::Zone;
use rgaps_layout::MAX_CLIENTS;
use rgaps_session::{Answer, Member, Range, Refusal, RefusalCode, Side, ZoneId, MAX_RANGES};
use std::os::fd::OwnedFd;

/// Doorbells that one client may hand back.
const MAX_HANDED_DOORBELLS: usize = 1024;

impl Engine {
    pub(crate) fn hand_back(
        &mut self,
        session: SessionId,
        zone_id: ZoneId,
        client_index: u32,
        client_id: u64,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let known = self.sessions.require(session)?;
        if known.zones.contains_key(&zone_id) || client_index as usize >= MAX_CLIENTS {
            return Err(bad(
                "this session is already in that zone, or has no such number there",
            ));
        }
        let (uid, pid) = (known.uid(), known.pid());
        if self.zones.get(zone_id).is_none() {
            let adopted = self.adopt(zone_id, fds);
            if matches!(&adopted, Err(refusal) if refusal.code == RefusalCode::ZoneLost) {
                self.recovery.give_up(zone_id, pid);
            }
            adopted?;
        }
        self.end_previous_session(zone_id, client_index, client_id, uid);
        let zone = self
            .zones
            .get_mut(zone_id)
            .expect("adopted, if it was not there");
        zone.clients
            .attach(client_index, client_id, uid, pid, session)?;
        zone.adoption.begin(client_index);
        let wants_segments = zone.memory.is_incomplete();
        self.sessions
            .require(session)?
            .zones
            .insert(zone_id, client_index);
        // Its process may have another number here than the last daemon wrote down.
        self.write_state();
        Ok(Answer::Zone { wants_segments })
    }

    /// A client whose session was cut off while it and this daemon lived returns in another: the old session has nothing
    /// in the zone any more. The number proves that it is the same client, since only that client knows it.
    fn end_previous_session(
        &mut self,
        zone_id: ZoneId,
        client_index: u32,
        client_id: u64,
        uid: u32,
    ) {
        let clients = self.zones.get_mut(zone_id).map(|zone| &mut zone.clients);
        let client = clients.and_then(|clients| clients.get_mut(client_index));
        let Some(client) = client.filter(|client| client.id == client_id && client.uid == uid)
        else {
            return;
        };
        let Some(number) = client.session else {
            return;
        };
        if let Some(old) = self.sessions.get_mut(number) {
            old.zones.remove(&zone_id);
            client.session = None;
            // The end of its socket may come after the new session; then it holds nothing in the zone any more.
            if old.detached && old.zones.is_empty() {
                self.sessions.close(number);
                self.links.forget(number);
            }
        }
    }

    fn adopt(&mut self, zone_id: ZoneId, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let lost = || {
            refuse(
                RefusalCode::ZoneLost,
                "the daemon does not know the zone of this client (the client was away for too \
                 long, or its state file is lost); join the topics again",
            )
        };
        let saved = self.recovery.expected(zone_id).cloned().ok_or_else(lost)?;
        let replacement = self.zones.of_class(&saved.class);
        if replacement.is_some_and(|zone| !zone.topics.is_empty() || !zone.clients.is_empty()) {
            return Err(lost());
        }
        let [registry, control] = <[OwnedFd; 2]>::try_from(fds)
            .map_err(|_| bad("the request needs the registry and the control segment"))?;
        let limits = self.setup.config.limits.clone();
        let zone = Zone::adopt(
            &saved,
            registry,
            control,
            self.setup.sources.as_mut(),
            &limits,
        )?;
        tracing::info!(
            class = saved.class,
            topics = zone.topics.count(),
            clients = zone.clients.count(),
            "took over a zone of the previous daemon"
        );
        self.zones.add(zone);
        self.counters.zones_adopted += 1;
        self.recovery.forget(zone_id);
        self.write_state();
        Ok(())
    }

    pub(crate) fn hand_back_segments(
        &mut self,
        session: SessionId,
        zone: ZoneId,
        pool: u32,
        from: u32,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let (zone, _) = self.claiming(session, zone)?;
        zone.memory.adopt(pool, from, fds)?;
        Ok(Answer::Done)
    }

    pub(crate) fn claim(
        &mut self,
        session: SessionId,
        member: &Member,
        pool: u32,
        ranges: &[Range],
    ) -> Result<Answer, Refusal> {
        let (zone, client) = self.claiming(session, member.zone)?;
        let topic = zone.topics.check_member(member, client)?;
        if ranges.len() > MAX_RANGES || (member.side == Side::Subscriber && !ranges.is_empty()) {
            return Err(bad(
                "the claim has too many ranges, or ranges of a subscriber",
            ));
        }
        if !ranges.is_empty() {
            let owner = topic.granule_owner(member.slot);
            let pool = zone.memory.require(pool)?;
            let is_owned = |range| pool.owned(range, owner).is_some();
            if !ranges.iter().all(is_owned) {
                return Err(bad("a claimed range is not a lease of this publisher"));
            }
        }
        zone.adoption.claim(client, member, pool, ranges);
        Ok(Answer::Done)
    }

    pub(crate) fn handed_back(
        &mut self,
        session: SessionId,
        zone: ZoneId,
        doorbells: &[u32],
        timelines: &[u32],
    ) -> Result<Answer, Refusal> {
        let (zone, client) = self.claiming(session, zone)?;
        if doorbells.len() > MAX_HANDED_DOORBELLS || timelines.len() > MAX_CLIENT_TIMELINES {
            return Err(bad(format!(
                "a client can hand back at most {MAX_HANDED_DOORBELLS} doorbells and {MAX_CLIENT_TIMELINES} timelines"
            )));
        }
        step!("adopt.claimed");
        zone.control.reserve_timelines(client, timelines);
        zone.finish_claims(client);
        for doorbell in doorbells {
            if !zone.control.doorbells.reserve(*doorbell, client) {
                // Two that share a doorbell wake up more often than need be, and that is all.
                tracing::warn!(
                    doorbell,
                    "two clients claim the same doorbell; they may be woken needlessly"
                );
            }
        }
        zone.give_up_unclaimed();
        Ok(Answer::Done)
    }

    fn claiming(&mut self, session: SessionId, zone: ZoneId) -> Result<(&mut Zone, u32), Refusal> {
        let (zone, client) = self.zone_of(session, zone)?;
        zone.adoption.require_claiming(client)?;
        Ok((zone, client))
    }

    /// Looks after a predecessor's clients that have not returned. True: something changed.
    pub(crate) fn check_absent(&mut self) -> bool {
        let now = self.now;
        let (mut reaped, mut freed) = (0, 0);
        let mut dead = Vec::new();
        for zone in self.zones.iter_mut() {
            for client in zone.clients.overdue_seats(now) {
                tracing::info!("no links came for the seats of those that ended");
                freed += zone.reap_client(client, now);
            }
            dead.extend(
                zone.clients
                    .find_dead(&zone.registry, now)
                    .into_iter()
                    .map(|client| (zone.id, client)),
            );
        }
        for (id, client) in dead {
            tracing::info!(client, "a client of the previous daemon has ended");
            if self.quarantine_absent(id, client) {
                continue;
            }
            if let Some(zone) = self.zones.get_mut(id) {
                freed += zone.reap_client(client, now);
                reaped += 1;
            }
        }
        self.save_departed();
        for zone in self.zones.iter_mut() {
            zone.give_up_unclaimed();
        }
        self.counters.clients_reaped += reaped;
        self.counters.blocks_reclaimed += freed;
        reaped > 0
    }
}

impl Zone {
    /// The client has claimed all that it has; the engine takes back the rest.
    fn finish_claims(&mut self, index: u32) {
        let Some(claims) = self.adoption.finish(index) else {
            return;
        };
        for (topic, side, slot) in self.topics.members_of(index) {
            match claims.get(&(topic, side, slot)) {
                None => drop(self.remove_member(topic, side, slot)),
                // Leases that the client does not know of are returned.
                Some(leased) if side == Side::Publisher => {
                    let owner = self.topics[topic].granule_owner(slot);
                    self.memory
                        .free_except(&self.registry, owner, |pool| leased.of(pool));
                }
                Some(_) => {}
            }
        }
    }

    /// Once all clients of a predecessor's are back or dead, segments that none of them had are lost,
    /// and timelines that none of them had are nobody's.
    fn give_up_unclaimed(&mut self) {
        if self.clients.are_awaited() || self.adoption.is_claimed_from() {
            return;
        }
        for (pool, bytes) in self.memory.drop_missing(&self.registry) {
            let (topics, control) = (&mut self.topics, &self.control);
            self.history.evict_lost(topics, control, pool, bytes);
        }
        // What the dead of quarantine had may be among them.
        if !self.clients.have_quarantined() {
            self.control.end_unclaimed_timelines(&mut self.topics);
        }
    }
}

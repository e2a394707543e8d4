//! The requests by which clients hand back the memory of a dead daemon, and cleaning up after its clients that do not return.

use super::Engine;
use crate::refuse::{bad, refuse};
use crate::sessions::SessionId;
use crate::timelines::MAX_CLIENT_TIMELINES;
use crate::zone::Zone;
use rgaps_layout::MAX_CLIENTS;
use rgaps_session::{Answer, Member, Range, Refusal, RefusalCode, ZoneId};
use std::os::fd::OwnedFd;

/// Doorbells that one client may hand back.
const MAX_HANDED_DOORBELLS: usize = 1024;

impl Engine {
    pub(super) fn hand_back(
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
        zone.attach(client_index, client_id, uid, pid, session)?;
        let wants_segments = zone.memory().is_incomplete();
        self.sessions
            .require(session)?
            .zones
            .insert(zone_id, client_index);
        // The state file gets the client's process number as this daemon sees it; the predecessor's may differ.
        self.write_state();
        Ok(Answer::Zone { wants_segments })
    }

    /// Takes a client out of its old session, if this daemon cut that off and the client returns in a new one. The client is
    /// the same if its `client_id` and user are.
    fn end_previous_session(
        &mut self,
        zone_id: ZoneId,
        client_index: u32,
        client_id: u64,
        uid: u32,
    ) {
        let clients = self.zones.get_mut(zone_id).map(Zone::clients_mut);
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
            // A detached session waits for the end of its process. Without a zone it has nothing to wait for.
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
        if replacement.is_some_and(|zone| !zone.topics().is_empty() || !zone.clients().is_empty()) {
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
            topics = zone.topics().count(),
            clients = zone.clients().count(),
            "took over a zone of the previous daemon"
        );
        self.zones.add(zone);
        self.counters.zones_adopted += 1;
        self.recovery.forget(zone_id);
        self.write_state();
        Ok(())
    }

    pub(super) fn hand_back_segments(
        &mut self,
        session: SessionId,
        zone: ZoneId,
        pool: u32,
        from: u32,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let (zone, _) = self.claiming(session, zone)?;
        zone.adopt_segments(pool, from, fds)?;
        Ok(Answer::Done)
    }

    pub(super) fn claim(
        &mut self,
        session: SessionId,
        member: &Member,
        pool: u32,
        ranges: &[Range],
    ) -> Result<Answer, Refusal> {
        let (zone, client) = self.claiming(session, member.zone)?;
        zone.claim(client, member, pool, ranges)?;
        Ok(Answer::Done)
    }

    pub(super) fn handed_back(
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
        zone.end_claims(client, doorbells, timelines);
        Ok(Answer::Done)
    }

    fn claiming(&mut self, session: SessionId, zone: ZoneId) -> Result<(&mut Zone, u32), Refusal> {
        let (zone, client) = self.zone_of(session, zone)?;
        zone.require_claiming(client)?;
        Ok((zone, client))
    }

    /// Cleans up after the predecessor's clients whose process has ended before they returned, and after seats that stayed empty
    /// for too long. True: clients of the predecessor were cleaned up.
    pub(super) fn check_absent(&mut self) -> bool {
        let now = self.now;
        let (mut reaped, mut freed) = (0, 0);
        let mut dead = Vec::new();
        for zone in self.zones.iter_mut() {
            for client in zone.clients().overdue_seats(now) {
                tracing::info!(
                    "no links took the seats of former links in time; the seats are removed"
                );
                freed += zone.reap_client(client, now);
            }
            let ended = zone.find_dead(now);
            dead.extend(ended.into_iter().map(|client| (zone.id(), client)));
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

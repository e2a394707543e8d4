//! Dead clients whose work on GPUs may go on: under MPS the end of a process does not end it.
//!
//! What such a client held stays as it is (its blocks, its holder bits) until MPS confirms that its GPU work has ended;
//! [`rgaps_mps::Quarantine`] waits for that. Meanwhile its subscribers are closed, so that no publisher waits for them.

use crate::clients::QUARANTINED;
use crate::engine::Engine;
use crate::refuse::{bad, refuse};
use crate::sessions::Session;
use crate::sessions::{is_owner, SessionId};
use crate::zone::Zone;
use rgaps_layout::Domain;
use rgaps_mps::{DeadClient, Mps};
use rgaps_session::{Answer, MpsInfo, Refusal, RefusalCode, Side, ZoneId};
use std::collections::{BTreeMap, BTreeSet};

/// A user whose dead clients keep this part of a pool (one in so many bytes) gets no more of it.
const QUARANTINE_SHARE: u64 = 4;

/// What waits for proof.
pub(crate) enum Holdings {
    /// All that a client held whose process has ended: its index in each zone.
    Client(BTreeMap<ZoneId, u32>),
    /// The timelines of a client whose process lives but has lost its GPU: zone, index, number.
    Timelines(ZoneId, u32, u64),
}

impl Engine {
    /// Lets the engine know of MPS. Without, no client is under it.
    pub fn set_mps(&mut self, mps: Box<dyn Mps>) {
        self.quarantine.set_mps(mps);
    }

    pub(crate) fn mps_info(&self) -> MpsInfo {
        self.quarantine.info()
    }

    /// The session's process says that it is under an MPS.
    pub(crate) fn under_mps(
        &mut self,
        session: SessionId,
        pipe_directory: String,
    ) -> Result<Answer, Refusal> {
        let identity = &mut self.sessions.require(session)?.mps;
        let set = identity.set_pipe_directory(pipe_directory);
        set.map_err(|error| bad(error.to_string()))?;
        self.note_process(session);
        Ok(Answer::Done)
    }

    /// Remembers by which numbers MPS may know the session's process, while it lives.
    pub(crate) fn note_process(&mut self, session: SessionId) {
        if !self.quarantine.has_mps() {
            return;
        }
        if let Some(known) = self.sessions.get_mut(session) {
            if let Some(pid) = known.peer.credentials.pid {
                known.mps.note_process(pid);
            }
        }
    }

    /// Takes a session's dead client into quarantine, if its work on GPUs may go on. False: it may
    /// be cleaned up after.
    pub(crate) fn quarantine_session(&mut self, session: SessionId) -> bool {
        let Some(ended) = self.sessions.get(session) else {
            return false;
        };
        let dead = ended.dead_client();
        let zones = ended.zones.clone();
        self.quarantine(dead, zones)
    }

    /// The same for a client of a predecessor's that did not come back.
    pub(crate) fn quarantine_absent(&mut self, zone: ZoneId, client: u32) -> bool {
        let known = self.zones.get(zone).and_then(|z| z.clients.get(client));
        let Some(known) = known else {
            return false;
        };
        let dead = DeadClient {
            name: known.name.clone(),
            pid: known.pid,
            uid: known.uid,
            ..DeadClient::default()
        };
        self.quarantine(dead, BTreeMap::from([(zone, client)]))
    }

    fn quarantine(&mut self, dead: DeadClient, zones: BTreeMap<ZoneId, u32>) -> bool {
        let on_gpus = zones.iter().any(|(zone, client)| {
            let zone = self.zones.get(*zone);
            zone.is_some_and(|zone| zone.is_on_gpus(*client))
        });
        let holdings = Holdings::Client(zones.clone());
        if !on_gpus || !self.quarantine.admit(dead, holdings, self.now) {
            return false;
        }
        for (zone, client) in &zones {
            if let Some(zone) = self.zones.get_mut(*zone) {
                zone.hold_dead(*client);
            }
        }
        true
    }

    /// A client's GPU context is lost, so that its timelines end; under MPS only when its work has.
    pub(crate) fn gpu_lost(&mut self, session: SessionId, zone: ZoneId, client: u32) {
        let id = self.zones.get(zone).and_then(|z| z.clients.get(client));
        let (Some(lost), Some(id)) = (self.sessions.get(session), id.map(|c| c.id)) else {
            return;
        };
        let lost = DeadClient {
            lives: true,
            ..lost.dead_client()
        };
        let holdings = Holdings::Timelines(zone, client, id);
        let held = self.quarantine.admit(lost, holdings, self.now);
        if let (false, Some(zone)) = (held, self.zones.get_mut(zone)) {
            zone.end_timelines_of(client);
        }
    }

    /// Cleans up after those whose GPU work has ended for certain. True: something changed.
    pub(crate) fn release_quarantined(&mut self) -> bool {
        let proven = self.quarantine.poll(self.now);
        let changed = !proven.is_empty();
        for dead in proven {
            match dead.holdings {
                Holdings::Client(zones) => self.clean_up_after(&dead.name, dead.pid, &zones),
                Holdings::Timelines(zone, client, id) => {
                    let zone = self.zones.get_mut(zone);
                    // Its index may be another's by now.
                    let is_it = |zone: &Zone| zone.clients.get(client).is_some_and(|c| c.id == id);
                    if let Some(zone) = zone.filter(|zone| is_it(zone)) {
                        zone.end_timelines_of(client);
                    }
                }
            }
        }
        changed
    }
}

impl Session {
    /// As MPS may know it.
    fn dead_client(&self) -> DeadClient {
        self.mps.dead_client(&self.name, self.pid(), self.uid())
    }
}

impl Zone {
    /// Refuses more memory to a user, other than root and the daemon's own, whose dead clients in quarantine have their
    /// share of a pool.
    pub(crate) fn check_quarantine(&self, client: u32, pool: u32) -> Result<(), Refusal> {
        let uid = self.clients.get(client).map_or(0, |client| client.uid);
        if is_owner(uid) {
            return Ok(());
        }
        let dead = self
            .clients
            .iter()
            .filter(|(_, client)| client.session == Some(QUARANTINED) && client.uid == uid);
        let members = dead.flat_map(|(index, _)| self.members_of(index));
        let held: u64 = members
            .filter(|(_, side, _)| *side == Side::Publisher)
            .filter_map(|(topic, _, slot)| Some(self.leased(self.topics.get(topic)?, slot, pool)))
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

    /// Whether a client may have work on a GPU that touches what the zone shares.
    fn is_on_gpus(&self, client: u32) -> bool {
        let timelines = &self.control.timelines;
        // While a predecessor's clients have not named theirs, anyone may have some.
        if timelines.unclaimed || !timelines.of(client).is_empty() {
            return true;
        }
        let members = self.members_of(client).into_iter();
        let mut pools = members.flat_map(|(topic, side, slot)| self.pools_of(topic, side, slot));
        pools.any(|pool| {
            let pool = self.memory.get(pool);
            pool.is_some_and(|pool| matches!(pool.domain, Domain::Cuda(_)))
        })
    }

    /// Pools in which a member may read, or write messages and copies of them.
    fn pools_of(&self, topic: u32, side: Side, slot: u32) -> BTreeSet<u32> {
        let Some(topic) = self.topics.get(topic) else {
            return BTreeSet::new();
        };
        let mut pools: BTreeSet<u32> = topic.pool.into_iter().collect();
        match side {
            Side::Subscriber => pools.extend(topic.subscriber(slot).and_then(|s| s.pool)),
            Side::Publisher => {
                pools.extend(topic.foreign_pools());
                let all = self.memory.iter().map(|pool| pool.index);
                pools.extend(all.filter(|pool| self.leased(topic, slot, *pool) > 0));
            }
        }
        pools
    }

    /// A client is dead, but what it held stays: publishers neither wait for it to read on nor copy for it.
    fn hold_dead(&mut self, client: u32) {
        for (topic, side, slot) in self.members_of(client) {
            if side == Side::Subscriber {
                self.close_subscriber(topic, slot);
            }
        }
        if let Some(client) = self.clients.get_mut(client) {
            client.session = Some(QUARANTINED);
            client.claims = None;
        }
    }
}

//! Dead clients whose work on GPUs may go on: under MPS the end of a process does not end it.
//!
//! What such a client held stays as it is (its blocks, its holder bits) until MPS confirms that its GPU work has ended;
//! [`rgaps_mps::Quarantine`] waits for that. Meanwhile its subscribers are closed, so that no publisher waits for them.

use crate::engine::{Engine, Holdings};
use crate::memory::Memory;
use crate::refuse::bad;
use crate::sessions::{Session, SessionId};
use crate::topic::Topic;
use crate::zone::Zone;
use rgaps_layout::Domain;
use rgaps_mps::{DeadClient, Mps};
use rgaps_session::{Answer, MpsInfo, Refusal, Side, ZoneId};
use std::collections::{BTreeMap, BTreeSet};

impl Engine {
    /// Gives the engine an MPS. Without one, no client is under MPS.
    pub fn set_mps(&mut self, mps: Box<dyn Mps>) {
        self.quarantine.set_mps(mps);
    }

    pub(crate) fn mps_info(&self) -> MpsInfo {
        self.quarantine.info()
    }

    /// The session's process reports that it is under an MPS.
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

    /// Notes the process numbers by which MPS may know the session's process, while it lives.
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

    /// Takes a session's dead client into quarantine, if its work on GPUs may go on. False: the
    /// engine may clean up after it.
    pub(crate) fn quarantine_session(&mut self, session: SessionId) -> bool {
        let Some(ended) = self.sessions.get(session) else {
            return false;
        };
        let dead = ended.dead_client();
        let zones = ended.zones.clone();
        self.quarantine(dead, zones)
    }

    /// The same for a predecessor's client that did not return.
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
            zone.is_some_and(|zone| is_on_gpus(zone, *client))
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

    /// The GPU context of a session's client is lost, so that its timelines end; under MPS only when its work has.
    pub(crate) fn gpu_lost(
        &mut self,
        session: SessionId,
        zone_id: ZoneId,
    ) -> Result<Answer, Refusal> {
        let lost = DeadClient {
            lives: true,
            ..self.sessions.require(session)?.dead_client()
        };
        let (zone, client) = self.zone_of(session, zone_id)?;
        let id = zone.clients.get(client).map_or(0, |known| known.id);
        let holdings = Holdings::Timelines(zone_id, client, id);
        let is_held = self.quarantine.admit(lost, holdings, self.now);
        let (zone, _) = self.zone_of(session, zone_id)?;
        if !is_held {
            zone.control.end_timelines_of(client, &mut zone.topics);
        }
        Ok(Answer::Done)
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
                    // Another client may have its index by now.
                    let is_it = |zone: &Zone| zone.clients.get(client).is_some_and(|c| c.id == id);
                    if let Some(zone) = zone.filter(|zone| is_it(zone)) {
                        zone.control.end_timelines_of(client, &mut zone.topics);
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

/// Whether a client may have work on a GPU that touches what the zone shares.
fn is_on_gpus(zone: &Zone, client: u32) -> bool {
    let timelines = &zone.control.timelines;
    // Until a predecessor's clients have handed back their timelines, any client may have some.
    if timelines.unclaimed || !timelines.of(client).is_empty() {
        return true;
    }
    if zone.clients.get(client).is_some_and(|c| c.has_devices) {
        return true;
    }
    let members = zone.topics.members_of(client).into_iter();
    let mut pools = members
        .flat_map(|(topic, side, slot)| pools_of(zone.topics.get(topic), side, slot, &zone.memory));
    pools.any(|pool| {
        let pool = zone.memory.get(pool);
        pool.is_some_and(|pool| matches!(pool.domain, Domain::Cuda(_)))
    })
}

/// Pools in which a member may read, or write messages and copies of them.
fn pools_of(topic: Option<&Topic>, side: Side, slot: u32, memory: &Memory) -> BTreeSet<u32> {
    let Some(topic) = topic else {
        return BTreeSet::new();
    };
    let mut pools: BTreeSet<u32> = topic.pool.into_iter().collect();
    match side {
        Side::Subscriber => pools.extend(topic.subscriber(slot).and_then(|s| s.pool)),
        Side::Publisher => {
            pools.extend(topic.foreign_pools());
            let owner = topic.granule_owner(slot);
            let all = memory.iter().map(|pool| pool.index);
            pools.extend(all.filter(|pool| memory.leased(*pool, owner) > 0));
        }
    }
    pools
}

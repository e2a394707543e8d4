//! Dead clients whose work on GPUs may go on: under MPS the end of a process does not end it.
//!
//! What such a client held stays as it is (its blocks, its holder bits) until MPS confirms that its GPU work has ended;
//! [`rgaps_mps::Quarantine`] waits for that. Meanwhile its subscribers are closed, so that no publisher waits for them.

use super::{Engine, Holdings};
use crate::refuse::bad;
use crate::sessions::{Session, SessionId};
use crate::zone::Zone;
use rgaps_mps::{DeadClient, Mps};
use rgaps_session::{Answer, MpsInfo, Refusal, ZoneId};
use std::collections::BTreeMap;

impl Engine {
    /// Gives the engine an MPS. Without one, no client is under MPS.
    pub fn set_mps(&mut self, mps: Box<dyn Mps>) {
        self.quarantine.set_mps(mps);
    }

    pub(super) fn mps_info(&self) -> MpsInfo {
        self.quarantine.info()
    }

    /// The session's process reports that it is under an MPS.
    pub(super) fn under_mps(
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
    pub(super) fn note_process(&mut self, session: SessionId) {
        if !self.quarantine.has_mps() {
            return;
        }
        if let Some(known) = self.sessions.get_mut(session) {
            if let Some(pid) = known.peer.credentials.pid {
                known.mps.note_process(pid);
            }
        }
    }

    /// Takes a session's dead client into quarantine, if its work on GPUs may go on. False: it does not, and the caller cleans up
    /// after the client.
    pub(super) fn quarantine_session(&mut self, session: SessionId) -> bool {
        let Some(ended) = self.sessions.get(session) else {
            return false;
        };
        let dead = ended.dead_client();
        let zones = ended.zones.clone();
        self.quarantine(dead, zones)
    }

    /// The same as `quarantine_session`, for a dead client of a predecessor that has not returned.
    pub(super) fn quarantine_absent(&mut self, zone: ZoneId, client: u32) -> bool {
        let known = self.zones.get(zone).and_then(|z| z.clients().get(client));
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
            zone.is_some_and(|zone| zone.may_have_gpu_work(*client))
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

    /// Ends the timelines of a session's client that has lost its GPU context; under MPS only when its GPU work has ended.
    pub(super) fn gpu_lost(
        &mut self,
        session: SessionId,
        zone_id: ZoneId,
    ) -> Result<Answer, Refusal> {
        let lost = DeadClient {
            lives: true,
            ..self.sessions.require(session)?.dead_client()
        };
        let (zone, client) = self.zone_of(session, zone_id)?;
        let id = zone.clients().get(client).map_or(0, |known| known.id);
        let holdings = Holdings::Timelines(zone_id, client, id);
        let is_held = self.quarantine.admit(lost, holdings, self.now);
        let (zone, _) = self.zone_of(session, zone_id)?;
        if !is_held {
            zone.end_timelines_of(client);
        }
        Ok(Answer::Done)
    }

    /// Cleans up after clients whose GPU work has ended, as MPS has confirmed. True: there were some.
    pub(super) fn release_quarantined(&mut self) -> bool {
        let proven = self.quarantine.poll(self.now);
        let changed = !proven.is_empty();
        for dead in proven {
            match dead.holdings {
                Holdings::Client(zones) => self.clean_up_after(&dead.name, dead.pid, &zones),
                Holdings::Timelines(zone, client, id) => {
                    let zone = self.zones.get_mut(zone);
                    // Another client may have its index by now.
                    let is_it =
                        |zone: &Zone| zone.clients().get(client).is_some_and(|c| c.id == id);
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
    /// The session's client as MPS may know it.
    fn dead_client(&self) -> DeadClient {
        self.mps.dead_client(&self.name, self.pid(), self.uid())
    }
}

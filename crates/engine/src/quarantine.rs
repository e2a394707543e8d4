//! Dead clients whose work on GPUs may go on: under MPS the end of a process does not end it.
//!
//! What such a client held stays as it is (its blocks, its holder bits) until MPS's control
//! says that it is gone. Nobody waits for it meanwhile, but for its blocks. If the control does not
//! answer, that is for ever: nothing is given out on a guess.

use crate::engine::{is_owner, Engine, Session, SessionId};
use crate::mps::{numbers, DeadClient, Mps};
use crate::refuse::{bad, refuse};
use crate::zone::Zone;
use rgaps_layout::Domain;
use rgaps_session::{
    Answer, MpsInfo, MpsState, Refusal, RefusalCode, Side, ZoneId, MPS_PIPE_VARIABLE,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// `Client::session` of a client in quarantine: no session has this number.
pub(crate) const QUARANTINED: SessionId = SessionId(0);
/// How often one looks for proof.
const LOOK: Duration = Duration::from_millis(5);
/// And once it takes long.
const LOOK_OVERDUE: Duration = Duration::from_millis(250);
/// After this long without proof, the log and the status say so.
const PROOF_LIMIT: Duration = Duration::from_secs(10);
/// A user whose dead clients keep this part of a pool (one in so many bytes) gets no more of it.
const QUARANTINE_SHARE: u64 = 4;
/// Longest pipe directory that a client can name.
const MAX_PIPE_PATH: usize = 107;

/// What a session's process is to MPS.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    /// The pipe directory that it said it is under.
    pipes: Option<PathBuf>,
    /// Its numbers in PID namespaces, noted while it lived.
    numbers: Vec<u32>,
}

/// A dead client, or one that has lost its GPU, that waits for proof.
struct Ward {
    name: String,
    pid: u32,
    what: What,
    since: Instant,
    overdue: bool,
}

/// What waits for proof.
enum What {
    /// All that a client held whose process has ended: its index in each zone.
    Client(BTreeMap<ZoneId, u32>),
    /// The timelines of a client whose process lives but has lost its GPU: zone, index, number.
    Timelines(ZoneId, u32, u64),
}

/// The dead that wait for proof.
#[derive(Default)]
pub(crate) struct Quarantine {
    mps: Option<Box<dyn Mps>>,
    wards: BTreeMap<u64, Ward>,
    next_ward: u64,
    look: Option<Instant>,
}

impl Quarantine {
    /// When there is something to look at.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.look
    }

    /// What is wrong, for people.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let info = self.mps.as_ref().map(|mps| mps.info()).unwrap_or_default();
        let failed = match info.state {
            MpsState::Failed => Some("MPS is not running"),
            MpsState::Starting if info.restarts > 0 => Some("MPS is being restarted"),
            _ => info.reason.as_ref().map(|_| "MPS"),
        };
        let failed = failed.map(|what| format!("{what}: {}", info.reason.unwrap_or_default()));
        let overdue = self.wards.iter().filter(|(_, ward)| ward.overdue);
        let overdue = overdue.map(|(number, ward)| {
            format!(
                "client '{}' (process {}) has died under MPS, or lost its GPU, and is in quarantine; its memory \
                 is not reused: {}",
                ward.name,
                ward.pid,
                self.doubt(*number)
            )
        });
        failed.into_iter().chain(overdue).collect()
    }

    fn doubt(&self, ward: u64) -> String {
        let doubt = self.mps.as_ref().and_then(|mps| mps.doubt(ward));
        doubt.unwrap_or_else(|| "MPS's control has not answered yet".to_owned())
    }
}

impl Engine {
    /// Lets the engine know of MPS. Without, no client is under it.
    pub fn set_mps(&mut self, mps: Box<dyn Mps>) {
        self.quarantine.mps = Some(mps);
    }

    pub(crate) fn mps_info(&self) -> MpsInfo {
        let mps = self.quarantine.mps.as_ref();
        MpsInfo {
            quarantined: self.quarantine.wards.len() as u32,
            ..mps.map(|mps| mps.info()).unwrap_or_default()
        }
    }

    /// Ends the MPS that was started, if its clients let it.
    pub(crate) fn stop_mps(&mut self) {
        if let Some(mps) = &mut self.quarantine.mps {
            mps.stop();
        }
    }

    /// The session's process says that it is under an MPS.
    pub(crate) fn under_mps(
        &mut self,
        session: SessionId,
        pipe_directory: String,
    ) -> Result<Answer, Refusal> {
        // Nothing of what is there is looked at now: the path may lead to anything.
        let directory = PathBuf::from(pipe_directory);
        if !directory.is_absolute() || directory.as_os_str().len() > MAX_PIPE_PATH {
            return Err(bad(format!(
                "the pipe directory of MPS must be an absolute path of at most {MAX_PIPE_PATH} bytes"
            )));
        }
        self.session(session)?.mps.pipes = Some(directory);
        self.note_process(session);
        Ok(Answer::Done)
    }

    /// Remembers by which numbers MPS may know the session's process, while it lives.
    pub(crate) fn note_process(&mut self, session: SessionId) {
        if self.quarantine.mps.is_none() {
            return;
        }
        if let Some(known) = self.sessions.get_mut(&session) {
            if let (Some(pid), true) = (known.peer.credentials.pid, known.mps.numbers.is_empty()) {
                known.mps.numbers = numbers(pid);
            }
        }
    }

    /// Takes a session's dead client into quarantine, if its work on GPUs may go on. False: it may
    /// be cleaned up after.
    pub(crate) fn quarantine_session(&mut self, session: SessionId) -> bool {
        let Some(ended) = self.sessions.get(&session) else {
            return false;
        };
        let dead = ended.dead();
        let zones = ended.zones.clone();
        self.quarantine(dead, zones)
    }

    /// The same for a client of a predecessor's that did not come back.
    pub(crate) fn quarantine_absent(&mut self, zone: ZoneId, client: u32) -> bool {
        let known = self.zones.get(&zone).and_then(|z| z.clients.get(&client));
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
            let zone = self.zones.get(zone);
            zone.is_some_and(|zone| zone.is_on_gpus(*client))
        });
        let Some(dead) = on_gpus.then(|| self.perhaps_under_mps(dead)).flatten() else {
            return false;
        };
        for (zone, client) in &zones {
            if let Some(zone) = self.zones.get_mut(zone) {
                zone.hold_dead(*client);
            }
        }
        self.admit(dead, What::Client(zones))
    }

    /// A client's GPU context is lost, so that its timelines end; under MPS only when its work has.
    pub(crate) fn gpu_lost(&mut self, session: SessionId, zone: ZoneId, client: u32) {
        let id = self.zones.get(&zone).and_then(|z| z.clients.get(&client));
        let (Some(lost), Some(id)) = (self.sessions.get(&session), id.map(|c| c.id)) else {
            return;
        };
        let lost = DeadClient {
            lives: true,
            ..lost.dead()
        };
        let held = self
            .perhaps_under_mps(lost)
            .is_some_and(|lost| self.admit(lost, What::Timelines(zone, client, id)));
        if let (false, Some(zone)) = (held, self.zones.get_mut(&zone)) {
            zone.end_timelines_of(client);
        }
    }

    /// With every MPS that a client may be under, also those that it did not speak of. One that it named counts only if
    /// the daemon finds it, too: anyone can make a folder that looks like an MPS which never answers. None: there is
    /// none.
    fn perhaps_under_mps(&self, mut dead: DeadClient) -> Option<DeadClient> {
        let mps = self.quarantine.mps.as_ref()?;
        let realms = mps.info().pipe_directory.map(PathBuf::from);
        dead.pipes.retain(|named| {
            let found = mps.is_found(named);
            if !found {
                tracing::warn!(
                    client = dead.name,
                    directory = %named.display(),
                    "a client that has ended said that it was under an MPS there, but neither root nor the daemon's user \
                     runs one: if one runs, start the daemon with {MPS_PIPE_VARIABLE} set to it"
                );
            }
            found
        });
        dead.pipes.extend(realms);
        dead.pipes.extend(mps.default_directory());
        dead.pipes.sort_unstable();
        dead.pipes.dedup();
        (!dead.pipes.is_empty()).then_some(dead)
    }

    fn admit(&mut self, dead: DeadClient, what: What) -> bool {
        let Some(mps) = &mut self.quarantine.mps else {
            return false;
        };
        let number = self.quarantine.next_ward;
        self.quarantine.next_ward += 1;
        tracing::info!(
            client = dead.name,
            pid = dead.pid,
            "a client that may use MPS has ended; its memory is in quarantine until MPS confirms the end of its GPU work"
        );
        let ward = Ward {
            name: dead.name.clone(),
            pid: dead.pid,
            what,
            since: self.now,
            overdue: false,
        };
        mps.prove(number, dead);
        self.quarantine.wards.insert(number, ward);
        self.quarantine.look = Some(self.now + LOOK);
        true
    }

    /// Cleans up after those who are proven to be gone. True: something changed.
    pub(crate) fn tend_quarantine(&mut self) -> bool {
        let now = self.now;
        let Some(mps) = &mut self.quarantine.mps else {
            return false;
        };
        if self.quarantine.look.is_none_or(|look| now < look) {
            return false;
        }
        let proven = mps.proven();
        let mut changed = false;
        for number in proven {
            if let Some(ward) = self.quarantine.wards.remove(&number) {
                let waited = now.saturating_duration_since(ward.since);
                tracing::info!(
                    client = ward.name,
                    pid = ward.pid,
                    ms = waited.as_millis() as u64,
                    "MPS confirms that a client is gone"
                );
                self.release(ward);
                changed = true;
            }
        }
        let mut late = Vec::new();
        for (number, ward) in &mut self.quarantine.wards {
            if !ward.overdue && now.saturating_duration_since(ward.since) >= PROOF_LIMIT {
                ward.overdue = true;
                late.push((*number, ward.name.clone(), ward.pid));
            }
        }
        for (number, client, pid) in late {
            let doubt = self.quarantine.doubt(number);
            tracing::error!(
                client,
                pid,
                doubt,
                "a dead client stays in quarantine, with all memory that it held"
            );
        }
        let wards = &self.quarantine.wards;
        let pause = match wards.values().any(|ward| !ward.overdue) {
            true => LOOK,
            false => LOOK_OVERDUE,
        };
        self.quarantine.look = (!wards.is_empty()).then(|| now + pause);
        changed
    }
}

impl Engine {
    fn release(&mut self, ward: Ward) {
        match ward.what {
            What::Client(zones) => self.clean_up_after(&ward.name, ward.pid, &zones),
            What::Timelines(zone, client, id) => {
                let zone = self.zones.get_mut(&zone);
                // Its index may be another's by now.
                let is_it = |zone: &Zone| zone.clients.get(&client).is_some_and(|c| c.id == id);
                if let Some(zone) = zone.filter(|zone| is_it(zone)) {
                    zone.end_timelines_of(client);
                }
            }
        }
    }
}

impl Session {
    /// As MPS may know it.
    fn dead(&self) -> DeadClient {
        DeadClient {
            name: self.name.clone(),
            pid: self.peer.credentials.pid.unwrap_or(0),
            uid: self.peer.credentials.uid,
            numbers: self.mps.numbers.clone(),
            pipes: self.mps.pipes.iter().cloned().collect(),
            lives: false,
        }
    }
}

impl Zone {
    /// Whether there are dead clients that wait for proof.
    pub(crate) fn has_quarantined(&self) -> bool {
        let mut clients = self.clients.values();
        clients.any(|client| client.session == Some(QUARANTINED))
    }

    /// Refuses more memory to a user, other than root and the daemon's own, whose dead clients in quarantine have their
    /// share of a pool.
    pub(crate) fn check_quarantine(&self, client: u32, pool: u32) -> Result<(), Refusal> {
        let uid = self.clients.get(&client).map_or(0, |client| client.uid);
        if is_owner(uid) {
            return Ok(());
        }
        let dead = self
            .clients
            .iter()
            .filter(|(_, client)| client.session == Some(QUARANTINED) && client.uid == uid);
        let members = dead.flat_map(|(index, _)| self.members_of(*index));
        let held: u64 = members
            .filter(|(_, side, _)| *side == Side::Publisher)
            .filter_map(|(topic, _, slot)| Some(self.leased(self.topics.get(&topic)?, slot, pool)))
            .sum();
        let cap = self
            .pools
            .get(pool as usize)
            .map_or(0, |pool| pool.cap_bytes);
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
            let pool = self.pools.get(pool as usize);
            pool.is_some_and(|pool| matches!(pool.domain, Domain::Cuda(_)))
        })
    }

    /// Pools in which a member may read, or write messages and copies of them.
    fn pools_of(&self, topic: u32, side: Side, slot: u32) -> BTreeSet<u32> {
        let Some(topic) = self.topics.get(&topic) else {
            return BTreeSet::new();
        };
        let mut pools: BTreeSet<u32> = topic.pool.into_iter().collect();
        match side {
            Side::Subscriber => pools.extend(topic.subscriber(slot).and_then(|s| s.pool)),
            Side::Publisher => {
                pools.extend(topic.foreign_pools());
                let all = self.pools.iter().map(|pool| pool.index);
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
        if let Some(client) = self.clients.get_mut(&client) {
            client.session = Some(QUARANTINED);
            client.claims = None;
        }
    }
}

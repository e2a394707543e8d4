//! The engine: sessions, and what each may ask.

use crate::links_report::LinksReport;
use crate::quarantine::Holdings;
use crate::recovery::{Recovery, Unwritten};
use crate::refuse::refuse;
use crate::sources::Sources;
use crate::zone::Zone;
use rgaps_mps::{MpsIdentity, Quarantine};
use rgaps_session::{
    Access, AccessError, Answer, Config, Credentials, Notice, Refusal, RefusalCode, Request, ZoneId,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A session has to say hello within this time.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Sessions over the limits that are kept until they say hello, to be told so.
const MAX_TURNED_AWAY: usize = 64;
/// Sessions that are kept for root and the daemon's own user.
const RESERVED_SESSIONS: usize = 64;
/// And no more than one in so many of all.
const OWNERS_SHARE: usize = 8;
/// After how many requests the page tables of control segments are dropped, which grow with every
/// topic that is looked at.
const TRIM_REQUESTS: u64 = 1024;
/// How soon orphans are looked at after something changed.
const TEND_FIRST: Duration = Duration::from_millis(20);
/// How often control segments are looked through.
const SWEEP_PAUSE: Duration = Duration::from_secs(10);
/// How seldom when nothing changes.
const TEND_LAST: Duration = Duration::from_millis(640);

/// Number of a session; never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

/// Who a session's client is, as the kernel says.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Process, user and group.
    pub credentials: Credentials,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Whether the end of its process will be told by [`Engine::process_ended`].
    pub process_is_watched: bool,
}

/// What an engine is made of.
pub struct Setup {
    /// The configuration.
    pub config: Config,
    /// The socket, for people.
    pub socket: PathBuf,
    /// Where a successor will find what zones there were; none writes nothing.
    pub state_file: Option<PathBuf>,
    /// Where memory comes from.
    pub sources: Box<dyn Sources>,
    /// Version of the daemon, for people.
    pub version: String,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Verdict {
    /// It is answered.
    Answer {
        /// The answer.
        result: Box<Result<Answer, Refusal>>,
        /// Descriptors that go with it.
        fds: Vec<OwnedFd>,
        /// Whether the session ends with it.
        last: bool,
    },
    /// The session breaks the protocol and is cut off.
    CutOff(&'static str),
}

/// A client's session.
pub(crate) struct Session {
    pub(crate) peer: Peer,
    pub(crate) name: String,
    pub(crate) welcomed: bool,
    /// Its index in each zone.
    pub(crate) zones: BTreeMap<ZoneId, u32>,
    /// Pools that it fetched segments of.
    pub(crate) pools: BTreeSet<(ZoneId, u32)>,
    pub(crate) mps: MpsIdentity,
    /// Its socket is closed, but its process lives and may still read what it holds.
    pub(crate) detached: bool,
    /// The answer to its hello, if there were too many sessions when it came.
    turned_away: Option<Refusal>,
    deadline: Instant,
}

/// Counted since the start.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counters {
    pub(crate) clients_reaped: u64,
    pub(crate) blocks_reclaimed: u64,
    pub(crate) sessions_cut_off: u64,
    pub(crate) zones_adopted: u64,
}

/// The daemon's state.
pub struct Engine {
    pub(crate) setup: Setup,
    pub(crate) access: Access,
    pub(crate) daemon: u64,
    pub(crate) started: Instant,
    pub(crate) now: Instant,
    pub(crate) sessions: HashMap<SessionId, Session>,
    next_session: u64,
    pub(crate) zones: BTreeMap<ZoneId, Zone>,
    pub(crate) classes: HashMap<String, ZoneId>,
    pub(crate) recovery: Recovery,
    pub(crate) quarantine: Quarantine<Holdings>,
    /// The state file could not be written.
    pub(crate) unwritten: Option<Unwritten>,
    pub(crate) counters: Counters,
    pub(crate) links: LinksReport,
    /// What is not as it was configured, since the start.
    pub(crate) troubles: Vec<String>,
    requests: u64,
    notices: Vec<(SessionId, Notice, Vec<OwnedFd>)>,
    stopping: bool,
    idle_since: Option<Instant>,
    /// No late joiner can come any more.
    history_given_up: bool,
    next_tend: Option<Instant>,
    /// When control segments are looked through for memory that nobody was given.
    next_sweep: Option<Instant>,
    tend_pause: Duration,
}

/// Whether a user owns the realm: root and the daemon's own user do.
pub(crate) fn is_owner(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

impl Engine {
    /// An engine without zones. If the state file tells of a predecessor's, it waits for its
    /// clients to hand them back.
    pub fn new(setup: Setup, now: Instant) -> Result<Engine, AccessError> {
        let access = Access::new(&setup.config.access)?;
        let wait = Duration::from_millis(setup.config.recovery_ms);
        let recovery = Recovery::read(setup.state_file.as_deref(), wait);
        Ok(Engine {
            access,
            daemon: crate::random::nonzero_u64(),
            started: now,
            now,
            sessions: HashMap::new(),
            next_session: 1,
            zones: BTreeMap::new(),
            classes: HashMap::new(),
            recovery,
            quarantine: Quarantine::default(),
            unwritten: None,
            counters: Counters::default(),
            links: LinksReport::default(),
            troubles: Vec::new(),
            requests: 0,
            notices: Vec::new(),
            stopping: false,
            idle_since: Some(now),
            history_given_up: false,
            next_tend: None,
            next_sweep: None,
            tend_pause: TEND_FIRST,
            setup,
        })
    }

    /// Something is not as it was configured, which the status says from now on.
    pub fn tell_trouble(&mut self, trouble: String) {
        self.troubles.push(trouble);
    }

    /// A new session. None: there are far too many, and it is to be closed without a word.
    pub fn connect(&mut self, now: Instant, peer: Peer) -> Option<SessionId> {
        self.now = now;
        self.recovery.begin(now);
        let turned_away = self.over_limit(peer.credentials.uid);
        let waiting = self
            .sessions
            .values()
            .filter(|s| s.turned_away.is_some())
            .count();
        if turned_away.is_some() && waiting >= MAX_TURNED_AWAY {
            return None;
        }
        let id = SessionId(self.next_session);
        self.next_session += 1;
        self.idle_since = None;
        self.sessions
            .insert(id, Session::new(peer, turned_away, now + HANDSHAKE));
        Some(id)
    }

    /// Why a session of this user is one too many, if it is.
    fn over_limit(&self, uid: u32) -> Option<Refusal> {
        let limits = &self.setup.config.limits;
        let (all, of_user) = (self.admitted().count(), self.admitted_of(uid));
        let (count, key) = if all >= self.room_for(uid) {
            (limits.connections, "connections")
        } else if of_user >= limits.connections_per_user as usize {
            (limits.connections_per_user, "connections_per_user")
        } else {
            return None;
        };
        let message = format!(
            "the limit of {count} open sessions is reached; close some, or raise limits.{key} in rgaps.toml, then run 'rgaps down'"
        );
        Some(refuse(RefusalCode::LimitReached, message))
    }

    fn admitted(&self) -> impl Iterator<Item = (&SessionId, &Session)> {
        self.sessions
            .iter()
            .filter(|(_, s)| s.turned_away.is_none())
    }

    fn admitted_of(&self, uid: u32) -> usize {
        self.admitted()
            .filter(|(_, s)| s.peer.credentials.uid == uid)
            .count()
    }

    /// How many sessions there may be when one of this user is to come in: the last ones are for root and the daemon's
    /// user, who must be able to look and to stop the daemon.
    fn room_for(&self, uid: u32) -> usize {
        let all = self.setup.config.limits.connections as usize;
        match is_owner(uid) {
            true => all,
            false => all - (all / OWNERS_SHARE).min(RESERVED_SESSIONS),
        }
    }

    /// A session that has to end so that this user gets one, if all are taken: the newest one in no zone of the user who
    /// has the most, if that user has more than the other would have.
    pub fn makes_room(&self, uid: u32) -> Option<SessionId> {
        if self.admitted().count() < self.room_for(uid) {
            return None;
        }
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for (_, session) in self.admitted() {
            *counts.entry(session.peer.credentials.uid).or_default() += 1;
        }
        let own = counts.get(&uid).copied().unwrap_or_default();
        let (most, count) = counts
            .into_iter()
            .max_by_key(|(uid, count)| (*count, *uid))?;
        if count <= own + 1 {
            return None;
        }
        let of_most = self
            .admitted()
            .filter(|(_, s)| s.peer.credentials.uid == most);
        of_most
            .filter(|(_, s)| s.zones.is_empty())
            .map(|(id, _)| *id)
            .max()
    }

    /// The user of a session's client; `u32::MAX` if there is no such session.
    pub fn uid_of(&self, session: SessionId) -> u32 {
        let known = self.sessions.get(&session);
        known.map_or(u32::MAX, |known| known.peer.credentials.uid)
    }

    /// Descriptors of memory that the daemon keeps: segments, registries and control segments.
    pub fn segment_count(&self) -> usize {
        let of_zone = |zone: &Zone| {
            2 + zone
                .pools
                .iter()
                .map(|pool| pool.segment_count() as usize)
                .sum::<usize>()
        };
        self.zones.values().map(of_zone).sum()
    }

    /// A request of a session, with the descriptors that came with it.
    pub fn handle(
        &mut self,
        now: Instant,
        session: SessionId,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> Verdict {
        self.now = now;
        let Some(known) = self.sessions.get(&session) else {
            return Verdict::CutOff("the session has ended");
        };
        let takes_fds = matches!(
            request,
            Request::HandBack { .. } | Request::HandBackSegments { .. }
        );
        if !takes_fds && !fds.is_empty() {
            return Verdict::CutOff(
                "the client sent file descriptors with a request that takes none",
            );
        }
        let welcomed = known.welcomed;
        self.requests += 1;
        if self.requests % TRIM_REQUESTS == 0 {
            self.zones
                .values()
                .for_each(|zone| zone.control.forget_pages());
        }
        match request {
            Request::Hello { .. } if welcomed => Verdict::CutOff("a second hello"),
            Request::Hello {
                protocol,
                layout,
                realm,
                name,
            } => {
                let result = match &self.sessions[&session].turned_away {
                    Some(refusal) => Err(refusal.clone()),
                    None => self.hello(session, protocol, layout, &realm, name),
                };
                let last = result.is_err();
                Verdict::Answer {
                    result: Box::new(result),
                    fds: Vec::new(),
                    last,
                }
            }
            _ if !welcomed => Verdict::CutOff("a request before hello"),
            request => {
                let mut out = Vec::new();
                let result = self.serve(session, request, fds, &mut out);
                if result.is_err() {
                    out.clear();
                }
                self.wake_tending();
                Verdict::Answer {
                    result: Box::new(result),
                    fds: out,
                    last: false,
                }
            }
        }
    }

    /// The daemon should leave: it was asked to.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    pub(crate) fn stop(&mut self) {
        self.stopping = true;
    }

    /// News for sessions since the last call, with the descriptors that go with them.
    pub fn take_notices(&mut self) -> Vec<(SessionId, Notice, Vec<OwnedFd>)> {
        std::mem::take(&mut self.notices)
    }

    pub(crate) fn notify(&mut self, session: SessionId, notice: Notice, fds: Vec<OwnedFd>) {
        self.notices.push((session, notice, fds));
    }

    /// Sessions that have not said hello in time; the caller cuts them off.
    pub fn overdue(&self, now: Instant) -> Vec<SessionId> {
        let late = self
            .sessions
            .iter()
            .filter(|(_, s)| !s.welcomed && now >= s.deadline);
        late.map(|(id, _)| *id).collect()
    }

    /// Does what is due. To be called when `next_tick` says so, and may be at any time.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        if self.tend_quarantine() {
            self.wake_tending();
        }
        self.write_state_again();
        self.sweep_control();
        if self.next_tend.is_some_and(|at| now >= at) {
            let mut changed = false;
            for zone in self.zones.values_mut() {
                changed |= zone.tend();
            }
            changed |= self.check_absent();
            self.tend_pause = if changed {
                TEND_FIRST
            } else {
                (self.tend_pause * 2).min(TEND_LAST)
            };
            self.next_tend = self.needs_tending().then(|| now + self.tend_pause);
        }
        self.note_idleness();
    }

    /// Gives back memory of control segments that nobody was given: now and then, and soon after a client has gone.
    fn sweep_control(&mut self) {
        if self.next_sweep.is_some_and(|at| self.now < at) {
            return;
        }
        let more = self
            .zones
            .values()
            .filter(|zone| zone.control.sweep())
            .count()
            > 0;
        let in_use = self.zones.values().any(|zone| !zone.clients.is_empty());
        self.next_sweep = match (more, in_use) {
            (true, _) => Some(self.now + TEND_FIRST),
            (false, true) => Some(self.now + SWEEP_PAUSE),
            (false, false) => None,
        };
    }

    /// Looks through control segments at the next tick.
    pub(crate) fn sweep_soon(&mut self) {
        self.next_sweep = Some(self.now);
    }

    /// When `tick` has something to do next.
    pub fn next_tick(&self) -> Option<Instant> {
        let hello = self
            .sessions
            .values()
            .filter(|s| !s.welcomed)
            .map(|s| s.deadline)
            .min();
        let idle = self
            .idle_since
            .zip(self.setup.config.idle_exit())
            .map(|(since, wait)| since + wait);
        let proof = self.quarantine.next_look();
        let write = self.unwritten.as_ref().map(|unwritten| unwritten.again);
        let sweep = self.next_sweep;
        [hello, idle, self.next_tend, proof, write, sweep]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether nobody has needed the daemon for as long as the configuration lets it wait. Whoever left history
    /// for late joiners needs it.
    pub fn is_idle(&self, now: Instant) -> bool {
        let wait = self.setup.config.idle_exit();
        self.idle_since
            .zip(wait)
            .is_some_and(|(since, wait)| now >= since + wait)
    }

    /// Whether history for late joiners is all that keeps the daemon from being idle.
    pub(crate) fn stays_for_history(&self) -> bool {
        let keeps = || self.zones.values().any(Zone::keeps_history);
        !self.is_in_use() && !self.history_given_up && keeps()
    }

    /// History keeps the daemon no longer: its socket is gone, so no late joiner can come.
    pub(crate) fn give_up_history(&mut self) {
        self.history_given_up = true;
        self.note_idleness();
    }

    fn is_in_use(&self) -> bool {
        let absent = || self.zones.values().any(|zone| !zone.clients.is_empty());
        !self.sessions.is_empty() || absent()
    }

    pub(crate) fn note_idleness(&mut self) {
        if self.is_in_use() || self.stays_for_history() {
            self.idle_since = None;
        } else if self.idle_since.is_none() {
            self.idle_since = Some(self.now);
        }
    }

    fn needs_tending(&self) -> bool {
        self.zones
            .values()
            .any(|zone| zone.needs_tending() || zone.has_absent_clients())
    }

    /// Something happened: looks after orphans soon.
    pub(crate) fn wake_tending(&mut self) {
        if self.needs_tending() {
            self.tend_pause = TEND_FIRST;
            let soon = self.now + TEND_FIRST;
            self.next_tend = Some(self.next_tend.map_or(soon, |at| at.min(soon)));
        }
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// The session was cut off for breaking the protocol.
    pub fn count_cut_off(&mut self) {
        self.counters.sessions_cut_off += 1;
    }
}

impl Session {
    fn new(peer: Peer, turned_away: Option<Refusal>, deadline: Instant) -> Session {
        Session {
            peer,
            name: String::new(),
            welcomed: false,
            zones: BTreeMap::new(),
            pools: BTreeSet::new(),
            mps: MpsIdentity::default(),
            detached: false,
            turned_away,
            deadline,
        }
    }
}

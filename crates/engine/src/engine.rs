//! The engine: sessions, and what each may ask.

use crate::links_report::LinksReport;
use crate::maintenance::Maintenance;
use crate::recovery::Recovery;
use crate::sessions::{Peer, Session, SessionId, Sessions};
use crate::sources::Sources;
use crate::state_file::Unwritten;
use crate::zone::Zone;
use crate::zones::Zones;
use rgaps_mps::Quarantine;
use rgaps_session::{Access, AccessError, Answer, Config, Notice, Refusal, Request, ZoneId};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// After how many requests the page tables of control segments are dropped, which grow with every
/// topic that is looked at.
const TRIM_REQUESTS: u64 = 1024;

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

impl Verdict {
    fn answer(result: Result<Answer, Refusal>, fds: Vec<OwnedFd>, last: bool) -> Verdict {
        Verdict::Answer {
            result: Box::new(result),
            fds,
            last,
        }
    }
}

/// Counted since the start.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counters {
    pub(crate) clients_reaped: u64,
    pub(crate) blocks_reclaimed: u64,
    pub(crate) sessions_cut_off: u64,
    pub(crate) zones_adopted: u64,
}

/// What waits for proof.
pub(crate) enum Holdings {
    /// All that a client held whose process has ended: its index in each zone.
    Client(BTreeMap<ZoneId, u32>),
    /// The timelines of a client whose process lives but has lost its GPU: zone, index, number.
    Timelines(ZoneId, u32, u64),
}

/// The daemon's state.
pub struct Engine {
    pub(crate) setup: Setup,
    pub(crate) access: Access,
    pub(crate) daemon: u64,
    pub(crate) started: Instant,
    pub(crate) now: Instant,
    pub(crate) sessions: Sessions,
    pub(crate) zones: Zones,
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
    pub(crate) maintenance: Maintenance,
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
            sessions: Sessions::new(&setup.config.limits),
            zones: Zones::default(),
            recovery,
            quarantine: Quarantine::default(),
            unwritten: None,
            counters: Counters::default(),
            links: LinksReport::default(),
            troubles: Vec::new(),
            requests: 0,
            notices: Vec::new(),
            stopping: false,
            maintenance: Maintenance::new(setup.config.idle_exit(), now),
            setup,
        })
    }

    /// Something is not as it was configured, which the status says from now on.
    pub fn add_trouble(&mut self, trouble: String) {
        self.troubles.push(trouble);
    }

    /// A new session. None: there are far too many, and it is to be closed without a word.
    pub fn connect(&mut self, now: Instant, peer: Peer) -> Option<SessionId> {
        self.now = now;
        self.recovery.forget_dead();
        self.recovery.begin(now);
        let session = self.sessions.open(peer, now)?;
        self.maintenance.note_use(now, true);
        Some(session)
    }

    /// The session to end so that the user `uid` gets one, if all are taken: the newest session without a zone, of the user with the most
    /// sessions. `None` if that user would then have fewer than `uid`.
    pub fn makes_room(&self, uid: u32) -> Option<SessionId> {
        self.sessions.makes_room(uid)
    }

    /// The user of a session's client; `u32::MAX` if there is no such session.
    pub fn uid_of(&self, session: SessionId) -> u32 {
        self.sessions.get(session).map_or(u32::MAX, Session::uid)
    }

    /// Descriptors of memory that the daemon keeps: segments, registries and control segments.
    pub fn segment_count(&self) -> usize {
        self.zones.segment_count()
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
        let Some(known) = self.sessions.get(session) else {
            return Verdict::CutOff("the session has ended");
        };
        let takes_fds = matches!(
            request,
            Request::HandBack { .. } | Request::HandBackSegments { .. } | Request::Device { .. }
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
                .iter()
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
                let result = self.hello(session, protocol, layout, &realm, name);
                let last = result.is_err();
                Verdict::answer(result, Vec::new(), last)
            }
            _ if !welcomed => Verdict::CutOff("a request before hello"),
            request => {
                let mut out = Vec::new();
                let result = self.serve(session, request, fds, &mut out);
                if result.is_err() {
                    out.clear();
                }
                self.maintain_soon();
                Verdict::answer(result, out, false)
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

    /// Notices for sessions since the last call, with the descriptors that go with them.
    pub fn take_notices(&mut self) -> Vec<(SessionId, Notice, Vec<OwnedFd>)> {
        std::mem::take(&mut self.notices)
    }

    pub(crate) fn notify(&mut self, session: SessionId, notice: Notice, fds: Vec<OwnedFd>) {
        self.notices.push((session, notice, fds));
    }

    /// Sessions that have not said hello in time; the caller cuts them off.
    pub fn overdue(&self, now: Instant) -> Vec<SessionId> {
        self.sessions.overdue(now)
    }

    /// Does what is due. To be called when `next_tick` says so, and may be at any time.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        if self.release_quarantined() {
            self.maintain_soon();
        }
        self.write_state_again();
        self.sweep_control();
        if self.maintenance.is_due(now) {
            let mut changed = false;
            for zone in self.zones.iter_mut() {
                changed |= zone.maintain();
            }
            changed |= self.check_absent();
            self.recovery.forget_dead();
            let needed = self.needs_maintenance();
            self.maintenance.done(now, changed, needed);
        }
        self.note_idleness();
    }

    /// Gives back memory of control segments that nobody was given: now and then, and soon after a client has left.
    fn sweep_control(&mut self) {
        if !self.maintenance.is_sweep_due(self.now) {
            return;
        }
        let zones = self.zones.iter();
        let more = zones.filter(|zone| zone.control.sweep()).count() > 0;
        let in_use = self.zones.have_clients();
        self.maintenance.swept(self.now, more, in_use);
    }

    /// When `tick` has something to do next.
    pub fn next_tick(&self) -> Option<Instant> {
        let hello = self.sessions.next_deadline();
        let proof = self.quarantine.next_look();
        let write = self.unwritten.as_ref().map(|unwritten| unwritten.again);
        let times = [hello, self.maintenance.next(), proof, write];
        times.into_iter().flatten().min()
    }

    /// Whether nobody has needed the daemon for as long as the configuration lets it wait. Whoever left history
    /// for late joiners needs it.
    pub fn is_idle(&self, now: Instant) -> bool {
        self.maintenance.is_idle(now)
    }

    /// Whether history for late joiners is all that keeps the daemon from being idle.
    pub(crate) fn stays_for_history(&self) -> bool {
        let keeps = |zone: &Zone| zone.history.is_kept(&zone.topics);
        !self.is_in_use() && !self.maintenance.gave_up_history() && self.zones.iter().any(keeps)
    }

    /// History keeps the daemon no longer: its socket was removed, so no late joiner can connect.
    pub(crate) fn give_up_history(&mut self) {
        self.maintenance.give_up_history();
        self.note_idleness();
    }

    fn is_in_use(&self) -> bool {
        !self.sessions.is_empty() || self.zones.have_clients()
    }

    pub(crate) fn note_idleness(&mut self) {
        let in_use = self.is_in_use() || self.stays_for_history();
        self.maintenance.note_use(self.now, in_use);
    }

    fn needs_maintenance(&self) -> bool {
        let mut zones = self.zones.iter();
        self.recovery.watches_processes()
            || zones.any(|zone| zone.needs_maintenance() || zone.clients.have_absent())
    }

    /// Something happened: looks after orphans soon.
    pub(crate) fn maintain_soon(&mut self) {
        if self.needs_maintenance() {
            self.maintenance.wake(self.now);
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

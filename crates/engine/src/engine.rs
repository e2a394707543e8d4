//! The engine: the daemon's whole state, and what each request does to it.
//!
//! Only this module's files touch the fields of [`Engine`]; each has the requests of one kind.

mod cleanup;
mod devices;
mod hand_back;
mod kept_history;
mod links;
mod listing;
mod mismatch_notices;
mod quarantine;
mod requests;
mod saved_state;
mod snapshot;

pub use snapshot::{snapshots, Snapshot, SnapshotAsker, SnapshotSource, TopicFigures};

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
    /// The path of the daemon's socket, as `status` shows it.
    pub socket: PathBuf,
    /// The file that lists the zones for a successor. None: the engine writes no such file.
    pub state_file: Option<PathBuf>,
    /// Opens the sources of memory for pools.
    pub sources: Box<dyn Sources>,
    /// The daemon's version, as `status` shows it.
    pub version: String,
}

/// What the caller does about a request.
#[derive(Debug)]
pub enum Verdict {
    /// Send an answer.
    Answer {
        /// The answer.
        result: Box<Result<Answer, Refusal>>,
        /// Descriptors to send with the answer.
        fds: Vec<OwnedFd>,
        /// Whether the session ends after the answer.
        last: bool,
    },
    /// End the session: it violated the protocol. The text says how.
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

/// Totals since the daemon started.
#[derive(Clone, Copy, Default, Debug)]
struct Counters {
    clients_reaped: u64,
    blocks_reclaimed: u64,
    sessions_cut_off: u64,
    zones_adopted: u64,
}

/// What a client in quarantine keeps until MPS confirms that its GPU work has ended.
enum Holdings {
    /// Everything, since the client's process has ended. By zone: the client's index there.
    Client(BTreeMap<ZoneId, u32>),
    /// The timelines of a client whose process lives but has lost its GPU context: zone, the client's index there, its `Client::id`.
    Timelines(ZoneId, u32, u64),
}

/// The daemon's state.
pub struct Engine {
    setup: Setup,
    access: Access,
    /// A random number, which tells clients this daemon from a predecessor.
    daemon: u64,
    started: Instant,
    /// The time of the current request or tick.
    now: Instant,
    sessions: Sessions,
    zones: Zones,
    recovery: Recovery,
    quarantine: Quarantine<Holdings>,
    /// Set while the state file could not be written.
    unwritten: Option<Unwritten>,
    counters: Counters,
    links: LinksReport,
    /// Settings that could not be applied, as `status` lists them. Kept until the daemon ends.
    troubles: Vec<String>,
    /// How many requests clients have sent.
    requests: u64,
    notices: Vec<(SessionId, Notice, Vec<OwnedFd>)>,
    stopping: bool,
    maintenance: Maintenance,
}

impl Engine {
    /// Creates an engine without zones. If the state file lists zones of a predecessor, the engine waits for their clients to
    /// hand them back.
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

    /// Adds a setting that could not be applied to the warnings of `status`.
    pub fn add_trouble(&mut self, trouble: String) {
        self.troubles.push(trouble);
    }

    /// Opens a session. None: there are far too many, and the caller closes the connection without an answer.
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

    /// Serves a request of a session. `fds`: the descriptors that the client sent with it.
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
                .for_each(|zone| zone.control().forget_pages());
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

    /// Whether a client has asked the daemon to stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    fn stop(&mut self) {
        self.stopping = true;
    }

    /// Notices for sessions since the last call, with the descriptors that go with them.
    pub fn take_notices(&mut self) -> Vec<(SessionId, Notice, Vec<OwnedFd>)> {
        std::mem::take(&mut self.notices)
    }

    fn notify(&mut self, session: SessionId, notice: Notice, fds: Vec<OwnedFd>) {
        self.notices.push((session, notice, fds));
    }

    /// Sessions that have not said hello in time; the caller cuts them off.
    pub fn overdue(&self, now: Instant) -> Vec<SessionId> {
        self.sessions.overdue(now)
    }

    /// Does the work that is due. Call it when `next_tick` is reached; an earlier call does no harm.
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

    /// Returns to the system the memory that clients touched in free ranges of control segments: now and then, and soon after
    /// a client has left.
    fn sweep_control(&mut self) {
        if !self.maintenance.is_sweep_due(self.now) {
            return;
        }
        let zones = self.zones.iter();
        let more = zones.filter(|zone| zone.control().sweep()).count() > 0;
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

    /// Whether nobody has needed the daemon for as long as the configuration lets it wait. History that is kept for
    /// late joiners counts as need.
    pub fn is_idle(&self, now: Instant) -> bool {
        self.maintenance.is_idle(now)
    }

    /// Whether history for late joiners is all that keeps the daemon from being idle.
    pub(crate) fn stays_for_history(&self) -> bool {
        !self.is_in_use()
            && !self.maintenance.gave_up_history()
            && self.zones.iter().any(Zone::keeps_history)
    }

    /// Lets the daemon end although it keeps history. Call when its socket was removed, so that no late joiner can connect.
    pub(crate) fn give_up_history(&mut self) {
        self.maintenance.give_up_history();
        self.note_idleness();
    }

    fn is_in_use(&self) -> bool {
        !self.sessions.is_empty() || self.zones.have_clients()
    }

    fn note_idleness(&mut self) {
        let in_use = self.is_in_use() || self.stays_for_history();
        self.maintenance.note_use(self.now, in_use);
    }

    fn needs_maintenance(&self) -> bool {
        let mut zones = self.zones.iter();
        self.recovery.watches_processes()
            || zones.any(|zone| zone.needs_maintenance() || zone.clients().have_absent())
    }

    /// Has `tick` maintain zones soon, if anything in them needs it.
    fn maintain_soon(&mut self) {
        if self.needs_maintenance() {
            self.maintenance.wake(self.now);
        }
    }

    fn requests(&self) -> u64 {
        self.requests
    }

    /// Counts a session that the caller cut off for violating the protocol.
    pub fn count_cut_off(&mut self) {
        self.counters.sessions_cut_off += 1;
    }
}

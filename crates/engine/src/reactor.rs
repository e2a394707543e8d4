//! The daemon's only thread that serves clients. It waits for sockets, ends of processes, signals and time, and calls the engine.

mod connection;

use crate::closer::{copies_of_memory, Closer};
use crate::engine::{Engine, SnapshotSource, Verdict};
use crate::sessions::{Peer, SessionId};
use connection::{Ahead, Connection, Flow, MAX_UNREAD_FDS};
use rgaps_session::{
    Answer, ClientPacket, DaemonPacket, Notice, Refusal, RefusalCode, Request, SessionListener,
    SocketError, DAEMON_FILES_MIN, KERNEL_FDS_MAX, MAX_PACKET_FDS,
};
use rustix::event::{epoll, poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Most requests of one user in a turn, at most one of each session. Then other users are served.
const MAX_REQUESTS_A_TURN: usize = 8;
/// The part of the daemon's descriptors (one in so many) that the clients of one user may leave unread, and also the part that may
/// wait to be closed for one user.
const USER_SHARE_OF_FDS: usize = 4;
/// Descriptors that are kept for the daemon itself: its state file, segments, its log.
const RESERVED_FDS: usize = 128;
/// The smallest limit leaves room for a packet with descriptors and for some clients.
const _: () =
    assert!(RESERVED_FDS + MAX_PACKET_FDS + KERNEL_FDS_MAX + 64 < DAEMON_FILES_MIN as usize);
/// Most connections that are accepted in a turn.
const MAX_ACCEPTS_A_TURN: usize = 64;
/// Events that are fetched at once.
const MAX_EVENTS: usize = 256;
/// How long no connection is accepted after accepting has failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a session waits if this process or the kernel has no room for the descriptors of its next packet.
const READ_PAUSE: Duration = Duration::from_millis(20);
/// How long a daemon that stops waits until its answers are sent.
const FAREWELL: Duration = Duration::from_millis(500);

/// Stands for an unknown user. No user has this number.
const NOBODY: u32 = u32::MAX;

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
/// Not the token of a socket, since session numbers begin at 1.
const SNAPSHOTS: u64 = 2;
/// A session's socket has the token `FIRST_SESSION + 2 * id`, its process the next.
const FIRST_SESSION: u64 = 2;

/// A failed system call that ends the reactor.
#[derive(Debug, thiserror::Error)]
#[error(
    "{call} failed: {source}; raise the limit of open files (ulimit -n), or see the daemon's log"
)]
pub struct ReactorError {
    /// The system call.
    pub call: &'static str,
    /// Its error.
    pub source: std::io::Error,
}

fn failed(call: &'static str) -> impl Fn(Errno) -> ReactorError {
    move |errno| ReactorError {
        call,
        source: errno.into(),
    }
}

/// Serves an engine's clients until the daemon ends.
pub struct Reactor {
    engine: Engine,
    listener: SessionListener,
    /// Becomes readable when a signal tells the daemon to end.
    signals: OwnedFd,
    epoll: OwnedFd,
    connections: HashMap<SessionId, Connection>,
    closer: Closer,
    /// Descriptors of the clients' processes, also of sessions whose socket is closed.
    processes: HashMap<SessionId, OwnedFd>,
    /// Set while no connection is accepted: until when.
    accepts_again: Option<Instant>,
    /// Sessions whose next packet waits for room for its descriptors.
    paused: Vec<SessionId>,
    /// When the paused sessions are tried again.
    reads_again: Option<Instant>,
    /// By user: how many requests were served in this turn.
    served: HashMap<u32, usize>,
    snapshots: Option<SnapshotSource>,
}

impl Reactor {
    /// A reactor that serves `listener` and leaves in order when `signals` becomes readable.
    pub fn new(
        engine: Engine,
        listener: SessionListener,
        signals: OwnedFd,
    ) -> Result<Reactor, ReactorError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create"))?;
        let reactor = Reactor {
            engine,
            listener,
            signals,
            epoll,
            connections: HashMap::new(),
            closer: Closer::default(),
            processes: HashMap::new(),
            accepts_again: None,
            paused: Vec::new(),
            reads_again: None,
            served: HashMap::new(),
            snapshots: None,
        };
        reactor.watch(reactor.listener.as_fd(), LISTENER, epoll::EventFlags::IN)?;
        reactor.watch(reactor.signals.as_fd(), SIGNALS, epoll::EventFlags::IN)?;
        Ok(reactor)
    }

    /// Lets the reactor also answer `source`'s requests for snapshots of the engine.
    pub fn serve_snapshots(&mut self, source: SnapshotSource) -> Result<(), ReactorError> {
        self.watch(source.as_fd(), SNAPSHOTS, epoll::EventFlags::IN)?;
        self.snapshots = Some(source);
        Ok(())
    }

    fn watch(
        &self,
        fd: BorrowedFd<'_>,
        token: u64,
        flags: epoll::EventFlags,
    ) -> Result<(), ReactorError> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, fd, data, flags).map_err(failed("epoll_ctl"))
    }

    /// Serves until a signal or a client's request ends the daemon, or nobody has needed it for the idle time.
    pub fn run(mut self) -> Result<(), ReactorError> {
        let mut events = Vec::with_capacity(MAX_EVENTS);
        let mut turn = 0usize;
        loop {
            events.clear();
            let timeout = self.timeout(Instant::now());
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(failed("epoll_wait")(errno)),
            }
            let mut signalled = false;
            // First: a client that reconnects is admitted once its last session has ended. Requests that it left unread there are
            // dropped; the client sends them again.
            for event in events.iter().filter(|event| is_hang_up(event)) {
                self.hang_up(session_of(event.data.u64()));
            }
            // Begin at another event each time, so that all sessions of a user get their turn although a turn serves only some of
            // them.
            turn = turn.wrapping_add(1);
            let begin = turn % events.len().max(1);
            self.served.clear();
            let (last, first) = events.split_at(begin);
            let others = first.iter().chain(last);
            for event in others.filter(|event| !is_hang_up(event)) {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    SIGNALS => signalled = true,
                    SNAPSHOTS => {
                        if let Some(source) = &self.snapshots {
                            source.answer(&self.engine);
                        }
                    }
                    token => self.serve(token, event.flags),
                }
            }
            self.do_what_is_due();
            if signalled || self.engine.is_stopping() {
                self.leave();
                return Ok(());
            }
            if self.engine.is_idle(Instant::now()) {
                // This serves clients that have just connected. Later ones find the socket closed
                // before their first answer, and look for a daemon again.
                self.accept();
                if self.connections.is_empty() {
                    tracing::info!("no client and no kept history for the idle time (idle_exit_ms); the daemon stops");
                    self.leave();
                    return Ok(());
                }
            }
        }
    }

    fn timeout(&self, now: Instant) -> Option<Timespec> {
        let tick = self.engine.next_tick();
        let times = [tick, self.accepts_again, self.reads_again];
        let next = times.into_iter().flatten().min()?;
        let wait = next.saturating_duration_since(now);
        // A millisecond more, so that the next tick is due when `epoll_wait` returns.
        let wait = wait + Duration::from_millis(1);
        Some(Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: wait.subsec_nanos().into(),
        })
    }

    fn do_what_is_due(&mut self) {
        let now = Instant::now();
        self.engine.tick(now);
        if self.engine.stays_for_history() && !self.listener.is_reachable() {
            tracing::warn!("the daemon's socket was removed, so nobody can read the kept history any more; it is given up");
            self.engine.give_up_history();
        }
        for session in self.engine.overdue(now) {
            self.cut_off(session, "the client sent no hello in time");
        }
        if self.accepts_again.is_some_and(|at| now >= at) {
            self.accepts_again = None;
            self.watch_listener(epoll::EventFlags::IN);
        }
        if self.reads_again.is_some_and(|at| now >= at) {
            self.reads_again = None;
            for session in std::mem::take(&mut self.paused) {
                // A session with packets to send is read again when they are sent.
                match self.connections.get(&session).map(Connection::has_more) {
                    Some(true) => {
                        self.watch_session(session, epoll::EventFlags::OUT);
                        self.flush(session);
                    }
                    Some(false) => self.watch_session(session, epoll::EventFlags::IN),
                    None => {}
                }
            }
        }
        self.send_notices();
    }

    fn send_notices(&mut self) {
        for (session, notice, fds) in self.engine.take_notices() {
            self.push(session, DaemonPacket::Notice(notice), fds);
        }
    }

    fn accept(&mut self) {
        if self.accepts_again.is_some() {
            return;
        }
        for _ in 0..MAX_ACCEPTS_A_TURN {
            match self.listener.accept() {
                Ok(Some(channel)) => {
                    let connection = Connection::new(channel);
                    match connection.identify() {
                        Ok((peer, process)) => self.admit(connection, peer, process),
                        Err(error) => {
                            tracing::warn!(%error, "refused a connection");
                            self.discard(connection, NOBODY);
                        }
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "accepting connections failed; trying again shortly");
                    self.pause_accepting();
                    return;
                }
            }
        }
    }

    /// Stops accepting for a while. Call when descriptors or memory have run out: the listener stays readable, which would keep this
    /// thread busy.
    fn pause_accepting(&mut self) {
        self.accepts_again = Some(Instant::now() + ACCEPT_PAUSE);
        self.watch_listener(epoll::EventFlags::empty());
    }

    fn watch_listener(&self, flags: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(LISTENER);
        if let Err(error) = epoll::modify(&self.epoll, &self.listener, data, flags) {
            tracing::error!(%error, "epoll_ctl");
        }
    }

    fn admit(&mut self, connection: Connection, peer: Peer, process: Option<OwnedFd>) {
        let uid = peer.credentials.uid;
        if self.closer.is_full(uid) {
            tracing::warn!(uid, "closing the file descriptors that this user sent takes too long; refused a connection of this user");
            return self.discard(connection, uid);
        }
        if !self.has_spare_fds() {
            tracing::warn!(uid, "the daemon's limit of open files is reached; refused a connection of this user; raise ulimit -n");
            return self.discard(connection, uid);
        }
        if let Some(other) = self.engine.makes_room(uid) {
            self.cut_off(
                other,
                "the limit of connections is reached, its user has the most, and another user connects",
            );
        }
        let Some(session) = self.engine.connect(Instant::now(), peer) else {
            tracing::warn!(
                "the limit of connections is reached; a connection was closed without an answer"
            );
            return self.discard(connection, uid);
        };
        let token = FIRST_SESSION + 2 * session.0;
        let watch = |fd, token| self.watch(fd, token, epoll::EventFlags::IN);
        let watched = watch(connection.as_fd(), token).and_then(|()| {
            let process = process.as_ref();
            process.map_or(Ok(()), |fd| watch(fd.as_fd(), token + 1))
        });
        self.connections.insert(session, connection);
        self.processes.extend(process.map(|fd| (session, fd)));
        if let Err(error) = watched {
            tracing::error!(%error, "refused a connection");
            self.close(session);
            self.process_ended(session);
        }
    }

    fn serve(&mut self, token: u64, flags: epoll::EventFlags) {
        let session = session_of(token);
        if token % 2 == 1 {
            return self.process_ended(session);
        }
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush(session);
        }
        if flags.contains(epoll::EventFlags::IN) {
            self.read(session);
        }
    }

    /// Serves one request of a session. It reads the next in another turn, so that all sessions take turns, and only when
    /// the client has room for its answer.
    fn read(&mut self, session: SessionId) {
        let uid = self.engine.uid_of(session);
        let Some(connection) = self.connections.get_mut(&session) else {
            return;
        };
        let served = self.served.entry(uid).or_default();
        if connection.is_leaving() || connection.has_more() || *served >= MAX_REQUESTS_A_TURN {
            return;
        }
        *served += 1;
        match connection.look_ahead() {
            // Without room, the kernel would close the packet's surplus descriptors on this thread, which may block.
            Ok(Ahead::Descriptors) if !self.has_room_for_fds_of(uid) => return self.pause(session),
            Ok(_) => {}
            Err(SocketError::WouldBlock) => return,
            Err(SocketError::Closed) => return self.hang_up(session),
            Err(error) => return self.cut_off(session, &error.to_string()),
        }
        let Some(connection) = self.connections.get(&session) else {
            return;
        };
        let closer = &self.closer;
        match connection.receive(&mut |fds| closer.close(uid, fds)) {
            Ok(Some((packet, fds))) if fds.is_empty() => self.handle(session, packet, fds),
            Ok(Some((packet, fds))) => {
                match copies_of_memory(&fds) {
                    Some(copies) => self.handle(session, packet, copies),
                    None => self.cut_off(
                        session,
                        "the client sent a file descriptor that is not a segment of memory",
                    ),
                }
                self.closer.close(uid, fds);
            }
            Ok(None) | Err(SocketError::Closed) => self.hang_up(session),
            Err(SocketError::WouldBlock) => {}
            Err(error) => self.cut_off(session, &error.to_string()),
        }
    }

    /// Refuses a request that is answered with descriptors if the daemon has none left to send. The outer `Err`: the client violates the
    /// protocol.
    fn may_send_fds(
        &self,
        session: SessionId,
        request: &Request,
    ) -> Result<Result<(), Refusal>, &'static str> {
        if !matches!(request, Request::Segments { .. } | Request::Join { .. }) {
            return Ok(Ok(()));
        }
        let own = self.connections.get(&session);
        let own = own.map_or(0, Connection::unread_fds);
        if own + MAX_PACKET_FDS > MAX_UNREAD_FDS {
            return Err("the client does not read its answers");
        }
        let uid = self.engine.uid_of(session);
        let all = self.connections.iter();
        let of_user = all.filter(|(id, _)| self.engine.uid_of(**id) == uid);
        let unread: usize = of_user.map(|(_, connection)| connection.unread_fds()).sum();
        let full = unread + MAX_PACKET_FDS > fd_limit() / USER_SHARE_OF_FDS;
        if !full && self.has_spare_fds() {
            return Ok(Ok(()));
        }
        Ok(Err(Refusal {
            code: RefusalCode::LimitReached,
            message: format!(
                "the daemon has no descriptors left to send: {unread} to clients of user {uid} are unread; end clients \
                 that do not read, or raise the daemon's ulimit -n"
            ),
        }))
    }

    /// Whether the daemon has descriptors left beyond those that it keeps for itself.
    fn has_spare_fds(&self) -> bool {
        self.open_fds() + MAX_PACKET_FDS + RESERVED_FDS <= fd_limit()
    }

    /// How many descriptors clients have made the daemon open.
    fn open_fds(&self) -> usize {
        let queued: usize = self.connections.values().map(Connection::queued_fds).sum();
        let sessions = self.connections.len() + self.processes.len();
        sessions + queued + self.engine.segment_count() + self.closer.pending()
    }

    /// Whether the daemon has room for the most descriptors that the kernel puts into a packet, and for copies of those that a valid
    /// request carries. Descriptors that wait to be closed count, too.
    fn has_room_for_fds_of(&self, uid: u32) -> bool {
        let pending = self.closer.pending_of(uid);
        let share = fd_limit() / USER_SHARE_OF_FDS;
        let all = self.open_fds() + KERNEL_FDS_MAX + MAX_PACKET_FDS + RESERVED_FDS;
        all <= fd_limit()
            && !self.closer.is_full(uid)
            && (pending == 0 || pending + KERNEL_FDS_MAX <= share)
    }

    /// Pauses reading from and writing to a session for [`READ_PAUSE`]. The end of its socket is still noticed.
    fn pause(&mut self, session: SessionId) {
        self.watch_session(session, epoll::EventFlags::empty());
        if !self.paused.contains(&session) {
            self.paused.push(session);
        }
        self.reads_again
            .get_or_insert_with(|| Instant::now() + READ_PAUSE);
    }

    fn watch_session(&self, session: SessionId, flags: epoll::EventFlags) {
        let Some(connection) = self.connections.get(&session) else {
            return;
        };
        let data = epoll::EventData::new_u64(FIRST_SESSION + 2 * session.0);
        if let Err(error) = epoll::modify(&self.epoll, connection.as_fd(), data, flags) {
            tracing::error!(%error, "epoll_ctl");
        }
    }

    fn handle(&mut self, session: SessionId, packet: ClientPacket, fds: Vec<OwnedFd>) {
        match self.may_send_fds(session, &packet.request) {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => {
                let (id, result) = (packet.id, Err(refusal));
                return self.push(session, DaemonPacket::Answer { id, result }, Vec::new());
            }
            Err(why) => return self.cut_off(session, why),
        }
        match self
            .engine
            .handle(Instant::now(), session, packet.request, fds)
        {
            Verdict::CutOff(why) => self.cut_off(session, why),
            Verdict::Answer { result, fds, last } => {
                // Before the answer: the other clients get the notices about a granted segment before the client can use it, even
                // if this daemon dies here.
                self.send_notices();
                let (id, result) = (packet.id, *result);
                let connection = self.connections.get_mut(&session);
                if let (Some(connection), Ok(Answer::Welcome { .. })) = (connection, &result) {
                    connection.welcome();
                }
                self.push(session, DaemonPacket::Answer { id, result }, fds);
                if last {
                    let connection = self.connections.get_mut(&session);
                    connection.map(Connection::leave);
                    self.flush(session);
                }
            }
        }
    }

    fn push(&mut self, session: SessionId, packet: DaemonPacket, fds: Vec<OwnedFd>) {
        let Some(connection) = self.connections.get_mut(&session) else {
            return;
        };
        match connection.push(packet, fds) {
            Ok(flow) => self.follow(session, flow),
            Err(why) => self.cut_off(session, why),
        }
    }

    fn flush(&mut self, session: SessionId) {
        let Some(connection) = self.connections.get_mut(&session) else {
            return;
        };
        let flow = connection.flush();
        self.follow(session, flow);
    }

    /// Acts on the result of writing to a session's socket.
    fn follow(&mut self, session: SessionId, flow: Flow) {
        match flow {
            Flow::Same => {}
            Flow::Pause => self.pause(session),
            Flow::Finished => self.hang_up(session),
            Flow::Wait(wait) => {
                // No further request is read while an answer waits.
                let flags = match wait {
                    true => epoll::EventFlags::OUT,
                    false => epoll::EventFlags::IN,
                };
                self.watch_session(session, flags);
            }
        }
    }

    fn cut_off(&mut self, session: SessionId, why: &str) {
        tracing::warn!(
            session = session.0,
            why,
            "closed the session of a client that violates the protocol"
        );
        self.engine.count_cut_off();
        self.hang_up(session);
    }

    /// Closes a session's socket and tells the engine.
    fn hang_up(&mut self, session: SessionId) {
        self.close(session);
        let ended = self
            .processes
            .get(&session)
            .is_none_or(|process| is_readable(process.as_fd()));
        self.engine.hang_up(session, ended);
        if !self.engine.is_detached(session) {
            self.processes.remove(&session);
        }
    }

    fn process_ended(&mut self, session: SessionId) {
        self.close(session);
        // Closing the last descriptor takes it out of the epoll set.
        self.processes.remove(&session);
        self.engine.process_ended(session);
    }

    fn close(&mut self, session: SessionId) {
        if let Some(connection) = self.connections.remove(&session) {
            // Explicitly: closing the descriptor removes it only if nobody else has the file description open.
            if let Err(error) = epoll::delete(&self.epoll, connection.as_fd()) {
                tracing::debug!(%error, "epoll_ctl");
            }
            self.discard(connection, self.engine.uid_of(session));
        }
    }

    fn discard(&self, connection: Connection, uid: u32) {
        self.closer
            .close(uid, connection.end().into_iter().collect());
    }

    /// Notifies all sessions, waits a little until their packets are sent, and leaves.
    fn leave(&mut self) {
        tracing::info!("the daemon stops");
        self.listener.retire();
        let sessions: Vec<SessionId> = self.connections.keys().copied().collect();
        for session in &sessions {
            self.push(*session, DaemonPacket::Notice(Notice::Stopping), Vec::new());
        }
        let until = Instant::now() + FAREWELL;
        while self.connections.values().any(Connection::has_more) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
            sessions.iter().for_each(|session| self.flush(*session));
        }
        // `rgaps down` waits for the end of its session, so MPS is stopped before the sessions are closed.
        self.engine.leave_state();
        sessions.into_iter().for_each(|session| self.close(session));
    }
}

/// The session whose socket or process has this token.
fn session_of(token: u64) -> SessionId {
    SessionId((token - FIRST_SESSION) / 2)
}

/// Whether the client has closed its end of a session.
fn is_hang_up(event: &epoll::Event) -> bool {
    let token = event.data.u64();
    let ends = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
    token >= FIRST_SESSION && token % 2 == 0 && { event.flags }.intersects(ends)
}

/// The limit of open descriptors of this process.
fn fd_limit() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.map_or(usize::MAX, |limit| limit as usize)
}

/// Whether a descriptor is readable at this moment.
fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let now = Timespec::default();
    rustix::io::retry_on_intr(|| poll(&mut polled, Some(&now))).is_ok_and(|n| n > 0)
}

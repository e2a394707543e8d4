//! The one thread around the engine: sockets, ends of processes, signals, time.

mod connection;

use crate::closer::{copies_of_memory, Closer};
use crate::engine::{Engine, Verdict};
use crate::sessions::{Peer, SessionId};
use crate::snapshot::SnapshotSource;
use connection::{Ahead, Connection, Flow, MAX_UNREAD_FDS};
use rgaps_session::{
    Answer, ClientPacket, DaemonPacket, Listener, Notice, Refusal, RefusalCode, Request,
    SocketError, DAEMON_FILES_MIN, KERNEL_FDS_MAX, MAX_PACKET_FDS,
};
use rustix::event::{epoll, poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Requests of one user that are served before others get their turn, one of each session.
const MAX_REQUESTS_A_TURN: usize = 8;
/// One user may leave this part of the daemon's descriptors unread (one in so many), and have as many waiting to be
/// closed.
const USER_SHARE_OF_FDS: usize = 4;
/// Descriptors that are kept for what the daemon itself needs: its state file, segments, its log.
const RESERVED_FDS: usize = 128;
/// What a packet with descriptors needs, and some clients.
const _: () =
    assert!(RESERVED_FDS + MAX_PACKET_FDS + KERNEL_FDS_MAX + 64 < DAEMON_FILES_MIN as usize);
/// Sessions that are accepted before others get their turn.
const MAX_ACCEPTS_A_TURN: usize = 64;
/// Events that are fetched at once.
const MAX_EVENTS: usize = 256;
/// After running out of descriptors, how long no session is accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a session waits if neither this process nor the kernel has room for the descriptors of its next packet.
const READ_PAUSE: Duration = Duration::from_millis(20);
/// How long a daemon that stops waits until its answers are sent.
const FAREWELL: Duration = Duration::from_millis(500);

/// Stands for an unknown user: the kernel gives no user this number.
const NOBODY: u32 = u32::MAX;

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
/// No session has the number 0.
const SNAPSHOTS: u64 = 2;
/// A session's socket has the token `2 * id`, its process the next.
const FIRST_SESSION: u64 = 2;

/// The reactor cannot go on.
#[derive(Debug, thiserror::Error)]
#[error(
    "{call} failed: {source}; raise the limit of open files (ulimit -n), or see the daemon's log"
)]
pub struct ReactorError {
    /// The call.
    pub call: &'static str,
    /// Why.
    pub source: std::io::Error,
}

fn failed(call: &'static str) -> impl Fn(Errno) -> ReactorError {
    move |errno| ReactorError {
        call,
        source: errno.into(),
    }
}

/// Serves an engine's clients until it is to leave.
pub struct Reactor {
    engine: Engine,
    listener: Listener,
    /// Becomes readable when the daemon is to leave.
    signals: OwnedFd,
    epoll: OwnedFd,
    connections: HashMap<SessionId, Connection>,
    closer: Closer,
    /// Of sessions whose socket is closed too.
    processes: HashMap<SessionId, OwnedFd>,
    accepts_again: Option<Instant>,
    /// Sessions whose descriptors wait for room, and when they are looked at again.
    paused: Vec<SessionId>,
    reads_again: Option<Instant>,
    /// Requests of each user in this turn.
    served: HashMap<u32, usize>,
    snapshots: Option<SnapshotSource>,
}

impl Reactor {
    /// A reactor that serves `listener` and leaves in order when `signals` becomes readable.
    pub fn new(
        engine: Engine,
        listener: Listener,
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

    /// Answers who asks for snapshots of the engine, too.
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

    /// Serves until a signal, a client's request, or nobody needing the daemon ends it.
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
            // First: a client that reconnects is admitted once its last session has ended. The requests that it
            // left there are dropped: it sends them again.
            for event in events.iter().filter(|event| is_hang_up(event)) {
                self.hang_up(session_of(event.data.u64()));
            }
            // Begin at another event each time: a user with more requests than a turn serves has them served in rotation.
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
        // Rounded up to a whole millisecond, so that the next tick is due when we wake up.
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

    /// Descriptors or memory have run out: the listener stays readable, and must not keep this thread busy.
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
            // The kernel would close the descriptors that do not fit, on this thread.
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

    /// Whether the daemon can answer a request that is answered with descriptors. `Err`: the session breaks the protocol.
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

    /// Descriptors that clients have made the daemon open.
    fn open_fds(&self) -> usize {
        let queued: usize = self.connections.values().map(Connection::queued_fds).sum();
        let sessions = self.connections.len() + self.processes.len();
        sessions + queued + self.engine.segment_count() + self.closer.pending()
    }

    /// Whether the daemon has room for the most descriptors that a packet can carry, and for copies of those that a request
    /// can. Descriptors that wait to be closed count, of this user and of others.
    fn has_room_for_fds_of(&self, uid: u32) -> bool {
        let pending = self.closer.pending_of(uid);
        let share = fd_limit() / USER_SHARE_OF_FDS;
        let all = self.open_fds() + KERNEL_FDS_MAX + MAX_PACKET_FDS + RESERVED_FDS;
        all <= fd_limit()
            && !self.closer.is_full(uid)
            && (pending == 0 || pending + KERNEL_FDS_MAX <= share)
    }

    /// Reads a session's next packet, or sends it its packets, after a pause. Its end is noticed meanwhile.
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
                // Before the answer: the other clients get the notices of what it grants before its
                // client can use that, even if this daemon dies here.
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

    /// Acts on how far a socket could be written.
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

    /// The session's socket is at its end.
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
            // Explicitly, for a child that the client forked may share the description.
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
        // `rgaps down` waits for the end of its session, so MPS ends before any session does.
        self.engine.leave_state();
        sessions.into_iter().for_each(|session| self.close(session));
    }
}

/// The session of a token, which stands for its socket or its process.
fn session_of(token: u64) -> SessionId {
    SessionId((token - FIRST_SESSION) / 2)
}

/// Whether the client has closed its end of a session.
fn is_hang_up(event: &epoll::Event) -> bool {
    let token = event.data.u64();
    let ends = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
    token >= FIRST_SESSION && token % 2 == 0 && { event.flags }.intersects(ends)
}

/// How many descriptors this process may have.
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

//! The conductor's thread: its state, its loop, and what each command does.

use super::conductor::Command;
use super::daemon_session::DaemonSession;
use super::mapping::LazyDriver;
use super::session::{poll_until, CallError, ReceivedNotice, Session};
use super::zone_records::ZoneBook;
use super::{ClientError, ForkGuard, HostMemory};
use rgaps_pool::Access;
use rgaps_session::{Answer, Config, Member, Notice, RefusalCode, Request, ZoneId};
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a command may take when the daemon is away.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// How often to send a request if the session ends each time: the request itself may crash the daemon.
const SENDS_MAX: u32 = 3;
/// Pause before a daemon that recovers is asked again.
const RECOVERING_PAUSE: Duration = Duration::from_millis(10);

/// The state of the conductor's thread.
pub(super) struct Worker {
    pub(super) config: Config,
    pub(super) name: String,
    pub(super) bin_dirs: Vec<PathBuf>,
    pub(super) link: DaemonSession,
    pub(super) zones: BTreeMap<ZoneId, ZoneBook>,
    /// Pools that may have segments that this process has not mapped.
    pub(super) stale_pools: BTreeSet<(ZoneId, u32)>,
    /// Until when the current command may wait for a daemon.
    pub(super) deadline: Instant,
    pub(super) driver: LazyDriver,
    pub(super) guard: ForkGuard,
    /// The observer of mapped memory. None: nothing is reported.
    pub(super) watch: Option<Arc<dyn HostMemory>>,
}

impl Worker {
    pub(super) fn new(
        session: Session,
        config: Config,
        name: String,
        bin_dirs: Vec<PathBuf>,
        guard: ForkGuard,
        watch: Option<Arc<dyn HostMemory>>,
    ) -> Worker {
        Worker {
            config,
            name,
            bin_dirs,
            link: DaemonSession::Up(session),
            zones: BTreeMap::new(),
            stale_pools: BTreeSet::new(),
            deadline: Instant::now(),
            driver: LazyDriver::default(),
            guard,
            watch,
        }
    }

    /// Runs commands until their sender is dropped, then leaves all topics. `wake` is an eventfd that the sender writes after each
    /// command, and after it drops the channel.
    pub(super) fn run(mut self, commands: &Receiver<Command>, wake: &OwnedFd) {
        loop {
            match commands.try_recv() {
                Ok(command) => {
                    self.deadline = Instant::now() + COMMAND_TIMEOUT;
                    command(&mut self);
                }
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    self.heed_daemon();
                    self.wait(wake);
                }
            }
        }
        self.close();
    }

    fn wait(&mut self, wake: &OwnedFd) {
        let mut polled = vec![PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN)];
        let deadline = match &self.link {
            DaemonSession::Up(session) => {
                polled.push(PollFd::from_borrowed_fd(session.as_fd(), PollFlags::IN));
                None
            }
            DaemonSession::Down(down) => Some(down.next_attempt),
        };
        let ready = poll_until(&mut polled, deadline);
        let events: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(polled);
        if let Err(error) = ready {
            // Only possible without memory for the call.
            tracing::warn!(%error, "poll failed");
            std::thread::sleep(RECOVERING_PAUSE);
        }
        if events[0] {
            // Does not block, since the eventfd is readable. `run` looks for commands after this, so it misses none.
            let _ = rustix::io::read(wake, &mut [0u8; 8]);
        }
        match &mut self.link {
            DaemonSession::Up(session) if events.get(1) == Some(&true) => {
                if let Err(error) = session.take_in() {
                    self.lose(reason(error));
                }
            }
            DaemonSession::Down(down) if !events[0] && down.next_attempt <= Instant::now() => {
                self.attempt()
            }
            _ => {}
        }
    }

    /// Handles the daemon's notices, and fetches the segments of stale pools.
    fn heed_daemon(&mut self) {
        while let DaemonSession::Up(session) = &mut self.link {
            match session.next_notice() {
                Some(notice) => self.heed(notice),
                None => break,
            }
        }
        if matches!(self.link, DaemonSession::Down(_)) {
            return;
        }
        // Do not wait for a daemon here: no caller needs this. The next daemon's hand-back makes all pools stale again.
        self.deadline = Instant::now();
        while let Some((zone, pool)) = self.stale_pools.pop_first() {
            let known = self.zones.get(&zone).and_then(|book| book.pools.get(&pool));
            let outcome = match known.map(|book| (book.is_mapped(), book.grant)) {
                None => continue,
                Some((true, _)) => self.sync_pool(zone, pool),
                Some((false, grant)) => self
                    .pool_mapping(zone, &grant, Access::ReadOnly, grant.domain)
                    .map(|_| ()),
            };
            if let Err(error) = outcome {
                tracing::warn!(%error, pool, "mapping the segments of a pool failed");
            }
        }
    }

    /// Handles one notice. Leaves what may need the daemon's answer, fetching segments, to `heed_daemon`.
    pub(super) fn heed(&mut self, (notice, fds): ReceivedNotice) {
        match notice {
            Notice::PoolGrown {
                zone,
                pool,
                from,
                bytes,
                writable,
            } => {
                let entered = self.enter_grown(zone, pool, from, &bytes, fds, writable);
                if let Err(error) = &entered {
                    tracing::warn!(%error, pool, "mapping the segments of a pool failed");
                }
                if !entered.is_ok_and(|entered| entered) {
                    self.stale_pools.insert((zone, pool));
                }
            }
            // Without records of the zone this process needs no pool in it.
            Notice::TopicPool { zone, pool } if self.zones.contains_key(&zone) => {
                let book = self.zones.get_mut(&zone);
                let wanted = book.is_some_and(|book| {
                    book.pool(&pool);
                    book.reads_in(pool.pool)
                });
                if wanted {
                    let reserved = self.reserve_pool(zone, &pool, Access::ReadOnly, pool.domain);
                    if let Err(error) = reserved {
                        tracing::warn!(%error, pool = pool.pool, "mapping the pool of a topic failed");
                    }
                    self.stale_pools.insert((zone, pool.pool));
                }
            }
            Notice::PoolShort { zone, pool } => {
                if let Err(error) = self.give_back_unused(zone, pool) {
                    tracing::warn!(%error, pool, "returning unused memory failed");
                }
            }
            Notice::Mismatch { topic, reason } => tracing::warn!(topic, "{reason}"),
            Notice::Stopping if matches!(self.link, DaemonSession::Up(_)) => {
                self.lose("it was stopped".to_owned());
            }
            Notice::TopicPool { .. } | Notice::Stopping => {}
        }
    }

    /// Leaves all topics and returns doorbells and timelines, if there is a daemon.
    fn close(&mut self) {
        let members: Vec<Member> = self
            .zones
            .values()
            .flat_map(|book| book.members.keys().copied())
            .collect();
        for member in members {
            if let Err(error) = self.leave(member) {
                tracing::debug!(%error, ?member, "leaving failed");
            }
        }
        let taken = |(zone, book): (&ZoneId, &ZoneBook)| {
            let zone = *zone;
            book.doorbells
                .iter()
                .map(move |doorbell| (zone, *doorbell))
                .collect::<Vec<_>>()
        };
        let doorbells: Vec<(ZoneId, u32)> = self.zones.iter().flat_map(taken).collect();
        for (zone, doorbell) in doorbells {
            if let Err(error) = self.return_doorbell(zone, doorbell) {
                tracing::debug!(%error, doorbell, "returning a doorbell failed");
            }
        }
        // No points are queued on timelines: members waited for them before they left.
        let taken = |(zone, book): (&ZoneId, &ZoneBook)| {
            let zone = *zone;
            let timelines = book.timelines.iter();
            timelines
                .map(move |timeline| (zone, *timeline))
                .collect::<Vec<_>>()
        };
        let timelines: Vec<(ZoneId, u32)> = self.zones.iter().flat_map(taken).collect();
        for (zone, timeline) in timelines {
            if let Err(error) = self.return_timeline(zone, timeline) {
                tracing::debug!(%error, timeline, "returning a timeline failed");
            }
        }
    }

    /// Sends a request and returns the answer. If the session ends before the answer, sends the request again to the next daemon. That
    /// is safe: a daemon drops whatever this process did not claim in the hand-back, so the first request had no effect.
    pub(super) fn ask(&mut self, request: &Request) -> Result<(Answer, Vec<OwnedFd>), ClientError> {
        let mut sends_left = SENDS_MAX;
        loop {
            self.ensure_up()?;
            if let Some(book) = zone_of(request).and_then(|zone| self.zones.get(&zone)) {
                book.view.check_not_lost()?;
            }
            let session = self.ensure_up()?;
            match session.call(request, &[]) {
                Ok(answered) => return Ok(answered),
                Err(CallError::Refused(refusal))
                    if refusal.code == RefusalCode::Recovering
                        && Instant::now() < self.deadline =>
                {
                    std::thread::sleep(RECOVERING_PAUSE);
                }
                Err(CallError::Lost(reason)) => {
                    self.lose(reason.clone());
                    sends_left -= 1;
                    if sends_left == 0 {
                        return Err(ClientError::DaemonLost { reason });
                    }
                }
                Err(error @ CallError::NoAnswer { .. }) => {
                    // End the session: a late answer would be mistaken for the answer to the next request.
                    self.lose("it did not answer".to_owned());
                    return Err(error.into());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a request and returns the answer. Fails at once without a session, and does not send again.
    pub(super) fn ask_now(&mut self, request: &Request) -> Result<Answer, ClientError> {
        let DaemonSession::Up(session) = &mut self.link else {
            return Err(ClientError::DaemonLost {
                reason: "there is no session now".to_owned(),
            });
        };
        match session.call(request, &[]) {
            Ok((answer, _)) => Ok(answer),
            Err(error @ (CallError::Lost(_) | CallError::NoAnswer { .. })) => {
                let reason = reason(error);
                self.lose(reason.clone());
                Err(ClientError::DaemonLost { reason })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Tells the daemon that this process gives something up. The caller has removed it from the records, so without a daemon
    /// this succeeds: this process does not claim it from the next one.
    pub(super) fn give_up(&mut self, request: &Request) -> Result<(), ClientError> {
        let lost = zone_of(request)
            .and_then(|zone| self.zones.get(&zone))
            .is_none_or(|book| book.view.lost().is_some());
        let DaemonSession::Up(session) = &mut self.link else {
            return Ok(());
        };
        if lost {
            return Ok(());
        }
        match session.call(request, &[]) {
            Ok(_) => Ok(()),
            Err(error @ (CallError::Lost(_) | CallError::NoAnswer { .. })) => {
                self.lose(reason(error));
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn zone(&mut self, zone: ZoneId) -> Result<&mut ZoneBook, ClientError> {
        self.zones.get_mut(&zone).ok_or_else(|| unknown_zone(zone))
    }

    /// Stops the daemon, and waits until it has ended.
    pub(super) fn stop_daemon(&mut self) -> Result<(), ClientError> {
        let session = self.ensure_up()?;
        let stopped = session
            .call(&Request::Stop, &[])
            .and_then(|_| session.wait_for_end());
        match stopped {
            // The daemon may end before its answer arrives.
            Ok(()) | Err(CallError::Lost(_)) => {
                self.lose("it was stopped".to_owned());
                Ok(())
            }
            Err(error @ CallError::NoAnswer { .. }) => {
                self.lose("it did not leave".to_owned());
                Err(error.into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

pub(super) fn reason(error: CallError) -> String {
    match error {
        CallError::Lost(reason) => reason,
        other => ClientError::from(other).to_string(),
    }
}

pub(super) fn unexpected(what: &str, answer: &Answer) -> ClientError {
    ClientError::Protocol(format!("it answered {what} with {answer:?}"))
}

pub(super) fn unknown_zone(zone: ZoneId) -> ClientError {
    ClientError::Protocol(format!("this process has not joined zone {zone:032x}"))
}

/// The zone that must not be lost for this request. None: the request names no zone (a join), or works without one.
fn zone_of(request: &Request) -> Option<ZoneId> {
    match request {
        Request::Leave(member)
        | Request::Close(member)
        | Request::Lease {
            publisher: member, ..
        }
        | Request::Return {
            publisher: member, ..
        }
        | Request::Path { member, .. } => Some(member.zone),
        Request::Pool { zone, .. }
        | Request::Segments { zone, .. }
        | Request::Pin { zone, .. }
        | Request::TakeDoorbell { zone }
        | Request::ReturnDoorbell { zone, .. }
        | Request::TakeTimeline { zone }
        | Request::ReturnTimeline { zone, .. }
        | Request::GpuLost { zone } => Some(*zone),
        _ => None,
    }
}

//! The conductor's thread: its state, its loop, and what each command does.

use super::book::{check_lease, subtract, MemberBook, PoolBook, ZoneBook};
use super::conductor::{Command, Joined};
use super::link::Link;
use super::mapping::{LazyDriver, PoolMapping};
use super::session::{poll_until, CallError, Session};
use super::{ClientError, ForkGuard, ZoneView};
use rgaps_pool::Access;
use rgaps_session::{
    Answer, Config, Member, Notice, PoolGrant, Range, RefusalCode, Request, Ring, ZoneGrant,
    ZoneId, MAX_RANGES,
};
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a command may take when the daemon is away.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a request is sent that costs the daemon its life each time.
const SENDS_MAX: u32 = 3;
/// Pause before a daemon that recovers is asked again.
const RECOVERING_PAUSE: Duration = Duration::from_millis(10);

/// All that the conductor's thread owns.
pub(super) struct Worker {
    pub(super) config: Config,
    pub(super) name: String,
    pub(super) bin_dirs: Vec<PathBuf>,
    pub(super) link: Link,
    pub(super) zones: BTreeMap<ZoneId, ZoneBook>,
    /// Pools that may have segments that we do not know of.
    pub(super) stale_pools: BTreeSet<(ZoneId, u32)>,
    driver: LazyDriver,
    guard: ForkGuard,
}

impl Worker {
    pub(super) fn new(
        session: Session,
        config: Config,
        name: String,
        bin_dirs: Vec<PathBuf>,
        guard: ForkGuard,
    ) -> Worker {
        Worker {
            config,
            name,
            bin_dirs,
            link: Link::Up(session),
            zones: BTreeMap::new(),
            stale_pools: BTreeSet::new(),
            driver: LazyDriver::default(),
            guard,
        }
    }

    /// Serves commands until there can be no more, then leaves everything. `wake` is an eventfd
    /// that is written after each command is sent, and when the sender is gone.
    pub(super) fn run(mut self, commands: &Receiver<Command>, wake: &OwnedFd) {
        loop {
            match commands.try_recv() {
                Ok(command) => command(&mut self),
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
            Link::Up(session) => {
                polled.push(PollFd::from_borrowed_fd(session.as_fd(), PollFlags::IN));
                None
            }
            Link::Down(down) => Some(down.next_attempt),
        };
        let ready = poll_until(&mut polled, deadline);
        let events: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(polled);
        if let Err(error) = ready {
            // Out of memory for the call; anything else would be a mistake in the call itself.
            tracing::warn!(%error, "poll failed");
            std::thread::sleep(RECOVERING_PAUSE);
        }
        if events[0] {
            // An eventfd that was seen readable gives its count at once; the commands are
            // looked for after this, so none is missed.
            let _ = rustix::io::read(wake, &mut [0u8; 8]);
        }
        match &mut self.link {
            Link::Up(session) if events.get(1) == Some(&true) => {
                if let Err(error) = session.take_in() {
                    self.lose(reason(error));
                }
            }
            Link::Down(down) if !events[0] && down.next_attempt <= Instant::now() => self.attempt(),
            _ => {}
        }
    }

    /// Acts on what the daemon said unasked.
    fn heed_daemon(&mut self) {
        while let Link::Up(session) = &mut self.link {
            match session.next_notice() {
                Some(Notice::PoolGrown { zone, pool, .. }) => {
                    self.stale_pools.insert((zone, pool));
                }
                Some(Notice::Stopping) => self.stop_following(),
                None => break,
            }
        }
        if matches!(self.link, Link::Down(_)) {
            return;
        }
        while let Some((zone, pool)) = self.stale_pools.pop_first() {
            let mapped = self.zones.get(&zone).and_then(|book| book.pools.get(&pool));
            if !mapped.is_some_and(PoolBook::is_mapped) {
                continue;
            }
            if let Err(error) = self.sync_pool(zone, pool) {
                tracing::warn!(%error, pool, "new segments of a pool cannot be mapped");
            }
        }
    }

    /// Leaves everything, as far as there is a daemon to leave.
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
    }

    /// Asks the daemon; if it dies over the question, asks the next one, which knows nothing of
    /// it: what was not claimed when things were handed back, was never done.
    pub(super) fn ask(&mut self, request: &Request) -> Result<(Answer, Vec<OwnedFd>), ClientError> {
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        let mut sends_left = SENDS_MAX;
        loop {
            self.ensure_up(deadline)?;
            if let Some(book) = zone_of(request).and_then(|zone| self.zones.get(&zone)) {
                book.view.check_not_lost()?;
            }
            let session = self.ensure_up(deadline)?;
            match session.call(request, &[]) {
                Ok(answered) => return Ok(answered),
                Err(CallError::Refused(refusal))
                    if refusal.code == RefusalCode::Recovering && Instant::now() < deadline =>
                {
                    std::thread::sleep(RECOVERING_PAUSE);
                }
                Err(CallError::Lost(reason)) => {
                    self.lose(reason.clone());
                    sends_left -= 1;
                    if sends_left == 0 {
                        return Err(ClientError::Gone { reason });
                    }
                }
                Err(CallError::NoAnswer) => {
                    // A late answer to this would be taken for one to the next request.
                    self.lose("it did not answer".to_owned());
                    return Err(CallError::NoAnswer.into());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Tells the daemon that something is given up, which the book does not have any more. If
    /// there is none, the next daemon sees that it is not claimed.
    fn give_up(&mut self, request: &Request) -> Result<(), ClientError> {
        let lost = zone_of(request)
            .and_then(|zone| self.zones.get(&zone))
            .is_none_or(|book| book.view.lost().is_some());
        let Link::Up(session) = &mut self.link else {
            return Ok(());
        };
        if lost {
            return Ok(());
        }
        match session.call(request, &[]) {
            Ok(_) => Ok(()),
            Err(error @ (CallError::Lost(_) | CallError::NoAnswer)) => {
                self.lose(reason(error));
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn zone(&mut self, zone: ZoneId) -> Result<&mut ZoneBook, ClientError> {
        self.zones.get_mut(&zone).ok_or_else(|| {
            ClientError::Protocol(format!("zone {zone:032x} is not one that was joined"))
        })
    }

    pub(super) fn join(&mut self, request: &Request) -> Result<Joined, ClientError> {
        let (answer, fds) = self.ask(request)?;
        let Answer::Joined {
            member,
            grant,
            region_offset,
            topic_id,
            doorbell,
            ring,
            type_name,
            pool,
        } = answer
        else {
            return Err(unexpected("a join", &answer));
        };
        let zone = match self.enter_zone(member.zone, grant, fds) {
            Ok(zone) => zone,
            Err(error) => {
                self.undo_join(member);
                return Err(error);
            }
        };
        let book = self.zone(member.zone)?;
        if let Some(pool) = &pool {
            book.pool(pool);
        }
        // A subscriber's ring is all zeros.
        let leases_from = if ring == Ring::default() {
            None
        } else {
            pool.map(|pool| pool.pool)
        };
        book.members.insert(
            member,
            MemberBook {
                pool: leases_from,
                ranges: Vec::new(),
            },
        );
        Ok(Joined {
            member,
            zone,
            region_offset,
            topic_id,
            doorbell,
            ring,
            type_name,
            pool,
        })
    }

    /// The zone's page in the book, made from what came with the session's first join in it.
    fn enter_zone(
        &mut self,
        id: ZoneId,
        grant: Option<ZoneGrant>,
        fds: Vec<OwnedFd>,
    ) -> Result<Arc<ZoneView>, ClientError> {
        if let Some(book) = self.zones.get(&id) {
            if grant.is_some_and(|grant| grant != book.view.grant()) {
                return Err(ClientError::Protocol("it grants a zone twice".to_owned()));
            }
            return Ok(book.view.clone());
        }
        let Some(grant) = grant else {
            return Err(ClientError::Protocol(
                "it grants no access to a new zone".to_owned(),
            ));
        };
        let Ok([registry, control]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(ClientError::Protocol(
                "it grants a zone without its memory".to_owned(),
            ));
        };
        let view = Arc::new(ZoneView::new(
            id,
            grant,
            registry,
            control,
            self.guard.clone(),
        )?);
        self.zones.insert(id, ZoneBook::new(view.clone()));
        Ok(view)
    }

    fn undo_join(&mut self, member: Member) {
        if let Link::Up(session) = &mut self.link {
            if let Err(error) = session.call(&Request::Leave(member), &[]) {
                // Better no session than one in which the daemon counts on us.
                self.lose(reason(error));
            }
        }
    }

    pub(super) fn leave(&mut self, member: Member) -> Result<(), ClientError> {
        let known = self.zone(member.zone)?.members.remove(&member);
        if known.is_none() {
            return Ok(());
        }
        let left = self.give_up(&Request::Leave(member));
        self.forget_if_lost(member.zone);
        left
    }

    /// The page of a lost zone goes when nothing of this process is in it.
    fn forget_if_lost(&mut self, zone: ZoneId) {
        let over = self
            .zones
            .get(&zone)
            .is_some_and(|b| b.view.lost().is_some() && b.is_empty());
        if over {
            self.zones.remove(&zone);
        }
    }

    pub(super) fn lease(
        &mut self,
        publisher: Member,
        bytes: u64,
    ) -> Result<Vec<Range>, ClientError> {
        let (answer, _) = self.ask(&Request::Lease { publisher, bytes })?;
        let Answer::Leased { ranges } = answer else {
            return Err(unexpected("a lease", &answer));
        };
        let book = self.zone(publisher.zone)?;
        let Some(member) = book.members.get_mut(&publisher) else {
            return Err(ClientError::Protocol("it leased to nobody".to_owned()));
        };
        let pool = member
            .pool
            .and_then(|pool| book.pools.get(&pool))
            .map(|pool| {
                (
                    pool.grant.pool,
                    pool.grant.cap_bytes,
                    pool.is_mapped(),
                    pool.bytes(),
                )
            });
        let Some((pool, cap, mapped, known_bytes)) = pool else {
            return Err(ClientError::Protocol("it leased of no pool".to_owned()));
        };
        check_lease(&ranges, bytes, cap)?;
        member.ranges.extend_from_slice(&ranges);
        let end = ranges
            .iter()
            .map(|range| range.offset + range.bytes)
            .max()
            .unwrap_or(0);
        // The pool may have grown for this very lease.
        if mapped && end > known_bytes {
            if let Err(error) = self.sync_pool(publisher.zone, pool) {
                self.return_ranges(publisher, ranges)?;
                return Err(error);
            }
        }
        Ok(ranges)
    }

    pub(super) fn return_ranges(
        &mut self,
        publisher: Member,
        ranges: Vec<Range>,
    ) -> Result<(), ClientError> {
        let Some(member) = self.zone(publisher.zone)?.members.get_mut(&publisher) else {
            return Ok(());
        };
        for range in &ranges {
            subtract(&mut member.ranges, *range);
        }
        for ranges in ranges.chunks(MAX_RANGES) {
            self.give_up(&Request::Return {
                publisher,
                ranges: ranges.to_vec(),
            })?;
        }
        Ok(())
    }

    pub(super) fn take_doorbell(&mut self, zone: ZoneId) -> Result<u32, ClientError> {
        let (answer, _) = self.ask(&Request::TakeDoorbell { zone })?;
        let Answer::Doorbell { doorbell } = answer else {
            return Err(unexpected("a request for a doorbell", &answer));
        };
        self.zone(zone)?.doorbells.insert(doorbell);
        Ok(doorbell)
    }

    pub(super) fn return_doorbell(
        &mut self,
        zone: ZoneId,
        doorbell: u32,
    ) -> Result<(), ClientError> {
        if !self.zone(zone)?.doorbells.remove(&doorbell) {
            return Ok(());
        }
        let returned = self.give_up(&Request::ReturnDoorbell { zone, doorbell });
        self.forget_if_lost(zone);
        returned
    }

    pub(super) fn pool_grant(&mut self, zone: ZoneId, pool: u32) -> Result<PoolGrant, ClientError> {
        if let Some(known) = self.zone(zone)?.pools.get(&pool) {
            return Ok(known.grant);
        }
        let (answer, _) = self.ask(&Request::Pool { zone, pool })?;
        let Answer::Pool(grant) = answer else {
            return Err(unexpected("a question about a pool", &answer));
        };
        if grant.pool != pool {
            return Err(ClientError::Protocol(
                "it describes another pool".to_owned(),
            ));
        }
        self.zone(zone)?.pool(&grant);
        Ok(grant)
    }

    /// The pool's mapping with this access, with all the segments there are.
    pub(super) fn pool_mapping(
        &mut self,
        zone: ZoneId,
        grant: &PoolGrant,
        access: Access,
    ) -> Result<Arc<PoolMapping>, ClientError> {
        let book = self.zones.get_mut(&zone).map(|book| book.pool(grant));
        let Some(book) = book else {
            return Err(ClientError::Protocol(
                "the pool is in no zone that was joined".to_owned(),
            ));
        };
        if let Some(mapping) = book.mapping(access) {
            return Ok(mapping.clone());
        }
        if access == Access::ReadWrite && !book.writable {
            // Those that can only be read are replaced; what is mapped of them stays mapped.
            book.segments.clear();
            book.writable = true;
        }
        let cuda = self.config.pool.cuda.enabled;
        let guard = self.guard.clone();
        let mapping = PoolMapping::new(&book.grant, access, &mut self.driver, cuda, guard)?;
        let mapping = Arc::new(mapping);
        book.set_mapping(mapping.clone());
        self.sync_pool(zone, grant.pool)?;
        Ok(mapping)
    }

    /// Fetches and maps the segments of a pool that are not known yet.
    pub(super) fn sync_pool(&mut self, zone: ZoneId, pool: u32) -> Result<(), ClientError> {
        loop {
            let Some(book) = self.zone(zone)?.pools.get_mut(&pool) else {
                return Err(ClientError::Protocol(format!(
                    "pool {pool} was never granted"
                )));
            };
            let (from, writable) = (book.segments.len() as u32, book.writable);
            let request = Request::Segments {
                zone,
                pool,
                from,
                writable,
            };
            let (answer, fds) = self.ask(&request)?;
            let Answer::Segments { bytes } = answer else {
                return Err(unexpected("a request for segments", &answer));
            };
            if bytes.is_empty() {
                return Ok(());
            }
            let Some(book) = self.zone(zone)?.pools.get_mut(&pool) else {
                return Err(ClientError::Closed);
            };
            book.append(&bytes, fds)?;
            book.extend_mappings()?;
        }
    }

    /// Has the daemon leave, and waits until it has.
    pub(super) fn stop_daemon(&mut self) -> Result<(), ClientError> {
        let session = self.ensure_up(Instant::now() + COMMAND_TIMEOUT)?;
        let stopped = session
            .call(&Request::Stop, &[])
            .and_then(|_| session.wait_for_end());
        match stopped {
            // It may be gone before its answer is.
            Ok(()) | Err(CallError::Lost(_)) => {
                self.stop_following();
                Ok(())
            }
            Err(CallError::NoAnswer) => {
                self.lose("it did not leave".to_owned());
                Err(CallError::NoAnswer.into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn reason(error: CallError) -> String {
    match error {
        CallError::Lost(reason) => reason,
        other => ClientError::from(other).to_string(),
    }
}

pub(super) fn unexpected(what: &str, answer: &Answer) -> ClientError {
    ClientError::Protocol(format!("it answers {what} with {answer:?}"))
}

/// The zone that a request is about; none for a join, which may make one.
fn zone_of(request: &Request) -> Option<ZoneId> {
    match request {
        Request::Leave(member)
        | Request::Lease {
            publisher: member, ..
        }
        | Request::Return {
            publisher: member, ..
        } => Some(member.zone),
        Request::Pool { zone, .. }
        | Request::Segments { zone, .. }
        | Request::TakeDoorbell { zone }
        | Request::ReturnDoorbell { zone, .. } => Some(*zone),
        _ => None,
    }
}

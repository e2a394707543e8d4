//! A lane over RDMA: frames go through a channel's ring, chunks straight into the peer's receive buffers.
//!
//! An [`RdmaLane`] has one thread. It polls for a bounded time, then sleeps until the channel, the lane's bell or the handshake's TCP
//! connection has something. The thread that queued a short frame posts it, as in a lane over a stream. The TCP connection stays open
//! and idle: when it ends, the peer has ended the lane.
//!
//! Each frame of the channel is a *record*: a byte for its kind, then either the same bytes as in a stream, or the head of one chunk
//! whose payload was written directly. RDMA keeps the order of writes, so the payload arrives before its record.

mod agree;
mod reading;
mod spin;

use super::reading::Reading;
use super::{Lane, LaneKind, LaneState, Writing};
use crate::machine::frame::{Frame, Remote};
use crate::machine::WriteLimit;
use crate::payload::Payload;
use crate::rdma::RegistrationTable;
use crate::runtime::batch::{Bytes, Piece, BATCH_SLICES, FEW_FRAMES};
use crate::runtime::handshake::{read_frame, write_frame};
use crate::runtime::{clock_ms, LinkRuntime};
use rgaps_connection::Connection;
use rgaps_verbs::{Arrived, Channel, Direct, Progress};
use rustix::event::{epoll, eventfd, EventfdFlags, Timespec};
use spin::Spin;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use agree::{agree, Agreed};

/// Slices of a record of a short batch: its kind, heads and payloads.
const SLICES_OF_FEW: usize = 1 + 2 * FEW_FRAMES;
/// Kinds of records: bytes of a stream; the head of a chunk that was written directly.
const STREAM: u8 = 0;
const DIRECT: u8 = 1;
/// A sleep ends after this at the latest.
const SLEEP_MAX: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// How long to wait for the rest of the peer's RESET once the connection is readable.
const LAST_WORD_LIMIT: Duration = Duration::from_millis(100);

/// A lane over a channel.
pub(crate) struct RdmaLane {
    state: LaneState,
    agreed: Agreed,
    table: Arc<RegistrationTable>,
    /// The most bytes of a record after its kind.
    record_bytes_max: usize,
    /// [`Lane::ring`] was called since the lane's thread looked.
    is_rung: AtomicBool,
    /// The lane's thread sleeps or is about to, so `ring` has to write to `bell`.
    sleeps: AtomicBool,
    bell: OwnedFd,
    /// An epoll of the descriptors that the lane's thread waits for: connection, bell, and the channel's three.
    sources: OwnedFd,
}

/// How many descriptors a lane waits for.
const SOURCES: usize = 5;

/// The RDMA writes of one payload.
enum Directs {
    One([Direct; 1]),
    Two([Direct; 2]),
}

impl RdmaLane {
    pub(crate) fn new(
        number: u32,
        connection: Connection,
        agreed: Agreed,
        table: Arc<RegistrationTable>,
    ) -> std::io::Result<Self> {
        let most = agreed.channel.frame_bytes_max().saturating_sub(1);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let [completions, events, signals] = agreed.channel.fds();
        let all = [
            connection.as_fd(),
            bell.as_fd(),
            completions,
            events,
            signals,
        ];
        // Each descriptor's index is its epoll data: `wait` learns by one call which of them are readable.
        let sources = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, fd) in all.into_iter().enumerate() {
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&sources, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(Self {
            state: LaneState::new(number, connection, (LaneKind::Rdma, None)),
            agreed,
            table,
            record_bytes_max: usize::try_from(most).expect("rings are small"),
            is_rung: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            bell,
            sources,
        })
    }

    fn lost(&self, error: impl std::fmt::Display) -> String {
        let device = self.agreed.channel.device().name();
        format!(
            "RDMA with {} over {device}: {error}",
            self.state.connection.peer()
        )
    }

    /// The lane's thread: reads, writes, polls and sleeps until the lane ends.
    fn serve(&self, link: &Arc<LinkRuntime>) -> Result<(), String> {
        let mut reading = Reading::new(self.state.number);
        let mut spin = Spin::new(self.agreed.polls);
        let mut moved = Progress::default();
        while !self.state.is_closed() {
            let rung = self.is_rung.swap(false, SeqCst);
            if rung || moved.any {
                let began_ms = clock_ms();
                self.state.listens.store(false, SeqCst);
                // Wakes the lanes that have to write because of the frames that arrived.
                reading.settle(link);
                if rung || moved.sent || moved.room {
                    self.write(link, WriteLimit::All)?;
                    link.settle();
                }
                self.listen(moved.any, began_ms);
                spin.begin();
            } else if !spin.again() {
                moved = self.sleep(&mut reading, &mut spin, link)?;
                continue;
            }
            moved = match spin.may() {
                true => self.progress(&mut reading, link)?,
                // No polling: `sleep` looks at the channel before it sleeps.
                false => Progress::default(),
            };
        }
        Ok(())
    }

    /// Starts measuring the peer's silence; time this end spent working does not count.
    fn listen(&self, has_received: bool, began_ms: u64) {
        let now_ms = clock_ms();
        let before = self.state.received_ms.load(SeqCst);
        let received_ms = if has_received {
            now_ms
        } else {
            before + (now_ms - began_ms)
        };
        self.state.received_ms.store(received_ms, SeqCst);
        self.state.listens.store(true, SeqCst);
    }

    /// Handles the records that have arrived. Returns what the channel did.
    fn progress(&self, reading: &mut Reading, link: &LinkRuntime) -> Result<Progress, String> {
        let mut each = |arrived: Arrived<'_>| {
            self.state.listens.store(false, SeqCst);
            let direct = reading.arrived(arrived, link)?;
            self.state.direct_bytes_in.fetch_add(direct, Relaxed);
            let copied = match arrived {
                Arrived::Frame(record) => record.len() as u64,
                Arrived::Written { .. } => 0,
            };
            self.state.bytes_in.fetch_add(direct + copied, Relaxed);
            Ok(())
        };
        let progress = self.agreed.channel.progress(&mut each);
        progress.map_err(|error| self.lost(error))
    }

    /// Sleeps until the channel, the bell or the connection has something. Returns what the channel did.
    fn sleep(
        &self,
        reading: &mut Reading,
        spin: &mut Spin,
        link: &LinkRuntime,
    ) -> Result<Progress, String> {
        let began = Instant::now();
        self.sleeps.store(true, SeqCst);
        self.agreed
            .channel
            .arm()
            .map_err(|error| self.lost(error))?;
        let mut moved = self.progress(reading, link)?;
        if !moved.any && !self.is_rung.load(SeqCst) && !self.state.is_closed() {
            self.wait(reading, link)?;
            spin.slept(began.elapsed());
            moved = self.progress(reading, link)?;
        }
        self.sleeps.store(false, SeqCst);
        Ok(moved)
    }

    fn wait(&self, reading: &mut Reading, link: &LinkRuntime) -> Result<(), String> {
        let mut ready = [MaybeUninit::uninit(); SOURCES];
        let ready = match epoll::wait(&self.sources, &mut ready, Some(&SLEEP_MAX)) {
            Ok((ready, _)) => ready,
            Err(rustix::io::Errno::INTR) => &mut [],
            Err(error) => return Err(self.lost(error)),
        };
        let mut is_ready = [false; SOURCES];
        for event in ready {
            is_ready[event.data.u64() as usize] = true;
        }
        let [connection, bell, readable @ ..] = is_ready;
        if connection {
            // Records that the peer posted before it ended the lane.
            self.progress(reading, link)?;
            return Err(self.last_received(link));
        }
        if bell {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        let woken = self.agreed.channel.woken(readable);
        woken.map_err(|error| self.lost(error))
    }

    /// Why the lane ends, as the readable connection says: by RESET, or by its end.
    fn last_received(&self, link: &LinkRuntime) -> String {
        let Ok(word) = read_frame(&self.state.connection, LAST_WORD_LIMIT) else {
            return format!("{} closed the connection", self.state.connection.peer());
        };
        match link.frame(self.state.number, &word, &[]) {
            Err(why) => why,
            Ok(_) => {
                let what = "the lane is RDMA, and its connection idle";
                link.violated(Some(self.state.number), word.name(), what)
            }
        }
    }

    /// Posts a batch with one doorbell. False if there is no credit for all of it. A record has at most `SLICES` slices, its kind included.
    fn post_batch<const SLICES: usize>(&self, writing: &mut Writing) -> Result<bool, String> {
        let Writing { batch, in_flight } = writing;
        let mut posts = self
            .agreed
            .channel
            .batch()
            .map_err(|error| self.lost(error))?;
        while !batch.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let direct = |payload: &Bytes, remote: &Remote| self.direct_write(payload, remote);
            let piece = batch.piece(self.record_bytes_max, &mut slices[1..], direct);
            let (pushed, wrote, omitted, payload) = match piece {
                Piece::Stream(count, bytes) => {
                    slices[0] = IoSlice::new(&[STREAM]);
                    (posts.push(&slices[..=count], None), bytes, 0, None)
                }
                Piece::Direct(head, (directs, payload), bytes, mark) => {
                    let directs = match &directs {
                        Directs::One(one) => &one[..],
                        Directs::Two(two) => two,
                    };
                    match (mark, directs) {
                        (Some(mark), [direct]) => {
                            let pushed = posts.push_marked(direct, mark);
                            (pushed, bytes, head.len(), Some(payload))
                        }
                        _ => {
                            let parts = [IoSlice::new(&[DIRECT]), IoSlice::new(head)];
                            (posts.push_after(&parts, directs), bytes, 0, Some(payload))
                        }
                    }
                }
            };
            let Some(number) = pushed.map_err(|error| self.lost(error))? else {
                return Ok(false);
            };
            let before = batch.payloads_done();
            batch.wrote(wrote);
            self.state
                .bytes_out
                .fetch_add((wrote - omitted) as u64, Relaxed);
            let done = batch.payloads_done() - before;
            match payload {
                Some(payload) => in_flight.push_back((number, Some(payload))),
                // The channel has copied these payloads: their buffers are free.
                None => in_flight.extend((0..done).map(|_| (0, None))),
            }
        }
        posts.post().map_err(|error| self.lost(error))?;
        Ok(true)
    }

    /// The RDMA writes that bring a payload straight into the peer's receive buffer. `None` if the payload is not in memory that is
    /// registered with this end's rail, in at most two regions, or the buffer is not registered with the peer's rail.
    fn direct_write(
        &self,
        (payload, from, to): &Bytes,
        remote: &Remote,
    ) -> Option<(Directs, Arc<dyn Payload>)> {
        let bytes = (to - from) as u64;
        let start = match payload.direct() {
            Some(start) => start + *from as u64,
            None => payload.slice(*from, *to).as_ptr() as u64,
        };
        let part = |done: u64| {
            let (address, key) = remote.at(*from as u64 + done, self.agreed.their_rail)?;
            let left = bytes - done;
            let found = self.table.local(start + done, left, self.agreed.our_rail)?;
            let (region, offset, bytes) = found;
            Some(Direct {
                region,
                offset,
                bytes,
                address,
                key,
            })
        };
        let first = part(0)?;
        let done = first.bytes;
        let payload = Arc::clone(payload);
        if done == bytes {
            return Some((Directs::One([first]), payload));
        }
        if self.agreed.channel.directs_max() < 2 {
            return None;
        }
        let second = part(done).filter(|second| done + second.bytes == bytes)?;
        Some((Directs::Two([first, second]), payload))
    }
}

impl Lane for RdmaLane {
    fn state(&self) -> &LaneState {
        &self.state
    }

    fn threads(&self) -> &'static [&'static str] {
        &["lane-rdma"]
    }

    fn run(&self, _: &str, link: &Arc<LinkRuntime>) -> Result<(), String> {
        self.serve(link)
    }

    fn ring(&self) {
        self.is_rung.store(true, SeqCst);
        if self.sleeps.load(SeqCst) {
            // Writing to an eventfd fails only if its counter would overflow: then the bell is ringing already.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    fn short(&self) -> WriteLimit {
        WriteLimit::Posted
    }

    /// Forgets payloads that the card has read.
    fn reap(&self, Writing { in_flight, .. }: &mut Writing) -> usize {
        let completed = self.agreed.channel.completed();
        let is_done = |(number, _): &(u64, _)| *number <= completed;
        let done = in_flight
            .iter()
            .take_while(|posted| is_done(posted))
            .count();
        in_flight.drain(..done);
        done
    }

    /// Posts the batch. If credit does not suffice, the channel's progress wakes the lane's thread when there is more.
    fn put(&self, writing: &mut Writing, _: WriteLimit) -> Result<bool, String> {
        match writing.batch.is_short() {
            true => self.post_batch::<SLICES_OF_FEW>(writing),
            false => self.post_batch::<{ BATCH_SLICES + 1 }>(writing),
        }
    }

    fn end(&self) {
        // Until the queue pair is in its error state, the peer's card may write receive buffers, and this end's card may read payloads.
        // Closing the channel ends all that work.
        self.agreed.channel.close();
    }

    fn write_last(&self, frame: &Frame) {
        // Through the idle connection: the channel may have no credit, or end before it has sent the frame.
        if !self.state.is_closed() {
            let _ = write_frame(&self.state.connection, frame);
        }
    }

    fn channel(&self) -> Option<&Channel> {
        Some(&self.agreed.channel)
    }
}

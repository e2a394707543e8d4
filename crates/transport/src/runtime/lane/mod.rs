//! What all kinds of lanes share: the trait [`Lane`], its threads' end, and how they take turns at writing.

pub(crate) mod rdma;
mod reading;
mod stream;

use super::batch::Batch;
use super::{clock_ms, LinkRuntime};
use crate::machine::frame::Frame;
use crate::machine::WriteLimit;
use crate::payload::Payload;
use rgaps_connection::Connection;
use rgaps_layout::LaneEnd;
use rgaps_verbs::{Channel, ChannelCounts, ChannelError};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};

pub(crate) use stream::Stream;

/// One connection of a link, with its threads. It takes the frames that it writes from its link (`LinkRuntime::batch`), and passes
/// frames and landed chunks to the link.
pub(crate) trait Lane: Send + Sync {
    /// The state that lanes of all kinds have.
    fn state(&self) -> &LaneState;
    /// The names of the lane's threads.
    fn threads(&self) -> &'static [&'static str];
    /// Runs one of the threads until the lane ends. `Err`: why it ended. The caller then calls [`Lane::leave`].
    fn run(&self, thread: &str, link: &Arc<LinkRuntime>) -> Result<(), String>;
    /// Wakes the lane's own writing thread: frames are left to it, or the lane is closed.
    fn ring(&self);
    /// Which frames a thread that is not the lane's own may write.
    fn short(&self) -> WriteLimit;
    /// Forgets payloads that are written and that neither the lane nor its card reads any more. Returns how many.
    fn reap(&self, writing: &mut Writing) -> usize;
    /// Writes a part of a batch that is not empty. Waits only with [`WriteLimit::All`]. False if it would have to wait: then the lane's own
    /// thread goes on later.
    fn put(&self, writing: &mut Writing, limit: WriteLimit) -> Result<bool, String>;
    /// Flushes buffered bytes. False if that would have to wait.
    fn flush(&self, _limit: WriteLimit) -> Result<bool, String> {
        Ok(true)
    }
    /// Called when all its threads have ended. Afterwards neither the lane nor a card reads or writes message bytes for it.
    fn end(&self) {}
    /// Writes one frame, if that needs no wait. The caller is about to close the lane.
    fn write_last(&self, frame: &Frame);
    /// The channel of an RDMA lane.
    fn channel(&self) -> Option<&Channel> {
        None
    }

    /// Why the lane's channel broke; `None` if this end closed it, or the connection ended.
    fn broke(&self) -> Option<LaneEnd> {
        Some(match self.channel()?.ended()? {
            ChannelError::Completion { .. } => LaneEnd::Completion,
            ChannelError::Event(_) => LaneEnd::Event,
            ChannelError::Violation(_) => LaneEnd::ProtocolViolation,
            ChannelError::Verbs(_) => LaneEnd::Call,
            // All other errors are this end's own doing.
            _ => return None,
        })
    }

    /// Writes frames that wait, as far as that does not block.
    fn wake(&self, link: &LinkRuntime) {
        if let Err(why) = self.write(link, self.short()) {
            self.close(&why);
        }
    }

    /// Ends the lane. Its last thread soon calls `LinkRuntime::lane_ended`. If called again, the first reason counts.
    fn close(&self, why: &str) {
        self.state().closed.get_or_init(|| why.into());
        self.state().connection.close();
        self.ring();
    }

    /// A thread of the lane has ended or did not start. After the last one, ends the lane and removes it from the link.
    fn leave(&self, link: &LinkRuntime) {
        let state = self.state();
        if state.threads.fetch_sub(1, SeqCst) > 1 {
            return;
        }
        self.end();
        // Any other thread that writes finds the lane closed from here on.
        *state.writing.lock().expect("nobody panics with it") = Writing::default();
        let why = state.closed.get().cloned();
        link.lane_ended(state.number, why.unwrap_or_default());
    }

    /// Writes the frames that wait, within the limit. One thread at a time writes. Only the lane's own thread has [`WriteLimit::All`] and
    /// waits for its turn; any other thread leaves its frames to the one that is writing.
    fn write(&self, link: &LinkRuntime, limit: WriteLimit) -> Result<(), String> {
        let state = self.state();
        loop {
            let mut turn = match (limit, state.writing.try_lock()) {
                (_, Ok(turn)) => turn,
                (WriteLimit::All, Err(TryLockError::WouldBlock)) => {
                    state.writing.lock().expect("nobody panics with it")
                }
                // The thread that is writing looks for more frames when it is done.
                (_, Err(TryLockError::WouldBlock)) => return Ok(()),
                (_, Err(TryLockError::Poisoned(_))) => return Err("a writer panicked".into()),
            };
            if !self.write_batches(&mut turn, link, limit)? {
                return Ok(());
            }
            drop(turn);
            // Another thread may have queued a frame and found the lock taken.
            let waiting = link.lock().machine.waiting(state.number, limit);
            match waiting {
                None => return Ok(()),
                Some(true) => {}
                Some(false) => {
                    self.ring();
                    return Ok(());
                }
            }
        }
    }

    /// Writes batches until no frame within the limit waits. False if the lane is closed, or would have to wait.
    fn write_batches(
        &self,
        writing: &mut Writing,
        link: &LinkRuntime,
        limit: WriteLimit,
    ) -> Result<bool, String> {
        let state = self.state();
        while !state.is_closed() {
            let payloads = self.reap(writing);
            let batch = &mut writing.batch;
            if batch.is_empty() {
                // Drops payloads, perhaps their last clones, while the link is not locked.
                batch.clear();
            }
            let mut is_left = false;
            if batch.is_empty() || payloads > 0 {
                is_left = link.batch(state.number, payloads, limit, batch);
            }
            if batch.is_empty() {
                if is_left || !self.flush(limit)? {
                    self.ring();
                }
                return Ok(true);
            }
            if !self.put(writing, limit)? {
                return Ok(false);
            }
            state.written_ms.store(clock_ms(), Relaxed);
        }
        Ok(false)
    }

    /// The lane's state, for reports.
    fn status(&self) -> LaneStatus {
        let (state, channel) = (self.state(), self.channel());
        LaneStatus {
            kind: state.kind,
            why_not: state.why_not.clone(),
            rail: channel.map(|channel| channel.device().name().into()),
            channel: channel.map(Channel::counts),
            direct_bytes_in: state.direct_bytes_in.load(Relaxed),
            bytes_out: state.bytes_out.load(Relaxed),
            bytes_in: state.bytes_in.load(Relaxed),
        }
    }
}

/// The frames that a lane is writing.
#[derive(Default)]
pub(crate) struct Writing {
    batch: Batch,
    /// Of an RDMA lane: payloads that were posted and not reaped, in their order. A payload that the card reads is here with its record's
    /// number; one that was copied is 0 and `None`.
    in_flight: VecDeque<(u64, Option<Arc<dyn Payload>>)>,
}

/// The state that lanes of all kinds have.
pub(crate) struct LaneState {
    number: u32,
    pub(super) kind: LaneKind,
    /// Why it is not an RDMA lane, if this end wanted one.
    why_not: Option<String>,
    connection: Connection,
    /// When the lane was made.
    pub(super) since_ms: u64,
    /// How many threads have not called [`Lane::leave`].
    pub(super) threads: AtomicUsize,
    writing: Mutex<Writing>,
    /// Why the lane is closed; unset while it is open.
    closed: OnceLock<String>,
    /// It was closed because an RDMA lane replaces it.
    pub(super) is_replaced: AtomicBool,
    received_ms: AtomicU64,
    /// The reading thread is waiting for bytes. While it handles bytes instead, the peer's silence is not measured.
    listens: AtomicBool,
    written_ms: AtomicU64,
    bytes_in: AtomicU64,
    direct_bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

impl LaneState {
    fn new(
        number: u32,
        connection: Connection,
        (kind, why_not): (LaneKind, Option<String>),
    ) -> Self {
        let now_ms = clock_ms();
        Self {
            number,
            kind,
            why_not,
            connection,
            since_ms: now_ms,
            threads: AtomicUsize::new(0),
            writing: Mutex::default(),
            closed: OnceLock::new(),
            is_replaced: AtomicBool::new(false),
            received_ms: AtomicU64::new(now_ms),
            listens: AtomicBool::new(false),
            written_ms: AtomicU64::new(now_ms),
            bytes_in: AtomicU64::new(0),
            direct_bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.get().is_some()
    }

    /// When bytes were last received; `now_ms` while this end is too busy to read.
    pub(super) fn received_ms(&self, now_ms: u64) -> u64 {
        match self.listens.load(SeqCst) {
            true => self.received_ms.load(SeqCst),
            false => now_ms,
        }
    }

    /// When frames were last written.
    pub(super) fn written_ms(&self) -> u64 {
        self.written_ms.load(Relaxed)
    }

    /// Whether an RDMA lane may replace it.
    pub(super) fn is_replaceable(&self) -> bool {
        self.kind != LaneKind::Rdma && !self.is_replaced.load(Relaxed)
    }
}

/// The state of a lane, for reports.
#[derive(Clone, Debug)]
pub struct LaneStatus {
    /// The transport of the lane.
    pub kind: LaneKind,
    /// Why it is not an RDMA lane, if this end wanted one.
    pub why_not: Option<String>,
    /// The name of an RDMA lane's network card.
    pub rail: Option<String>,
    /// The counters of an RDMA lane's channel.
    pub channel: Option<ChannelCounts>,
    /// Bytes that the peer's card wrote directly into receive buffers.
    pub direct_bytes_in: u64,
    /// Bytes that were written, frames included.
    pub bytes_out: u64,
    /// Bytes that were read.
    pub bytes_in: u64,
}

/// The transport of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneKind {
    /// TCP, not encrypted.
    Tcp,
    /// TCP, encrypted.
    Tls,
    /// RDMA, not encrypted.
    Rdma,
}

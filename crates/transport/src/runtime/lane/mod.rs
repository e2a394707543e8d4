//! Lanes: connections of a link, each of its own kind.

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

/// One connection of a link, with the threads that it needs. It takes what it writes from its link
/// (`LinkRuntime::batch`), and passes frames and landed chunks to it.
pub(crate) trait Lane: Send + Sync {
    /// What lanes of all kinds have.
    fn state(&self) -> &LaneState;
    /// The names of its threads.
    fn threads(&self) -> &'static [&'static str];
    /// What one of them does, until the lane ends. [`Lane::leave`] follows.
    fn run(&self, thread: &str, link: &Arc<LinkRuntime>) -> Result<(), String>;
    /// Tells the lane's own thread that something is left to it, or that the lane is closed.
    fn ring(&self);
    /// What a thread that is not the lane's own may write.
    fn short(&self) -> WriteLimit;
    /// Gives back payloads that nobody reads any more. How many these were.
    fn reap(&self, writing: &mut Writing) -> usize;
    /// Writes some of a batch that is not empty; only with [`WriteLimit::All`] it may wait. False if it cannot go on now: the lane's own thread
    /// will.
    fn put(&self, writing: &mut Writing, limit: WriteLimit) -> Result<bool, String>;
    /// Whether all that was written has left this process.
    fn flush(&self, _limit: WriteLimit) -> Result<bool, String> {
        Ok(true)
    }
    /// Called when all its threads have ended: from here on nothing of the lane reads or writes bytes of messages.
    fn end(&self) {}
    /// Writes one frame, if that needs no wait: the lane is about to be closed.
    fn write_last(&self, frame: &Frame);
    /// Of a lane over RDMA.
    fn channel(&self) -> Option<&Channel> {
        None
    }

    /// Why it broke by itself; none if this end closed it, or its connection ended.
    fn broke(&self) -> Option<LaneEnd> {
        Some(match self.channel()?.ended()? {
            ChannelError::Completion { .. } => LaneEnd::Completion,
            ChannelError::Event(_) => LaneEnd::Event,
            ChannelError::Violation(_) => LaneEnd::ProtocolViolation,
            ChannelError::Verbs(_) => LaneEnd::Call,
            // This end, for its own reasons.
            _ => return None,
        })
    }

    /// Something waits to be written. Does not block.
    fn wake(&self, link: &LinkRuntime) {
        if let Err(why) = self.write(link, self.short()) {
            self.close(&why);
        }
    }

    /// The lane ends; soon its last thread calls `LinkRuntime::lane_ended`. The first reason counts.
    fn close(&self, why: &str) {
        self.state().closed.get_or_init(|| why.into());
        self.state().connection.close();
        self.ring();
    }

    /// A thread of it has ended, or never began. The last one tells the link, when the lane does nothing any more.
    fn leave(&self, link: &LinkRuntime) {
        let state = self.state();
        if state.threads.fetch_sub(1, SeqCst) > 1 {
            return;
        }
        self.end();
        // Whoever else writes finds the lane closed from here on.
        *state.writing.lock().expect("nobody panics with it") = Writing::default();
        let why = state.closed.get().cloned();
        link.lane_ended(state.number, why.unwrap_or_default());
    }

    /// Writes what waits, as far as a thread of any kind may: only a lane's own thread writes all, and waits until it has its turn.
    fn write(&self, link: &LinkRuntime, limit: WriteLimit) -> Result<(), String> {
        let state = self.state();
        loop {
            let mut turn = match (limit, state.writing.try_lock()) {
                (_, Ok(turn)) => turn,
                (WriteLimit::All, Err(TryLockError::WouldBlock)) => {
                    state.writing.lock().expect("nobody panics with it")
                }
                // It looks again when it is done.
                (_, Err(TryLockError::WouldBlock)) => return Ok(()),
                (_, Err(TryLockError::Poisoned(_))) => return Err("a writer panicked".into()),
            };
            if !self.write_batches(&mut turn, link, limit)? {
                return Ok(());
            }
            drop(turn);
            // Somebody may have found the lock taken since.
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

    /// False if the lane is closed, or cannot go on now.
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
                // Without the link's lock: the last clone of a payload may be here.
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
            state.spoke_ms.store(clock_ms(), Relaxed);
        }
        Ok(false)
    }

    /// Its state, for reports.
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

/// What a lane writes.
#[derive(Default)]
pub(crate) struct Writing {
    batch: Batch,
    /// Of a lane over RDMA: payloads that were posted, in their order. For one that the NIC reads itself, its record's number, and itself.
    in_flight: VecDeque<(u64, Option<Arc<dyn Payload>>)>,
}

/// What lanes of all kinds have.
pub(crate) struct LaneState {
    number: u32,
    pub(super) kind: LaneKind,
    /// Why it is not RDMA.
    why_not: Option<String>,
    connection: Connection,
    pub(super) since_ms: u64,
    /// Threads that have not left.
    pub(super) threads: AtomicUsize,
    writing: Mutex<Writing>,
    /// Why it is closed, if it is.
    closed: OnceLock<String>,
    /// An RDMA lane takes its place.
    pub(super) is_replaced: AtomicBool,
    received_ms: AtomicU64,
    /// The reading thread waits for bytes; else it is busy with some, and the peer is not quiet.
    listens: AtomicBool,
    spoke_ms: AtomicU64,
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
            spoke_ms: AtomicU64::new(now_ms),
            bytes_in: AtomicU64::new(0),
            direct_bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.get().is_some()
    }

    /// When something was read, or this end was too busy to read.
    pub(super) fn received_ms(&self, now_ms: u64) -> u64 {
        match self.listens.load(SeqCst) {
            true => self.received_ms.load(SeqCst),
            false => now_ms,
        }
    }

    /// When something was written.
    pub(super) fn spoke_ms(&self) -> u64 {
        self.spoke_ms.load(Relaxed)
    }

    /// An RDMA lane may take its place.
    pub(super) fn is_replaceable(&self) -> bool {
        self.kind != LaneKind::Rdma && !self.is_replaced.load(Relaxed)
    }
}

/// The state of a lane, for reports.
#[derive(Clone, Debug)]
pub struct LaneStatus {
    /// What it goes over.
    pub kind: LaneKind,
    /// Why it is not RDMA, where RDMA was wanted.
    pub why_not: Option<String>,
    /// The NIC of an RDMA lane.
    pub rail: Option<String>,
    /// What its channel counted.
    pub channel: Option<ChannelCounts>,
    /// Bytes that the peer's card wrote into receive buffers by itself.
    pub direct_bytes_in: u64,
    /// Bytes that were written, frames included.
    pub bytes_out: u64,
    /// Bytes that were read.
    pub bytes_in: u64,
}

/// What a lane goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneKind {
    /// TCP, not encrypted.
    Tcp,
    /// TCP, encrypted.
    Tls,
    /// RDMA, not encrypted.
    Rdma,
}

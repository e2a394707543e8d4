//! Lanes: connections of a link, each of its own kind.

pub(crate) mod rdma;
mod reading;
mod stream;

use super::LinkRuntime;
use crate::machine::frame::Frame;
use crate::machine::WriteLimit;
use rgaps_connection::Connection;
use rgaps_verbs::ChannelCounts;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};

pub(crate) use stream::Stream;

/// One connection of a link, with the threads that it needs. It takes what it writes from its link
/// (`LinkRuntime::batch`), and passes frames and landed chunks to it.
pub(crate) trait Lane: Send + Sync {
    /// The names of its threads.
    fn threads(&self) -> &'static [&'static str];
    /// What one of them does, until the lane ends. [`Lane::leave`] follows.
    fn run(&self, thread: &str, link: &Arc<LinkRuntime>);
    /// Something waits to be written. Does not block.
    fn wake(&self, link: &LinkRuntime);
    /// The lane ends; soon its last thread calls `LinkRuntime::lane_ended`.
    fn close(&self, why: &str);
    /// A thread of it has ended, or never began. The last one tells the link, when the lane does nothing any more.
    fn leave(&self, link: &Arc<LinkRuntime>);
    /// Writes one frame, if that needs no wait: the lane is about to be closed.
    fn write_last(&self, frame: &Frame);
    fn status(&self) -> LaneStatus;
    /// Why it broke by itself; none if this end closed it, or its connection ended.
    fn broke(&self) -> Option<LaneEnd> {
        None
    }
    /// What lanes of all kinds have.
    fn state(&self) -> &LaneState;
}

/// What lanes of all kinds have: the connection, when it was used last, and why it ends.
pub(crate) struct LaneState {
    number: u32,
    connection: Connection,
    /// Why it is closed, if it is; the first reason counts.
    closed: OnceLock<String>,
    received_ms: AtomicU64,
    /// The reading thread waits for bytes; else it is busy with some, and the peer is not quiet.
    listens: AtomicBool,
    spoke_ms: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

impl LaneState {
    fn new(number: u32, connection: Connection, now_ms: u64) -> Self {
        Self {
            number,
            connection,
            closed: OnceLock::new(),
            received_ms: AtomicU64::new(now_ms),
            listens: AtomicBool::new(false),
            spoke_ms: AtomicU64::new(now_ms),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.get().is_some()
    }

    /// Ends the connection.
    fn close(&self, why: &str) {
        self.closed.get_or_init(|| why.into());
        self.connection.close();
    }

    /// Writes what waits, as far as a thread of any kind may: only a lane's own thread writes all, and waits until it has its turn.
    /// `write` says whether it may go on; `ring` tells the lane's own thread that something is left to it.
    fn write<T>(
        &self,
        link: &LinkRuntime,
        limit: WriteLimit,
        writing: &Mutex<T>,
        write: impl Fn(&mut T) -> Result<bool, String>,
        ring: impl Fn(),
    ) -> Result<(), String> {
        loop {
            let mut turn = match (limit, writing.try_lock()) {
                (_, Ok(turn)) => turn,
                (WriteLimit::All, Err(TryLockError::WouldBlock)) => {
                    writing.lock().expect("nobody panics with it")
                }
                // It looks again when it is done.
                (_, Err(TryLockError::WouldBlock)) => return Ok(()),
                (_, Err(TryLockError::Poisoned(_))) => return Err("a writer panicked".into()),
            };
            if !write(&mut turn)? {
                return Ok(());
            }
            drop(turn);
            // Somebody may have found the lock taken since.
            let waiting = link.lock().machine.waiting(self.number, limit);
            match waiting {
                None => return Ok(()),
                Some(true) => {}
                Some(false) => {
                    ring();
                    return Ok(());
                }
            }
        }
    }

    /// The lane does nothing any more.
    fn ended(&self, link: &Arc<LinkRuntime>) {
        let why = self.closed.get().cloned();
        link.lane_ended(self.number, why.unwrap_or_default());
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

    /// What each kind of lane adds to.
    fn status(&self, kind: LaneKind) -> LaneStatus {
        LaneStatus {
            number: self.number,
            peer: self.connection.peer(),
            kind,
            why_not: None,
            rail: None,
            channel: None,
            direct_bytes_in: 0,
            bytes_out: self.bytes_out.load(Relaxed),
            bytes_in: self.bytes_in.load(Relaxed),
        }
    }
}

/// The state of a lane, for reports.
#[derive(Clone, Debug)]
pub struct LaneStatus {
    /// Its number.
    pub number: u32,
    /// The peer's address.
    pub peer: SocketAddr,
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

/// Why a lane ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneEnd {
    /// This end closed it: the link ended, or the peer is another incarnation.
    Closed,
    /// An RDMA lane took its place.
    Replaced,
    /// Its connection ended, or was quiet for too long.
    Connection,
    /// The peer violated the protocol and was disconnected.
    ProtocolViolation,
    /// RDMA: a work request failed.
    Completion,
    /// RDMA: the device reported an error.
    Event,
    /// RDMA: a call of the library failed.
    Call,
}

impl LaneEnd {
    /// All of them.
    pub const ALL: [LaneEnd; 7] = [
        LaneEnd::Closed,
        LaneEnd::Replaced,
        LaneEnd::Connection,
        LaneEnd::ProtocolViolation,
        LaneEnd::Completion,
        LaneEnd::Event,
        LaneEnd::Call,
    ];
}

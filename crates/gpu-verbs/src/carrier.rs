//! [`Carrier`], the trait of everything that carries out works; and the parts that carriers share.

use crate::entry::{Local, Work, WorkKind};
use crate::regions::{Change, Regions};
use crate::view::Syndrome;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// What a carrier reports to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The oldest posted work that the carrier has not reported yet has ended: it succeeded, or it failed.
    Done(Result<(), Syndrome>),
    /// The peer wrote into this side's memory, with an immediate. The bytes are there.
    Received {
        /// The peer's immediate.
        immediate: u32,
        /// Bytes of the write.
        bytes: u32,
    },
}

/// Carries a queue pair's works to its peer, and the peer's to this side. Only the card's thread uses it.
pub trait Carrier: Send {
    /// The kinds of works that it supports: bits of [`crate::CAN_WRITE`], [`crate::CAN_READ`], [`crate::CAN_CHANGE`].
    fn abilities(&self) -> u32;
    /// Starts a work. Returns false, and does not take it, if too many works are in flight. Works end in the order of the
    /// calls.
    fn post(&mut self, work: &Work) -> bool;
    /// Allows `count` more immediates of the peer to arrive: kernels have posted as many receives.
    fn add_receives(&mut self, count: u32);
    /// Advances sending and receiving without blocking, and appends what happened to `events`.
    fn progress(&mut self, events: &mut VecDeque<Event>);
    /// Abandons all works in flight, without events for them. The engine calls it when the queue pair has failed.
    fn fail(&mut self);
}

/// A work as the peer gets it, without the bytes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) kind: WorkKind,
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) bytes: u32,
}

/// Why a request of the peer was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No receive is posted for its immediate. The request may be tried again.
    NotReady,
    Failed(Syndrome),
}

/// One end's memory and posted receives. It serves the peer's requests.
pub(crate) struct Responder {
    regions: Arc<Regions>,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    receives: u64,
    received: VecDeque<Event>,
}

impl Responder {
    pub(crate) fn new(regions: Arc<Regions>) -> Arc<Responder> {
        Arc::new(Responder {
            regions,
            inbox: Mutex::default(),
        })
    }

    pub(crate) fn regions(&self) -> &Regions {
        &self.regions
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().expect("nobody panics with it")
    }

    pub(crate) fn add_receives(&self, count: u32) {
        self.inbox().receives += u64::from(count);
    }

    pub(crate) fn take_received(&self, events: &mut VecDeque<Event>) {
        events.append(&mut self.inbox().received);
    }

    /// Carries out a request of the peer, with `data` as the bytes of a write. Returns the bytes for the peer: those that it
    /// reads, or the old value of a word.
    pub(crate) fn serve(&self, request: &Request, data: &[u8]) -> Result<Vec<u8>, Refusal> {
        let (key, address) = (request.key, request.address);
        let failed = Refusal::Failed;
        match request.kind {
            WorkKind::Nop => Ok(Vec::new()),
            WorkKind::Write => {
                let wrote = self.regions.write(key, address, data, true);
                wrote.map(|()| Vec::new()).map_err(failed)
            }
            WorkKind::WriteImmediate(immediate) => {
                if self.inbox().receives == 0 {
                    return Err(Refusal::NotReady);
                }
                let wrote = self.regions.write(key, address, data, true);
                wrote.map_err(failed)?;
                let mut inbox = self.inbox();
                inbox.receives -= 1;
                inbox.received.push_back(Event::Received {
                    immediate,
                    bytes: request.bytes,
                });
                Ok(Vec::new())
            }
            WorkKind::Read => self
                .regions
                .read(key, address, request.bytes, true)
                .map_err(failed),
            WorkKind::Change(change) => {
                let before = self.regions.change(key, address, change);
                before
                    .map(|before| before.to_ne_bytes().to_vec())
                    .map_err(failed)
            }
        }
    }
}

/// Returns the bytes that a work sends to the peer; none for works that get bytes back.
pub(crate) fn gather(regions: &Regions, work: &Work) -> Result<Vec<u8>, Syndrome> {
    match (work.kind, work.local) {
        (WorkKind::Write | WorkKind::WriteImmediate(_), Local::Inline(bytes)) => {
            Ok(bytes[..work.bytes as usize].to_vec())
        }
        (WorkKind::Write | WorkKind::WriteImmediate(_), Local::Region { address, key }) => {
            regions.read(key, address, work.bytes, false)
        }
        // Check the memory for the peer's answer before the request is sent.
        (WorkKind::Read | WorkKind::Change(_), Local::Region { address, key }) => regions
            .check(key, address, work.bytes.into())
            .map(|()| Vec::new()),
        _ => Ok(Vec::new()),
    }
}

/// Writes the bytes of the peer's answer into the work's memory.
pub(crate) fn scatter(regions: &Regions, work: &Work, found: &[u8]) -> Result<(), Syndrome> {
    match work.local {
        Local::Region { address, key } if !found.is_empty() => {
            regions.write(key, address, found, false)
        }
        _ => Ok(()),
    }
}

pub(crate) fn request(work: &Work) -> Request {
    Request {
        kind: work.kind,
        address: work.remote,
        key: work.remote_key,
        bytes: work.bytes,
    }
}

/// Encodes a [`WorkKind`] for the wire of a TCP carrier: its number, and two operands.
pub(crate) fn kind_code(kind: WorkKind) -> (u8, u64, u64) {
    match kind {
        WorkKind::Nop => (0, 0, 0),
        WorkKind::Write => (1, 0, 0),
        WorkKind::WriteImmediate(immediate) => (2, immediate.into(), 0),
        WorkKind::Read => (3, 0, 0),
        WorkKind::Change(Change::Add(more)) => (4, more, 0),
        WorkKind::Change(Change::Swap(expected, desired)) => (5, expected, desired),
    }
}

pub(crate) fn kind_of_code(code: u8, first: u64, second: u64) -> Option<WorkKind> {
    Some(match code {
        0 => WorkKind::Nop,
        1 => WorkKind::Write,
        2 => WorkKind::WriteImmediate(u32::try_from(first).ok()?),
        3 => WorkKind::Read,
        4 => WorkKind::Change(Change::Add(first)),
        5 => WorkKind::Change(Change::Swap(first, second)),
        _ => return None,
    })
}

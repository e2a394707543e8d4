//! What carries works out: one trait for all.

use crate::entry::{Kind, Local, Work};
use crate::regions::{Change, Regions};
use crate::view::Syndrome;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// What a carrier has to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The oldest work that was not done yet is done, or has failed.
    Done(Result<(), Syndrome>),
    /// A peer's write with this immediate is in this side's memory.
    Received {
        /// The immediate.
        immediate: u32,
        /// Bytes of the write.
        bytes: u32,
    },
}

/// Carries a queue pair's works to its peer. One thread uses it.
pub trait Carrier: Send {
    /// What it can do: [`crate::CAN_WRITE`], [`crate::CAN_READ`], [`crate::CAN_CHANGE`].
    fn abilities(&self) -> u32;
    /// Takes a work, unless too many are on their way. Works are done in order.
    fn post(&mut self, work: &Work) -> bool;
    /// So many more immediates may arrive.
    fn add_receives(&mut self, count: u32);
    /// Goes on, without waiting; tells what has happened.
    fn progress(&mut self, events: &mut VecDeque<Event>);
    /// Gives up all works that are on their way, without a word about them: the queue pair has failed.
    fn fail(&mut self);
}

/// A request as its peer gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) bytes: u32,
}

/// Why a request is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no receive for its immediate now.
    NotReady,
    Failed(Syndrome),
}

/// One end's memory and receives, for requests of its peer.
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

    /// Carries out a peer's request; gives the bytes that it wants back.
    pub(crate) fn serve(&self, request: &Request, data: &[u8]) -> Result<Vec<u8>, Refusal> {
        let (key, address) = (request.key, request.address);
        let failed = Refusal::Failed;
        match request.kind {
            Kind::Nop => Ok(Vec::new()),
            Kind::Write => {
                let wrote = self.regions.write(key, address, data, true);
                wrote.map(|()| Vec::new()).map_err(failed)
            }
            Kind::WriteImmediate(immediate) => {
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
            Kind::Read => self
                .regions
                .read(key, address, request.bytes, true)
                .map_err(failed),
            Kind::Change(change) => {
                let before = self.regions.change(key, address, change);
                before
                    .map(|before| before.to_ne_bytes().to_vec())
                    .map_err(failed)
            }
        }
    }
}

/// The bytes that a work sends.
pub(crate) fn gather(regions: &Regions, work: &Work) -> Result<Vec<u8>, Syndrome> {
    match (work.kind, work.local) {
        (Kind::Write | Kind::WriteImmediate(_), Local::Inline(bytes)) => {
            Ok(bytes[..work.bytes as usize].to_vec())
        }
        (Kind::Write | Kind::WriteImmediate(_), Local::Region { address, key }) => {
            regions.read(key, address, work.bytes, false)
        }
        // What comes back needs memory before anything is asked.
        (Kind::Read | Kind::Change(_), Local::Region { address, key }) => regions
            .check(key, address, work.bytes.into())
            .map(|()| Vec::new()),
        _ => Ok(Vec::new()),
    }
}

/// Writes what came back where the work wants it.
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

/// Numbers of [`Kind`] on the wire of a TCP carrier, with operands.
pub(crate) fn kind_code(kind: Kind) -> (u8, u64, u64) {
    match kind {
        Kind::Nop => (0, 0, 0),
        Kind::Write => (1, 0, 0),
        Kind::WriteImmediate(immediate) => (2, immediate.into(), 0),
        Kind::Read => (3, 0, 0),
        Kind::Change(Change::Add(more)) => (4, more, 0),
        Kind::Change(Change::Swap(expected, desired)) => (5, expected, desired),
    }
}

pub(crate) fn kind_of_code(code: u8, first: u64, second: u64) -> Option<Kind> {
    Some(match code {
        0 => Kind::Nop,
        1 => Kind::Write,
        2 => Kind::WriteImmediate(u32::try_from(first).ok()?),
        3 => Kind::Read,
        4 => Kind::Change(Change::Add(first)),
        5 => Kind::Change(Change::Swap(first, second)),
        _ => return None,
    })
}

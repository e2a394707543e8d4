//! A carrier over a queue pair of RDMA verbs, on which the card's thread posts. It works with Soft-RoCE, any card with libibverbs, and
//! the test network inside one process. It supports writes, with and without immediate, but neither reads nor atomics.

use crate::carrier::{Carrier, Event};
use crate::entry::{Local, Work, WorkKind};
use crate::queue::Depths;
use crate::regions::Registration;
use crate::view::{Syndrome, CAN_WRITE};
use crate::GpuVerbsError;
use rgaps_verbs::raw::{RawCompletion, RawPair, RawWrite};
use rgaps_verbs::{Access, Allocation, ChannelAddress, Device, Region, Status};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Most works in flight.
const SENDS: u32 = 64;
/// Bytes of a part of the region from which inline bytes are sent. Each work in flight has a part.
const INLINE_BYTES: usize = 32;

/// A queue pair of verbs as a carrier.
pub struct VerbsCarrier {
    pair: RawPair,
    device: Arc<Device>,
    inline: Arc<Allocation>,
    inline_region: Arc<Region>,
    inline_kept: usize,
    regions: BTreeMap<u32, Known>,
    in_flight: VecDeque<InFlight>,
    posted: u64,
    /// Receives that `new` posted on the device, and that kernels have not posted yet.
    receives_ahead: u32,
    is_broken: bool,
}

struct Known {
    kept: usize,
    address: u64,
    bytes: u64,
}

enum InFlight {
    Posted,
    /// Ended without being posted on the device. It is reported after the works before it.
    Ended(Result<(), Syndrome>),
}

impl VerbsCarrier {
    /// Creates a queue pair on a device, for a queue pair of kernels with these depths. It is not connected yet.
    pub fn new(device: &Arc<Device>, depths: Depths) -> Result<VerbsCarrier, GpuVerbsError> {
        let inline = Allocation::new(INLINE_BYTES * SENDS as usize);
        let inline_region = Region::new(device, inline.clone(), Access::LocalRead)?;
        let receives = 1 << depths.receives_log2;
        let mut pair = RawPair::new(device, SENDS, receives)?;
        let inline_kept = pair.keep(Arc::clone(&inline_region));
        Ok(VerbsCarrier {
            pair,
            device: Arc::clone(device),
            inline,
            inline_region,
            inline_kept,
            regions: BTreeMap::new(),
            in_flight: VecDeque::new(),
            posted: 0,
            receives_ahead: receives,
            is_broken: false,
        })
    }

    /// The address to which the peer's carrier connects.
    pub fn address(&self) -> ChannelAddress {
        self.pair.address(&self.inline_region)
    }

    /// Connects with the peer's carrier.
    pub fn connect(&self, peer: &ChannelAddress) -> Result<(), GpuVerbsError> {
        Ok(self.pair.connect(peer)?)
    }

    /// Registers memory with the device, too. Returns what the peer's works need: the address, and the key if `access` lets
    /// the peer use the memory.
    pub fn register(
        &mut self,
        registration: &Registration,
        access: Access,
    ) -> Result<(u64, Option<u32>), GpuVerbsError> {
        let memory = registration.memory();
        let pages = memory.pages().ok_or_else(|| {
            GpuVerbsError::Argument("a proxy over verbs takes host memory only".into())
        })?;
        let region = Region::new(&self.device, pages.clone(), access)?;
        let known = Known {
            kept: self.pair.keep(Arc::clone(&region)),
            address: memory.address(),
            bytes: memory.bytes(),
        };
        self.regions.insert(registration.key(), known);
        Ok((region.address(), region.remote_key()))
    }

    /// Returns the region that the pair keeps for a work's bytes, and their offset. Copies inline bytes into a region first.
    fn source(&mut self, work: &Work) -> Result<(usize, usize), Syndrome> {
        match work.local {
            Local::Inline(bytes) => {
                let offset = (self.posted % u64::from(SENDS)) as usize * INLINE_BYTES;
                self.inline.write(offset, &bytes);
                Ok((self.inline_kept, offset))
            }
            Local::Region { address, key } => {
                let known = self.regions.get(&key).ok_or(Syndrome::LocalProtection)?;
                let at = address.checked_sub(known.address);
                let is_inside = |at: &u64| {
                    at.checked_add(work.bytes.into())
                        .is_some_and(|end| end <= known.bytes)
                };
                let at = at.filter(is_inside).ok_or(Syndrome::LocalProtection)?;
                Ok((known.kept, at as usize))
            }
        }
    }

    fn write(&mut self, work: &Work, immediate: Option<u32>) -> Result<(), Syndrome> {
        let (kept, offset) = self.source(work)?;
        let write = RawWrite {
            offset,
            bytes: work.bytes,
            address: work.remote,
            key: work.remote_key,
            immediate,
            is_signalled: true,
        };
        self.pair
            .write(kept, &write)
            .map_err(|_| Syndrome::LocalOperation)?;
        self.posted += 1;
        Ok(())
    }

    fn report_ended(&mut self, events: &mut VecDeque<Event>) {
        while let Some(InFlight::Ended(result)) = self.in_flight.front() {
            events.push_back(Event::Done(*result));
            self.in_flight.pop_front();
        }
    }
}

fn syndrome(status: Status) -> Syndrome {
    match status {
        Status::LocalLength => Syndrome::LocalLength,
        Status::LocalProtection => Syndrome::LocalProtection,
        Status::Flushed => Syndrome::Flushed,
        Status::RemoteInvalidRequest => Syndrome::RemoteInvalid,
        Status::RemoteAccess => Syndrome::RemoteAccess,
        Status::RemoteOperation => Syndrome::RemoteOperation,
        Status::RetryExceeded => Syndrome::Unreachable,
        Status::ReceiverNotReady => Syndrome::ReceiverNotReady,
        _ => Syndrome::LocalOperation,
    }
}

impl Carrier for VerbsCarrier {
    fn abilities(&self) -> u32 {
        CAN_WRITE
    }

    fn post(&mut self, work: &Work) -> bool {
        if self.in_flight.len() >= SENDS as usize {
            return false;
        }
        let posted = match work.kind {
            WorkKind::Write => self.write(work, None),
            WorkKind::WriteImmediate(immediate) => self.write(work, Some(immediate)),
            WorkKind::Nop => {
                self.in_flight.push_back(InFlight::Ended(Ok(())));
                return true;
            }
            WorkKind::Read | WorkKind::Change(_) => Err(Syndrome::LocalOperation),
        };
        self.in_flight.push_back(match posted {
            Ok(()) => InFlight::Posted,
            Err(syndrome) => InFlight::Ended(Err(syndrome)),
        });
        true
    }

    fn add_receives(&mut self, count: u32) {
        let ahead = count.min(self.receives_ahead);
        self.receives_ahead -= ahead;
        if count > ahead && self.pair.post_receives(count - ahead).is_err() {
            self.is_broken = true;
        }
    }

    fn progress(&mut self, events: &mut VecDeque<Event>) {
        self.report_ended(events);
        while !self.is_broken {
            match self.pair.poll() {
                Ok(None) => break,
                Ok(Some(RawCompletion::Received { immediate, bytes })) => {
                    events.push_back(Event::Received { immediate, bytes });
                }
                // A failed receive: the connection has ended. Works in flight would fail, too, and report it.
                Ok(Some(RawCompletion::Failed(_))) if self.in_flight.is_empty() => {}
                Ok(Some(completion)) => {
                    self.in_flight.pop_front();
                    events.push_back(Event::Done(match completion {
                        RawCompletion::Failed(status) => Err(syndrome(status)),
                        _ => Ok(()),
                    }));
                    self.report_ended(events);
                }
                Err(_) => self.is_broken = true,
            }
        }
        if self.is_broken {
            let lost = self.in_flight.drain(..);
            events.extend(lost.map(|_| Event::Done(Err(Syndrome::Unreachable))));
        }
    }

    fn fail(&mut self) {
        self.in_flight.clear();
    }
}

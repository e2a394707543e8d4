//! A subscriber on the host: reliable, and one that releases each message before the next.
//!
//! For such a one the protocol has no atomic change of a shared word (0046: it pins by its cursor), so copies do for it
//! in the memory of a GPU: slots, lengths and payload are read, then the cursor is written. Each access is waited for before
//! the next, so they are in order for everybody.

use crate::memory::Segment;
use crate::{DeviceError, DeviceTopic};
use rgaps_layout::{
    DEVICE_CURSOR_JOINED, DEVICE_CURSOR_RELIABLE, DEVICE_CURSOR_SHIFT, DEVICE_SEQUENCE_SHIFT,
};
use std::sync::Arc;

/// A message that waits. Its bytes stay until it is released, unless the subscriber is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its sequence number.
    pub sequence: u64,
    /// Its length.
    pub bytes: u64,
    /// Its first byte in this process: of host memory, or of the GPU's.
    pub address: u64,
}

/// A subscriber of a device topic on the host.
pub struct HostSubscriber {
    topic: Arc<DeviceTopic>,
    seat: u32,
    next: u64,
}

impl HostSubscriber {
    /// Joins in the seat of the process that forwarded before, which has ended, and goes on where that was; or in a new seat,
    /// with the next message. One process at a time may do this.
    pub fn join(topic: Arc<DeviceTopic>) -> Result<HostSubscriber, DeviceError> {
        let (taken, evicted) = topic.taken_and_evicted();
        let former = topic.bridge_seat().filter(|seat| taken >> seat & 1 != 0);
        if let Some(seat) = former.filter(|seat| evicted >> seat & 1 != 0) {
            topic.leave_seat(seat)?;
        }
        let seat = match former.filter(|seat| evicted >> seat & 1 == 0) {
            Some(seat) => seat,
            None => {
                let seat = topic.take_seat()?;
                topic.set_bridge_seat(seat);
                seat
            }
        };
        let joined = HostSubscriber {
            topic,
            seat,
            next: 0,
        };
        joined.sit_down()
    }

    fn sit_down(mut self) -> Result<HostSubscriber, DeviceError> {
        let state = self.topic.seat(self.seat)?;
        self.next = state.next_sequence;
        if state.joined {
            return Ok(self);
        }
        // What the seat's last subscriber held, who was evicted.
        for (block, holder) in self.topic.holders()?.into_iter().enumerate() {
            if holder >> self.seat & 1 != 0 {
                let at = self.topic.holder_at(block as u32);
                self.topic
                    .memory()
                    .clear(Segment::Words, at, 1 << self.seat)?;
            }
        }
        // From here on the publisher lets nothing leave the ring that it has not left behind already.
        self.write_cursor(0, DEVICE_CURSOR_RELIABLE)?;
        self.next = self.topic.newest_sequence()? + 1;
        self.write_cursor(self.next, DEVICE_CURSOR_RELIABLE | DEVICE_CURSOR_JOINED)?;
        Ok(self)
    }

    /// Its seat.
    pub fn seat(&self) -> u32 {
        self.seat
    }

    /// The messages that wait, the oldest first.
    pub fn waiting(&mut self) -> Result<Vec<Waiting>, DeviceError> {
        let geometry = self.topic.geometry();
        let slots = self.topic.slots()?;
        let mut found = Vec::new();
        loop {
            let sequence = self.next + found.len() as u64;
            let slot = slots[(sequence & u64::from(geometry.depth - 1)) as usize];
            let there = slot >> DEVICE_SEQUENCE_SHIFT;
            if there > sequence {
                // Nobody is overrun whom the publisher waits for.
                return Err(DeviceError::Evicted(self.seat));
            }
            let block = (slot & ((1 << DEVICE_SEQUENCE_SHIFT) - 1)) as u32;
            if there < sequence || found.len() == geometry.depth as usize {
                break;
            }
            if block >= geometry.blocks {
                return Err(DeviceError::Corrupt(format!("it has no block {block}")));
            }
            found.push((sequence, block));
        }
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let (at, count) = (geometry.lengths_at(), geometry.blocks as usize);
        let lengths = self.topic.memory().load_all(Segment::Ring, at, count)?;
        let view = self.topic.view();
        let messages = found.into_iter().map(|(sequence, block)| {
            let bytes = lengths[block as usize];
            if bytes > geometry.block_bytes {
                return Err(DeviceError::Corrupt(format!(
                    "message {sequence} has {bytes} bytes in a block of {}",
                    geometry.block_bytes
                )));
            }
            Ok(Waiting {
                sequence,
                bytes,
                address: view.blocks_at + u64::from(block) * geometry.block_bytes,
            })
        });
        messages.collect()
    }

    /// Whether what was read of waiting messages until now is theirs: the publisher overwrites nothing before the host has
    /// evicted the subscriber.
    pub fn check_held(&self) -> Result<(), DeviceError> {
        let (_, evicted) = self.topic.taken_and_evicted();
        match evicted >> self.seat & 1 {
            0 => Ok(()),
            _ => Err(DeviceError::Evicted(self.seat)),
        }
    }

    /// Done with the oldest message that waits.
    pub fn release(&mut self) -> Result<(), DeviceError> {
        self.check_held()?;
        self.next += 1;
        self.write_cursor(self.next, DEVICE_CURSOR_RELIABLE | DEVICE_CURSOR_JOINED)
    }

    fn write_cursor(&self, sequence: u64, flags: u64) -> Result<(), DeviceError> {
        let cursor = sequence << DEVICE_CURSOR_SHIFT | flags;
        let at = self.topic.seat_at(self.seat);
        Ok(self.topic.memory().store(Segment::Words, at, cursor)?)
    }
}

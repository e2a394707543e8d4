//! A subscriber on the host. It is reliable, and releases messages in their order.
//!
//! Such a subscriber pins messages by its cursor (0046), so it needs no atomic change of a shared word, and copies suffice in the
//! memory of a GPU: it reads slots, lengths and payload, and then writes the cursor. Each access has ended before the next
//! begins, so all processes and kernels see them in this order.

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
    /// The address of its first byte in this process, in host memory or in the GPU's.
    pub address: u64,
}

/// A subscriber of a device topic on the host.
pub struct HostSubscriber {
    topic: Arc<DeviceTopic>,
    seat: u32,
    next: u64,
}

impl HostSubscriber {
    /// Joins in the seat of the topic's last bridge, which has ended, and continues at its cursor; or in a new seat, with the next
    /// message, if there was no bridge or its seat was evicted or freed. One process at a time may do this ([`DeviceTopic::lock`]).
    pub fn join(topic: Arc<DeviceTopic>) -> Result<HostSubscriber, DeviceError> {
        let (taken, evicted) = topic.taken_and_evicted();
        let last = topic.bridge_seat().filter(|seat| taken >> seat & 1 != 0);
        if let Some(seat) = last.filter(|seat| evicted >> seat & 1 != 0) {
            topic.leave_seat(seat)?;
        }
        let seat = match last.filter(|seat| evicted >> seat & 1 == 0) {
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
        joined.begin()
    }

    fn begin(mut self) -> Result<HostSubscriber, DeviceError> {
        let state = self.topic.seat(self.seat)?;
        self.next = state.next_sequence;
        if state.joined {
            return Ok(self);
        }
        // Clears the bits of the seat's last subscriber, which was evicted.
        for (block, holder) in self.topic.holders()?.into_iter().enumerate() {
            if holder >> self.seat & 1 != 0 {
                let at = self.topic.holder_at(block as u32);
                self.topic
                    .memory()
                    .clear(Segment::Words, at, 1 << self.seat)?;
            }
        }
        // From here on no message leaves the ring but those that the publisher has already counted as leaving.
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
            let found_sequence = slot >> DEVICE_SEQUENCE_SHIFT;
            if found_sequence > sequence {
                // The publisher overruns a reliable subscriber only if it was evicted.
                return Err(DeviceError::Evicted(self.seat));
            }
            let block = (slot & ((1 << DEVICE_SEQUENCE_SHIFT) - 1)) as u32;
            if found_sequence < sequence || found.len() == geometry.depth as usize {
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

    /// Whether the bytes that were read of waiting messages until now are valid: the publisher overwrites them only after the host has
    /// evicted the subscriber, which this reports as an error.
    pub fn check_held(&self) -> Result<(), DeviceError> {
        let (_, evicted) = self.topic.taken_and_evicted();
        match evicted >> self.seat & 1 {
            0 => Ok(()),
            _ => Err(DeviceError::Evicted(self.seat)),
        }
    }

    /// Releases the oldest message that waits.
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

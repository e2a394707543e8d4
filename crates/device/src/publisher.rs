//! A publisher on the host, for subscribers that are kernels: the steps of `Publisher` in `rgaps/device.cuh`, with one loan
//! at a time. Each access has ended before the next begins, so all fences of that protocol are implied.

use crate::memory::Segment;
use crate::{DeviceError, DeviceTopic};
use rgaps_layout::{
    DEVICE_GENERATION_SHIFT, DEVICE_PRODUCER_BIT, DEVICE_PUBLISHER_ENDPOINT, DEVICE_RING_BIT,
    DEVICE_SEQUENCE_SHIFT, MAX_DEVICE_SUBSCRIBERS,
};
use std::sync::Arc;

const RING: u64 = 1 << DEVICE_RING_BIT;
const PRODUCER: u64 = 1 << DEVICE_PRODUCER_BIT;
const READERS: u64 = (1 << MAX_DEVICE_SUBSCRIBERS) - 1;

/// Why a message cannot be published now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// A reliable subscriber has not received the oldest message, which would leave the ring.
    BackPressured,
    /// All blocks are in the ring or held by subscribers.
    NoBlock,
}

/// The publisher of a device topic, on the host.
pub struct HostPublisher {
    topic: Arc<DeviceTopic>,
    /// A copy of the ring's slots, which only the publisher writes.
    slots: Vec<u64>,
    /// Sequence number of the next message.
    next: u64,
    /// The first sequence number for which the ring has no room yet.
    limit: u64,
    /// Blocks without a holder. They stay so, since a subscriber's bit counts only where the ring's is set, too.
    free: Vec<u32>,
}

impl HostPublisher {
    /// Takes the topic over from an earlier publisher, which has ended: what it loaned and did not publish is lost, what it
    /// published stays. One process at a time may do this, and no kernel publishes.
    pub fn attach(topic: Arc<DeviceTopic>) -> Result<HostPublisher, DeviceError> {
        let slots = topic.slots()?;
        let newest = slots.iter().map(|slot| slot >> DEVICE_SEQUENCE_SHIFT).max();
        let publisher = HostPublisher {
            next: newest.unwrap_or(0) + 1,
            limit: 0,
            free: Vec::new(),
            slots,
            topic,
        };
        for (block, holder) in publisher.topic.holders()?.into_iter().enumerate() {
            let sequence = holder >> DEVICE_GENERATION_SHIFT;
            let mut lost = holder & PRODUCER;
            if publisher.slots[publisher.slot_of(sequence)] != slot_word(sequence, block as u32) {
                lost |= holder & RING;
            }
            if lost != 0 {
                publisher.clear(block as u32, lost)?;
            }
        }
        Ok(publisher)
    }

    /// The sequence number of the next message.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Publishes `bytes` bytes from the address `source`, if there is room; returns its sequence number.
    ///
    /// [`DeviceError::Argument`]: a message that is larger than a block.
    ///
    /// # Safety
    /// `source` can be read for `bytes` bytes until this returns: by the host for a topic in host memory, else by the host or
    /// the GPU.
    pub unsafe fn publish(
        &mut self,
        source: u64,
        bytes: u64,
    ) -> Result<Result<u64, Full>, DeviceError> {
        let geometry = self.topic.geometry();
        if bytes > geometry.block_bytes {
            return Err(DeviceError::Argument(format!(
                "a message of {bytes} bytes does not fit a block of {}",
                geometry.block_bytes
            )));
        }
        let block = match self.find()? {
            Ok(block) => block,
            Err(full) => {
                self.note_waiting()?;
                return Ok(Err(full));
            }
        };
        let (sequence, slot) = (self.next, self.slot_of(self.next));
        let memory = self.topic.memory();
        let at = geometry.blocks_at() + u64::from(block) * geometry.block_bytes;
        // SAFETY: our caller promises that `bytes` bytes at `source` can be read until we return, by the host for a topic in host memory;
        // `fill` returns after the copy.
        unsafe { memory.fill(at, source, bytes)? };
        self.free.pop();
        memory.store(
            Segment::Ring,
            geometry.lengths_at() + u64::from(block) * 8,
            bytes,
        )?;
        let holder = sequence << DEVICE_GENERATION_SHIFT | RING;
        memory.store(Segment::Words, self.topic.holder_at(block), holder)?;
        // A subscriber that sees this word sees all that was written before.
        let word = slot_word(sequence, block);
        memory.store(Segment::Ring, slot as u64 * 8, word)?;
        let leaving = std::mem::replace(&mut self.slots[slot], word);
        self.next += 1;
        if leaving != 0 {
            let block = leaving & ((1 << DEVICE_SEQUENCE_SHIFT) - 1);
            self.clear(block as u32, RING)?;
        }
        Ok(Ok(sequence))
    }

    /// Finds a free block, if the ring has room for a message.
    fn find(&mut self) -> Result<Result<u32, Full>, DeviceError> {
        if self.next >= self.limit {
            self.look()?;
            if self.next >= self.limit {
                return Ok(Err(Full::BackPressured));
            }
        }
        if self.free.is_empty() {
            let holders = self.topic.holders()?;
            // Read after the holder words: a subscriber whose bits these show on a block outside of the ring had joined by then.
            let (_, evicted) = self.topic.taken_and_evicted();
            let ignored = evicted & READERS;
            let mask = (1 << DEVICE_GENERATION_SHIFT) - 1;
            let free = holders.iter().enumerate();
            let free = free.filter(|(_, holder)| **holder & mask & !ignored == 0);
            self.free = free.map(|(block, _)| block as u32).collect();
        }
        Ok(self.free.last().copied().ok_or(Full::NoBlock))
    }

    /// Looks how far reliable subscribers are, and sets `limit`. This comes after the writes of all slots, so a subscriber whose join it
    /// does not see begins after these messages.
    fn look(&mut self) -> Result<(), DeviceError> {
        let (_, evicted) = self.topic.taken_and_evicted();
        let mut oldest = self.next;
        for (seat, state) in self.topic.seats()?.into_iter().enumerate() {
            if state.reliable && evicted >> seat & 1 == 0 {
                oldest = oldest.min(state.next_sequence);
            }
        }
        self.limit = oldest + u64::from(self.topic.geometry().depth);
        Ok(())
    }

    /// Writes to the publisher's seat which message waits for room.
    fn note_waiting(&self) -> Result<(), DeviceError> {
        let at = self.topic.seat_at(DEVICE_PUBLISHER_ENDPOINT);
        Ok(self.topic.memory().store(Segment::Words, at, self.next)?)
    }

    fn slot_of(&self, sequence: u64) -> usize {
        (sequence & (self.slots.len() as u64 - 1)) as usize
    }

    fn clear(&self, block: u32, bits: u64) -> Result<(), DeviceError> {
        let at = self.topic.holder_at(block);
        Ok(self.topic.memory().clear(Segment::Words, at, bits)?)
    }
}

fn slot_word(sequence: u64, block: u32) -> u64 {
    sequence << DEVICE_SEQUENCE_SHIFT | u64::from(block)
}

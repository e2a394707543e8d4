//! What a subscriber knows of the samples that it holds.

use crate::deferred_release::Recorded;
use rgaps_pool::Stream;
use rgaps_topic::{FreeSlots, Metadata, Reader, Shared, Tensor};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A slot for each sample that may be held, with what its clones share, and how many are. All of it is
/// there from the start, so that receiving allocates nothing.
pub(crate) struct Holds {
    slots: Box<[HeldSlot]>,
    free: FreeSlots,
    /// Samples that took a slot, ever, and those of them that left it; both wrap around.
    entered: AtomicU32,
    ended: AtomicU32,
}

/// What the clones of a sample share.
struct HeldSlot {
    clones: AtomicU32,
    described: UnsafeCell<Described>,
    /// Streams whose work may read the sample.
    streams: Mutex<Vec<Recorded>>,
}

/// What a descriptor says of its message that few messages have.
#[derive(Default)]
struct Described {
    tensor: Option<Tensor>,
    has_metadata: bool,
    /// Keeps its memory for the slot's next sample.
    metadata: Metadata,
}

// SAFETY: `described` is all that is not for several threads by itself. It is written by `enter` only, by
// the one thread at a time that takes slots out of `free`, when no clone of a sample is there; while
// there are clones it is only read. The last one to go gives the slot back, after it has seen the others
// go (`remove`), and whoever takes it next sees that it did (`FreeSlots`).
unsafe impl Sync for HeldSlot {}

impl Holds {
    pub(crate) fn new(most: u32) -> Holds {
        let slot = |_| HeldSlot {
            clones: AtomicU32::new(0),
            described: UnsafeCell::default(),
            streams: Mutex::default(),
        };
        Holds {
            slots: (0..most).map(slot).collect(),
            free: FreeSlots::new(most),
            entered: AtomicU32::new(0),
            ended: AtomicU32::new(0),
        }
    }

    /// A slot, if fewer than the limit are in use.
    pub(crate) fn free_slot(&self) -> Option<u32> {
        self.free.first()
    }

    /// The sample that `reader` took last takes its slot, with one clone. Returns how many are held now.
    ///
    /// # Safety
    /// The slot came from [`free_slot`](Self::free_slot), and no sample has taken it since. One thread at a time
    /// finds a slot and enters it.
    pub(crate) unsafe fn enter(&self, hold: u32, reader: &mut Reader<Shared>) -> u32 {
        let slot = &self.slots[hold as usize];
        self.free.take(hold);
        // SAFETY: our caller, the only thread that takes slots, found this one free, and has taken it now: nobody else
        // gets it before it is given back.
        let described = unsafe { &mut *slot.described.get() };
        match reader.tensor() {
            Some(tensor) => described.tensor = Some(*tensor),
            // Which writes no more than that.
            None => described.tensor = None,
        }
        described.has_metadata = reader.swap_metadata(&mut described.metadata);
        slot.clones.store(1, Ordering::Relaxed);
        // One writer, so no read-modify-write.
        let entered = self.entered.load(Ordering::Relaxed).wrapping_add(1);
        self.entered.store(entered, Ordering::Relaxed);
        entered.wrapping_sub(self.ended.load(Ordering::Relaxed))
    }

    /// A sample leaves its slot. Returns how many are held now.
    pub(crate) fn end(&self, hold: u32) -> u32 {
        // Whoever sees that a sample has ended has seen that it had entered.
        let ended = self.ended.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        let held = self.entered.load(Ordering::Relaxed).wrapping_sub(ended);
        self.free.give(hold);
        held
    }

    /// What the message is, if it is a tensor.
    ///
    /// # Safety
    /// A clone of the sample in that slot lives as long as the result.
    pub(crate) unsafe fn tensor(&self, hold: u32) -> Option<&Tensor> {
        // SAFETY: our caller promises that a clone of the slot's sample lives as long as the result. Only `enter` writes `described`, in a slot
        // that is free, and the slot is free only after the last clone has ended.
        unsafe { (*self.slots[hold as usize].described.get()).tensor.as_ref() }
    }

    /// The message's attachment and parts, if it has either.
    ///
    /// # Safety
    /// A clone of the sample in that slot lives as long as the result.
    pub(crate) unsafe fn metadata(&self, hold: u32) -> Option<&Metadata> {
        // SAFETY: our caller promises that a clone of the slot's sample lives as long as the result. Only `enter` writes `described`, in a slot
        // that is free, and the slot is free only after the last clone has ended.
        let described = unsafe { &*self.slots[hold as usize].described.get() };
        described.has_metadata.then_some(&described.metadata)
    }

    pub(crate) fn streams(&self, hold: u32) -> MutexGuard<'_, Vec<Recorded>> {
        let streams = self.slots[hold as usize].streams.lock();
        streams.unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers that work on a stream reads the sample.
    pub(crate) fn record(&self, hold: u32, stream: Stream) {
        let stream = Recorded::here(stream);
        let mut streams = self.streams(hold);
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }

    pub(crate) fn add(&self, hold: u32) {
        // Relaxed, like Arc: whoever clones holds a clone already.
        self.slots[hold as usize]
            .clones
            .fetch_add(1, Ordering::Relaxed);
    }

    /// True: that was the last one.
    pub(crate) fn remove(&self, hold: u32) -> bool {
        // Release what this clone's user read, acquire what the others' did, like Arc.
        self.slots[hold as usize]
            .clones
            .fetch_sub(1, Ordering::AcqRel)
            == 1
    }

    pub(crate) fn held(&self) -> u32 {
        let ended = self.ended.load(Ordering::Acquire);
        self.entered.load(Ordering::Relaxed).wrapping_sub(ended)
    }
}

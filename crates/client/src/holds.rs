//! The samples that a subscriber holds: a slot for each, with the state that the sample's clones share.

use crate::deferred_release::Recorded;
use rgaps_pool::Stream;
use rgaps_topic::{FreeSlots, Metadata, Reader, Shared, Tensor};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A slot for each of the `max_held` samples. All slots are allocated at the start, so that receiving allocates nothing.
pub(crate) struct Holds {
    slots: Box<[HeldSlot]>,
    free: FreeSlots,
    /// How many samples have ever taken a slot (`entered`) and left one (`ended`); both wrap around. The difference is held now.
    entered: AtomicU32,
    ended: AtomicU32,
}

/// The state that the clones of a sample share.
struct HeldSlot {
    clones: AtomicU32,
    described: UnsafeCell<Described>,
    /// Streams whose work may read the sample.
    streams: Mutex<Vec<Recorded>>,
}

/// The optional contents of a descriptor, which few messages have.
#[derive(Default)]
struct Described {
    tensor: Option<Tensor>,
    has_metadata: bool,
    /// Valid if `has_metadata`. Its memory stays for the slot's next sample.
    metadata: Metadata,
}

// SAFETY: `described` is the only field that is not `Sync` by itself. Only `enter` writes it, for a slot that was free and so has no
// clones; its callers take slots one thread at a time. While a slot has clones, threads only read it. The thread that drops the last
// clone has acquired all other drops (`remove`) before it gives the slot back, and `FreeSlots` orders that before the next `enter`.
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

    /// A free slot. None: all are in use.
    pub(crate) fn free_slot(&self) -> Option<u32> {
        self.free.first()
    }

    /// Gives the slot `hold` to the sample that `reader` took last, with one clone. Returns how many samples are held now.
    ///
    /// # Safety
    /// The slot came from [`free_slot`](Self::free_slot), and no sample has taken it since. One thread at a time
    /// finds a slot and enters it.
    pub(crate) unsafe fn enter(&self, hold: u32, reader: &mut Reader<Shared>) -> u32 {
        let slot = &self.slots[hold as usize];
        self.free.take(hold);
        // SAFETY: the caller promises that the slot was free and that only one thread at a time takes slots. `free.take` above took
        // it, so no other thread gets it before `end` gives it back, and no clone reads it.
        let described = unsafe { &mut *slot.described.get() };
        match reader.tensor() {
            Some(tensor) => described.tensor = Some(*tensor),
            // Assigning `None` in a branch of its own writes only the discriminant.
            None => described.tensor = None,
        }
        described.has_metadata = reader.swap_metadata(&mut described.metadata);
        slot.clones.store(1, Ordering::Relaxed);
        // Only one thread at a time writes this, so no read-modify-write.
        let entered = self.entered.load(Ordering::Relaxed).wrapping_add(1);
        self.entered.store(entered, Ordering::Relaxed);
        entered.wrapping_sub(self.ended.load(Ordering::Relaxed))
    }

    /// Frees a sample's slot. Returns how many samples are held now.
    pub(crate) fn end(&self, hold: u32) -> u32 {
        // Release: a thread that acquires this `ended` also sees the sample's `entered`, so the difference is never negative.
        let ended = self.ended.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        let held = self.entered.load(Ordering::Relaxed).wrapping_sub(ended);
        self.free.give(hold);
        held
    }

    /// The sample's tensor. None: the message is not a tensor.
    ///
    /// # Safety
    /// A clone of the sample in that slot lives as long as the result.
    pub(crate) unsafe fn tensor(&self, hold: u32) -> Option<&Tensor> {
        // SAFETY: the caller promises that a clone of the slot's sample lives as long as the result. Only `enter` writes `described`, in
        // a slot that is free, and the slot is free only after the last clone has ended.
        unsafe { (*self.slots[hold as usize].described.get()).tensor.as_ref() }
    }

    /// The message's attachment and parts. None: it has neither.
    ///
    /// # Safety
    /// A clone of the sample in that slot lives as long as the result.
    pub(crate) unsafe fn metadata(&self, hold: u32) -> Option<&Metadata> {
        // SAFETY: the caller promises that a clone of the slot's sample lives as long as the result. Only `enter` writes `described`, in
        // a slot that is free, and the slot is free only after the last clone has ended.
        let described = unsafe { &*self.slots[hold as usize].described.get() };
        described.has_metadata.then_some(&described.metadata)
    }

    pub(crate) fn streams(&self, hold: u32) -> MutexGuard<'_, Vec<Recorded>> {
        let streams = self.slots[hold as usize].streams.lock();
        streams.unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that work on a stream may read the sample.
    pub(crate) fn record(&self, hold: u32, stream: Stream) {
        let stream = Recorded::here(stream);
        let mut streams = self.streams(hold);
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }

    /// Counts one more clone.
    pub(crate) fn add(&self, hold: u32) {
        // Relaxed, as in `Arc`: the caller has a clone already.
        self.slots[hold as usize]
            .clones
            .fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one clone less. True: it was the last one.
    pub(crate) fn remove(&self, hold: u32) -> bool {
        // As in `Arc`: release the reads of this clone, and acquire those of the others.
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

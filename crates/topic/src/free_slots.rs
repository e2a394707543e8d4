//! A bitmap of free slots, in which a process keeps the samples that it holds. One thread at a time takes a slot; any thread gives one
//! back, without waiting.

use rgaps_sync::atomic::{AtomicU64, Ordering};

/// Tells which of a fixed number of slots are free.
pub struct FreeSlots(Box<[AtomicU64]>);

impl FreeSlots {
    /// All of `count` slots are free.
    pub fn new(count: u32) -> FreeSlots {
        let word = |first: u32| AtomicU64::new(u64::MAX >> (64 - (count - first).min(64)));
        FreeSlots((0..count).step_by(64).map(word).collect())
    }

    /// The lowest free slot, which stays free until it is [taken](Self::take). None: no slot is free.
    #[inline]
    pub fn first(&self) -> Option<u32> {
        // Acquire: the thread that takes the slot sees everything that was done with it before it was given back (SYNC: free slot).
        let mut words = (0..).zip(self.0.iter().map(|word| word.load(Ordering::Acquire)));
        let (at, word) = words.find(|(_, word)| *word != 0)?;
        Some(at * 64 + word.trailing_zeros())
    }

    /// Takes the slot that [`first`](Self::first) found. One thread at a time finds and takes.
    #[inline]
    pub fn take(&self, slot: u32) {
        self.word(slot)
            .fetch_and(!(1 << (slot % 64)), Ordering::Relaxed);
    }

    /// Gives a slot back.
    #[inline]
    pub fn give(&self, slot: u32) {
        // (SYNC: free slot)
        self.word(slot)
            .fetch_or(1 << (slot % 64), Ordering::Release);
    }

    fn word(&self, slot: u32) -> &AtomicU64 {
        &self.0[slot as usize / 64]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::FreeSlots;

    #[test]
    fn every_slot_is_given_out_once_and_again_after_it_came_back() {
        for count in [1, 63, 64, 65, 200] {
            let slots = FreeSlots::new(count);
            for expected in 0..count {
                assert_eq!(slots.first(), Some(expected));
                slots.take(expected);
            }
            assert_eq!(slots.first(), None);
            slots.give(count - 1);
            assert_eq!(slots.first(), Some(count - 1));
        }
    }
}

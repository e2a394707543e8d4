//! Holder words: who holds a block.
//!
//! A word is a generation (high 64 bits) and a mask (low 64 bits) with a bit for each subscriber,
//! one for the publisher while it fills the block, and one for the ring. It changes by one
//! compare-and-swap. The transition to an empty mask happens once, here, and raises the
//! generation in the same step; after it the block is its publisher's to use again.

use crate::step::step;
use crate::{RegionView, Storage};
use rgaps_layout::{MAX_SUBSCRIBERS, PRODUCER_BIT, RING_BIT};
use rgaps_sync::atomic::{AtomicU128, Ordering};

/// A holder word, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holders {
    /// Counts the lives of the block.
    pub generation: u64,
    /// Who holds it.
    pub mask: u64,
}

/// The publisher's bit.
pub(crate) const PRODUCER: u64 = 1 << PRODUCER_BIT;
/// The ring's bit.
pub(crate) const RING: u64 = 1 << RING_BIT;
/// All subscribers' bits.
pub(crate) const SUBSCRIBERS: u64 = (1 << MAX_SUBSCRIBERS) - 1;

/// What clearing a bit did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Others still hold the block.
    Held,
    /// That was the last holder: the caller returns the block, and nobody else does.
    Emptied,
    /// The bit was not set, or the block has begun another life.
    NotHeld,
}

impl Holders {
    /// Takes a word apart.
    pub fn unpack(word: u128) -> Holders {
        Holders {
            generation: (word >> 64) as u64,
            mask: word as u64,
        }
    }

    /// Puts it together.
    pub fn pack(self) -> u128 {
        u128::from(self.generation) << 64 | u128::from(self.mask)
    }

    /// Reads a word.
    pub fn load(word: &AtomicU128) -> Holders {
        Self::unpack(word.load(Ordering::Acquire))
    }
}

/// Sets `bit` if the block still lives its life `generation`. False: the reader was overrun, or it
/// holds the block already and its publisher lies: a second hold on one bit could not be released.
pub(crate) fn acquire(word: &AtomicU128, generation: u64, bit: u64) -> bool {
    let mut now = Holders {
        generation,
        mask: RING,
    };
    loop {
        let next = Holders {
            generation,
            mask: now.mask | bit,
        };
        // Acquire: the bytes that the publisher wrote before it set RING (SYNC: publish) are
        // visible, and no read of them moves before this.
        match word.compare_exchange(now.pack(), next.pack(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(seen) => now = Holders::unpack(seen),
        }
        if now.generation != generation || now.mask == 0 || now.mask & bit != 0 {
            return false;
        }
    }
}

/// Clears `bit` of life `generation`; the last holder empties the word and ends the life.
pub(crate) fn release(word: &AtomicU128, generation: u64, bit: u64) -> Outcome {
    let mut now = Holders {
        generation,
        mask: bit,
    };
    loop {
        let mask = now.mask & !bit;
        let next = Holders {
            generation: generation.wrapping_add(u64::from(mask == 0)),
            mask,
        };
        // Release: our reads of the bytes come before the publisher's reuse (SYNC: reuse).
        match word.compare_exchange(now.pack(), next.pack(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) if mask == 0 => return Outcome::Emptied,
            Ok(_) => return Outcome::Held,
            Err(seen) => now = Holders::unpack(seen),
        }
        if now.generation != generation || now.mask & bit == 0 {
            return Outcome::NotHeld;
        }
    }
}

/// Puts the publisher's bit on a block that nobody holds.
pub(crate) fn begin(word: &AtomicU128, generation: u64) {
    // Nobody but the block's publisher writes a word whose mask is empty.
    word.store(
        Holders {
            generation,
            mask: PRODUCER,
        }
        .pack(),
        Ordering::Release,
    );
}

/// Hands the block from the publisher to the ring; with `keep` the publisher holds it, too, until
/// [`release`]. False: the word is not as the publisher left it.
pub(crate) fn commit(word: &AtomicU128, generation: u64, keep: bool) -> bool {
    let loaned = Holders {
        generation,
        mask: PRODUCER,
    }
    .pack();
    let published = Holders {
        generation,
        mask: if keep { RING | PRODUCER } else { RING },
    }
    .pack();
    // Release: the bytes were written before (SYNC: publish).
    word.compare_exchange(loaned, published, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}

/// Tells the publisher that a block came back. Idempotent: the publisher checks the block's word.
pub(crate) fn announce_return<S: Storage>(region: &RegionView<S>, block: u32) {
    let (word, bit) = (block / 64, block % 64);
    step!("return.emptied");
    region.returned(word).fetch_or(1 << bit, Ordering::AcqRel);
    step!("return.bitmap");
    // The summary after the bitmap; the publisher clears them in the same order, so that a bit
    // set in between is found by the next look (SYNC: returned).
    region
        .summary(word / 64)
        .fetch_or(1 << (word % 64), Ordering::AcqRel);
}

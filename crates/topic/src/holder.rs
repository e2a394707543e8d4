//! Holder words: who holds a block.
//!
//! A word is a generation (high 64 bits) and a mask (low 64 bits) with a bit for each subscriber, one for the publisher while it
//! fills the block, and one for the ring. Each change is one compare-and-swap. The change that empties the mask also raises the
//! generation, so it happens once per generation; after it the publisher may use the block again.

use crate::step::step;
use crate::{RegionView, Storage};
use rgaps_layout::{MAX_SUBSCRIBERS, PRODUCER_BIT, RING_BIT};
use rgaps_sync::atomic::{AtomicU128, Ordering};

/// A holder word, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holders {
    /// How often the block was emptied; a hold is on one generation.
    pub generation: u64,
    /// A bit for each holder.
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
    /// That was the last holder: the caller, and only the caller, must return the block.
    Emptied,
    /// The bit was not set, or the block has another generation.
    NotHeld,
}

impl Holders {
    /// Unpacks a word.
    pub fn unpack(word: u128) -> Holders {
        Holders {
            generation: (word >> 64) as u64,
            mask: word as u64,
        }
    }

    /// Packs the two halves into a word.
    pub fn pack(self) -> u128 {
        u128::from(self.generation) << 64 | u128::from(self.mask)
    }

    /// Reads a word.
    pub fn load(word: &AtomicU128) -> Holders {
        Self::unpack(word.load(Ordering::Acquire))
    }
}

/// Sets `bit` if the block still has generation `generation`. False: the reader was overrun; or it holds the block already, because the
/// publisher violates the protocol. One bit cannot stand for two holds.
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
        // Acquire: the bytes that the publisher wrote before it set RING are visible, and no read of them moves before this
        // (SYNC: publish).
        match word.compare_exchange(now.pack(), next.pack(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(seen) => now = Holders::unpack(seen),
        }
        if now.generation != generation || now.mask == 0 || now.mask & bit != 0 {
            return false;
        }
    }
}

/// Clears `bit` in generation `generation`. Clearing the last bit raises the generation.
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
        // Release: this holder's reads of the bytes come before the publisher's reuse (SYNC: reuse).
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

/// Sets the publisher's bit on a block that has no holder.
pub(crate) fn begin(word: &AtomicU128, generation: u64) {
    // A plain store is enough: only the block's publisher writes a word whose mask is empty.
    word.store(
        Holders {
            generation,
            mask: PRODUCER,
        }
        .pack(),
        Ordering::Release,
    );
}

/// Hands the block from the publisher to the ring. With `keep` the publisher also keeps its bit, until [`release`]. False: another
/// process has changed the word.
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
    // Release: after the publisher has written the bytes (SYNC: publish).
    word.compare_exchange(loaned, published, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}

/// Marks a block as returned for its publisher. Idempotent: the publisher checks the block's holder word.
pub(crate) fn announce_return<S: Storage>(region: &RegionView<S>, block: u32) {
    let (word, bit) = (block / 64, block % 64);
    step!("return.emptied");
    region.returned(word).fetch_or(1 << bit, Ordering::AcqRel);
    step!("return.bitmap");
    // The bitmap first, then the summary; the publisher clears the summary first, then the bitmap, so its next look finds a bit that is
    // set in between (SYNC: returned).
    region
        .summary(word / 64)
        .fetch_or(1 << (word % 64), Ordering::AcqRel);
}

//! What the daemon does for those who died or left: clear their bits, keep a publisher's history
//! as long as someone needs it, and give its blocks back.
//!
//! The daemon calls these for members whose death is proven, so nobody else writes what they
//! write; but what it reads was written by the dead, who may have lied.

use crate::holder::{self, Holders, Outcome, PRODUCER, RING};
use crate::{PublisherView, RegionView, Storage};
use rgaps_layout::SEQUENCE_END;
use rgaps_sync::atomic::Ordering;
use std::collections::HashMap;
use std::ops::Range;

/// Blocks of a region that may ever have been used.
fn used<S: Storage>(slot: &PublisherView<S>, region: &RegionView<S>) -> Range<u32> {
    0..slot
        .blocks_used()
        .load(Ordering::Acquire)
        .min(region.geometry().block_capacity)
}

/// Clears a bit, whatever life the block is in. True: that freed the block.
fn clear<S: Storage>(region: &RegionView<S>, block: u32, bit: u64) -> bool {
    let Some(word) = region.holders(block) else {
        return false;
    };
    let now = Holders::load(word);
    if now.mask & bit == 0 || holder::release(word, now.generation, bit) != Outcome::Emptied {
        return false;
    }
    holder::announce_return(region, block);
    true
}

/// Clears the bit of subscriber slot `subscriber`, which is gone, in every holder word of a
/// publisher's region. Returns how many blocks that freed.
pub fn clear_holder<S: Storage>(
    slot: &PublisherView<S>,
    region: &RegionView<S>,
    subscriber: u32,
) -> u64 {
    used(slot, region)
        .filter(|block| clear(region, *block, 1 << subscriber))
        .count() as u64
}

/// Clears all bits but those in `known` in every holder word of a publisher that is gone and whose
/// ring is empty: nobody has them, so somebody has scribbled, and blocks must not be kept for
/// nobody. Returns how many blocks that freed.
pub fn clear_strangers<S: Storage>(
    slot: &PublisherView<S>,
    region: &RegionView<S>,
    known: u64,
) -> u64 {
    used(slot, region)
        .filter(|block| clear(region, *block, !known))
        .count() as u64
}

/// What was left of a publisher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Abandoned {
    /// Oldest message that the ring holds.
    pub tail: u64,
    /// One past the newest.
    pub head: u64,
    /// Blocks that were freed: loans, and messages that were never announced.
    pub freed: u64,
}

/// Block and generation that the descriptor of `sequence` names, if it is committed.
fn announced<S: Storage>(
    region: &RegionView<S>,
    incarnation: u64,
    sequence: u64,
) -> Option<(u32, u64)> {
    let get = |word| region.descriptor(sequence, word).load(Ordering::Acquire);
    (get(0) == sequence + 1 && get(2) == incarnation).then(|| (get(3) as u32, get(1)))
}

/// Puts the region of a publisher that is gone in order: its loans end, blocks that it was about
/// to announce are freed, a message that it had announced counts. `start` is the sequence number
/// of its first message, which the daemon knows.
pub fn abandon<S: Storage>(
    slot: &PublisherView<S>,
    region: &RegionView<S>,
    incarnation: u64,
    start: u64,
) -> Abandoned {
    let ring = u64::from(region.geometry().ring_capacity);
    let mut tail = slot.tail().load(Ordering::Acquire);
    let mut head = slot.head().load(Ordering::Acquire);
    if tail < start || head < tail || head - tail > ring || head >= SEQUENCE_END {
        // It lied about its cursors: nothing of its ring can be told apart.
        (tail, head) = (start, start);
    }
    if head - tail < ring && announced(region, incarnation, head).is_some() {
        head += 1;
    }
    let kept: HashMap<u32, u64> = (tail..head)
        .filter_map(|sequence| announced(region, incarnation, sequence))
        .collect();
    let mut freed = 0;
    for block in used(slot, region) {
        freed += u64::from(clear(region, block, PRODUCER));
        let now = region.holders(block).map(Holders::load);
        let in_ring = now.is_some_and(|now| kept.get(&block) == Some(&now.generation));
        if !in_ring {
            freed += u64::from(clear(region, block, RING));
        }
    }
    slot.tail().store(tail, Ordering::Release);
    slot.head().store(head, Ordering::Release);
    Abandoned { tail, head, freed }
}

/// Takes the messages `range` out of the ring of a publisher that is gone.
pub fn evict_through<S: Storage>(
    slot: &PublisherView<S>,
    region: &RegionView<S>,
    incarnation: u64,
    range: Range<u64>,
) {
    for sequence in range {
        let named = announced(region, incarnation, sequence);
        slot.tail().store(sequence + 1, Ordering::Release);
        let Some((block, generation)) = named else {
            continue;
        };
        let Some(word) = region.holders(block) else {
            continue;
        };
        holder::release(word, generation, RING);
    }
}

/// Blocks of a region that somebody holds: offset and bytes in the pool, as their publisher
/// wrote them.
pub fn live_blocks<'a, S: Storage>(
    slot: &PublisherView<S>,
    region: &'a RegionView<S>,
) -> impl Iterator<Item = (u64, u64)> + 'a {
    used(slot, region).filter_map(|block| {
        let held = Holders::load(region.holders(block)?).mask != 0;
        let (offset, bytes) = region.extent(block)?;
        held.then(|| {
            (
                offset.load(Ordering::Acquire),
                bytes.load(Ordering::Acquire),
            )
        })
    })
}

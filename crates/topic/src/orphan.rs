//! What the daemon does for those who died or left: clear their bits, keep a publisher's history
//! as long as someone needs it, and give its blocks back.
//!
//! The daemon calls these for members whose death is proven, so nobody else writes what they
//! write; but what it reads was written by the dead, who may have lied.

use crate::deferred_release::{claim_finished, KIND};
use crate::holder::{self, Holders, Outcome, PRODUCER, RING, SUBSCRIBERS};
use crate::step::step;
use crate::{replicas, PublisherView, RegionView, Storage, TopicView};
use rgaps_layout::{
    BlockWord, DEFERRED_RELEASE_BY_PUBLISHER, DEFERRED_RELEASE_FREE, MAX_DEFERRED_RELEASES,
    SEQUENCE_END,
};
use rgaps_sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::ops::Range;

/// Blocks of a region that may ever have been used.
pub(crate) fn used<S: Storage>(slot: &PublisherView<S>, region: &RegionView<S>) -> Range<u32> {
    0..slot
        .blocks_used()
        .load(Ordering::Acquire)
        .min(region.geometry().block_capacity)
}

/// Clears a bit, whatever life the block is in. True: that freed the block.
fn clear<S: Storage>(region: &RegionView<S>, block: u32, bit: u64) -> bool {
    let now = region.holders(block).map(Holders::load);
    now.is_some_and(|now| now.mask & bit != 0 && clear_in(region, block, now.generation, bit))
}

/// Clears a bit, if the block is in that life. True: that freed the block.
fn clear_in<S: Storage>(region: &RegionView<S>, block: u32, generation: u64, bit: u64) -> bool {
    let Some(word) = region.holders(block) else {
        return false;
    };
    let freed = holder::release(word, generation, bit) == Outcome::Emptied;
    if freed {
        holder::announce_return(region, block);
    }
    freed
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

/// Looks at an entry of a list, while its publisher may finish with it, at most this often.
const LOOKS_MAX: u32 = 4;

/// Empties the list of deferred releases of subscriber slot `subscriber`, which is gone. Its
/// bits are cleared elsewhere. What a publisher has claimed that still `publishes`, by slot and
/// incarnation, it has to free itself: until it has, nobody else may get the subscriber's slot, or it
/// could clear a bit of theirs. True: nothing is left.
pub fn empty_deferred_releases<S: Storage>(
    topic: &TopicView<S>,
    subscriber: u32,
    publishes: impl Fn(u32, u64) -> bool,
) -> bool {
    if topic.deferring().load(Ordering::Acquire) >> subscriber & 1 == 0 {
        return true;
    }
    let is_empty = |entry| {
        let view = topic.deferred_releases(subscriber as usize, entry);
        for _ in 0..LOOKS_MAX {
            let state = view.state().load(Ordering::Acquire);
            let claimed = state & KIND == DEFERRED_RELEASE_BY_PUBLISHER;
            if state & KIND == DEFERRED_RELEASE_FREE {
                return true;
            }
            let publisher = view.publisher().load(Ordering::Relaxed);
            if claimed && publishes(publisher, view.incarnation().load(Ordering::Relaxed)) {
                return false;
            }
            let free = state & !KIND | DEFERRED_RELEASE_FREE;
            let freed =
                view.state()
                    .compare_exchange(state, free, Ordering::AcqRel, Ordering::Acquire);
            if freed.is_ok() {
                return true;
            }
        }
        false
    };
    // All of them, whatever the first one says.
    let left = (0..MAX_DEFERRED_RELEASES)
        .filter(|entry| !is_empty(*entry))
        .count();
    step!("deferred_release.emptied");
    if left == 0 {
        // Last: a successor looks at the lists of slots whose bit is set.
        topic
            .deferring()
            .fetch_and(!(1 << subscriber), Ordering::AcqRel);
    }
    left == 0
}

/// Does for a publisher that is gone what it did with holds on its blocks that subscribers let go of:
/// finishes what it had claimed, and clears those that their work has passed. Returns how many blocks
/// that freed.
pub fn clear_deferred_releases<S: Storage>(
    topic: &TopicView<S>,
    region: &RegionView<S>,
    publisher: u32,
    incarnation: u64,
) -> u64 {
    let mut freed = 0;
    let mut deferring = topic.deferring().load(Ordering::Acquire) & SUBSCRIBERS;
    while deferring != 0 {
        let subscriber = deferring.trailing_zeros();
        deferring &= deferring - 1;
        for entry in 0..MAX_DEFERRED_RELEASES {
            let view = topic.deferred_releases(subscriber as usize, entry);
            let state = view.state().load(Ordering::Acquire);
            if state & KIND != DEFERRED_RELEASE_BY_PUBLISHER
                || view.publisher().load(Ordering::Relaxed) != publisher
                || view.incarnation().load(Ordering::Relaxed) != incarnation
            {
                continue;
            }
            let block = view.block().load(Ordering::Relaxed);
            let generation = view.generation().load(Ordering::Relaxed);
            freed += u64::from(clear_in(region, block, generation, 1 << subscriber));
            step!("deferred_release.cleared");
            // Release: done with the block's word (SYNC: deferred release).
            let free = state & !KIND | DEFERRED_RELEASE_FREE;
            view.state().store(free, Ordering::Release);
        }
    }
    claim_finished(topic, publisher, incarnation, |passed| {
        let bit = 1 << passed.subscriber;
        freed += u64::from(clear_in(region, passed.block, passed.generation, bit));
    });
    freed
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
pub(crate) fn announced<S: Storage>(
    region: &RegionView<S>,
    incarnation: u64,
    sequence: u64,
) -> Option<(u32, u64)> {
    let descriptor = region.descriptor(sequence);
    let get = |word: &AtomicU64| word.load(Ordering::Acquire);
    let there =
        get(descriptor.committed()) == sequence + 1 && get(descriptor.incarnation()) == incarnation;
    there.then(|| {
        let BlockWord { block, .. } = BlockWord::of_word(get(descriptor.block()));
        (block, get(descriptor.generation()))
    })
}

/// The same with the copies of the message.
fn all_announced<'a, S: Storage>(
    region: &'a RegionView<S>,
    incarnation: u64,
    sequence: u64,
) -> impl Iterator<Item = (u32, u64)> + 'a {
    let message = announced(region, incarnation, sequence);
    let copies = message.map(|_| replicas(region, sequence));
    message.into_iter().chain(copies.into_iter().flatten())
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
        .flat_map(|sequence| all_announced(region, incarnation, sequence))
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
        slot.tail().store(sequence + 1, Ordering::Release);
        step!("orphan.tail");
        for (block, generation) in all_announced(region, incarnation, sequence) {
            if let Some(word) = region.holders(block) {
                holder::release(word, generation, RING);
            }
            step!("orphan.released");
        }
    }
}

/// Removes messages whose memory is gone from the ring of a publisher that is gone: all messages up to the newest of them, and copies of
/// later ones whose memory is gone. `lost` says it of a range by its pool (`None`: the publisher's own), offset and bytes. Returns the
/// oldest message of `range` that is left.
pub fn evict_lost<S: Storage>(
    slot: &PublisherView<S>,
    region: &RegionView<S>,
    incarnation: u64,
    range: Range<u64>,
    lost: impl Fn(Option<u32>, u64, u64) -> bool,
) -> u64 {
    let is_lost = |block| {
        block_range(region, block).is_some_and(|(pool, offset, bytes)| lost(pool, offset, bytes))
    };
    let newest = range.clone().rev().find(|sequence| {
        announced(region, incarnation, *sequence).is_some_and(|(block, _)| is_lost(block))
    });
    let tail = newest.map_or(range.start, |newest| newest + 1);
    evict_through(slot, region, incarnation, range.start..tail);
    for sequence in tail..range.end {
        let copies = announced(region, incarnation, sequence).map(|_| replicas(region, sequence));
        let copies = copies.into_iter().flatten();
        for (block, generation) in copies.filter(|(block, _)| is_lost(*block)) {
            let (Some(word), Some(entry)) = (region.holders(block), region.block(block)) else {
                continue;
            };
            // First: nobody finds it any more.
            entry.replica_of().store(0, Ordering::Release);
            holder::release(word, generation, RING);
        }
    }
    tail
}

/// Sequence numbers of the messages that a publisher's ring holds, by its own words: at most as many
/// as fit.
pub fn ring_range<S: Storage>(slot: &PublisherView<S>, region: &RegionView<S>) -> Range<u64> {
    // One more: announced, but not counted yet.
    let end = slot.head().load(Ordering::Acquire).min(SEQUENCE_END) + 1;
    let first = end.saturating_sub(u64::from(region.geometry().ring_capacity));
    slot.tail().load(Ordering::Acquire).clamp(first, end)..end
}

/// Blocks of a region that somebody holds: pool (none: the publisher's own), offset and bytes in it, as
/// their publisher wrote them.
pub fn live_blocks<'a, S: Storage>(
    slot: &PublisherView<S>,
    region: &'a RegionView<S>,
) -> impl Iterator<Item = (Option<u32>, u64, u64)> + 'a {
    used(slot, region).filter_map(|block| {
        let held = Holders::load(region.holders(block)?).mask != 0;
        held.then(|| block_range(region, block)).flatten()
    })
}

/// Pool (none: the publisher's own), offset and bytes of a block.
pub(crate) fn block_range<S: Storage>(
    region: &RegionView<S>,
    block: u32,
) -> Option<(Option<u32>, u64, u64)> {
    let entry = region.block(block)?;
    Some((
        entry.pool().load(Ordering::Acquire).checked_sub(1),
        entry.offset().load(Ordering::Acquire),
        entry.bytes().load(Ordering::Acquire),
    ))
}

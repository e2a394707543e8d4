//! Cleans up after members that died or left: the daemon clears their bits, keeps a publisher's history as long as a subscriber needs
//! it, and returns its blocks.
//!
//! The daemon calls these functions only for members whose death is proven or that have left, so no other process writes the same
//! words. It does not trust the words that such a member wrote.

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

/// The blocks of a region that its publisher has ever used.
pub(crate) fn used<S: Storage>(slot: &PublisherView<S>, region: &RegionView<S>) -> Range<u32> {
    0..slot
        .blocks_used()
        .load(Ordering::Acquire)
        .min(region.geometry().block_capacity)
}

/// Clears a bit in the block's current generation. True: that freed the block.
fn clear<S: Storage>(region: &RegionView<S>, block: u32, bit: u64) -> bool {
    let now = region.holders(block).map(Holders::load);
    now.is_some_and(|now| now.mask & bit != 0 && clear_in(region, block, now.generation, bit))
}

/// Clears a bit, if the block has generation `generation`. True: that freed the block.
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

/// Clears the bit of subscriber slot `subscriber`, whose owner has died or left, in every holder word of a publisher's region. Returns
/// how many blocks that freed.
pub fn clear_holder<S: Storage>(
    slot: &PublisherView<S>,
    region: &RegionView<S>,
    subscriber: u32,
) -> u64 {
    used(slot, region)
        .filter(|block| clear(region, *block, 1 << subscriber))
        .count() as u64
}

/// How often to try to free an entry of a list that its publisher may be changing.
const LOOKS_MAX: u32 = 4;

/// Frees the deferred releases of subscriber slot `subscriber`, whose owner has died or left; [`clear_holder`] clears their bits. Leaves
/// entries that a publisher has claimed which still `publishes` (slot, incarnation): only that publisher may free them. Until it has, the
/// daemon must not give the slot to another subscriber, whose bit the publisher could clear. True: no entry is left.
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
    // `count` visits all entries, also after one that stays.
    let left = (0..MAX_DEFERRED_RELEASES)
        .filter(|entry| !is_empty(*entry))
        .count();
    step!("deferred_release.emptied");
    if left == 0 {
        // Last: a daemon that restarts empties only the lists of slots whose bit is set.
        topic
            .deferring()
            .fetch_and(!(1 << subscriber), Ordering::AcqRel);
    }
    left == 0
}

/// Handles the deferred releases of the blocks of a publisher that died or left, in its place: finishes the entries that it had
/// claimed, and clears those whose points have passed. Returns how many blocks that freed.
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
            // Release: after the last use of the block's holder word (SYNC: deferred release).
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

/// Clears all bits except those in `known` in every holder word of a publisher that died or left and whose ring is empty. No member owns
/// such bits: a process that violates the protocol has set them, and they would keep blocks for ever. Returns how many blocks that freed.
pub fn clear_strangers<S: Storage>(
    slot: &PublisherView<S>,
    region: &RegionView<S>,
    known: u64,
) -> u64 {
    used(slot, region)
        .filter(|block| clear(region, *block, !known))
        .count() as u64
}

/// The ring that a publisher left behind.
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

/// The same, followed by the replicas of the message.
fn all_announced<'a, S: Storage>(
    region: &'a RegionView<S>,
    incarnation: u64,
    sequence: u64,
) -> impl Iterator<Item = (u32, u64)> + 'a {
    let message = announced(region, incarnation, sequence);
    let copies = message.map(|_| replicas(region, sequence));
    message.into_iter().chain(copies.into_iter().flatten())
}

/// Makes the region of a publisher that died or left consistent: ends its loans, frees blocks of messages that it had not announced, and
/// counts a message that it had announced but not counted. `start`: the sequence number of its first message, from the daemon's records.
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
        // Its cursors are impossible, so it violated the protocol: treat the ring as empty.
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

/// Removes the messages `range` from the ring of a publisher that died or left.
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

/// Removes messages whose memory is lost from the ring of a publisher that died or left: all messages up to the newest such one, and
/// those replicas of later messages whose memory is lost. `lost` tells whether a range is lost: pool (`None`: the publisher's own),
/// offset, bytes. Returns the oldest message of `range` that is left.
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
            // Before the release, so that no reader finds the replica afterwards.
            entry.replica_of().store(0, Ordering::Release);
            holder::release(word, generation, RING);
        }
    }
    tail
}

/// Sequence numbers of the messages that a publisher's ring holds, according to the publisher's cursors; at most as many as fit.
pub fn ring_range<S: Storage>(slot: &PublisherView<S>, region: &RegionView<S>) -> Range<u64> {
    // One beyond the head: the publisher may have announced that message and not counted it yet.
    let end = slot.head().load(Ordering::Acquire).min(SEQUENCE_END) + 1;
    let first = end.saturating_sub(u64::from(region.geometry().ring_capacity));
    slot.tail().load(Ordering::Acquire).clamp(first, end)..end
}

/// The blocks of a region that have a holder: pool (None: the publisher's own), offset and bytes, as the publisher wrote them.
pub fn live_blocks<'a, S: Storage>(
    slot: &PublisherView<S>,
    region: &'a RegionView<S>,
) -> impl Iterator<Item = (Option<u32>, u64, u64)> + 'a {
    used(slot, region).filter_map(|block| {
        let held = Holders::load(region.holders(block)?).mask != 0;
        held.then(|| block_range(region, block)).flatten()
    })
}

/// Pool (None: the publisher's own), offset and bytes of a block. None: there is no such block.
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

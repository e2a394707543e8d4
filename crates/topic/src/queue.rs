//! A subscriber's own queue, as *keep last n* of DDS and ROS 2: the newest `depth` of the messages that wait for it, over all
//! publishers. The subscriber skips the others and counts them as missed.
//!
//! The queue is no storage but a bound on how far the subscriber's cursors stay behind. The reader moves its cursors before it takes a
//! message. A publisher computes the same bound ([`wanted_from`]), so a subscriber that sleeps neither back-pressures it nor keeps its
//! memory.

use crate::{Storage, SubscriberView};
use rgaps_sync::atomic::Ordering;
use std::ops::Range;

/// Sequence number of the first message that a subscriber may still read of a publisher whose head is `head`; `u64::MAX` if the subscriber
/// is closed. From there on the publisher waits for a reliable subscriber, and keeps messages for any.
pub fn wanted_from<S: Storage>(slot: &SubscriberView<S>, publisher: usize, head: u64) -> u64 {
    if slot.closed().load(Ordering::Acquire) != 0 {
        return u64::MAX;
    }
    let cursor = slot.cursor(publisher).load(Ordering::Acquire);
    // Written before the subscriber's bit, which the caller has seen (SYNC: admit).
    match slot.depth().load(Ordering::Relaxed) {
        0 => cursor,
        depth => cursor.max(head.saturating_sub(u64::from(depth))),
    }
}

/// The message with which to begin in each range, to read the newest `n` messages of all ranges. `published` returns when a message was
/// published, which rises within a range; `None`: the message has left the ring, as have all before it.
///
/// Each step skips many messages. `surplus` messages are still to be skipped, so each range skips `step = surplus / ranges` (rounded up) on
/// average. Of the messages at position `step` of each range, the oldest one and all before it in its range are among the `surplus` oldest, so
/// they go together. This makes about `N` times the logarithm of the number of waiting messages calls of `published`.
pub(crate) fn newest<const N: usize>(
    n: u64,
    waiting: &[Range<u64>; N],
    published: impl Fn(usize, u64) -> Option<i64>,
) -> [u64; N] {
    let length = |begin: u64, index: usize| waiting[index].end.saturating_sub(begin);
    // Of one range no more than `n` can be among the newest.
    let mut begin: [u64; N] = std::array::from_fn(|index| {
        let Range { start, end } = waiting[index];
        start.max(end.saturating_sub(n))
    });
    let lengths = (0..N).map(|index| length(begin[index], index));
    let total = lengths.fold(0, u64::saturating_add);
    let mut surplus = total.saturating_sub(n);
    while surplus > 0 {
        let ranges = (0..N).filter(|index| length(begin[*index], *index) > 0);
        let step = surplus.div_ceil(ranges.count() as u64);
        let oldest = (0..N)
            .filter(|index| length(begin[*index], *index) >= step)
            .min_by_key(|index| published(*index, begin[*index] + step - 1));
        // There is one: the ranges have at least `surplus` messages together.
        let Some(index) = oldest else { break };
        begin[index] += step;
        surplus -= step;
    }
    begin
}

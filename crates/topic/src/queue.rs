//! A subscriber's own queue, in the sense of DDS' and ROS 2's *keep last n*: of the messages that wait for it,
//! over all publishers, the newest `depth`. The others are skipped and counted as missed.
//!
//! The queue holds nothing: it is a bound on how far the subscriber's cursors stay behind. The reader moves
//! them before it takes a message. A publisher does not wait for that: it computes the same bound, so a
//! subscriber that sleeps neither holds it back nor keeps its memory ([`wanted_from`]).

use crate::{Storage, SubscriberView};
use rgaps_sync::atomic::Ordering;
use std::ops::Range;

/// Sequence number of the first message that a subscriber may still read of a publisher that has published
/// `head` of them; above all of them when it is closed. The publisher waits for reliable subscribers from there
/// on, and keeps messages for all.
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

/// The message of each range to begin with, in order to read the newest `n` messages of all ranges. `published` says when a message was
/// published, which rises within a range; `None`: it is gone, like all before it.
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

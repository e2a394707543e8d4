//! Times of publishing, by which a late joiner reads the newest messages of the whole topic, oldest first.
//!
//! Each publisher's ring is sorted already, so this is a merge of at most [`MAX_PUBLISHERS`](rgaps_layout::MAX_PUBLISHERS) sorted
//! sequences. The daemon uses the same times to find the messages of closed and dead publishers that newer ones have superseded.

use crate::{ring_range, PublisherView, RegionView, Storage};
use rgaps_sync::atomic::{fence, Ordering};
use std::ops::Range;

/// When the message `sequence` of a publisher was published, in nanoseconds of `CLOCK_MONOTONIC`; negative
/// for a message of another host from before this host started. None: the ring does not hold it.
pub fn published_ns<S: Storage>(
    region: &RegionView<S>,
    incarnation: u64,
    sequence: u64,
) -> Option<i64> {
    let descriptor = region.descriptor(sequence);
    let committed = descriptor.committed().load(Ordering::Acquire);
    let by = descriptor.incarnation().load(Ordering::Relaxed);
    let ns = descriptor.publish_ns().load(Ordering::Relaxed);
    // SYNC: descriptor.
    fence(Ordering::Acquire);
    let stayed = descriptor.committed().load(Ordering::Relaxed) == committed;
    (committed == sequence + 1 && by == incarnation && stayed).then_some(ns as i64)
}

/// How many of the messages that a publisher's ring holds were published after `ns`.
///
/// A publisher's times rise with its sequence numbers, so a binary search finds the first such message. Where
/// they do not (the clock of another host was set back) the result is one of the possible ones.
pub fn published_after<S: Storage>(
    slot: &PublisherView<S>,
    region: &RegionView<S>,
    incarnation: u64,
    ns: i64,
) -> u64 {
    let Range { mut start, end } = ring_range(slot, region);
    // `ring_range` includes one message beyond the head, which may not exist.
    let is_there = |sequence| published_ns(region, incarnation, sequence).is_some();
    let end = if end > start && !is_there(end - 1) {
        end - 1
    } else {
        end
    };
    let mut after = end;
    while start < after {
        let middle = start + (after - start) / 2;
        // A missing message has left the ring since, so it is older than all that are left.
        match published_ns(region, incarnation, middle) {
            Some(then) if then > ns => after = middle,
            _ => start = middle + 1,
        }
    }
    end - after
}

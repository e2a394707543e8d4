//! Counts exactly the messages that never reached this host, whichever messages a subscriber skips.
//!
//! The links find gaps between the messages of another host's publisher. If only the message after a gap named the gap, a
//! subscriber that skips that message would not count it. So each descriptor has the running sum of all gaps of its
//! publisher, and a reader counts by how much the sum has risen since the message that it took last.
//!
//! A reader that joins later begins with the sum of the message before its first one. If the ring no longer holds that message, the
//! reader counts no gap before its first message.

use crate::{RegionView, Storage};
use rgaps_layout::{BlockWord, DESCRIPTOR_MISSED};
use rgaps_sync::atomic::{fence, Ordering};

/// The running sum of a publisher up to which a reader has counted gaps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedBefore(u64);

impl CountedBefore {
    /// Before a publisher's first message.
    pub(crate) const NOTHING: CountedBefore = CountedBefore(0);
    /// The highest sum, so that the next message counts no gap.
    const UNKNOWN: CountedBefore = CountedBefore(u64::MAX);

    /// The sum of the message before `sequence`; `UNKNOWN` if the ring does not hold that message.
    #[cold]
    pub(crate) fn before<S: Storage>(
        region: &RegionView<S>,
        incarnation: u64,
        sequence: u64,
    ) -> CountedBefore {
        let last = sequence.checked_sub(1);
        let sum = last.and_then(|last| sum_of(region, incarnation, last));
        sum.map_or(CountedBefore::UNKNOWN, CountedBefore)
    }

    /// Sets the sum, and returns by how much it has risen: 0 if a misbehaving peer's sum falls.
    #[inline]
    pub(crate) fn rise_to(&mut self, sum: u64) -> u64 {
        let before = std::mem::replace(&mut self.0, sum);
        sum.saturating_sub(before)
    }
}

/// The running sum of the last message that a publisher published in its region. None: it published nothing.
///
/// The descriptor of that message, [`last_of_gaps`], stays as it is until each subscriber that knew the publisher has acknowledged
/// that it left (SYNC: region).
#[cold]
pub(crate) fn last_sum<S: Storage>(region: &RegionView<S>, incarnation: u64) -> Option<u64> {
    last(region, incarnation).map(|(_, sum)| sum)
}

/// The number of the last message that a publisher, which has left, published in its region, if there were gaps before its messages.
pub fn last_of_gaps<S: Storage>(region: &RegionView<S>, incarnation: u64) -> Option<u64> {
    let (sequence, sum) = last(region, incarnation)?;
    (sum > 0).then_some(sequence)
}

/// The last message in a ring, and its running sum.
fn last<S: Storage>(region: &RegionView<S>, incarnation: u64) -> Option<(u64, u64)> {
    let slots = 0..u64::from(region.geometry().ring_capacity);
    let sums = slots.filter_map(|slot| {
        let committed = region.descriptor(slot).committed().load(Ordering::Acquire);
        let sequence = committed.checked_sub(1)?;
        Some((sequence, sum_of(region, incarnation, sequence)?))
    });
    sums.max_by_key(|(sequence, _)| *sequence)
}

/// The running sum that the descriptor of message `sequence` has. None: the ring does not hold it.
#[cold]
pub(crate) fn sum_of<S: Storage>(
    region: &RegionView<S>,
    incarnation: u64,
    sequence: u64,
) -> Option<u64> {
    let descriptor = region.descriptor(sequence);
    let committed = descriptor.committed().load(Ordering::Acquire);
    let by = descriptor.incarnation().load(Ordering::Relaxed);
    let BlockWord { flags, .. } = BlockWord::of_word(descriptor.block().load(Ordering::Relaxed));
    let sum = match flags & DESCRIPTOR_MISSED != 0 {
        true => descriptor.missed_so_far().load(Ordering::Relaxed),
        false => 0,
    };
    // SYNC: descriptor.
    fence(Ordering::Acquire);
    let stayed = descriptor.committed().load(Ordering::Relaxed) == committed;
    (committed == sequence + 1 && by == incarnation && stayed).then_some(sum)
}

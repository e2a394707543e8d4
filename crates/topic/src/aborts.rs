//! Replaces points by their outcome, reached or aborted, in the words that name the points: in descriptors of messages, and in block
//! entries of replicas.

use crate::orphan::announced;
use crate::replica::replicas;
use crate::step::step;
use crate::{progress, Point, Progress, RegionView, Storage};
use rgaps_layout::{BlockWord, ElementWord, DESCRIPTOR_QUEUED, POINT_ABORTED, POINT_NONE};
use rgaps_sync::atomic::{fence, AtomicU64, Ordering};
use std::ops::Range;

/// The word that names a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PointSource {
    /// In the descriptor of the message with this sequence number.
    Descriptor(u64),
    /// In the entry of this block, which is a replica.
    Copy(u32),
}

/// The points that the messages `range` of a publisher's ring, and their replicas, wait for.
pub fn queued_points<'a, S: Storage>(
    region: &'a RegionView<S>,
    incarnation: u64,
    range: Range<u64>,
) -> impl Iterator<Item = (PointSource, Point)> + 'a {
    let there = move |sequence: &u64| announced(region, incarnation, *sequence).is_some();
    let found = range.filter(there).flat_map(move |sequence| {
        let own = of_descriptor(region, sequence);
        let copies = replicas(region, sequence);
        let copies = copies.filter_map(move |(block, _)| of_copy(region, block, sequence));
        own.into_iter().chain(copies)
    });
    found.filter(|(_, point)| !matches!(point.value, POINT_NONE | POINT_ABORTED))
}

fn of_descriptor<S: Storage>(
    region: &RegionView<S>,
    sequence: u64,
) -> Option<(PointSource, Point)> {
    let descriptor = region.descriptor(sequence);
    let get = |word: &AtomicU64| word.load(Ordering::Acquire);
    let queued = BlockWord::of_word(get(descriptor.block())).flags & DESCRIPTOR_QUEUED != 0;
    let point = Point {
        timeline: ElementWord::of_word(get(descriptor.element())).timeline,
        value: get(descriptor.point()),
    };
    // Its publisher may be rewriting the descriptor, which the second load of `committed` shows (SYNC: descriptor).
    fence(Ordering::Acquire);
    (queued && get(descriptor.committed()) == sequence + 1)
        .then_some((PointSource::Descriptor(sequence), point))
}

fn of_copy<S: Storage>(
    region: &RegionView<S>,
    block: u32,
    sequence: u64,
) -> Option<(PointSource, Point)> {
    let entry = region.block(block)?;
    let point = Point {
        timeline: entry.timeline().load(Ordering::Acquire),
        value: entry.point().load(Ordering::Acquire),
    };
    // The publisher may have begun another replica in the block since.
    let still = entry.replica_of().load(Ordering::Acquire) == sequence + 1;
    still.then_some((PointSource::Copy(block), point))
}

/// Replaces the points of the messages `range`, and of their replicas, by their outcome: reached or aborted. So the outcome stays known
/// when the timelines have other owners. A point that is not reached is aborted if no process owns its timeline (`is_owned`). Returns how
/// many points are still pending.
///
/// The publisher may live: a descriptor or entry that it rewrites meanwhile has another point, which stays.
pub fn settle_points<S: Storage>(
    region: &RegionView<S>,
    incarnation: u64,
    range: Range<u64>,
    is_owned: impl Fn(u32) -> bool,
) -> u64 {
    let mut pending = 0;
    for (place, point) in queued_points(region, incarnation, range) {
        let verdict = match progress(&region.storage, point) {
            Progress::Reached => POINT_NONE,
            Progress::Aborted => POINT_ABORTED,
            Progress::Pending if is_owned(point.timeline) => {
                pending += 1;
                continue;
            }
            Progress::Pending => POINT_ABORTED,
        };
        let write = |word: &AtomicU64| {
            // Release: a reader that sees the point replaced by "reached" also sees the message's bytes (SYNC: point).
            let _ =
                word.compare_exchange(point.value, verdict, Ordering::AcqRel, Ordering::Relaxed);
        };
        match place {
            PointSource::Descriptor(sequence) => write(region.descriptor(sequence).point()),
            PointSource::Copy(block) => {
                if let Some(entry) = region.block(block) {
                    write(entry.point());
                }
            }
        }
        step!("settle.point");
    }
    pending
}

//! Replicas: copies of a message in pools of other domains, for the subscribers that read there.
//!
//! A replica is a block of its publisher's, with a holder word of its own, in another pool. The
//! descriptor names its block; the block's entry says in which pool it is and of which message it is a copy.
//! A replica is announced with its message and leaves the ring with it.

use crate::holder::{Holders, RING};
use crate::{Point, RegionView, Storage};
use rgaps_layout::{BlockWord, ReplicaPair, DESCRIPTOR_COPIED, REPLICA_PAIRS};
use rgaps_sync::atomic::{AtomicU64, Ordering};

/// A replica that a publisher made and will announce with its message.
#[derive(Debug)]
pub struct Copied {
    /// Its block, from [`Writer::loan_in`](crate::Writer::loan_in).
    pub loan: crate::Loan,
    /// The point at which its bytes are complete.
    pub point: Point,
    /// Bytes of each part, if it is copied in parts, whose points end with `point`; 0: it is copied in one.
    pub part_bytes: u64,
}

/// A replica, as a reader finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) block: u32,
    pub(crate) generation: u64,
    pub(crate) offset: u64,
    pub(crate) point: Point,
    pub(crate) part_bytes: u64,
}

/// The blocks that a descriptor names as replicas.
pub(crate) fn named(words: [u64; REPLICA_PAIRS]) -> impl Iterator<Item = u32> {
    let pairs = words.into_iter().map(ReplicaPair::of_word);
    let blocks = pairs.flat_map(|pair| [pair.first, pair.second]);
    blocks.filter_map(|block| block.checked_sub(1))
}

/// The replica of message `sequence` in `pool`, among `blocks`. The caller must acquire it at the returned generation, which fails if the
/// block has been reused since.
pub(crate) fn find<S: Storage>(
    region: &RegionView<S>,
    blocks: impl Iterator<Item = u32>,
    sequence: u64,
    pool: u16,
) -> Option<Found> {
    for block in blocks {
        let (Some(word), Some(entry)) = (region.holders(block), region.block(block)) else {
            continue;
        };
        // Load the generation before the entry. The publisher overwrites the entry only after the word has reached a new generation; so if
        // the entry read below belongs to a later use, acquiring at this generation fails (SYNC: replica). Skip an empty word: its
        // generation is already the next one's, while the entry may still be the last one's.
        let Holders { generation, mask } = Holders::load(word);
        if mask == 0
            || entry.pool().load(Ordering::Relaxed) != u32::from(pool) + 1
            || entry.replica_of().load(Ordering::Relaxed) != sequence + 1
        {
            continue;
        }
        return Some(Found {
            block,
            generation,
            offset: entry.offset().load(Ordering::Relaxed),
            point: Point {
                timeline: entry.timeline().load(Ordering::Relaxed),
                value: entry.point().load(Ordering::Relaxed),
            },
            part_bytes: entry.part_bytes().load(Ordering::Relaxed),
        });
    }
    None
}

/// Block and generation of each replica of message `sequence` that its descriptor names and the ring holds. For the daemon.
pub fn replicas<S: Storage>(
    region: &RegionView<S>,
    sequence: u64,
) -> impl Iterator<Item = (u32, u64)> + '_ {
    let descriptor = region.descriptor(sequence);
    let get = |word: &AtomicU64| word.load(Ordering::Acquire);
    let copied = get(descriptor.committed()) == sequence + 1
        && BlockWord::of_word(get(descriptor.block())).flags & DESCRIPTOR_COPIED != 0;
    let words = match copied {
        true => std::array::from_fn(|pair| get(descriptor.replicas(pair))),
        false => [0; REPLICA_PAIRS],
    };
    named(words).filter_map(move |block| {
        let Holders { generation, mask } = Holders::load(region.holders(block)?);
        let of = region.block(block)?.replica_of().load(Ordering::Acquire);
        (of == sequence + 1 && mask & RING != 0).then_some((block, generation))
    })
}

//! Typed access to the structures of a control segment.
//!
//! A view is a storage and an offset at which the structure was found to fit. The names of the
//! accessors are those of the fields in `rgaps-layout`, where each says who writes it.

use crate::Storage;
use rgaps_layout::{
    BlockEntry, Descriptor, Doorbell, LettingGo, PoolCounts, PublisherRegion, PublisherSlot,
    SubscriberSlot, TopicRegion, CONTROL_PAGE, DOORBELL_TABLE_OFFSET, MAX_DOORBELLS,
    MAX_LETTING_GO, MAX_METADATA_BYTES, MAX_POOLS, MAX_PUBLISHERS, MAX_SUBSCRIBERS,
    METADATA_FAR_BYTES, METADATA_NEAR_BYTES, POOL_COUNTS_OFFSET,
};
use rgaps_sync::atomic::{AtomicU128, AtomicU32, AtomicU64};
use std::mem::{offset_of, size_of};

macro_rules! field {
    ($kind:ident, $of:ty, $name:ident, $doc:literal) => {
        #[doc = $doc]
        #[inline(always)]
pub fn $name(&self) -> &field!(@type $kind) {
            self.storage
                .$kind(self.base + offset_of!($of, $name) as u64)
        }
    };
    (@type u32) => {
        AtomicU32
    };
    (@type u64) => {
        AtomicU64
    };
}

/// The word of doorbell `index`, if there is such a doorbell.
pub(crate) fn doorbell<S: Storage>(storage: &S, index: u32) -> Option<&AtomicU32> {
    let at = DOORBELL_TABLE_OFFSET + u64::from(index) * size_of::<Doorbell>() as u64;
    (index < MAX_DOORBELLS && at + 4 <= storage.len()).then(|| storage.u32(at))
}

/// How many messages of other domains publishers copied into the pool of that index, ever, and how many bytes; if
/// there can be such a pool.
pub fn pool_copies<S: Storage>(storage: &S, pool: u32) -> Option<(&AtomicU64, &AtomicU64)> {
    let at = POOL_COUNTS_OFFSET + u64::from(pool) * size_of::<PoolCounts>() as u64;
    let fits = at + size_of::<PoolCounts>() as u64 <= storage.len();
    let word = |field: usize| storage.u64(at + field as u64);
    ((pool as usize) < MAX_POOLS && fits).then(|| {
        (
            word(offset_of!(PoolCounts, copied_messages)),
            word(offset_of!(PoolCounts, copied_bytes)),
        )
    })
}

/// A topic in a control segment.
#[derive(Clone, Debug)]
pub struct TopicView<S> {
    pub(crate) storage: S,
    base: u64,
}

impl<S: Storage> TopicView<S> {
    /// The topic at `base`, if a topic region fits there.
    pub fn new(storage: S, base: u64) -> Option<Self> {
        let end = base.checked_add(size_of::<TopicRegion>() as u64)?;
        (base % CONTROL_PAGE == 0 && end <= storage.len()).then_some(TopicView { storage, base })
    }

    field!(u64, TopicRegion, magic, "`TOPIC_MAGIC`.");
    field!(u64, TopicRegion, topic_id, "Random number of the topic.");
    field!(
        u32,
        TopicRegion,
        membership_epoch,
        "Changes whenever anyone joins or leaves."
    );
    field!(
        u64,
        TopicRegion,
        publishers,
        "Publisher slots that are active or orphaned."
    );
    field!(u64, TopicRegion, subscribers, "Subscriber slots in use.");
    field!(
        u64,
        TopicRegion,
        reliable,
        "Subscriber slots that hold publishers back."
    );
    field!(
        u64,
        TopicRegion,
        elsewhere,
        "Subscriber slots that read in a pool of their own."
    );
    field!(u64, TopicRegion, sleepers, "Subscriber slots that sleep.");
    field!(
        u64,
        TopicRegion,
        blocked,
        "Publisher slots that wait for a reliable subscriber."
    );
    field!(
        u64,
        TopicRegion,
        letting,
        "Subscriber slots that may be letting go of holds."
    );

    /// Publisher slot `index`, which is below `MAX_PUBLISHERS`.
    #[inline]
    pub fn publisher(&self, index: usize) -> PublisherView<S> {
        assert!(index < MAX_PUBLISHERS);
        let at = offset_of!(TopicRegion, publisher) + index * size_of::<PublisherSlot>();
        PublisherView {
            storage: self.storage.clone(),
            base: self.base + at as u64,
        }
    }

    /// Subscriber slot `index`, which is below `MAX_SUBSCRIBERS`.
    #[inline]
    pub fn subscriber(&self, index: usize) -> SubscriberView<S> {
        assert!(index < MAX_SUBSCRIBERS);
        let at = offset_of!(TopicRegion, subscriber) + index * size_of::<SubscriberSlot>();
        SubscriberView {
            storage: self.storage.clone(),
            base: self.base + at as u64,
        }
    }

    /// Entry `entry`, which is below `MAX_LETTING_GO`, of the holds that subscriber slot
    /// `subscriber`, which is below `MAX_SUBSCRIBERS`, lets go of.
    #[inline]
    pub fn letting_go(&self, subscriber: usize, entry: usize) -> LettingGoView<S> {
        assert!(subscriber < MAX_SUBSCRIBERS && entry < MAX_LETTING_GO);
        let number = subscriber * MAX_LETTING_GO + entry;
        let at = offset_of!(TopicRegion, letting_go) + number * size_of::<LettingGo>();
        LettingGoView {
            storage: self.storage.clone(),
            base: self.base + at as u64,
        }
    }

    /// The storage that the topic lies in.
    pub fn storage(&self) -> &S {
        &self.storage
    }
}

/// A publisher's slot in a topic.
#[derive(Clone, Debug)]
pub struct PublisherView<S> {
    storage: S,
    base: u64,
}

impl<S: Storage> PublisherView<S> {
    field!(
        u64,
        PublisherSlot,
        dropped,
        "Slow reliable subscribers that it does not wait for."
    );
    field!(
        u64,
        PublisherSlot,
        drops,
        "How often it stopped waiting for one."
    );
    field!(
        u64,
        PublisherSlot,
        history_end,
        "Number below which messages are history of another host; `HISTORY_LANDING`: not known yet."
    );
    field!(
        u64,
        PublisherSlot,
        incarnation,
        "Changes with every publisher; 0 when empty."
    );
    field!(
        u64,
        PublisherSlot,
        region_offset,
        "Of the publisher's region."
    );
    field!(
        u32,
        PublisherSlot,
        ring_capacity,
        "Descriptors in the ring."
    );
    field!(
        u32,
        PublisherSlot,
        block_capacity,
        "Entries of the block table."
    );
    field!(
        u64,
        PublisherSlot,
        start,
        "Sequence number of the publisher's first message."
    );
    field!(u32, PublisherSlot, depth, "Messages that the ring keeps.");
    field!(
        u32,
        PublisherSlot,
        state,
        "`PUBLISHER_EMPTY`, `_ACTIVE` or `_ORPHAN`."
    );
    field!(u32, PublisherSlot, doorbell, "The publisher's doorbell.");
    field!(
        u32,
        PublisherSlot,
        sweep,
        "Counts the deaths after which it should sweep."
    );
    field!(
        u64,
        PublisherSlot,
        matched,
        "Subscriber slots that match the publisher."
    );
    field!(
        u32,
        PublisherSlot,
        mismatched,
        "Subscribers that do not match, observers left out."
    );
    field!(
        u32,
        PublisherSlot,
        transient_local,
        "1 if it keeps its history for late joiners."
    );
    field!(
        u64,
        PublisherSlot,
        head,
        "Sequence number of the next message."
    );
    field!(
        u64,
        PublisherSlot,
        tail,
        "Sequence number of the oldest message kept."
    );
    field!(
        u32,
        PublisherSlot,
        wants_blocks,
        "Nonzero while it waits for blocks."
    );
    field!(
        u32,
        PublisherSlot,
        blocks_used,
        "Entries of the block table ever used."
    );
    field!(
        u64,
        PublisherSlot,
        published_bytes,
        "Payload bytes published, ever."
    );
}

/// A subscriber's slot in a topic.
#[derive(Clone, Debug)]
pub struct SubscriberView<S> {
    storage: S,
    base: u64,
}

impl<S: Storage> SubscriberView<S> {
    field!(
        u32,
        SubscriberSlot,
        depth,
        "Messages that wait for it at most; 0: all that publishers keep."
    );
    field!(
        u32,
        SubscriberSlot,
        closed,
        "1: it takes no more messages, and nobody waits for it."
    );
    field!(
        u32,
        SubscriberSlot,
        resumes,
        "1: it took the seat of one that has ended."
    );
    field!(
        u32,
        SubscriberSlot,
        stands_for,
        "How many subscribers on other hosts it stands for, plus 1; 0: it is one itself."
    );
    field!(
        u64,
        SubscriberSlot,
        incarnation,
        "Changes with every subscriber; 0 when empty."
    );
    field!(
        u32,
        SubscriberSlot,
        doorbell,
        "Rung to wake the subscriber."
    );
    field!(
        u32,
        SubscriberSlot,
        seen_epoch,
        "Membership epoch it has acted on."
    );
    field!(u64, SubscriberSlot, received, "Samples taken, ever.");
    field!(u64, SubscriberSlot, missed, "Messages missed, ever.");
    field!(u32, SubscriberSlot, held, "Samples held now.");
    field!(
        u32,
        SubscriberSlot,
        pool,
        "Pool that it reads in, plus 1; 0: where the messages are."
    );

    field!(
        u32,
        SubscriberSlot,
        mismatched,
        "Publishers that do not match it."
    );

    /// Messages of former publishers of slot `publisher` that did not match the subscriber.
    #[inline]
    pub fn passed_over(&self, publisher: usize) -> &AtomicU64 {
        assert!(publisher < MAX_PUBLISHERS);
        let at = offset_of!(SubscriberSlot, passed_over) + publisher * 8;
        self.storage.u64(self.base + at as u64)
    }

    /// Sequence number that it reads next of publisher slot `publisher`.
    #[inline(always)]
    pub fn cursor(&self, publisher: usize) -> &AtomicU64 {
        assert!(publisher < MAX_PUBLISHERS);
        let at = offset_of!(SubscriberSlot, cursors) + publisher * 8;
        self.storage.u64(self.base + at as u64)
    }
}

/// A hold that its subscriber lets go of.
#[derive(Clone, Debug)]
pub struct LettingGoView<S> {
    storage: S,
    base: u64,
}

impl<S: Storage> LettingGoView<S> {
    field!(
        u64,
        LettingGo,
        state,
        "Uses times 4, and one of `LETTING_GO_FREE` to `_BY_PUBLISHER`."
    );
    field!(
        u64,
        LettingGo,
        incarnation,
        "Incarnation of the block's publisher."
    );
    field!(u64, LettingGo, generation, "Of the holder word.");
    field!(u64, LettingGo, point, "Of the subscriber's stream.");
    field!(u32, LettingGo, timeline, "Of the subscriber's stream.");
    field!(u32, LettingGo, block, "Index into the block table.");
    field!(u32, LettingGo, publisher, "The publisher's slot.");
}

/// A publisher's ring, block table and bitmap of returned blocks.
#[derive(Clone, Debug)]
pub struct RegionView<S> {
    pub(crate) storage: S,
    base: u64,
    geometry: PublisherRegion,
}

impl<S: Storage> RegionView<S> {
    /// The region at `base`, if its geometry is sound and it fits there.
    pub fn new(storage: S, base: u64, geometry: PublisherRegion) -> Option<Self> {
        let end = base.checked_add(geometry.is_sound().then(|| geometry.bytes())?)?;
        let fits = base % CONTROL_PAGE == 0 && end <= storage.len();
        fits.then_some(RegionView {
            storage,
            base,
            geometry,
        })
    }

    /// Numbers of descriptors and blocks.
    pub fn geometry(&self) -> PublisherRegion {
        self.geometry
    }

    /// Word `word` (of 32) of the descriptor slot of sequence number `sequence`.
    #[inline(always)]
    pub(crate) fn descriptor(&self, sequence: u64, word: usize) -> &AtomicU64 {
        let slot = sequence & u64::from(self.geometry.ring_capacity - 1);
        let at = slot * size_of::<Descriptor>() as u64 + word as u64 * 8;
        self.storage.u64(self.base + at)
    }

    /// Word `word` of the metadata of the slot of sequence number `sequence`.
    #[inline]
    pub(crate) fn metadata(&self, sequence: u64, word: usize) -> &AtomicU64 {
        debug_assert!(word < MAX_METADATA_BYTES / 8);
        let slot = sequence & u64::from(self.geometry.ring_capacity - 1);
        let at = match (word * 8).checked_sub(METADATA_NEAR_BYTES) {
            None => {
                let near = slot * METADATA_NEAR_BYTES as u64 + word as u64 * 8;
                self.geometry.metadata_near() + near
            }
            Some(beyond) => {
                let far = slot * METADATA_FAR_BYTES as u64 + beyond as u64;
                self.geometry.metadata_far() + far
            }
        };
        self.storage.u64(self.base + at)
    }

    /// The holder word of block `block`, if there is such a block.
    #[inline(always)]
    pub fn holders(&self, block: u32) -> Option<&AtomicU128> {
        let at = self.block_at(block)? + offset_of!(BlockEntry, holders) as u64;
        Some(self.storage.u128(at))
    }

    /// Offset and length in the pool of block `block`, if there is such a block.
    pub fn extent(&self, block: u32) -> Option<(&AtomicU64, &AtomicU64)> {
        let at = self.block_at(block)?;
        Some((
            self.storage.u64(at + offset_of!(BlockEntry, offset) as u64),
            self.storage.u64(at + offset_of!(BlockEntry, bytes) as u64),
        ))
    }

    /// Where block `block` is and what it is a copy of, if there is such a block.
    pub fn replica(&self, block: u32) -> Option<ReplicaView<S>> {
        Some(ReplicaView {
            storage: self.storage.clone(),
            base: self.block_at(block)?,
        })
    }

    #[inline(always)]
    fn block_at(&self, block: u32) -> Option<u64> {
        let at =
            self.base + self.geometry.blocks() + u64::from(block) * size_of::<BlockEntry>() as u64;
        (block < self.geometry.block_capacity).then_some(at)
    }

    /// Word `word` of the bitmap of returned blocks: blocks `64 * word` and on.
    pub(crate) fn returned(&self, word: u32) -> &AtomicU64 {
        debug_assert!(word < self.geometry.block_capacity / 64);
        self.storage
            .u64(self.base + self.geometry.returned() + u64::from(word) * 8)
    }

    /// Word `word` of the bitmap's summary: words `64 * word` and on of the bitmap.
    pub(crate) fn summary(&self, word: u32) -> &AtomicU64 {
        debug_assert!(u64::from(word) < self.geometry.summary_words());
        self.storage
            .u64(self.base + self.geometry.summary() + u64::from(word) * 8)
    }
}

/// What a block's entry says beyond its extent.
#[derive(Clone, Debug)]
pub struct ReplicaView<S> {
    storage: S,
    base: u64,
}

impl<S: Storage> ReplicaView<S> {
    field!(
        u32,
        BlockEntry,
        pool,
        "Pool that the block is in, plus 1; 0: its publisher's own."
    );
    field!(
        u32,
        BlockEntry,
        timeline,
        "What its bytes wait for, of a copy."
    );
    field!(
        u64,
        BlockEntry,
        point,
        "What its bytes wait for, of a copy."
    );
    field!(
        u64,
        BlockEntry,
        part_bytes,
        "Bytes of its parts, of a copy that is made in parts; 0: in one."
    );
    field!(
        u64,
        BlockEntry,
        replica_of,
        "Number of the message that it is a copy of, plus 1; 0: of none."
    );
}

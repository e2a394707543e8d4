//! Typed access to the structures of a control segment.
//!
//! A view is a storage and an offset at which the structure fits; its constructor has checked that. A macro generates the accessors
//! from the table in `rgaps-layout`, which states each field's name, offset, width and writer.

use crate::Storage;
use rgaps_layout::{
    BlockEntry, BlockWord, DeferredRelease, Descriptor, Doorbell, ElementWord, MetadataLengths,
    PoolCounts, PublisherRegion, PublisherSlot, ReplicaPair, SubscriberSlot, Timeline, TopicRegion,
    CONTROL_PAGE, DOORBELL_TABLE_OFFSET, MAX_DEFERRED_RELEASES, MAX_DIMS, MAX_DOORBELLS,
    MAX_METADATA_BYTES, MAX_POOLS, MAX_PUBLISHERS, MAX_SUBSCRIBERS, MAX_TIMELINES,
    POOL_COUNTS_OFFSET, REPLICA_PAIRS, TIMELINE_TABLE_OFFSET,
};
use rgaps_sync::atomic::{AtomicU128, AtomicU32, AtomicU64};
use std::mem::{offset_of, size_of};

macro_rules! views {
    ($(
        $(#[$doc:meta])*
        $of:ident as $view:ident [$bytes:expr] {
            $($(#[$field_doc:meta])* $at:literal $field:ident: $kind:tt $([$count:expr])?,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $view<S> {
            storage: S,
            base: u64,
        }

        impl<S: Storage> $view<S> {
            $(accessor!($(#[$field_doc])* $of $field $kind $([$count])?);)*
        }
    )*};
}

/// The accessor of a field: the atomic word that it is, or one of the words of an array.
macro_rules! accessor {
    ($(#[$doc:meta])* $of:ident $field:ident pad [$bytes:expr]) => {};
    ($(#[$doc:meta])* $of:ident $field:ident ($type:ty)) => {};
    ($(#[$doc:meta])* $of:ident $field:ident u32) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $field(&self) -> &AtomicU32 {
            self.storage.u32(self.base + offset_of!($of, $field) as u64)
        }
    };
    ($(#[$doc:meta])* $of:ident $field:ident $word:ident) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $field(&self) -> &AtomicU64 {
            const { assert!(size_of::<$word>() == size_of::<u64>()) };
            self.storage.u64(self.base + offset_of!($of, $field) as u64)
        }
    };
    ($(#[$doc:meta])* $of:ident $field:ident $word:ident [$count:expr]) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $field(&self, index: usize) -> &AtomicU64 {
            const { assert!(size_of::<$word>() == size_of::<u64>()) };
            assert!(index < $count);
            let at = offset_of!($of, $field) + index * size_of::<$word>();
            self.storage.u64(self.base + at as u64)
        }
    };
}

rgaps_layout::control_structures!(views);

/// Offset of entry `index` of a table of `count` entries at `table`. None: there is no such entry.
#[inline]
fn entry<S: Storage, T>(storage: &S, table: u64, index: u32, count: u32) -> Option<u64> {
    let at = table + u64::from(index) * size_of::<T>() as u64;
    (index < count && at + size_of::<T>() as u64 <= storage.len()).then_some(at)
}

/// The word of doorbell `index`, if there is such a doorbell.
#[inline]
pub(crate) fn doorbell<S: Storage>(storage: &S, index: u32) -> Option<&AtomicU32> {
    let at = entry::<S, Doorbell>(storage, DOORBELL_TABLE_OFFSET, index, MAX_DOORBELLS)?;
    Some(storage.u32(at + offset_of!(Doorbell, rings) as u64))
}

/// Counters of a pool: how many messages of other domains publishers have copied into it, and how many bytes. None: the index is too
/// large.
pub fn pool_copies<S: Storage>(storage: &S, pool: u32) -> Option<(&AtomicU64, &AtomicU64)> {
    let at = entry::<S, PoolCounts>(storage, POOL_COUNTS_OFFSET, pool, MAX_POOLS as u32)?;
    let word = |field: usize| storage.u64(at + field as u64);
    Some((
        word(offset_of!(PoolCounts, copied_messages)),
        word(offset_of!(PoolCounts, copied_bytes)),
    ))
}

/// Timeline `index`, if there is such a timeline. Number 0 is none: it is never handed out.
#[inline]
pub fn timeline<S: Storage>(storage: &S, index: u32) -> Option<TimelineView<S>> {
    let base = entry::<S, Timeline>(storage, TIMELINE_TABLE_OFFSET, index, MAX_TIMELINES)?;
    (index > 0).then(|| TimelineView {
        storage: storage.clone(),
        base,
    })
}

impl<S: Storage> TopicView<S> {
    /// The topic at `base`, if a topic region fits there.
    pub fn new(storage: S, base: u64) -> Option<Self> {
        let end = base.checked_add(size_of::<TopicRegion>() as u64)?;
        (base % CONTROL_PAGE == 0 && end <= storage.len()).then_some(TopicView { storage, base })
    }

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

    /// Entry `entry`, which is below `MAX_DEFERRED_RELEASES`, of the holds that subscriber slot
    /// `subscriber`, which is below `MAX_SUBSCRIBERS`, releases later.
    #[inline]
    pub fn deferred_releases(&self, subscriber: usize, entry: usize) -> DeferredReleaseView<S> {
        assert!(subscriber < MAX_SUBSCRIBERS && entry < MAX_DEFERRED_RELEASES);
        let number = subscriber * MAX_DEFERRED_RELEASES + entry;
        let at = offset_of!(TopicRegion, deferred_releases) + number * size_of::<DeferredRelease>();
        DeferredReleaseView {
            storage: self.storage.clone(),
            base: self.base + at as u64,
        }
    }

    /// The storage that the topic lies in.
    pub fn storage(&self) -> &S {
        &self.storage
    }
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

    /// The descriptor slot of sequence number `sequence`.
    #[inline(always)]
    pub fn descriptor(&self, sequence: u64) -> DescriptorView<S> {
        DescriptorView {
            storage: self.storage.clone(),
            base: self.base + self.geometry.descriptor(sequence),
        }
    }

    /// Word `word` of the metadata of the slot of sequence number `sequence`.
    #[inline]
    pub(crate) fn metadata(&self, sequence: u64, word: usize) -> &AtomicU64 {
        debug_assert!(word < MAX_METADATA_BYTES / size_of::<u64>());
        self.storage
            .u64(self.base + self.geometry.metadata(sequence, word))
    }

    /// The holder word of block `block`, if there is such a block.
    #[inline(always)]
    pub fn holders(&self, block: u32) -> Option<&AtomicU128> {
        let at = self.block_at(block)? + offset_of!(BlockEntry, holders) as u64;
        Some(self.storage.u128(at))
    }

    /// The entry of block `block`, if there is such a block: where its bytes are and what it is a copy of.
    #[inline]
    pub fn block(&self, block: u32) -> Option<BlockView<S>> {
        Some(BlockView {
            storage: self.storage.clone(),
            base: self.block_at(block)?,
        })
    }

    #[inline(always)]
    fn block_at(&self, block: u32) -> Option<u64> {
        let at = self.base + self.geometry.block(block);
        (block < self.geometry.block_capacity).then_some(at)
    }

    /// Word `word` of the bitmap of returned blocks: blocks `64 * word` and on.
    pub(crate) fn returned(&self, word: u32) -> &AtomicU64 {
        debug_assert!(word < self.geometry.block_capacity / 64);
        self.storage.u64(self.base + self.geometry.returned(word))
    }

    /// Word `word` of the bitmap's summary: words `64 * word` and on of the bitmap.
    pub(crate) fn summary(&self, word: u32) -> &AtomicU64 {
        debug_assert!(word < self.geometry.summary_words());
        self.storage.u64(self.base + self.geometry.summary(word))
    }
}

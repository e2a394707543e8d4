//! The storage of the models: words that loom watches, at the offsets of a small topic.

use rgaps_layout::{
    BlockEntry, DeferredRelease, Descriptor, Doorbell, PublisherRegion, PublisherSlot,
    SubscriberSlot, Timeline, TopicRegion, CONTROL_PAGE, DOORBELL_TABLE_OFFSET, DYNAMIC_OFFSET,
    MAX_DEFERRED_RELEASES, REPLICA_PAIRS, TIMELINE_TABLE_OFFSET,
};
use rgaps_sync::atomic::{AtomicU128, AtomicU32, AtomicU64};
use rgaps_topic::Storage;
use std::collections::HashMap;
use std::mem::{offset_of, size_of};
use std::sync::Arc;

/// Slots of the ring.
pub const RING: u32 = 2;
/// The offset of the topic.
pub const TOPIC: u64 = DYNAMIC_OFFSET;
const TOPIC_BYTES: u64 = (size_of::<TopicRegion>() as u64).next_multiple_of(CONTROL_PAGE);
/// The smallest block table that the layout allows. Only some of its entries have cells.
pub const GEOMETRY: PublisherRegion = PublisherRegion {
    ring_capacity: RING,
    block_capacity: 64,
};

/// How many members, blocks and other words a model's topic has.
#[derive(Clone, Copy)]
pub struct Shape {
    pub publishers: usize,
    pub subscribers: usize,
    /// Entries of a publisher's block table that are used.
    pub blocks: u32,
    pub doorbells: u32,
    /// Timelines, from number 1.
    pub timelines: u32,
    /// Entries of a subscriber's release list that are used.
    pub deferred_releases: usize,
}

/// The offset of the region of publisher `index`.
pub fn region_offset(index: usize) -> u64 {
    TOPIC + TOPIC_BYTES + index as u64 * GEOMETRY.bytes()
}

enum Cell {
    Word32(AtomicU32),
    Word64(AtomicU64),
    Word128(AtomicU128),
}

impl Cell {
    fn of(bytes: usize) -> Cell {
        match bytes {
            4 => Cell::Word32(AtomicU32::new(0)),
            8 => Cell::Word64(AtomicU64::new(0)),
            16 => Cell::Word128(AtomicU128::new(0)),
            _ => panic!("no word has {bytes} bytes"),
        }
    }
}

/// The offset and size of each listed field; `field[n]` lists the first n words of an array.
macro_rules! fields {
    ($of:ident { $($field:ident $([$count:expr])?),* $(,)? }) => {{
        let mut all = Vec::new();
        $(fields!(all, $of, $field $(, $count)?);)*
        all
    }};
    ($all:ident, $of:ident, $field:ident) => {
        $all.push((offset_of!($of, $field), bytes_of(|of: &$of| &of.$field)));
    };
    ($all:ident, $of:ident, $field:ident, $count:expr) => {
        let bytes = bytes_of(|of: &$of| &of.$field[0]);
        $all.extend((0..$count).map(|index| (offset_of!($of, $field) + index * bytes, bytes)));
    };
}

fn bytes_of<S, T>(_: fn(&S) -> &T) -> usize {
    size_of::<T>()
}

/// A value whose every use loom checks against all others.
pub struct Watched(loom::cell::UnsafeCell<u64>);

// SAFETY: loom checks that no access to the cell is concurrent with a write, and stops the model otherwise.
unsafe impl Sync for Watched {}
// SAFETY: the value is a plain integer, and loom checks its accesses from all threads.
unsafe impl Send for Watched {}

impl Watched {
    pub fn new(value: u64) -> Watched {
        Watched(loom::cell::UnsafeCell::new(value))
    }
    pub fn get(&self) -> u64 {
        // SAFETY: the pointer is valid during the call, and loom checks that nobody writes.
        self.0.with(|value| unsafe { *value })
    }
    pub fn set(&self, new: u64) {
        // SAFETY: the pointer is valid during the call, and loom checks that nobody else uses it.
        self.0.with_mut(|value| unsafe { *value = new })
    }
}

struct Inner {
    cells: HashMap<u64, Cell>,
    /// The word of all slots without a member. It is 0.
    nothing: Cell,
    /// Per publisher a value that each access to its region reads and that reusing the region writes, so loom detects a
    /// race between the two.
    regions: Vec<Watched>,
}

/// The cells of one topic.
#[derive(Clone)]
pub struct Cells(Arc<Inner>);

impl std::fmt::Debug for Cells {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Cells")
    }
}

impl Cells {
    pub fn new(shape: Shape) -> Cells {
        let mut cells = HashMap::new();
        let mut add = |base: u64, fields: Vec<(usize, usize)>| {
            let made = fields.into_iter();
            cells.extend(made.map(|(at, bytes)| (base + at as u64, Cell::of(bytes))));
        };
        add(TOPIC, topic_fields());
        for index in 0..u64::from(shape.doorbells) {
            let at = DOORBELL_TABLE_OFFSET + index * size_of::<Doorbell>() as u64;
            add(at, fields!(Doorbell { rings }));
        }
        for index in 1..=u64::from(shape.timelines) {
            let at = TIMELINE_TABLE_OFFSET + index * size_of::<Timeline>() as u64;
            add(at, fields!(Timeline { value, reached }));
        }
        for index in 0..shape.publishers {
            add(publisher_at(index), publisher_fields());
            let region = region_offset(index);
            for slot in 0..u64::from(RING) {
                add(region + GEOMETRY.descriptor(slot), descriptor_fields());
                // An attachment of 8 bytes.
                add(region + GEOMETRY.metadata(slot, 0), vec![(0, 8)]);
            }
            for block in 0..shape.blocks {
                add(region + GEOMETRY.block(block), block_fields());
            }
            add(region + GEOMETRY.returned(0), vec![(0, 8)]);
            add(region + GEOMETRY.summary(0), vec![(0, 8)]);
        }
        for index in 0..shape.subscribers {
            add(subscriber_at(index), subscriber_fields(shape.publishers));
            for entry in 0..shape.deferred_releases {
                add(letting_go_at(index, entry), letting_go_fields());
            }
        }
        Cells(Arc::new(Inner {
            cells,
            nothing: Cell::of(8),
            regions: (0..shape.publishers).map(|_| Watched::new(0)).collect(),
        }))
    }

    /// Reuses a region, as the daemon does for another publisher. loom reports a race if anyone may still access it.
    pub fn reuse_region(&self, index: usize) {
        self.0.regions[index].set(1);
    }

    fn cell(&self, at: u64) -> &Cell {
        if let Some(beyond) = at.checked_sub(region_offset(0)) {
            self.0.regions[(beyond / GEOMETRY.bytes()) as usize].get();
        }
        match self.0.cells.get(&at) {
            Some(cell) => cell,
            None if self.is_empty_slot(at) => &self.0.nothing,
            None => panic!("no word at {at:#x}"),
        }
    }

    /// Whether a word belongs to a publisher slot that the model leaves empty, to a subscriber's words about such a slot,
    /// or to an unused entry of a release list.
    fn is_empty_slot(&self, at: u64) -> bool {
        let publishers = self.0.regions.len() as u64;
        let Some(from) = at.checked_sub(TOPIC) else {
            return false;
        };
        let slots = offset_of!(TopicRegion, publisher) as u64;
        let subscribers = offset_of!(TopicRegion, subscriber) as u64;
        if from >= offset_of!(TopicRegion, deferred_releases) as u64 {
            return true;
        }
        match from.checked_sub(subscribers) {
            None => from >= slots + publishers * size_of::<PublisherSlot>() as u64,
            Some(from) => {
                let field = from % size_of::<SubscriberSlot>() as u64;
                let lists = [
                    offset_of!(SubscriberSlot, cursor),
                    offset_of!(SubscriberSlot, passed_over),
                ];
                let list = lists.into_iter().rfind(|list| *list as u64 <= field);
                list.is_some_and(|list| field >= list as u64 + 8 * publishers)
            }
        }
    }
}

fn publisher_at(index: usize) -> u64 {
    TOPIC + (offset_of!(TopicRegion, publisher) + index * size_of::<PublisherSlot>()) as u64
}

fn subscriber_at(index: usize) -> u64 {
    TOPIC + (offset_of!(TopicRegion, subscriber) + index * size_of::<SubscriberSlot>()) as u64
}

fn letting_go_at(subscriber: usize, entry: usize) -> u64 {
    let number = subscriber * MAX_DEFERRED_RELEASES + entry;
    TOPIC
        + (offset_of!(TopicRegion, deferred_releases) + number * size_of::<DeferredRelease>())
            as u64
}

fn topic_fields() -> Vec<(usize, usize)> {
    fields!(TopicRegion {
        membership_epoch,
        publishers,
        subscribers,
        reliable,
        elsewhere,
        sleepers,
        blocked,
        deferring,
    })
}

fn publisher_fields() -> Vec<(usize, usize)> {
    fields!(PublisherSlot {
        incarnation,
        region_offset,
        ring_capacity,
        block_capacity,
        start,
        state,
        doorbell,
        sweep,
        matched,
        transient_local,
        head,
        tail,
        wants_blocks,
        blocks_used,
        published_bytes,
        history_end,
    })
}

fn subscriber_fields(publishers: usize) -> Vec<(usize, usize)> {
    fields!(SubscriberSlot {
        doorbell,
        depth,
        closed,
        resumes,
        seen_epoch,
        received,
        missed,
        cursor[publishers],
        passed_over[publishers],
    })
}

fn letting_go_fields() -> Vec<(usize, usize)> {
    fields!(DeferredRelease {
        state,
        incarnation,
        generation,
        point,
        timeline,
        block,
        publisher,
    })
}

/// The untyped part, the point, the lengths of the metadata, a tensor of one dimension, and the replicas.
fn descriptor_fields() -> Vec<(usize, usize)> {
    fields!(Descriptor {
        committed,
        generation,
        incarnation,
        block,
        offset,
        bytes,
        publish_ns,
        tag,
        element,
        point,
        metadata,
        shape[1],
        strides[1],
        replicas[REPLICA_PAIRS],
    })
}

fn block_fields() -> Vec<(usize, usize)> {
    fields!(BlockEntry {
        holders,
        offset,
        bytes,
        pool,
        timeline,
        point,
        replica_of,
        part_bytes,
    })
}

impl Storage for Cells {
    fn len(&self) -> u64 {
        region_offset(self.0.regions.len())
    }
    fn u32(&self, at: u64) -> &AtomicU32 {
        match self.cell(at) {
            Cell::Word32(word) => word,
            _ => panic!("the word at {at:#x} has not 32 bits"),
        }
    }
    fn u64(&self, at: u64) -> &AtomicU64 {
        match self.cell(at) {
            Cell::Word64(word) => word,
            _ => panic!("the word at {at:#x} has not 64 bits"),
        }
    }
    fn u128(&self, at: u64) -> &AtomicU128 {
        match self.cell(at) {
            Cell::Word128(word) => word,
            _ => panic!("the word at {at:#x} has not 128 bits"),
        }
    }
}

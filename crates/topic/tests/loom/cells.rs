//! Words that loom watches, at the offsets of a small topic.

use rgaps_layout::{
    BlockEntry, Doorbell, LettingGo, PublisherRegion, PublisherSlot, SubscriberSlot, Timeline,
    TopicRegion, CONTROL_PAGE, DOORBELL_TABLE_OFFSET, DYNAMIC_OFFSET, MAX_LETTING_GO,
    MAX_PUBLISHERS, METADATA_NEAR_BYTES, TIMELINE_TABLE_OFFSET,
};
use rgaps_sync::atomic::{AtomicU128, AtomicU32, AtomicU64};
use rgaps_topic::Storage;
use std::collections::HashMap;
use std::mem::{offset_of, size_of};
use std::sync::Arc;

/// Slots of the ring.
pub const RING: u32 = 2;
/// Where the topic lies.
pub const TOPIC: u64 = DYNAMIC_OFFSET;
const TOPIC_BYTES: u64 = (size_of::<TopicRegion>() as u64).next_multiple_of(CONTROL_PAGE);
/// The smallest block table there is; only some of its entries have cells.
pub const GEOMETRY: PublisherRegion = PublisherRegion {
    ring_capacity: RING,
    block_capacity: 64,
};

/// What a topic has, beyond one doorbell per member.
#[derive(Clone, Copy)]
pub struct Shape {
    pub publishers: usize,
    pub subscribers: usize,
    /// Entries of a publisher's block table that are used.
    pub blocks: u32,
    pub doorbells: u32,
    /// Timelines, from number 1.
    pub timelines: u32,
    /// Entries of a subscriber's list of holds that it lets go of; the others stay unused.
    pub letting_go: usize,
}

/// Where the region of publisher `index` lies.
pub fn region_offset(index: usize) -> u64 {
    TOPIC + TOPIC_BYTES + index as u64 * GEOMETRY.bytes()
}

enum Cell {
    Word32(AtomicU32),
    Word64(AtomicU64),
    Word128(AtomicU128),
}

/// A value whose every use loom checks against all others.
pub struct Watched(loom::cell::UnsafeCell<u64>);

// SAFETY: loom checks that no use of the cell happens at the same time as a write, and stops the
// model otherwise; sharing it between threads is what it is for.
unsafe impl Sync for Watched {}
// SAFETY: as above.
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
    /// Stands for all that slots without a member say: 0.
    nothing: Cell,
    /// Per publisher of the topic, a value that each access to its region reads: who reuses the
    /// region writes it.
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
        let mut add32 = |at| cells.insert(at, Cell::Word32(AtomicU32::new(0)));
        topic_words32(shape)
            .chain(letting_go_words(shape, LETTING_GO_32))
            .for_each(|at| drop(add32(at)));
        let mut add64 = |at| cells.insert(at, Cell::Word64(AtomicU64::new(0)));
        topic_words64(shape)
            .chain(letting_go_words(shape, LETTING_GO_64))
            .chain(timeline_words(shape))
            .for_each(|at| drop(add64(at)));
        for index in 0..shape.publishers {
            let base = region_offset(index);
            region_words64(shape).for_each(|at| drop(add64(base + at)));
        }
        let mut add32 = |at| cells.insert(at, Cell::Word32(AtomicU32::new(0)));
        for index in 0..shape.publishers {
            let base = region_offset(index);
            region_words32(shape).for_each(|at| drop(add32(base + at)));
        }
        for index in 0..shape.publishers {
            for block in 0..shape.blocks {
                let at = region_offset(index) + block_at(block);
                cells.insert(at, Cell::Word128(AtomicU128::new(0)));
            }
        }
        Cells(Arc::new(Inner {
            cells,
            nothing: Cell::Word64(AtomicU64::new(0)),
            regions: (0..shape.publishers).map(|_| Watched::new(0)).collect(),
        }))
    }

    /// What the daemon does when it hands a region to another publisher. A race, if anyone may
    /// still look at it.
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

    /// Whether a word belongs to a publisher slot that the model leaves empty, is a cursor on such a
    /// slot, or belongs to a list's entry that the model does not use.
    fn is_empty_slot(&self, at: u64) -> bool {
        let publishers = self.0.regions.len() as u64;
        let Some(from) = at.checked_sub(TOPIC) else {
            return false;
        };
        let slots = offset_of!(TopicRegion, publisher) as u64;
        let subscribers = offset_of!(TopicRegion, subscriber) as u64;
        if from >= offset_of!(TopicRegion, letting_go) as u64 {
            return true;
        }
        match from.checked_sub(subscribers) {
            None => from >= slots + publishers * size_of::<PublisherSlot>() as u64,
            Some(from) => {
                let field = from % size_of::<SubscriberSlot>() as u64;
                let lists = [
                    offset_of!(SubscriberSlot, cursors),
                    offset_of!(SubscriberSlot, passed_over),
                ];
                let list = lists.into_iter().rfind(|list| *list as u64 <= field);
                list.is_some_and(|list| field >= list as u64 + 8 * publishers)
            }
        }
    }
}

fn block_at(block: u32) -> u64 {
    GEOMETRY.blocks() + u64::from(block) * size_of::<BlockEntry>() as u64
}

fn publisher_at(index: usize) -> u64 {
    TOPIC + (offset_of!(TopicRegion, publisher) + index * size_of::<PublisherSlot>()) as u64
}

fn subscriber_at(index: usize) -> u64 {
    TOPIC + (offset_of!(TopicRegion, subscriber) + index * size_of::<SubscriberSlot>()) as u64
}

const LETTING_GO_32: [usize; 3] = [
    offset_of!(LettingGo, timeline),
    offset_of!(LettingGo, block),
    offset_of!(LettingGo, publisher),
];
const LETTING_GO_64: [usize; 4] = [
    offset_of!(LettingGo, state),
    offset_of!(LettingGo, incarnation),
    offset_of!(LettingGo, generation),
    offset_of!(LettingGo, point),
];

fn letting_go_words<const N: usize>(shape: Shape, fields: [usize; N]) -> impl Iterator<Item = u64> {
    let entries = (0..shape.subscribers).flat_map(move |subscriber| {
        (0..shape.letting_go).map(move |entry| subscriber * MAX_LETTING_GO + entry)
    });
    entries.flat_map(move |entry| {
        let at = offset_of!(TopicRegion, letting_go) + entry * size_of::<LettingGo>();
        fields.map(|field| TOPIC + (at + field) as u64)
    })
}

fn timeline_words(shape: Shape) -> impl Iterator<Item = u64> {
    (1..=u64::from(shape.timelines)).flat_map(|index| {
        let at = TIMELINE_TABLE_OFFSET + index * size_of::<Timeline>() as u64;
        [offset_of!(Timeline, value), offset_of!(Timeline, reached)].map(|field| at + field as u64)
    })
}

fn topic_words32(shape: Shape) -> impl Iterator<Item = u64> {
    let doorbells = (0..u64::from(shape.doorbells))
        .map(|index| DOORBELL_TABLE_OFFSET + index * size_of::<Doorbell>() as u64);
    let publisher = [
        offset_of!(PublisherSlot, ring_capacity),
        offset_of!(PublisherSlot, block_capacity),
        offset_of!(PublisherSlot, doorbell),
        offset_of!(PublisherSlot, sweep),
        offset_of!(PublisherSlot, wants_blocks),
        offset_of!(PublisherSlot, blocks_used),
        offset_of!(PublisherSlot, transient_local),
        offset_of!(PublisherSlot, state),
    ];
    let subscriber = [
        offset_of!(SubscriberSlot, doorbell),
        offset_of!(SubscriberSlot, depth),
        offset_of!(SubscriberSlot, closed),
        offset_of!(SubscriberSlot, resumes),
        offset_of!(SubscriberSlot, seen_epoch),
    ];
    [TOPIC + offset_of!(TopicRegion, membership_epoch) as u64]
        .into_iter()
        .chain(doorbells)
        .chain(members(shape.publishers, publisher_at, publisher))
        .chain(members(shape.subscribers, subscriber_at, subscriber))
}

fn topic_words64(shape: Shape) -> impl Iterator<Item = u64> {
    let topic = [
        offset_of!(TopicRegion, publishers),
        offset_of!(TopicRegion, subscribers),
        offset_of!(TopicRegion, reliable),
        offset_of!(TopicRegion, elsewhere),
        offset_of!(TopicRegion, sleepers),
        offset_of!(TopicRegion, blocked),
        offset_of!(TopicRegion, letting),
    ];
    let publisher = [
        offset_of!(PublisherSlot, incarnation),
        offset_of!(PublisherSlot, region_offset),
        offset_of!(PublisherSlot, start),
        offset_of!(PublisherSlot, matched),
        offset_of!(PublisherSlot, head),
        offset_of!(PublisherSlot, tail),
        offset_of!(PublisherSlot, published_bytes),
        offset_of!(PublisherSlot, history_end),
    ];
    let subscriber = [
        offset_of!(SubscriberSlot, received),
        offset_of!(SubscriberSlot, missed),
    ];
    let cursors = (0..shape.subscribers).flat_map(move |subscriber| {
        let at = subscriber_at(subscriber) + offset_of!(SubscriberSlot, cursors) as u64;
        let passed_over =
            subscriber_at(subscriber) + offset_of!(SubscriberSlot, passed_over) as u64;
        (0..shape.publishers.min(MAX_PUBLISHERS) as u64)
            .flat_map(move |publisher| [at + publisher * 8, passed_over + publisher * 8])
    });
    topic
        .map(|at| TOPIC + at as u64)
        .into_iter()
        .chain(members(shape.publishers, publisher_at, publisher))
        .chain(members(shape.subscribers, subscriber_at, subscriber))
        .chain(cursors)
}

fn region_words32(shape: Shape) -> impl Iterator<Item = u64> {
    let replica = [
        offset_of!(BlockEntry, pool),
        offset_of!(BlockEntry, timeline),
    ];
    (0..shape.blocks).flat_map(move |block| replica.map(|at| block_at(block) + at as u64))
}

/// The words of a region but its holder words and those of 32 bits.
fn region_words64(shape: Shape) -> impl Iterator<Item = u64> {
    // Of a descriptor: the untyped part, a point, how much metadata, a tensor of one dimension, and copies.
    let descriptor = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 20, 28, 29, 30, 31];
    let ring =
        (0..u64::from(RING)).flat_map(move |slot| descriptor.map(|word| slot * 256 + word * 8));
    // Of a slot's metadata: an attachment of 8 bytes.
    let metadata = (0..u64::from(RING))
        .map(|slot| GEOMETRY.metadata_near() + slot * METADATA_NEAR_BYTES as u64);
    let blocks = (0..shape.blocks).flat_map(|block| {
        [
            offset_of!(BlockEntry, offset),
            offset_of!(BlockEntry, bytes),
            offset_of!(BlockEntry, point),
            offset_of!(BlockEntry, replica_of),
        ]
        .map(|at| block_at(block) + at as u64)
    });
    ring.chain(metadata)
        .chain(blocks)
        .chain([GEOMETRY.returned(), GEOMETRY.summary()])
}

fn members<const N: usize>(
    count: usize,
    at: fn(usize) -> u64,
    fields: [usize; N],
) -> impl Iterator<Item = u64> {
    (0..count).flat_map(move |index| fields.map(|field| at(index) + field as u64))
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

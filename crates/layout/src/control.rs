//! The control segment of a zone: doorbells, topics, publishers' rings and block tables.
//!
//! ```text
//! 0                      ControlHeader
//! POOL_COUNTS_OFFSET     PoolCounts[MAX_POOLS]
//! DOORBELL_TABLE_OFFSET  Doorbell[MAX_DOORBELLS]
//! TIMELINE_TABLE_OFFSET  Timeline[MAX_TIMELINES]
//! DYNAMIC_OFFSET         ranges of whole pages, handed out by the daemon:
//!                        a TopicRegion per topic, a PublisherRegion per publisher
//! ```
//! All members of a zone map it read-write. Whoever reads a field that another process wrote
//! copies it once and checks the copy.

use crate::{
    Descriptor, CONTROL_PAGE, MAX_BLOCKS, MAX_DEPTH, MAX_DOORBELLS, MAX_LETTING_GO,
    MAX_METADATA_BYTES, MAX_POOLS, MAX_PUBLISHERS, MAX_SUBSCRIBERS, MAX_TIMELINES, SPARE_BLOCKS,
};
use std::mem::{offset_of, size_of};

/// First word of a control segment ("rgapsctl").
pub const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"rgapsctl");
/// First word of a topic region ("rgapstop").
pub const TOPIC_MAGIC: u64 = u64::from_le_bytes(*b"rgapstop");
/// Where the counts of pools start.
pub const POOL_COUNTS_OFFSET: u64 = 1024;
/// Where the doorbell table starts.
pub const DOORBELL_TABLE_OFFSET: u64 = CONTROL_PAGE;
/// Where the table of timelines starts. GPUs know these pages, and no others of the segment.
pub const TIMELINE_TABLE_OFFSET: u64 =
    DOORBELL_TABLE_OFFSET + MAX_DOORBELLS as u64 * size_of::<Doorbell>() as u64;
/// Bytes of the table of timelines.
pub const TIMELINE_TABLE_BYTES: u64 = MAX_TIMELINES as u64 * size_of::<Timeline>() as u64;
/// Where the ranges that the daemon hands out start.
pub const DYNAMIC_OFFSET: u64 = TIMELINE_TABLE_OFFSET + TIMELINE_TABLE_BYTES;

/// Start of a control segment, written by the daemon.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct ControlHeader {
    pub magic: u64,
    pub version: u32,
    pub reserved: u32,
    /// Little-endian.
    pub zone_id: [u8; 16],
    pub bytes: u64,
}

/// What publishers of a zone count of a pool, by its index. Added to by all of them, seldom: a copy between
/// domains takes much longer.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolCounts {
    /// Messages of other domains that were copied into the pool, ever.
    pub copied_messages: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Padding.
    pub reserved: [u64; 6],
}

/// A futex word that wakes one sleeping subscriber, publisher or wait set.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Doorbell {
    /// Counts the rings; the sleeper waits for it to change.
    pub rings: u32,
    /// Padding.
    pub reserved: [u32; 15],
}

/// A counter that a stream advances. A *point* on it is a value that it reaches when the work queued
/// before that point has finished.
///
/// The high 32 bits of a value are the *tenure*, which the daemon raises when the timeline's owner is
/// proven gone; the low ones count the owner's points, from 1.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Timeline {
    /// The last point that was reached, or `tenure << 32`. Written by the owner's GPU work, and by
    /// the daemon when there is no owner.
    pub value: u64,
    /// `value` as the last tenure left it. Written by the daemon, before it raises the tenure.
    pub reached: u64,
    /// Padding.
    pub reserved: [u64; 6],
}

/// `Descriptor::timeline_value`: the bytes are there.
pub const POINT_NONE: u64 = 0;
/// `Descriptor::timeline_value`: the work that was to write the bytes never finished.
pub const POINT_ABORTED: u64 = u64::MAX;

/// A hold that its subscriber has let go of behind work that still runs.
///
/// The subscriber fills a free entry and makes it pending. Whoever finds the point passed claims it,
/// clears the holder's bit and frees the entry: the subscriber, the block's publisher, or the daemon
/// for either of them.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct LettingGo {
    /// How often the entry was used, times 4, and one of [`LETTING_GO_FREE`], `_PENDING`,
    /// `_BY_SUBSCRIBER` and `_BY_PUBLISHER`.
    pub state: u64,
    /// Incarnation of the block's publisher.
    pub incarnation: u64,
    /// Of the holder word.
    pub generation: u64,
    /// Of the subscriber's stream.
    pub point: u64,
    /// Of the subscriber's stream.
    pub timeline: u32,
    /// Index into the publisher's block table.
    pub block: u32,
    /// The publisher's slot.
    pub publisher: u32,
    /// Padding.
    pub reserved0: u32,
    /// Padding.
    pub reserved1: [u64; 2],
}

/// `LettingGo::state`, low two bits: not in use.
pub const LETTING_GO_FREE: u64 = 0;
/// `LettingGo::state`, low two bits: to be cleared when the point has passed.
pub const LETTING_GO_PENDING: u64 = 1;
/// `LettingGo::state`, low two bits: the subscriber is clearing it.
pub const LETTING_GO_BY_SUBSCRIBER: u64 = 2;
/// `LettingGo::state`, low two bits: the block's publisher is clearing it. The daemon gives the
/// subscriber's slot to nobody else before it has.
pub const LETTING_GO_BY_PUBLISHER: u64 = 3;

/// `PublisherSlot::state`: nobody publishes here.
pub const PUBLISHER_EMPTY: u32 = 0;
/// `PublisherSlot::state`: a client publishes here.
pub const PUBLISHER_ACTIVE: u32 = 1;
/// `PublisherSlot::state`: the publisher left or died; the daemon keeps its history.
pub const PUBLISHER_ORPHAN: u32 = 2;

/// `PublisherSlot::history_end`: the history is on its way to this host.
pub const HISTORY_LANDING: u64 = u64::MAX;

/// One publisher's place in a topic.
///
/// `head`, `tail` and sequence numbers never go back on a slot, also when its publisher
/// changes, so a subscriber's cursor on the slot stays meaningful.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct PublisherSlot {
    /// Random, changes with every publisher of the slot; 0 when empty. Written last by the daemon.
    pub incarnation: u64,
    /// Of the `PublisherRegion` in the control segment.
    pub region_offset: u64,
    /// Descriptors in the ring: a power of two, above `depth`.
    pub ring_capacity: u32,
    /// Entries of the block table: a multiple of 64.
    pub block_capacity: u32,
    /// Sequence number of the publisher's first message.
    pub start: u64,
    /// Messages that the ring keeps.
    pub depth: u32,
    /// `PUBLISHER_EMPTY`, `_ACTIVE` or `_ORPHAN`.
    pub state: u32,
    /// Doorbell of the publisher, rung when it is blocked and something was freed.
    pub doorbell: u32,
    /// The daemon adds one when the publisher should look for blocks that a dead holder freed.
    pub sweep: u32,
    /// Subscriber slots that match the publisher: it waits for, wakes, copies for and counts these, and
    /// only these read it. Written by the daemon: whole before `incarnation`, a subscriber's bit before
    /// the subscriber is in any mask of the topic.
    pub matched: u64,
    /// How many subscribers do not match the publisher, observers left out. Written by the daemon.
    pub mismatched: u32,
    /// 1 if the publisher keeps its history for late joiners. Written by the daemon, before `incarnation`.
    pub transient_local: u32,

    /// Sequence number of the next message. Written by the publisher.
    pub head: u64,
    /// Sequence number of the oldest message that the ring still holds. Written by the publisher.
    pub tail: u64,
    /// Nonzero while the publisher waits for blocks to come back.
    pub wants_blocks: u32,
    /// Blocks ever used: higher entries of the block table were never touched.
    pub blocks_used: u32,
    /// Bytes of messages published, ever.
    pub published_bytes: u64,
    /// Slots of slow reliable subscribers that the publisher does not wait for, as of its last message. Written
    /// by the publisher, which decides it alone; others show it.
    pub dropped: u64,
    /// How often it stopped waiting for one, ever.
    pub drops: u64,
    /// Of a publisher that stands for one on another host: sequence number below which its messages are history, published
    /// before this host asked for the topic; [`HISTORY_LANDING`] until that is known. Others: 0. Written by the daemon
    /// before `incarnation`, then once by the publisher.
    pub history_end: u64,
    /// Padding.
    pub reserved1: u64,
}

/// One subscriber's place in a topic; its index is its bit in holder words.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct SubscriberSlot {
    /// Random, changes with every subscriber of the slot; 0 when empty. Written by the daemon.
    pub incarnation: u64,
    /// The subscriber's doorbell, or that of the wait set it is in. Written by the subscriber, seldom:
    /// publishers have the line at hand when they wake it.
    pub doorbell: u32,
    /// Where the subscriber wants to read: index of the pool, plus 1; 0: where the messages are.
    /// Written by the daemon.
    pub pool: u32,
    /// How many subscribers on other hosts it stands for, plus 1; 0: none, it is one itself. Written by
    /// the daemon.
    pub stands_for: u32,
    /// How many publishers do not match the subscriber. Written by the daemon.
    pub mismatched: u32,
    /// Messages of all publishers that wait for it at most, the newest ones; 0: all that publishers keep.
    /// Written by the daemon.
    pub depth: u32,
    /// 1: the subscriber is closed: it takes no more messages, and nobody waits for it. What it holds stays. Written by
    /// the subscriber, once; the daemon writes 0 before each subscriber of the slot.
    pub closed: u32,
    /// 1: the subscriber took the seat of one that has ended, and begins with the oldest message that rings still have;
    /// the cursors stay until it has passed them. Written by the daemon.
    pub resumes: u32,
    /// Padding.
    pub reserved5: u32,
    /// Padding.
    pub reserved0: [u64; 3],

    /// `membership_epoch` of the topic that the subscriber has acted on. Regions of publishers
    /// that left are reused only when every subscriber is past their leaving.
    pub seen_epoch: u32,
    /// Padding.
    pub reserved1: u32,
    /// Samples taken, ever.
    pub received: u64,
    /// Messages missed, ever.
    pub missed: u64,
    /// Samples held now.
    pub held: u32,
    /// Padding.
    pub reserved2: u32,
    /// Padding.
    pub reserved3: [u64; 4],

    /// Sequence number that the subscriber reads next, per publisher slot. A reliable
    /// subscriber's cursor holds the publisher back.
    pub cursors: [u64; MAX_PUBLISHERS],

    /// Messages of former publishers of each slot that did not match the subscriber: it passes them
    /// over, and has not missed them. Written by the daemon when such a publisher ends.
    pub passed_over: [u64; MAX_PUBLISHERS],
}

/// A topic. Created by the daemon at the first join from either side.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct TopicRegion {
    /// [`TOPIC_MAGIC`].
    pub magic: u64,
    /// Random, never 0.
    pub topic_id: u64,
    /// Changes whenever anyone joins or leaves; a futex word. Written by the daemon.
    pub membership_epoch: u32,
    /// Padding.
    pub reserved0: u32,
    /// Publisher slots that are active or orphaned.
    pub publishers: u64,
    /// Subscriber slots in use.
    pub subscribers: u64,
    /// Subscriber slots whose cursors hold publishers back.
    pub reliable: u64,
    /// Subscriber slots that read in a pool of their own (`SubscriberSlot::pool`).
    pub elsewhere: u64,
    /// Padding.
    pub reserved1: u64,

    /// Subscriber slots that sleep: set by the subscriber, cleared by who rings its doorbell.
    pub sleepers: u64,
    /// Padding.
    pub reserved2: [u64; 7],

    /// Publisher slots that wait for a reliable subscriber.
    pub blocked: u64,
    /// Padding.
    pub reserved3: [u64; 7],

    /// Subscriber slots that may have entries in `letting_go` that are not free: set by the
    /// subscriber before it makes one pending, cleared by the daemon when it leaves, and by itself.
    pub letting: u64,
    /// Padding.
    pub reserved4: [u64; 7],

    /// Publishers.
    pub publisher: [PublisherSlot; MAX_PUBLISHERS],
    /// Subscribers.
    pub subscriber: [SubscriberSlot; MAX_SUBSCRIBERS],
    /// Of each subscriber, the holds that it lets go of.
    pub letting_go: [[LettingGo; MAX_LETTING_GO]; MAX_SUBSCRIBERS],
}

/// One block of a publisher: who holds it and where its bytes are.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockEntry {
    /// The holder word, one 128-bit atomic: the mask in the low half, the generation in the high.
    pub holders: [u64; 2],
    /// From the start of the pool.
    pub offset: u64,
    /// Bytes granted; 0 when the entry was never used.
    pub bytes: u64,
    /// Pool that the offset is in: its index, plus 1; 0: the publisher's own.
    pub pool: u32,
    /// Of a replica: what has to be reached before its bytes are there.
    pub timeline: u32,
    /// Of a replica.
    pub point: u64,
    /// Of a replica: sequence number, plus 1, of the message that it is of; 0: it is none.
    pub replica_of: u64,
    /// Of a replica that is copied in parts: bytes of each but the last, which are there at consecutive
    /// points, the last of which is `point`; 0: all at once.
    pub part_bytes: u64,
}

/// Metadata of a message up to this many bytes lies close to that of its neighbours in the ring, so that small
/// headers touch few pages.
pub const METADATA_NEAR_BYTES: usize = 256;
/// What a ring slot has for the rest of a message's metadata: whole pages, which nothing touches that
/// has no more than [`METADATA_NEAR_BYTES`].
pub const METADATA_FAR_BYTES: usize =
    (MAX_METADATA_BYTES - METADATA_NEAR_BYTES).next_multiple_of(CONTROL_PAGE as usize);

/// Arithmetic of a publisher's region: the ring, the block table, the bitmap of returned blocks, the ring's metadata.
///
/// ```text
/// 0                Descriptor[ring_capacity]
/// blocks()         BlockEntry[block_capacity]
/// returned()       u64[block_capacity / 64]   a bit per block that came back
/// summary()        u64[ceil(block_capacity / 4096)]   a bit per word above that is not 0
/// metadata_near()  u8[ring_capacity][METADATA_NEAR_BYTES]   the first bytes of each slot's metadata
/// metadata_far()   u8[ring_capacity][METADATA_FAR_BYTES]    the rest
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublisherRegion {
    /// Descriptors in the ring.
    pub ring_capacity: u32,
    /// Entries of the block table.
    pub block_capacity: u32,
}

impl PublisherRegion {
    /// The region of a publisher that keeps `depth` messages and has `loans` open at most.
    ///
    /// The ring has room for one more than is kept: a message is announced before the one that
    /// it pushes out goes.
    pub const fn for_history(depth: u32, loans: u32) -> PublisherRegion {
        let blocks = depth as u64 + loans as u64 + SPARE_BLOCKS as u64;
        let blocks = if blocks > MAX_BLOCKS as u64 {
            MAX_BLOCKS
        } else {
            blocks as u32
        };
        PublisherRegion {
            ring_capacity: (depth + 1).next_power_of_two(),
            block_capacity: blocks.next_multiple_of(64),
        }
    }
    /// Whether the numbers are within the limits; to be asked of numbers that a peer wrote.
    pub const fn is_sound(self) -> bool {
        self.ring_capacity.is_power_of_two()
            && self.ring_capacity <= MAX_DEPTH * 2
            && self.block_capacity > 0
            && self.block_capacity % 64 == 0
            && self.block_capacity <= MAX_BLOCKS
    }
    /// Offset of the block table.
    pub const fn blocks(self) -> u64 {
        self.ring_capacity as u64 * size_of::<Descriptor>() as u64
    }
    /// Offset of the bitmap of returned blocks.
    pub const fn returned(self) -> u64 {
        self.blocks() + self.block_capacity as u64 * size_of::<BlockEntry>() as u64
    }
    /// Offset of the bitmap's summary.
    pub const fn summary(self) -> u64 {
        self.returned() + (self.block_capacity as u64 / 64 * 8).next_multiple_of(64)
    }
    /// Offset of the first bytes of the slots' metadata.
    pub const fn metadata_near(self) -> u64 {
        (self.summary() + self.summary_words() * 8).next_multiple_of(CONTROL_PAGE)
    }
    /// Offset of the rest of the slots' metadata.
    pub const fn metadata_far(self) -> u64 {
        let near = self.ring_capacity as u64 * METADATA_NEAR_BYTES as u64;
        (self.metadata_near() + near).next_multiple_of(CONTROL_PAGE)
    }
    /// Bytes of the region, whole pages. Most of them are never touched.
    pub const fn bytes(self) -> u64 {
        self.metadata_far() + self.ring_capacity as u64 * METADATA_FAR_BYTES as u64
    }
    /// Words of the summary.
    pub const fn summary_words(self) -> u64 {
        (self.block_capacity as u64).div_ceil(4096)
    }
}

const _: () = {
    assert!(size_of::<PoolCounts>() == 64);
    assert!(offset_of!(PoolCounts, copied_messages) == 0);
    assert!(offset_of!(PoolCounts, copied_bytes) == 8);
    assert!(size_of::<ControlHeader>() as u64 <= POOL_COUNTS_OFFSET);
    assert!(
        POOL_COUNTS_OFFSET + (MAX_POOLS * size_of::<PoolCounts>()) as u64 <= DOORBELL_TABLE_OFFSET
    );
    assert!(size_of::<Doorbell>() == 64);
    assert!(size_of::<Timeline>() == 64);
    assert!(offset_of!(Timeline, value) == 0);
    assert!(offset_of!(Timeline, reached) == 8);
    assert!(size_of::<LettingGo>() == 64);
    assert!(offset_of!(LettingGo, state) == 0);
    assert!(offset_of!(LettingGo, incarnation) == 8);
    assert!(offset_of!(LettingGo, generation) == 16);
    assert!(offset_of!(LettingGo, point) == 24);
    assert!(offset_of!(LettingGo, timeline) == 32);
    assert!(offset_of!(LettingGo, block) == 36);
    assert!(offset_of!(LettingGo, publisher) == 40);
    assert!(TIMELINE_TABLE_OFFSET % CONTROL_PAGE == 0 && DYNAMIC_OFFSET % CONTROL_PAGE == 0);
    assert!(size_of::<BlockEntry>() == 64);
    assert!(offset_of!(BlockEntry, holders) == 0);
    assert!(offset_of!(BlockEntry, offset) == 16);
    assert!(offset_of!(BlockEntry, bytes) == 24);
    assert!(offset_of!(BlockEntry, pool) == 32);
    assert!(offset_of!(BlockEntry, timeline) == 36);
    assert!(offset_of!(BlockEntry, point) == 40);
    assert!(offset_of!(BlockEntry, replica_of) == 48);
    assert!(offset_of!(BlockEntry, part_bytes) == 56);
    assert!(size_of::<PublisherSlot>() == 128);
    assert!(offset_of!(PublisherSlot, incarnation) == 0);
    assert!(offset_of!(PublisherSlot, region_offset) == 8);
    assert!(offset_of!(PublisherSlot, ring_capacity) == 16);
    assert!(offset_of!(PublisherSlot, block_capacity) == 20);
    assert!(offset_of!(PublisherSlot, start) == 24);
    assert!(offset_of!(PublisherSlot, depth) == 32);
    assert!(offset_of!(PublisherSlot, state) == 36);
    assert!(offset_of!(PublisherSlot, doorbell) == 40);
    assert!(offset_of!(PublisherSlot, sweep) == 44);
    assert!(offset_of!(PublisherSlot, matched) == 48);
    assert!(offset_of!(PublisherSlot, mismatched) == 56);
    assert!(offset_of!(PublisherSlot, transient_local) == 60);
    assert!(offset_of!(PublisherSlot, head) == 64);
    assert!(offset_of!(PublisherSlot, tail) == 72);
    assert!(offset_of!(PublisherSlot, wants_blocks) == 80);
    assert!(offset_of!(PublisherSlot, blocks_used) == 84);
    assert!(offset_of!(PublisherSlot, published_bytes) == 88);
    assert!(offset_of!(PublisherSlot, dropped) == 96);
    assert!(offset_of!(PublisherSlot, drops) == 104);
    assert!(offset_of!(PublisherSlot, history_end) == 112);
    assert!(size_of::<SubscriberSlot>() == 384);
    assert!(offset_of!(SubscriberSlot, doorbell) == 8);
    assert!(offset_of!(SubscriberSlot, seen_epoch) == 64);
    assert!(offset_of!(SubscriberSlot, received) == 72);
    assert!(offset_of!(SubscriberSlot, missed) == 80);
    assert!(offset_of!(SubscriberSlot, held) == 88);
    assert!(offset_of!(SubscriberSlot, pool) == 12);
    assert!(offset_of!(SubscriberSlot, stands_for) == 16);
    assert!(offset_of!(SubscriberSlot, mismatched) == 20);
    assert!(offset_of!(SubscriberSlot, depth) == 24);
    assert!(offset_of!(SubscriberSlot, closed) == 28);
    assert!(offset_of!(SubscriberSlot, resumes) == 32);
    assert!(offset_of!(SubscriberSlot, cursors) == 128);
    assert!(offset_of!(SubscriberSlot, passed_over) == 256);
    assert!(offset_of!(TopicRegion, membership_epoch) == 16);
    assert!(offset_of!(TopicRegion, publishers) == 24);
    assert!(offset_of!(TopicRegion, subscribers) == 32);
    assert!(offset_of!(TopicRegion, reliable) == 40);
    assert!(offset_of!(TopicRegion, elsewhere) == 48);
    assert!(offset_of!(TopicRegion, sleepers) == 64);
    assert!(offset_of!(TopicRegion, blocked) == 128);
    assert!(offset_of!(TopicRegion, letting) == 192);
    assert!(offset_of!(TopicRegion, publisher) == 256);
    assert!(offset_of!(TopicRegion, subscriber) == 256 + 128 * MAX_PUBLISHERS);
    assert!(
        offset_of!(TopicRegion, letting_go) == 256 + 128 * MAX_PUBLISHERS + 384 * MAX_SUBSCRIBERS
    );
    assert!(
        size_of::<TopicRegion>()
            == offset_of!(TopicRegion, letting_go) + 64 * MAX_LETTING_GO * MAX_SUBSCRIBERS
    );
};

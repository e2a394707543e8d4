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
//! All members of a zone map it read-write. A reader copies a field that another process wrote once, and checks the copy.

use crate::define::{define, record};
use crate::{
    BlockWord, ElementWord, MetadataLengths, ReplicaPair, CONTROL_PAGE, MAX_DEFERRED_RELEASES,
    MAX_DIMS, MAX_DOORBELLS, MAX_POOLS, MAX_PUBLISHERS, MAX_SUBSCRIBERS, MAX_TIMELINES,
    REPLICA_PAIRS,
};
use std::mem::size_of;

/// First word of a control segment ("rgapsctl").
pub const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"rgapsctl");
/// First word of a topic region ("rgapstop").
pub const TOPIC_MAGIC: u64 = u64::from_le_bytes(*b"rgapstop");
/// Offset of the counts of pools.
pub const POOL_COUNTS_OFFSET: u64 = 1024;
/// Offset of the doorbell table.
pub const DOORBELL_TABLE_OFFSET: u64 = CONTROL_PAGE;
/// Offset of the table of timelines. Only these pages of the segment are registered with GPUs.
pub const TIMELINE_TABLE_OFFSET: u64 =
    DOORBELL_TABLE_OFFSET + MAX_DOORBELLS as u64 * size_of::<Doorbell>() as u64;
/// Bytes of the table of timelines.
pub const TIMELINE_TABLE_BYTES: u64 = MAX_TIMELINES as u64 * size_of::<Timeline>() as u64;
/// Offset of the ranges that the daemon hands out.
pub const DYNAMIC_OFFSET: u64 = TIMELINE_TABLE_OFFSET + TIMELINE_TABLE_BYTES;

record! {
    /// Start of a control segment, written by the daemon.
    #[derive(Default)]
    #[allow(missing_docs)]
    pub struct ControlHeader {
        pub magic: u64,
        pub version: u32,
        pub reserved: u32,
        /// Little-endian.
        pub zone_id: [u8; 16],
        pub bytes: u64,
    }
}

define! {
    /// Counters of a pool, by its index. All publishers of the zone add to them, after a copy between domains, which takes much
    /// longer than the atomic.
    PoolCounts [64] {
        /// How many messages of other domains were ever copied into the pool.
         0 copied_messages: u64,
        /// Their bytes.
         8 copied_bytes: u64,
        /// Padding.
        16 reserved: pad[48],
    }

    /// A futex word that wakes one sleeping subscriber, publisher or wait set.
    Doorbell [64] {
        /// Counts the rings; the sleeper waits for it to change.
         0 rings: u32,
        /// Padding.
         4 reserved: pad[60],
    }
}

/// The structures that have accessors in `rgaps-topic`, as a table for another macro.
#[macro_export]
macro_rules! control_structures {
    ($then:ident) => {
        $then! {
            /// A counter that a stream advances. A *point* on it is a value that it reaches when the work queued
            /// before that point has finished.
            ///
            /// The high 32 bits of a value are the *tenure*, which the daemon raises when the timeline's owner is
            /// proven gone; the low ones count the owner's points, from 1.
            Timeline as TimelineView [64] {
                /// The last point that was reached, or `tenure << 32`. Written by the owner's GPU work, and by
                /// the daemon when there is no owner.
                 0 value: u64,
                /// `value` as the last tenure left it. Written by the daemon, before it raises the tenure.
                 8 reached: u64,
                /// Padding.
                16 reserved: pad[48],
            }

            /// A deferred release: the subscriber has released the block, but its queued GPU work may still read it.
            ///
            /// The subscriber fills a free entry and makes it pending. When the point has passed, the subscriber, the block's
            /// publisher, or the daemon for either of them claims the entry, clears the subscriber's bit in the holder word and
            /// frees the entry.
            DeferredRelease as DeferredReleaseView [64] {
                /// How often the entry was used, times 4, and one of `DEFERRED_RELEASE_FREE`, `_PENDING`,
                /// `_BY_SUBSCRIBER` and `_BY_PUBLISHER`.
                 0 state: u64,
                /// Incarnation of the block's publisher.
                 8 incarnation: u64,
                /// The generation in the holder word.
                16 generation: u64,
                /// The point on the subscriber's stream after which its work no longer reads the block.
                24 point: u64,
                /// Index of the timeline of the subscriber's stream.
                32 timeline: u32,
                /// Index into the publisher's block table.
                36 block: u32,
                /// The publisher's slot.
                40 publisher: u32,
                /// Padding.
                44 reserved: pad[20],
            }

            /// One publisher's slot in a topic.
            ///
            /// `head`, `tail` and sequence numbers never go back on a slot, also when its publisher
            /// changes, so a subscriber's cursor on the slot stays meaningful.
            PublisherSlot as PublisherView [128] {
                /// Random, changes with every publisher of the slot; 0 when empty. Written last by the daemon.
                  0 incarnation: u64,
                /// Offset of the `PublisherRegion` in the control segment.
                  8 region_offset: u64,
                /// Descriptors in the ring: a power of two, above `depth`.
                 16 ring_capacity: u32,
                /// Entries of the block table: a multiple of 64.
                 20 block_capacity: u32,
                /// Sequence number of the publisher's first message.
                 24 start: u64,
                /// Messages that the ring keeps.
                 32 depth: u32,
                /// `PUBLISHER_EMPTY`, `_ACTIVE` or `_ORPHAN`.
                 36 state: u32,
                /// Doorbell of the publisher. Others ring it when they have freed something and the publisher is blocked.
                 40 doorbell: u32,
                /// The daemon adds one when the publisher should look for blocks that a dead holder freed.
                 44 sweep: u32,
                /// Subscriber slots that match the publisher: it waits for, wakes, copies for and counts these, and
                /// only these read it. Written by the daemon: whole before `incarnation`, a subscriber's bit before
                /// the subscriber is in any mask of the topic.
                 48 matched: u64,
                /// How many subscribers do not match the publisher, observers left out. Written by the daemon.
                 56 mismatched: u32,
                /// 1 if the publisher keeps its history for late joiners. Written by the daemon, before `incarnation`.
                 60 transient_local: u32,

                /// Sequence number of the next message. Written by the publisher.
                 64 head: u64,
                /// Sequence number of the oldest message that the ring still holds. Written by the publisher.
                 72 tail: u64,
                /// Nonzero while the publisher waits for blocks to come back.
                 80 wants_blocks: u32,
                /// Blocks ever used: higher entries of the block table were never touched.
                 84 blocks_used: u32,
                /// Bytes of all messages that the publisher has published.
                 88 published_bytes: u64,
                /// Slots of slow reliable subscribers that the publisher does not wait for, as of its last message.
                /// Written by the publisher, which decides it alone; others show it.
                 96 dropped: u64,
                /// How often the publisher has stopped waiting for a slow reliable subscriber.
                104 drops: u64,
                /// For a publisher that stands for one on another host: messages below this sequence number are history,
                /// published before this host asked for the topic; `HISTORY_LANDING` until the number is known. Others: 0.
                /// Written by the daemon before `incarnation`, then once by the publisher.
                112 history_end: u64,
                /// Threads of the publisher that wait for reliable subscribers to make room. Written by the publisher,
                /// for others to show.
                120 waiting: u32,
                /// Padding.
                124 reserved: pad[4],
            }

            /// One subscriber's slot in a topic; its index is its bit in holder words.
            SubscriberSlot as SubscriberView [384] {
                /// Random, changes with every subscriber of the slot; 0 when empty. Written by the daemon.
                  0 incarnation: u64,
                /// The subscriber's doorbell, or that of the wait set it is in. Written by the subscriber, seldom:
                /// publishers have the line at hand when they wake it.
                  8 doorbell: u32,
                /// The pool in which the subscriber reads: its index, plus 1; 0: the messages' own pool.
                /// Written by the daemon.
                 12 pool: u32,
                /// For a subscriber of the links: how many subscribers on other hosts it stands for, plus 1. 0: it is an ordinary
                /// subscriber. Written by the daemon.
                 16 stands_for: u32,
                /// How many publishers do not match the subscriber. Written by the daemon.
                 20 mismatched: u32,
                /// Length of the subscriber's own queue over all publishers, in messages: it skips older ones. 0: all that
                /// publishers keep. Written by the daemon.
                 24 depth: u32,
                /// 1: the subscriber is closed: it takes no more messages, and nobody waits for it. It keeps its samples.
                /// Written by the subscriber, once; the daemon writes 0 before each subscriber of the slot.
                 28 closed: u32,
                /// 1: the subscriber took the seat of one that has ended, and begins with the oldest message that
                /// rings still have; the cursors stay until it has passed them. Written by the daemon.
                 32 resumes: u32,
                /// Padding.
                 36 reserved0: pad[28],

                /// `membership_epoch` of the topic that the subscriber has acted on. Regions of publishers
                /// that left are reused only when every subscriber is past their leaving.
                 64 seen_epoch: u32,
                /// Padding.
                 68 reserved1: pad[4],
                /// How many samples the subscriber has received.
                 72 received: u64,
                /// How many messages the subscriber has missed.
                 80 missed: u64,
                /// Samples held now.
                 88 held: u32,
                /// Padding.
                 92 reserved2: pad[36],

                /// Sequence number that the subscriber reads next, per publisher slot. A reliable
                /// subscriber's cursor holds the publisher back.
                128 cursor: u64[MAX_PUBLISHERS],

                /// Per publisher slot: how many messages of ended publishers that did not match the subscriber it skips without
                /// counting them as missed. Written by the daemon when such a publisher ends.
                256 passed_over: u64[MAX_PUBLISHERS],
            }

            /// A topic. Created by the daemon at the first join from either side.
            TopicRegion as TopicView [25344 + 64 * MAX_DEFERRED_RELEASES * MAX_SUBSCRIBERS] {
                /// `TOPIC_MAGIC`.
                  0 magic: u64,
                /// Random, never 0.
                  8 topic_id: u64,
                /// Changes whenever anyone joins or leaves; a futex word. Written by the daemon.
                 16 membership_epoch: u32,
                /// Padding.
                 20 reserved0: pad[4],
                /// Publisher slots that are active or orphaned.
                 24 publishers: u64,
                /// Subscriber slots in use.
                 32 subscribers: u64,
                /// Subscriber slots whose cursors hold publishers back.
                 40 reliable: u64,
                /// Subscriber slots that read in a pool of their own (`SubscriberSlot::pool`).
                 48 elsewhere: u64,
                /// Padding.
                 56 reserved1: pad[8],

                /// Subscriber slots that sleep: set by the subscriber, cleared by who rings its doorbell.
                 64 sleepers: u64,
                /// Padding.
                 72 reserved2: pad[56],

                /// Publisher slots that wait for a reliable subscriber.
                128 blocked: u64,
                /// Padding.
                136 reserved3: pad[56],

                /// Subscriber slots that may have entries in `deferred_releases` that are not free: set by the
                /// subscriber before it makes one pending, cleared by the daemon when it leaves, and by itself.
                192 deferring: u64,
                /// Padding.
                200 reserved4: pad[56],

                /// Publishers.
                256 publisher: ([PublisherSlot; MAX_PUBLISHERS]),
                /// Subscribers.
                2304 subscriber: ([SubscriberSlot; MAX_SUBSCRIBERS]),
                /// Of each subscriber, its deferred releases.
                25344 deferred_releases: ([[DeferredRelease; MAX_DEFERRED_RELEASES]; MAX_SUBSCRIBERS]),
            }

            /// One message, as its publisher announces it. A reader needs only the first cache line of an
            /// untyped message.
            Descriptor as DescriptorView [256] {
                /// Sequence number, plus 1; 0 while the publisher writes the slot.
                  0 committed: u64,
                /// Of the block's holder word.
                  8 generation: u64,
                /// Of the publisher that wrote the slot.
                 16 incarnation: u64,
                /// Where the bytes are, and what else is filled in.
                 24 block: BlockWord,
                /// Of the first byte, from the start of the pool.
                 32 offset: u64,
                /// Bytes of payload.
                 40 bytes: u64,
                /// `CLOCK_MONOTONIC` when publish was called, in two's complement: negative for a message of another
                /// host from before this host started.
                 48 publish_ns: u64,
                /// A number of the user's.
                 56 tag: u64,

                /// Element type and timeline, if any of the flags is set.
                 64 element: ElementWord,
                /// Point on the timeline, `POINT_NONE` or `POINT_ABORTED`, if any of the flags is set.
                 72 point: u64,
                /// How much metadata the ring slot has, if `DESCRIPTOR_METADATA`.
                 80 metadata: MetadataLengths,
                /// Running sum of the messages between those of this publisher, up to this one, that never reached
                /// this host, if `DESCRIPTOR_MISSED`.
                 88 missed_so_far: u64,
                /// Elements per dimension, if `DESCRIPTOR_TYPED`.
                 96 shape: u64[MAX_DIMS],
                /// Elements from one index to the next, per dimension, in two's complement, if `DESCRIPTOR_TYPED`.
                160 strides: u64[MAX_DIMS],
                /// Blocks with copies in other pools, if `DESCRIPTOR_COPIED`.
                224 replicas: ReplicaPair[REPLICA_PAIRS],
            }

            /// One block of a publisher: who holds it and where its bytes are.
            BlockEntry as BlockView [64] {
                /// The holder word, one 128-bit atomic: the mask in the low half, the generation in the high.
                 0 holders: ([u64; 2]),
                /// Offset of its bytes in the pool.
                16 offset: u64,
                /// Size of the block in bytes; 0 if the entry was never used.
                24 bytes: u64,
                /// The pool: its index, plus 1; 0: the publisher's own pool.
                32 pool: u32,
                /// For a replica: the timeline of `point`.
                36 timeline: u32,
                /// For a replica: the point after which its bytes are complete.
                40 point: u64,
                /// For a replica: sequence number of its message, plus 1. 0: the block is not a replica.
                48 replica_of: u64,
                /// For a replica that is copied in parts: the bytes of each part but the last. The parts are complete at
                /// consecutive points, the last of which is `point`. 0: it is copied as a whole.
                56 part_bytes: u64,
            }
        }
    };
}

control_structures!(define);

/// `Descriptor::point`: the bytes are complete.
pub const POINT_NONE: u64 = 0;
/// `Descriptor::point`: the message is aborted, since the work that writes the bytes can never finish.
pub const POINT_ABORTED: u64 = u64::MAX;
/// `DeferredRelease::state`, low two bits: not in use.
pub const DEFERRED_RELEASE_FREE: u64 = 0;
/// `DeferredRelease::state`, low two bits: waits until the point has passed.
pub const DEFERRED_RELEASE_PENDING: u64 = 1;
/// `DeferredRelease::state`, low two bits: the subscriber is clearing it.
pub const DEFERRED_RELEASE_BY_SUBSCRIBER: u64 = 2;
/// `DeferredRelease::state`, low two bits: the block's publisher is clearing it. Until that is done,
/// the daemon does not reuse the subscriber's slot.
pub const DEFERRED_RELEASE_BY_PUBLISHER: u64 = 3;
/// `PublisherSlot::state`: nobody publishes here.
pub const PUBLISHER_EMPTY: u32 = 0;
/// `PublisherSlot::state`: a client publishes here.
pub const PUBLISHER_ACTIVE: u32 = 1;
/// `PublisherSlot::state`: the publisher left or died; the daemon keeps its history.
pub const PUBLISHER_ORPHAN: u32 = 2;
/// `PublisherSlot::history_end`: the history is on its way to this host.
pub const HISTORY_LANDING: u64 = u64::MAX;

const _: () = {
    assert!(size_of::<ControlHeader>() as u64 <= POOL_COUNTS_OFFSET);
    assert!(
        POOL_COUNTS_OFFSET + (MAX_POOLS * size_of::<PoolCounts>()) as u64 <= DOORBELL_TABLE_OFFSET
    );
    assert!(TIMELINE_TABLE_OFFSET % CONTROL_PAGE == 0 && DYNAMIC_OFFSET % CONTROL_PAGE == 0);
};

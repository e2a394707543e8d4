//! The registry of a zone: the daemon's state, in a segment that outlives the daemon.
//!
//! Only the daemon writes it. Clients keep it read-only, to hand it back to the next daemon. Each client also holds a lock on the
//! byte of its `ClientRecord`, by which the next daemon finds out which clients still live. A record is valid if its `state` says
//! so: the daemon writes `state` last when it makes a record, and first when it ends one.
//!
//! ```text
//! RegistryHeader | ClientRecord[MAX_CLIENTS] | PoolRecord[MAX_POOLS] | TopicRecord[MAX_TOPICS]
//! | granule owners: u32[MAX_POOLS][MAX_GRANULES]
//! | type names: [[u8; TYPE_NAME_BYTES]; MAX_PUBLISHERS + MAX_SUBSCRIBERS][MAX_TOPICS], whole pages per topic
//! ```
//! A member's type name is written before its record, which says how long it is.
//! A granule's owner is 0, or `1 + topic index * MAX_PUBLISHERS + publisher slot`.

use crate::define::record;
use crate::{
    MAX_CLIENTS, MAX_CLIENT_NAME, MAX_GRANULES, MAX_POOLS, MAX_PUBLISHERS, MAX_SEGMENTS,
    MAX_SUBSCRIBERS, MAX_TOPICS, MAX_TOPIC_NAME, MAX_TYPE_NAME,
};
use std::mem::size_of;

/// First word of a registry ("rgapsreg").
pub const REGISTRY_MAGIC: u64 = u64::from_le_bytes(*b"rgapsreg");

/// `state` of a record that is not in use.
pub const RECORD_FREE: u32 = 0;
/// `state` of a record that is in use.
pub const RECORD_LIVE: u32 = 1;
/// `state` of a publisher that left or died while its history is kept.
pub const RECORD_ORPHAN: u32 = 2;

/// Bytes of a member's type name in the registry.
pub const TYPE_NAME_BYTES: usize = MAX_TYPE_NAME + 1;
/// Bytes of the type names of one topic's members.
const TOPIC_TYPES_BYTES: u64 =
    (((MAX_PUBLISHERS + MAX_SUBSCRIBERS) * TYPE_NAME_BYTES) as u64).next_multiple_of(4096);

record! {
    /// Start of a registry.
    #[repr(align(4096))]
    #[derive(Default)]
    #[allow(missing_docs)]
    pub struct RegistryHeader {
        pub magic: u64,
        pub version: u32,
        pub reserved: u32,
        /// Little-endian.
        pub zone_id: [u8; 16],
        /// Inode of the control segment's memfd, by which the next daemon recognises it.
        pub control_inode: u64,
        /// How many daemons have served the zone.
        pub daemons: u64,
        /// One past the last byte of the control segment that was ever handed out.
        pub control_used: u64,
    }

    /// A client process. Its index is the byte of the registry that it holds a read lock on.
    #[allow(missing_docs)]
    pub struct ClientRecord {
        pub state: u32,
        pub pid: u32,
        pub uid: u32,
        pub gid: u32,
        /// Random. The client proves its identity with it to the next daemon.
        pub client_id: u64,
        pub name: [u8; MAX_CLIENT_NAME + 1],
    }

    /// A segment of a pool.
    #[derive(Default)]
    #[allow(missing_docs)]
    pub struct SegmentRecord {
        pub bytes: u64,
        /// Inode of the memfd; 0 for a CUDA handle, which has none.
        pub inode: u64,
    }

    /// A pool.
    #[allow(missing_docs)]
    pub struct PoolRecord {
        pub state: u32,
        /// 0 host, 1 CUDA.
        pub domain_kind: u32,
        pub gpu_uuid: [u8; 16],
        pub cap_bytes: u64,
        pub segment_count: u32,
        /// 1 once a client has registered the pool's pages with a driver: free memory stays as it is.
        pub pinned: u32,
        pub segments: [SegmentRecord; MAX_SEGMENTS],
    }

    /// A publisher of a topic.
    #[derive(Default)]
    #[allow(missing_docs)]
    pub struct PublisherRecord {
        pub state: u32,
        pub client: u32,
        pub incarnation: u64,
        pub region_offset: u64,
        pub ring_capacity: u32,
        pub block_capacity: u32,
        pub start: u64,
        pub depth: u32,
        pub doorbell: u32,
        pub pool: u32,
        /// Bit 0 reliable, bit 1 transient-local, bit 2 keep-all, bit 3 its history is forgotten, bits 4 to 6 the path that is required; from bit 8 on the number of loans.
        pub qos_flags: u32,
        /// Limit of a keep-all history in bytes; 0 for other histories.
        pub max_bytes: u64,
        /// Length of its type name in bytes.
        pub type_bytes: u32,
        pub reserved: u32,
    }

    /// A subscriber of a topic.
    #[derive(Default)]
    #[allow(missing_docs)]
    pub struct SubscriberRecord {
        pub state: u32,
        pub client: u32,
        pub incarnation: u64,
        pub doorbell: u32,
        /// Bit 0 reliable, bit 1 transient-local, bit 3 an observer, bits 4 to 6 the path that is required; from bit 8 on the history that is demanded.
        pub qos_flags: u32,
        /// As `SubscriberSlot::pool`.
        pub pool: u32,
        /// Length of its type name in bytes.
        pub type_bytes: u32,
    }

    /// A topic.
    #[repr(align(4096))]
    #[allow(missing_docs)]
    pub struct TopicRecord {
        pub state: u32,
        pub name_bytes: u32,
        pub topic_id: u64,
        pub region_offset: u64,
        /// Pool of the topic's domain, or `u32::MAX` while no one has named a domain.
        pub pool: u32,
        pub reserved: u32,
        pub name: [u8; MAX_TOPIC_NAME + 1],
        pub publishers: [PublisherRecord; MAX_PUBLISHERS],
        pub subscribers: [SubscriberRecord; MAX_SUBSCRIBERS],
    }
}

const _: () = assert!(size_of::<TopicRecord>() == 4096);

impl RegistryHeader {
    /// Offset of client record `index`.
    pub const fn client(index: usize) -> u64 {
        (size_of::<RegistryHeader>() + index * size_of::<ClientRecord>()) as u64
    }
    /// Offset of pool record `index`.
    pub const fn pool(index: usize) -> u64 {
        Self::client(MAX_CLIENTS).next_multiple_of(4096) + (index * size_of::<PoolRecord>()) as u64
    }
    /// Offset of topic record `index`.
    pub const fn topic(index: usize) -> u64 {
        Self::pool(MAX_POOLS).next_multiple_of(4096) + (index * size_of::<TopicRecord>()) as u64
    }
    /// Offset of the owner word of granule `granule` of pool `pool`.
    pub const fn granule(pool: usize, granule: usize) -> u64 {
        Self::topic(MAX_TOPICS) + ((pool * MAX_GRANULES + granule) * 4) as u64
    }
    /// Offset and size in bytes of the area for the type names of a topic's members.
    pub const fn types(topic: usize) -> (u64, u64) {
        let first = Self::granule(MAX_POOLS, 0).next_multiple_of(4096);
        (first + topic as u64 * TOPIC_TYPES_BYTES, TOPIC_TYPES_BYTES)
    }
    /// Offset of the type name of the publisher in that slot of a topic.
    pub const fn publisher_type(topic: usize, slot: usize) -> u64 {
        Self::types(topic).0 + (slot * TYPE_NAME_BYTES) as u64
    }
    /// Offset of the type name of the subscriber in that slot of a topic.
    pub const fn subscriber_type(topic: usize, slot: usize) -> u64 {
        Self::publisher_type(topic, MAX_PUBLISHERS + slot)
    }
    /// Bytes of a registry.
    pub const fn bytes() -> u64 {
        Self::types(MAX_TOPICS).0
    }
}

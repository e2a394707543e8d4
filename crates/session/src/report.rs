//! Listings for users: the JSON of the command `rgaps`, and Python's dictionaries.
//!
//! The protocol's rows have the daemon's data; a report has the fields that users see, with the same names everywhere.

use crate::{
    DeviceRow, History, MemoryUses, MismatchRow, PoolRow, PublisherRow, RemoteRow, SubscriberRow,
    TopicInfo, TopicRow,
};
use serde::Serialize;

/// A topic.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Topic {
    pub name: String,
    pub type_name: String,
    pub domain: Option<String>,
    pub publishers: u32,
    pub subscribers: u32,
    pub orphans: u32,
    pub messages: u64,
    pub bytes: u64,
    pub received: u64,
    pub missed: u64,
    pub kept: u64,
    pub held: u64,
    pub remote: u32,
    pub waiting: u32,
    pub is_device: bool,
}

impl From<TopicRow> for Topic {
    fn from(row: TopicRow) -> Self {
        Topic {
            name: row.name,
            type_name: row.type_name,
            domain: row.domain.map(|domain| domain.to_string()),
            publishers: row.publishers,
            subscribers: row.subscribers,
            orphans: row.orphans,
            messages: row.messages,
            bytes: row.bytes,
            received: row.received,
            missed: row.missed,
            kept: row.kept,
            held: row.held,
            remote: row.remote,
            waiting: row.waiting,
            is_device: row.is_device,
        }
    }
}

/// A topic with its members.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct TopicDetails {
    #[serde(flatten)]
    pub topic: Topic,
    pub zone: String,
    pub publisher_list: Vec<Publisher>,
    pub subscriber_list: Vec<Subscriber>,
    /// Hosts that have subscribers.
    pub hosts: Vec<RemoteRow>,
    /// Publishers and subscribers that do not match.
    pub mismatches: Vec<MismatchRow>,
    /// The device topic from or to which a bridge forwards the messages.
    pub device: Option<Device>,
}

impl From<TopicInfo> for TopicDetails {
    fn from(info: TopicInfo) -> Self {
        TopicDetails {
            topic: info.row.into(),
            zone: format!("{:032x}", info.zone),
            publisher_list: info.publishers.into_iter().map(Publisher::from).collect(),
            subscriber_list: info.subscribers.into_iter().map(Subscriber::from).collect(),
            hosts: info.remote,
            mismatches: info.mismatches,
            device: info.device.map(|device| Device::from(*device)),
        }
    }
}

/// A device topic.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Device {
    pub domain: String,
    pub depth: u32,
    pub blocks: u32,
    pub block_bytes: u64,
    pub kernels_publish: bool,
    pub takes_turns: bool,
    pub newest: u64,
    /// Whether the publisher waits for room for the next message.
    pub publisher_waits: bool,
    pub forwarded: u64,
    pub refused: u64,
    /// How many subscribers the daemon has evicted.
    pub evictions: u64,
    pub seats: Vec<DeviceSeat>,
}

/// A taken seat of a device topic.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct DeviceSeat {
    pub seat: u32,
    pub joined: bool,
    pub reliable: bool,
    pub evicted: bool,
    pub is_bridge: bool,
    pub next_sequence: u64,
    pub missed: u64,
    /// How many blocks it holds, if the publisher has no free block; else 0.
    pub held: u32,
    /// Whether the publisher waits for it.
    pub is_waited_for: bool,
}

impl From<DeviceRow> for Device {
    fn from(row: DeviceRow) -> Self {
        let seats = row.seats.iter().map(|seat| DeviceSeat {
            seat: seat.seat,
            joined: seat.joined,
            reliable: seat.reliable,
            evicted: seat.evicted,
            is_bridge: seat.is_bridge,
            next_sequence: seat.next_sequence,
            missed: seat.missed,
            held: seat.held,
            is_waited_for: row.waits_for(seat),
        });
        Device {
            seats: seats.collect(),
            domain: row.domain.to_string(),
            depth: row.depth,
            blocks: row.blocks,
            block_bytes: row.block_bytes,
            kernels_publish: row.kernels_publish,
            takes_turns: row.takes_turns,
            newest: row.newest,
            publisher_waits: row.publisher_waits,
            forwarded: row.forwarded,
            refused: row.refused,
            evictions: row.evictions,
        }
    }
}

/// A publisher of a topic.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Publisher {
    pub slot: u32,
    pub client: String,
    pub pid: u32,
    pub type_name: String,
    pub mismatched: u32,
    pub orphan: bool,
    pub history: &'static str,
    pub depth: u32,
    pub history_bytes: Option<u64>,
    pub reliable: bool,
    pub transient_local: bool,
    pub max_loans: u32,
    pub messages: u64,
    pub kept: u64,
    pub leased_bytes: u64,
    pub used_bytes: u64,
    pub used: MemoryUses,
    pub blocks_used: u32,
    pub drops: u64,
    /// Slots of the reliable subscribers that it waits for.
    pub waits_for: Vec<u32>,
}

impl From<PublisherRow> for Publisher {
    fn from(row: PublisherRow) -> Self {
        let (history, history_bytes) = match row.offer.history {
            History::KeepLast(_) => ("keep_last", None),
            History::KeepAll { bytes, .. } => ("keep_all", Some(bytes)),
        };
        Publisher {
            slot: row.slot,
            client: row.client,
            pid: row.pid,
            type_name: row.type_name,
            mismatched: row.mismatched,
            orphan: row.orphan,
            history,
            depth: row.offer.history.depth(),
            history_bytes,
            reliable: row.offer.reliable,
            transient_local: row.offer.transient_local,
            max_loans: row.offer.loans,
            messages: row.head.saturating_sub(row.start),
            kept: row.head.saturating_sub(row.tail),
            leased_bytes: row.leased_bytes,
            used_bytes: row.uses.bytes(),
            used: row.uses,
            blocks_used: row.blocks_used,
            drops: row.drops,
            waits_for: (0..64)
                .filter(|slot| row.waits_for >> slot & 1 != 0)
                .collect(),
        }
    }
}

/// A subscriber of a topic.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Subscriber {
    pub slot: u32,
    pub client: String,
    pub pid: u32,
    pub type_name: String,
    pub observer: bool,
    pub mismatched: u32,
    pub reliable: bool,
    pub transient_local: bool,
    pub depth: u32,
    pub received: u64,
    pub missed: u64,
    pub held: u32,
    pub lag: u64,
    pub dropped_by: u32,
    pub domain: Option<String>,
    pub path: String,
}

impl From<SubscriberRow> for Subscriber {
    fn from(row: SubscriberRow) -> Self {
        Subscriber {
            slot: row.slot,
            client: row.client,
            pid: row.pid,
            type_name: row.type_name,
            observer: row.observer,
            mismatched: row.mismatched,
            reliable: row.demand.reliable,
            transient_local: row.demand.transient_local,
            depth: row.demand.depth,
            received: row.received,
            missed: row.missed,
            held: row.held,
            lag: row.lag,
            dropped_by: row.dropped_by,
            domain: row.domain.map(|domain| domain.to_string()),
            path: row.path,
        }
    }
}

/// A pool.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Pool {
    pub domain: String,
    pub access: String,
    pub zone: String,
    pub cap_bytes: u64,
    pub segment_bytes: u64,
    pub segments: u32,
    pub leased_bytes: u64,
    pub provider: String,
    pub pages: String,
    pub numa_node: Option<u32>,
    pub numa_percent: Option<u32>,
    pub copied_messages: u64,
    pub copied_bytes: u64,
    pub warnings: Vec<String>,
}

impl From<PoolRow> for Pool {
    fn from(row: PoolRow) -> Self {
        Pool {
            domain: row.domain.to_string(),
            access: row.access,
            zone: format!("{:032x}", row.zone),
            cap_bytes: row.cap_bytes,
            segment_bytes: row.segment_bytes,
            segments: row.segments,
            leased_bytes: row.leased_bytes,
            provider: row.provider,
            pages: row.pages,
            numa_node: row.numa.map(|(node, _)| node),
            numa_percent: row.numa.map(|(_, percent)| percent),
            copied_messages: row.copied_messages,
            copied_bytes: row.copied_bytes,
            warnings: row.warnings,
        }
    }
}

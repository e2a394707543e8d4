//! A topic as the daemon knows it: its publishers and subscribers. The daemon derives the words in the control segment from it.

use rgaps_layout::{
    PublisherRecord, PublisherRegion, SubscriberRecord, TopicRecord, TopicRegion, CONTROL_PAGE,
    MAX_PUBLISHERS, MAX_SUBSCRIBERS, MAX_TOPIC_NAME, RECORD_LIVE, RECORD_ORPHAN,
};
use rgaps_session::{ArrivalPath, Demand, DeviceRow, History, Offer, PathKind, RemoteRow, Ring};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{PublisherView, Shared, SubscriberView};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::size_of;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of a topic's range in the control segment.
pub(crate) const TOPIC_BYTES: u64 =
    (size_of::<TopicRegion>() as u64).next_multiple_of(CONTROL_PAGE);
/// The type in listings of a topic whose members name different types.
const SEVERAL_TYPES: &str = "several";
/// `TopicRecord::pool` while the topic has no publisher yet.
pub(crate) const NO_POOL: u32 = u32::MAX;

const RELIABLE: u32 = 1;
const TRANSIENT_LOCAL: u32 = 2;
const KEEP_ALL: u32 = 4;
/// Only in a subscriber's flags.
const OBSERVER: u32 = 8;
/// Only in a publisher's flags.
const FORGOTTEN: u32 = 8;
/// The bits of `qos_flags` from here on have the number of the required path.
const REQUIRE_SHIFT: u32 = 4;
const REQUIRE_MASK: u32 = 7;
/// Only in a publisher's flags: it belongs to the links. It stays set after its client has ended, so that messages of another host
/// are not sent out again.
const OF_LINKS: u32 = 128;
/// The bits of `qos_flags` from here on have a number: a publisher's loans, a subscriber's depth.
const NUMBER_SHIFT: u32 = 8;

/// The owner of a publisher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PublisherOwner {
    /// A client, by its index in the zone.
    Client(u32),
    /// The daemon, since the publisher left or died.
    Orphan(Orphan),
}

/// What the daemon knows of an orphan, in its own memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Orphan {
    /// Lower numbers became orphans earlier.
    pub(crate) order: u64,
    /// The number of the oldest message in its ring.
    pub(crate) tail: u64,
    /// One past the number of the newest.
    pub(crate) head: u64,
    /// How many of its messages wait for points that a living process has still to reach.
    pub(crate) pending: u64,
}

/// A publisher.
#[derive(Clone, Debug)]
pub(crate) struct Publisher {
    pub(crate) slot: u32,
    pub(crate) owner: PublisherOwner,
    /// Kept for listings after the publisher has become an orphan.
    pub(crate) client_name: String,
    pub(crate) client_pid: u32,
    /// Whether the links made it: it represents a publisher on another host.
    pub(crate) of_links: bool,
    pub(crate) incarnation: u64,
    pub(crate) offer: Offer,
    /// The type of its messages. Empty: any.
    pub(crate) type_name: String,
    /// Whether somebody had its history dropped after it left: late joiners get nothing of it.
    pub(crate) forgotten: bool,
    pub(crate) ring: Ring,
    /// 0 for an orphan.
    pub(crate) doorbell: u32,
    pub(crate) pool: u32,
    /// The slowest path that it accepts. None: any.
    pub(crate) require: Option<PathKind>,
    /// For a publisher of the links: how its messages reach this host, as the links report.
    pub(crate) remote_path: Option<ArrivalPath>,
    /// The device topic whose messages it publishes, as its client reports.
    pub(crate) device: Option<Arc<Device>>,
}

impl Publisher {
    pub(crate) fn geometry(&self) -> PublisherRegion {
        PublisherRegion {
            ring_capacity: self.ring.ring_capacity,
            block_capacity: self.ring.block_capacity,
        }
    }

    /// Its state as an orphan, if it is one.
    pub(crate) fn orphan(&self) -> Option<Orphan> {
        match self.owner {
            PublisherOwner::Client(_) => None,
            PublisherOwner::Orphan(orphan) => Some(orphan),
        }
    }

    pub(crate) fn is_orphan(&self) -> bool {
        self.orphan().is_some()
    }

    /// Whether it is an orphan with messages that wait for points of a living process.
    pub(crate) fn has_pending_points(&self) -> bool {
        self.orphan().is_some_and(|orphan| orphan.pending > 0)
    }

    /// How many messages it left for late joiners, if it is an orphan that left any.
    pub(crate) fn kept(&self) -> Option<u64> {
        let orphan = self.orphan().filter(|_| self.keeps_history())?;
        Some(orphan.head.saturating_sub(orphan.tail)).filter(|kept| *kept > 0)
    }

    /// Its client and state, for messages to people.
    pub(crate) fn describe(&self) -> String {
        let ended = match self.is_orphan() {
            true => ", which has ended and left its history",
            false => "",
        };
        let (name, pid) = (&self.client_name, self.client_pid);
        format!("publisher '{name}' (process {pid}){ended}")
    }

    /// Whether late joiners begin with its history.
    pub(crate) fn keeps_history(&self) -> bool {
        self.offer.transient_local && !self.forgotten
    }

    pub(crate) fn is_of(&self, client: u32) -> bool {
        self.client() == Some(client)
    }

    /// Its client. None for an orphan.
    pub(crate) fn client(&self) -> Option<u32> {
        match self.owner {
            PublisherOwner::Client(client) => Some(client),
            PublisherOwner::Orphan(_) => None,
        }
    }

    pub(crate) fn record(&self) -> PublisherRecord {
        let (state, client) = match self.owner {
            PublisherOwner::Client(client) => (RECORD_LIVE, client),
            PublisherOwner::Orphan(_) => (RECORD_ORPHAN, 0),
        };
        let (keep_all, max_bytes) = match self.offer.history {
            History::KeepLast(_) => (0, 0),
            History::KeepAll { bytes, .. } => (KEEP_ALL, bytes),
        };
        PublisherRecord {
            state,
            client,
            incarnation: self.incarnation,
            region_offset: self.ring.region_offset,
            ring_capacity: self.ring.ring_capacity,
            block_capacity: self.ring.block_capacity,
            start: self.ring.start,
            depth: self.ring.depth,
            doorbell: self.doorbell,
            pool: self.pool,
            qos_flags: flags(self.offer.reliable, self.offer.transient_local)
                | keep_all
                | (u32::from(self.forgotten) * FORGOTTEN)
                | (u32::from(self.of_links) * OF_LINKS)
                | require_bits(self.require)
                | self.offer.loans << NUMBER_SHIFT,
            max_bytes,
            type_bytes: self.type_name.len() as u32,
            reserved: 0,
        }
    }

    /// Whether a record's history was forgotten.
    pub(crate) fn is_forgotten(record: &PublisherRecord) -> bool {
        record.qos_flags & FORGOTTEN != 0
    }

    /// Whether a record's publisher is of the links.
    pub(crate) fn is_of_links(record: &PublisherRecord) -> bool {
        record.qos_flags & OF_LINKS != 0
    }

    /// The offer in a record.
    pub(crate) fn offer_of(record: &PublisherRecord) -> Offer {
        let history = match record.qos_flags & KEEP_ALL {
            0 => History::KeepLast(record.depth),
            _ => History::KeepAll {
                messages: record.depth,
                bytes: record.max_bytes,
            },
        };
        Offer {
            history,
            reliable: record.qos_flags & RELIABLE != 0,
            transient_local: record.qos_flags & TRANSIENT_LOCAL != 0,
            loans: record.qos_flags >> NUMBER_SHIFT,
        }
    }
}

/// A device topic that a publisher or subscriber forwards from or to.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) row: DeviceRow,
    /// Descriptors of control, ring and words, in this order.
    pub(crate) fds: [OwnedFd; 3],
    /// By seat that the publisher waits for: the message that it wants next, and since when.
    pub(crate) stalled: BTreeMap<u32, (u64, Instant)>,
}

/// A subscriber.
#[derive(Clone, Debug)]
pub(crate) struct Subscriber {
    pub(crate) slot: u32,
    pub(crate) client: u32,
    pub(crate) incarnation: u64,
    pub(crate) demand: Demand,
    /// Whether it reads every publisher of its type, whatever that offers.
    pub(crate) observer: bool,
    /// The type that it expects; empty: any.
    pub(crate) type_name: String,
    /// Whether it takes no more messages and only keeps what it holds: it was closed while samples are in use, or its process
    /// has ended and its GPU work may go on.
    pub(crate) closed: bool,
    pub(crate) doorbell: u32,
    /// The pool in which it reads. None: the topic's.
    pub(crate) pool: Option<u32>,
    /// How its messages reach it, as its client reports.
    pub(crate) path: Option<String>,
    /// The device topic to which it forwards messages, as its client reports.
    pub(crate) device: Option<Arc<Device>>,
    /// For a subscriber of the links: the hosts that it stands for.
    pub(crate) remote: Vec<RemoteRow>,
    /// The slowest path that it accepts. None: any.
    pub(crate) require: Option<PathKind>,
}

impl Subscriber {
    pub(crate) fn record(&self) -> SubscriberRecord {
        SubscriberRecord {
            state: RECORD_LIVE,
            client: self.client,
            incarnation: self.incarnation,
            doorbell: self.doorbell,
            qos_flags: flags(self.demand.reliable, self.demand.transient_local)
                | (u32::from(self.observer) * OBSERVER)
                | require_bits(self.require)
                | self.demand.depth << NUMBER_SHIFT,
            pool: self.pool.map_or(0, |pool| pool + 1),
            type_bytes: self.type_name.len() as u32,
        }
    }

    /// Whether a record is an observer's.
    pub(crate) fn is_observer(record: &SubscriberRecord) -> bool {
        record.qos_flags & OBSERVER != 0
    }

    /// The demand in a record.
    pub(crate) fn demand_of(record: &SubscriberRecord) -> Demand {
        Demand {
            reliable: record.qos_flags & RELIABLE != 0,
            transient_local: record.qos_flags & TRANSIENT_LOCAL != 0,
            depth: record.qos_flags >> NUMBER_SHIFT,
        }
    }
}

/// A mask of slots.
fn slot_bits(slots: impl Iterator<Item = u32>) -> u64 {
    slots.fold(0, |bits, slot| bits | 1 << slot)
}

/// The only name among the non-empty ones; [`SEVERAL_TYPES`] if they differ; empty if there are none.
fn one_of<'a>(names: impl Iterator<Item = &'a str>) -> &'a str {
    let mut named = names.filter(|name| !name.is_empty());
    let first = named.next().unwrap_or_default();
    match named.all(|name| name == first) {
        true => first,
        false => SEVERAL_TYPES,
    }
}

fn require_bits(require: Option<PathKind>) -> u32 {
    require.map_or(0, PathKind::number) << REQUIRE_SHIFT
}

/// The path that a member requires, from the flags of its record.
pub(crate) fn require_of(qos_flags: u32) -> Option<PathKind> {
    PathKind::of_number(qos_flags >> REQUIRE_SHIFT & REQUIRE_MASK)
}

fn flags(reliable: bool, transient_local: bool) -> u32 {
    (u32::from(reliable) * RELIABLE) | (u32::from(transient_local) * TRANSIENT_LOCAL)
}

/// A topic.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) id: u64,
    /// Offset of its region in the control segment.
    pub(crate) region: u64,
    pub(crate) pool: Option<u32>,
    /// The daemon's copy of `membership_epoch`.
    pub(crate) epoch: u32,
    pub(crate) publishers: Vec<Publisher>,
    pub(crate) subscribers: Vec<Subscriber>,
    /// Per publisher slot, below which sequence numbers must not go again.
    pub(crate) starts: [u64; MAX_PUBLISHERS],
    /// A mask of publisher slots whose `head` a process overwrote with an invalid number. They stay unused while the topic exists.
    pub(crate) spoiled: u32,
    /// What former members did.
    pub(crate) past: Counts,
}

/// What members did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) received: u64,
    pub(crate) missed: u64,
}

// What is counted is written by clients: for show only, so a sum that runs over is no matter.
impl Counts {
    pub(crate) fn add_publisher(&mut self, publisher: &Publisher, words: &PublisherView<Shared>) {
        let head = words.head().load(Ordering::Relaxed);
        let messages = head.wrapping_sub(publisher.ring.start);
        self.messages = self.messages.wrapping_add(messages);
        let bytes = words.published_bytes().load(Ordering::Relaxed);
        self.bytes = self.bytes.wrapping_add(bytes);
    }

    pub(crate) fn add_subscriber(&mut self, words: &SubscriberView<Shared>) {
        let received = words.received().load(Ordering::Relaxed);
        self.received = self.received.wrapping_add(received);
        let missed = words.missed().load(Ordering::Relaxed);
        self.missed = self.missed.wrapping_add(missed);
    }
}

impl Topic {
    /// A topic without members.
    pub(crate) fn new(index: u32, name: String, id: u64, region: u64) -> Topic {
        Topic {
            index,
            name,
            id,
            region,
            pool: None,
            epoch: 0,
            publishers: Vec::new(),
            subscribers: Vec::new(),
            starts: [0; MAX_PUBLISHERS],
            spoiled: 0,
            past: Counts::default(),
        }
    }

    pub(crate) fn publisher(&self, slot: u32) -> Option<&Publisher> {
        self.publishers.iter().find(|p| p.slot == slot)
    }

    pub(crate) fn publisher_mut(&mut self, slot: u32) -> Option<&mut Publisher> {
        self.publishers.iter_mut().find(|p| p.slot == slot)
    }

    pub(crate) fn subscriber(&self, slot: u32) -> Option<&Subscriber> {
        self.subscribers.iter().find(|s| s.slot == slot)
    }

    pub(crate) fn subscriber_mut(&mut self, slot: u32) -> Option<&mut Subscriber> {
        self.subscribers.iter_mut().find(|s| s.slot == slot)
    }

    /// The orphan of a slot, and what it left.
    pub(crate) fn orphan(&self, slot: u32) -> Option<(&Publisher, Orphan)> {
        let publisher = self.publisher(slot)?;
        Some((publisher, publisher.orphan()?))
    }

    /// Publishers that left or died, and what each left.
    pub(crate) fn orphans(&self) -> impl Iterator<Item = (&Publisher, Orphan)> {
        let publishers = self.publishers.iter();
        publishers.filter_map(|publisher| Some((publisher, publisher.orphan()?)))
    }

    /// What `TopicRegion::publishers` should be.
    pub(crate) fn publisher_bits(&self) -> u64 {
        slot_bits(self.publishers.iter().map(|p| p.slot))
    }

    /// What `TopicRegion::subscribers` should be.
    pub(crate) fn subscriber_bits(&self) -> u64 {
        slot_bits(self.subscribers.iter().map(|s| s.slot))
    }

    /// What `TopicRegion::reliable` should be.
    pub(crate) fn reliable_bits(&self) -> u64 {
        let reliable = self.subscribers.iter().filter(|s| s.demand.reliable);
        slot_bits(reliable.map(|s| s.slot))
    }

    /// What `TopicRegion::elsewhere` should be.
    pub(crate) fn replica_bits(&self) -> u64 {
        let reads_replicas = |s: &&Subscriber| s.pool.is_some_and(|pool| self.pool != Some(pool));
        slot_bits(
            self.subscribers
                .iter()
                .filter(reads_replicas)
                .map(|s| s.slot),
        )
    }

    /// The device topic that one of its members forwards to or from.
    pub(crate) fn device(&self) -> Option<&Arc<Device>> {
        let living = self.publishers.iter().filter(|p| !p.is_orphan());
        let sends = living.filter_map(|p| p.device.as_ref());
        let receives = self.subscribers.iter().filter(|s| !s.closed);
        sends
            .chain(receives.filter_map(|s| s.device.as_ref()))
            .next()
    }

    /// The type of the topic's publishers, or of its subscribers if those name none.
    pub(crate) fn type_name(&self) -> &str {
        let sent = self.publishers.iter().map(|p| p.type_name.as_str());
        let expected = self.subscribers.iter().map(|s| s.type_name.as_str());
        match one_of(sent) {
            "" => one_of(expected),
            type_name => type_name,
        }
    }

    /// Whether a subscriber reads in this pool, for which publishers make copies there.
    pub(crate) fn is_read_in(&self, pool: u32) -> bool {
        self.subscribers.iter().any(|s| s.pool == Some(pool))
    }

    /// Pools in which subscribers read, other than the topic's.
    pub(crate) fn foreign_pools(&self) -> BTreeSet<u32> {
        let pools = self.subscribers.iter().filter_map(|s| s.pool);
        pools.filter(|pool| self.pool != Some(*pool)).collect()
    }

    /// Closes the subscriber of `slot`, so that publishers neither wait for it nor copy for it. The caller writes the topic's bits.
    pub(crate) fn close_subscriber(&mut self, slot: u32) {
        if let Some(subscriber) = self.subscriber_mut(slot) {
            subscriber.closed = true;
            subscriber.demand.reliable = false;
            subscriber.pool = None;
            subscriber.path = None;
        }
    }

    /// The lowest publisher slot that is free and not spoiled.
    pub(crate) fn free_publisher_slot(&self) -> Option<u32> {
        let taken = self.publisher_bits() | u64::from(self.spoiled);
        (0..MAX_PUBLISHERS as u32).find(|slot| taken >> slot & 1 == 0)
    }

    /// The lowest free subscriber slot: no holder word has its bit, and no publisher is about to clear it. `deferring`: a mask of
    /// slots whose deferred releases are not finished.
    pub(crate) fn free_subscriber_slot(&self, deferring: u64) -> Option<u32> {
        let taken = self.subscriber_bits() | deferring;
        (0..MAX_SUBSCRIBERS as u32).find(|slot| taken >> slot & 1 == 0)
    }

    /// The owner that the granule table has for leases of publisher slot `slot`.
    pub(crate) fn granule_owner(&self, slot: u32) -> u32 {
        1 + self.index * MAX_PUBLISHERS as u32 + slot
    }

    /// Whether the slot has a publisher of this incarnation that is no orphan.
    pub(crate) fn publishes(&self, slot: u32, incarnation: u64) -> bool {
        let publisher = self.publisher(slot);
        publisher.is_some_and(|p| p.incarnation == incarnation && !p.is_orphan())
    }

    /// Whether it has neither members nor orphans.
    pub(crate) fn is_deserted(&self) -> bool {
        self.publishers.is_empty() && self.subscribers.is_empty()
    }

    /// Its record, without members.
    pub(crate) fn record(&self) -> TopicRecord {
        let mut record = TopicRecord {
            state: RECORD_LIVE,
            name_bytes: self.name.len() as u32,
            topic_id: self.id,
            region_offset: self.region,
            pool: self.pool.unwrap_or(NO_POOL),
            reserved: 0,
            name: [0; MAX_TOPIC_NAME + 1],
            publishers: [PublisherRecord::default(); MAX_PUBLISHERS],
            subscribers: [SubscriberRecord::default(); MAX_SUBSCRIBERS],
        };
        record.name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        record
    }
}

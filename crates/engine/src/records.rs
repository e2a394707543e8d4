//! Reads a predecessor's records of topics from the registry. Drops invalid ones.

use crate::clients::Clients;
use crate::control::Control;
use crate::memory::Memory;
use crate::registry::RegistryFile;
use crate::topic::{
    require_of, Orphan, Publisher, PublisherOwner, Subscriber, Topic, NO_POOL, TOPIC_BYTES,
};
use crate::topics::Topics;
use rgaps_layout::{
    PublisherRecord, PublisherRegion, SubscriberRecord, TopicRecord, CONTROL_PAGE, MAX_DEPTH,
    RECORD_FREE, RECORD_LIVE, RECORD_ORPHAN, SEQUENCE_END,
};
use rgaps_session::{check_topic_name, Ring};
use rgaps_sync::atomic::Ordering;

const _: () = assert!(RECORD_FREE == 0, "a record in a hole of the file is free");

/// Reads the topics of a registry, and reserves their regions and doorbells in the control segment.
pub(crate) struct TopicRecords<'a> {
    pub(crate) registry: &'a RegistryFile,
    pub(crate) clients: &'a Clients,
    pub(crate) memory: &'a Memory,
    pub(crate) control: &'a mut Control,
}

impl TopicRecords<'_> {
    pub(crate) fn load(mut self) -> std::io::Result<Topics> {
        let mut topics = Topics::default();
        for (index, record) in self.registry.topics()? {
            match self.load_topic(index, &record, &topics) {
                Some(topic) => topics.add(topic),
                None => {
                    tracing::error!(
                        index,
                        "the registry's record of a topic is invalid; the topic is dropped"
                    );
                    self.registry.clear_topic(index)?;
                }
            }
        }
        Ok(topics)
    }

    fn load_topic(&mut self, index: u32, record: &TopicRecord, topics: &Topics) -> Option<Topic> {
        let name = text(&record.name, record.name_bytes)?;
        let pool = (record.pool != NO_POOL).then_some(record.pool);
        let sound = record.state == RECORD_LIVE
            && record.topic_id != 0
            && check_topic_name(&name).is_ok()
            && topics.find(&name).is_none()
            && record.region_offset % CONTROL_PAGE == 0
            && pool.is_none_or(|pool| self.memory.get(pool).is_some());
        if !sound || !self.control.reserve(record.region_offset, TOPIC_BYTES) {
            return None;
        }
        let view = self.control.topic(record.region_offset);
        let mut topic = Topic::new(index, name, record.topic_id, record.region_offset);
        topic.pool = pool;
        topic.epoch = view.membership_epoch().load(Ordering::Acquire);
        for (slot, record) in record.publishers.iter().enumerate() {
            if let Some(publisher) = self.load_publisher(index, slot as u32, record) {
                topic.starts[slot] = publisher.ring.start;
                topic.publishers.push(publisher);
            }
        }
        for (slot, record) in record.subscribers.iter().enumerate() {
            topic
                .subscribers
                .extend(self.load_subscriber(index, slot as u32, record));
            if view.subscriber(slot).closed().load(Ordering::Acquire) != 0 {
                topic.close_subscriber(slot as u32);
            }
        }
        Some(topic)
    }

    fn load_publisher(
        &mut self,
        topic: u32,
        slot: u32,
        record: &PublisherRecord,
    ) -> Option<Publisher> {
        if !matches!(record.state, RECORD_LIVE | RECORD_ORPHAN) {
            return None;
        }
        let Some(type_name) = self.reserve_publisher(topic, slot, record) else {
            tracing::error!(
                slot,
                "the registry's record of a publisher is invalid; the publisher is dropped"
            );
            return None;
        };
        let client = self
            .clients
            .get(record.client)
            .filter(|_| record.state == RECORD_LIVE);
        let known = client.is_some()
            && self
                .control
                .doorbells
                .reserve(record.doorbell, record.client);
        let owner = match known {
            true => PublisherOwner::Client(record.client),
            // `restore_words` finds the messages that it left.
            false => PublisherOwner::Orphan(Orphan {
                order: 0,
                tail: record.start,
                head: record.start,
                pending: 0,
            }),
        };
        Some(Publisher {
            slot,
            owner,
            client_name: client.map_or_else(String::new, |client| client.name.clone()),
            client_pid: client.map_or(0, |client| client.pid),
            incarnation: record.incarnation,
            offer: Publisher::offer_of(record),
            type_name,
            forgotten: Publisher::is_forgotten(record),
            of_links: Publisher::is_of_links(record),
            ring: Ring {
                region_offset: record.region_offset,
                ring_capacity: record.ring_capacity,
                block_capacity: record.block_capacity,
                depth: record.depth,
                start: record.start,
            },
            doorbell: if known { record.doorbell } else { 0 },
            pool: record.pool,
            require: require_of(record.qos_flags),
            remote_path: None,
            device: None,
        })
    }

    /// Reserves the region of a recorded publisher. Returns its type. None: the record is invalid.
    fn reserve_publisher(
        &mut self,
        topic: u32,
        slot: u32,
        record: &PublisherRecord,
    ) -> Option<String> {
        let geometry = PublisherRegion {
            ring_capacity: record.ring_capacity,
            block_capacity: record.block_capacity,
        };
        let sound = record.incarnation != 0
            && geometry.is_sound()
            && (1..=MAX_DEPTH).contains(&record.depth)
            && record.depth < record.ring_capacity
            && record.start < SEQUENCE_END
            && self.memory.get(record.pool).is_some()
            && record.region_offset % CONTROL_PAGE == 0;
        let type_name = self
            .registry
            .publisher_type(topic, slot, record.type_bytes)
            .ok()
            .filter(|_| sound)?;
        let reserved = self.control.reserve(record.region_offset, geometry.bytes());
        reserved.then_some(type_name)
    }

    fn load_subscriber(
        &mut self,
        topic: u32,
        slot: u32,
        record: &SubscriberRecord,
    ) -> Option<Subscriber> {
        if record.state != RECORD_LIVE || record.incarnation == 0 {
            return None;
        }
        let demand = Subscriber::demand_of(record);
        let type_name = self
            .registry
            .subscriber_type(topic, slot, record.type_bytes);
        // A subscriber without a client or a doorbell is kept until `remove_lost_subscribers` clears its bits.
        let known = self.clients.get(record.client).is_some()
            && self
                .control
                .doorbells
                .reserve(record.doorbell, record.client);
        let (client, doorbell) = if known {
            (record.client, record.doorbell)
        } else {
            (u32::MAX, 0)
        };
        let pool = record.pool.checked_sub(1);
        Some(Subscriber {
            slot,
            client,
            incarnation: record.incarnation,
            demand,
            observer: Subscriber::is_observer(record),
            // Without its type nobody can match it.
            closed: type_name.is_err(),
            type_name: type_name.unwrap_or_default(),
            doorbell,
            pool: pool.filter(|pool| self.memory.get(*pool).is_some()),
            path: None,
            device: None,
            remote: Vec::new(),
            require: require_of(record.qos_flags),
        })
    }
}

fn text(bytes: &[u8], length: u32) -> Option<String> {
    let bytes = bytes.get(..length as usize)?;
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

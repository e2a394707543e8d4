//! Joining a topic.

use crate::membership::{announce, begin_topic, fill_publisher, fill_subscriber};
use crate::qos::{check_demand, check_offer, mismatch};
use crate::random;
use crate::refuse::{bad, refuse, system};
use crate::sources::Sources;
use crate::step::step;
use crate::topic::{Owner, Publisher, Subscriber, Topic};
use crate::zone::Zone;
use rgaps_layout::{
    Domain, PublisherRegion, TopicRegion, CONTROL_PAGE, MAX_PUBLISHERS, MAX_SUBSCRIBERS,
    MAX_TOPICS, MAX_TYPE_NAME, SEQUENCE_END,
};
use rgaps_session::{Demand, Member, Offer, PoolGrant, Refusal, RefusalCode, Ring, Role, Side};
use rgaps_sync::atomic::Ordering;
use std::mem::size_of;

/// Bytes of a topic's range in the control segment.
pub(crate) const TOPIC_BYTES: u64 =
    (size_of::<TopicRegion>() as u64).next_multiple_of(CONTROL_PAGE);

/// What a client asks to join.
pub(crate) struct Wish<'a> {
    pub(crate) topic: &'a str,
    pub(crate) type_name: &'a str,
    pub(crate) domain: Option<Domain>,
    pub(crate) role: Role,
}

/// What it got.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) member: Member,
    pub(crate) region_offset: u64,
    pub(crate) topic_id: u64,
    pub(crate) doorbell: u32,
    pub(crate) ring: Ring,
    pub(crate) type_name: String,
    pub(crate) pool: Option<PoolGrant>,
}

impl Zone {
    /// Lets `client` join a topic, which is created if it is not there. The name is checked already.
    pub(crate) fn join(
        &mut self,
        client: u32,
        wish: &Wish<'_>,
        sources: &mut dyn Sources,
    ) -> Result<Seat, Refusal> {
        if wish.type_name.len() > MAX_TYPE_NAME || wish.type_name.contains('\0') {
            return Err(bad(format!(
                "a type's name has at most {MAX_TYPE_NAME} bytes and no NUL"
            )));
        }
        match &wish.role {
            Role::Publisher(offer) => check_offer(offer)?,
            Role::Subscriber(demand) => check_demand(demand)?,
        }
        let index = match self.names.get(wish.topic) {
            Some(index) => *index,
            None => self.create_topic(wish.topic)?,
        };
        let seat = self.join_topic(client, index, wish, sources);
        if seat.is_err() {
            self.remove_if_deserted(index);
        }
        seat
    }

    fn join_topic(
        &mut self,
        client: u32,
        index: u32,
        wish: &Wish<'_>,
        sources: &mut dyn Sources,
    ) -> Result<Seat, Refusal> {
        let topic = &self.topics[&index];
        self.check_fit(topic, wish)?;
        let named = topic.pool.map(|pool| self.pools[pool as usize].domain);
        let domain = match wish.role {
            Role::Publisher(_) => wish.domain.or(named).or(Some(Domain::Host)),
            Role::Subscriber(_) => wish.domain.or(named),
        };
        let pool = domain
            .map(|domain| self.pool_for(domain, sources))
            .transpose()?;
        let (side, slot, incarnation) = match wish.role {
            Role::Publisher(offer) => {
                let pool = pool.ok_or_else(|| bad("a publisher's domain is not known"))?;
                self.add_publisher(client, index, offer, pool)?
            }
            Role::Subscriber(demand) => self.add_subscriber(client, index, demand)?,
        };
        self.settle_topic(index, wish.type_name, pool);
        let member = Member {
            zone: self.id,
            topic: index,
            side,
            slot,
            incarnation,
        };
        Ok(self.seat(member, pool))
    }

    fn seat(&self, member: Member, pool: Option<u32>) -> Seat {
        let topic = &self.topics[&member.topic];
        let (doorbell, ring) = match member.side {
            Side::Publisher => topic
                .publisher(member.slot)
                .map(|p| (p.doorbell, p.ring))
                .unwrap_or_default(),
            Side::Subscriber => {
                let doorbell = topic.subscriber(member.slot).map(|s| s.doorbell);
                (doorbell.unwrap_or_default(), Ring::default())
            }
        };
        Seat {
            member,
            region_offset: topic.region,
            topic_id: topic.id,
            doorbell,
            ring,
            type_name: topic.type_name.clone(),
            pool: pool.map(|pool| self.pools[pool as usize].grant()),
        }
    }

    fn create_topic(&mut self, name: &str) -> Result<u32, Refusal> {
        let most = self.limits.topics.min(MAX_TOPICS as u32);
        let index = (0..most)
            .find(|index| !self.topics.contains_key(index))
            .ok_or_else(|| {
                refuse(
                    RefusalCode::LimitReached,
                    format!("there are {most} topics already; raise limits.topics in rgaps.toml"),
                )
            })?;
        let region = self.take_range(TOPIC_BYTES)?;
        let topic = Topic {
            index,
            name: name.to_owned(),
            type_name: String::new(),
            id: random::nonzero_u64(),
            region,
            pool: None,
            epoch: 0,
            publishers: Vec::new(),
            subscribers: Vec::new(),
            quarantine: Vec::new(),
            starts: [0; MAX_PUBLISHERS],
            spoiled: 0,
            held_up: 0,
        };
        begin_topic(&self.control, &topic);
        if let Err(error) = self.registry.set_topic(index, &topic.record()) {
            self.control.give(region, TOPIC_BYTES);
            return Err(system("write its registry", error));
        }
        self.names.insert(topic.name.clone(), index);
        self.topics.insert(index, topic);
        Ok(index)
    }

    /// A range of the control segment. How far ranges go is written down before it is used; and
    /// each time, because it goes back where those that were highest have been given back.
    fn take_range(&mut self, bytes: u64) -> Result<u64, Refusal> {
        let offset = self.control.take(bytes).ok_or_else(|| {
            refuse(
                RefusalCode::LimitReached,
                "the control segment is full; leave topics, or publish with less history",
            )
        })?;
        if let Err(error) = self.registry.set_control_used(self.control.used_end()) {
            self.control.give(offset, bytes);
            return Err(system("write its registry", error));
        }
        Ok(offset)
    }

    /// Type, domain and quality of service against those who are there.
    fn check_fit(&self, topic: &Topic, wish: &Wish<'_>) -> Result<(), Refusal> {
        let (has, wants) = (topic.type_name.as_str(), wish.type_name);
        if !has.is_empty() && !wants.is_empty() && has != wants {
            return Err(refuse(
                RefusalCode::TypeMismatch,
                format!(
                    "topic '{}' has type '{has}', not '{wants}'; join with that type or with \
                     none, or use another topic",
                    topic.name
                ),
            ));
        }
        let named = topic.pool.map(|pool| self.pools[pool as usize].domain);
        if let (Some(has), Some(wants)) = (named, wish.domain) {
            if has != wants {
                return Err(refuse(
                    RefusalCode::DomainMismatch,
                    format!(
                        "topic '{}' lives in {has}, not in {wants}; join without a domain, or \
                         use another topic",
                        topic.name
                    ),
                ));
            }
        }
        self.check_quality(topic, &wish.role)
    }

    fn check_quality(&self, topic: &Topic, role: &Role) -> Result<(), Refusal> {
        let clash = match role {
            Role::Publisher(offer) => topic.subscribers.iter().find_map(|subscriber| {
                let why = mismatch(offer, &subscriber.demand)?;
                Some(format!(
                    "subscriber {}: {why}",
                    self.describe_client(subscriber.client)
                ))
            }),
            Role::Subscriber(demand) => topic.publishers.iter().find_map(|publisher| {
                let why = mismatch(&publisher.offer, demand)?;
                let gone = if publisher.is_orphan() {
                    ", which has left its history"
                } else {
                    ""
                };
                Some(format!(
                    "publisher '{}' (process {}){gone}: {why}",
                    publisher.client_name, publisher.client_pid
                ))
            }),
        };
        match clash {
            None => Ok(()),
            Some(clash) => Err(refuse(
                RefusalCode::QosIncompatible,
                format!("topic '{}' does not fit with {clash}", topic.name),
            )),
        }
    }

    fn add_publisher(
        &mut self,
        client: u32,
        index: u32,
        offer: Offer,
        pool: u32,
    ) -> Result<(Side, u32, u64), Refusal> {
        let (slot, start) = self.publisher_slot(index)?;
        let geometry = PublisherRegion::for_history(offer.history.depth(), offer.loans);
        let doorbell = self.new_doorbell(client)?;
        let region_offset = match self.take_range(geometry.bytes()) {
            Ok(offset) => offset,
            Err(refusal) => {
                self.control.doorbells.give(doorbell);
                return Err(refusal);
            }
        };
        let publisher = Publisher {
            slot,
            owner: Owner::Client(client),
            client_name: self
                .clients
                .get(&client)
                .map_or_else(String::new, |c| c.name.clone()),
            client_pid: self.clients.get(&client).map_or(0, |c| c.pid),
            incarnation: random::nonzero_u64(),
            offer,
            ring: Ring {
                region_offset,
                ring_capacity: geometry.ring_capacity,
                block_capacity: geometry.block_capacity,
                depth: offer.history.depth(),
                start,
            },
            doorbell,
            pool,
        };
        if let Err(error) = self
            .registry
            .set_publisher(index, slot, &publisher.record())
        {
            self.control.doorbells.give(doorbell);
            self.control.give(region_offset, geometry.bytes());
            return Err(system("write its registry", error));
        }
        let incarnation = publisher.incarnation;
        let topic = self
            .topics
            .get_mut(&index)
            .expect("the topic that is being joined");
        step!("join.publisher");
        fill_publisher(&self.control.topic(topic.region), &publisher);
        topic.starts[slot as usize] = start;
        topic.publishers.push(publisher);
        announce(&self.control, topic);
        Ok((Side::Publisher, slot, incarnation))
    }

    /// A free publisher slot and where its sequence numbers go on. Takes an orphan's if need be.
    fn publisher_slot(&mut self, index: u32) -> Result<(u32, u64), Refusal> {
        loop {
            let topic = self
                .topics
                .get_mut(&index)
                .expect("the topic that is being joined");
            let Some(slot) = topic.free_publisher_slot() else {
                if self.evict_oldest_orphan(|topic, _| topic == index) {
                    continue;
                }
                return Err(refuse(
                    RefusalCode::LimitReached,
                    format!(
                        "topic '{}' has all the {MAX_PUBLISHERS} publishers that a topic may have on \
                         a host (those that left count while their messages are still read or \
                         held); close some, or spread them over several topics",
                        self.topics[&index].name
                    ),
                ));
            };
            let least = topic.starts[slot as usize];
            let view = self.control.topic(topic.region);
            let head = view.publisher(slot as usize).head().load(Ordering::Acquire);
            if head >= least && head < SEQUENCE_END {
                return Ok((slot, head));
            }
            // Cursors may have followed a head that somebody scribbled; no number is safe here.
            tracing::warn!(
                topic = topic.name,
                slot,
                head,
                "a publisher slot was scribbled over"
            );
            topic.spoiled |= 1 << slot;
        }
    }

    fn add_subscriber(
        &mut self,
        client: u32,
        index: u32,
        demand: Demand,
    ) -> Result<(Side, u32, u64), Refusal> {
        self.release_held_up(index);
        let slot = self.topics[&index].free_subscriber_slot().ok_or_else(|| {
            refuse(
                RefusalCode::LimitReached,
                format!(
                    "topic '{}' has all the {MAX_SUBSCRIBERS} subscribers that a topic may have on a \
                     host; close some, or let one process read for several",
                    self.topics[&index].name
                ),
            )
        })?;
        let doorbell = self.new_doorbell(client)?;
        let incarnation = random::nonzero_u64();
        let subscriber = Subscriber {
            slot,
            client,
            incarnation,
            demand,
            doorbell,
        };
        if let Err(error) = self
            .registry
            .set_subscriber(index, slot, &subscriber.record())
        {
            self.control.doorbells.give(doorbell);
            return Err(system("write its registry", error));
        }
        let topic = self
            .topics
            .get_mut(&index)
            .expect("the topic that is being joined");
        step!("join.subscriber");
        fill_subscriber(&self.control.topic(topic.region), topic, &subscriber);
        topic.subscribers.push(subscriber);
        announce(&self.control, topic);
        Ok((Side::Subscriber, slot, incarnation))
    }

    /// The first type and the first pool that somebody named become the topic's.
    fn settle_topic(&mut self, index: u32, type_name: &str, pool: Option<u32>) {
        let topic = self
            .topics
            .get_mut(&index)
            .expect("the topic that was joined");
        let mut written = Ok(());
        if topic.type_name.is_empty() && !type_name.is_empty() {
            topic.type_name = type_name.to_owned();
            written = self.registry.set_topic_type(index, type_name);
        }
        if let (None, Some(pool)) = (topic.pool, pool) {
            topic.pool = Some(pool);
            written = written.and(self.registry.set_topic_pool(index, pool));
        }
        if let Err(error) = written {
            tracing::error!(%error, topic = topic.name, "a topic's type or pool was not written down");
        }
    }
}

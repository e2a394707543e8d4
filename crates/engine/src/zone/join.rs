//! Joining a topic.

use super::Zone;
use crate::clients::{Client, Clients};
use crate::history::HistoryRoom;
use crate::membership::{announce, fill_publisher, fill_subscriber, take_over_subscriber};
use crate::paths::{check_domain, check_paths, Wish};
use crate::qos::{check_demand, check_offer};
use crate::random;
use crate::refuse::{bad, refuse, system};
use crate::seats::{empty_seats, vacate_seat};
use crate::sessions::is_owner;
use crate::sources::Sources;
use crate::step::step;
use crate::topic::{Publisher, PublisherOwner, Subscriber};
use crate::topics::Topics;
use rgaps_layout::{
    Domain, PublisherRegion, CONTROL_BYTES, MAX_PUBLISHERS, MAX_REPLICAS, MAX_SUBSCRIBERS,
    MAX_TYPE_NAME, SEQUENCE_END,
};
use rgaps_session::{
    Demand, Member, Offer, PoolGrant, Refusal, RefusalCode, Ring, Role, Side, ZoneGrant,
};
use rgaps_sync::atomic::Ordering;
use std::os::fd::OwnedFd;

/// The publishers of one user get at most this part of the control segment (one in so many bytes).
const CONTROL_SHARE: u64 = 4;

/// What a member gets when it joins.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) member: Member,
    pub(crate) region_offset: u64,
    pub(crate) topic_id: u64,
    pub(crate) doorbell: u32,
    pub(crate) ring: Ring,
    /// The topic's pool. None: the topic has had no publisher yet.
    pub(crate) pool: Option<PoolGrant>,
    /// The pool in which a subscriber reads. None: the topic's.
    pub(crate) reads: Option<PoolGrant>,
}

impl Zone {
    /// Lets `client` join a topic. Creates the topic if there is none. The caller has checked its name.
    pub(crate) fn join(
        &mut self,
        client: u32,
        wish: &Wish<'_>,
        sources: &mut dyn Sources,
    ) -> Result<Seat, Refusal> {
        if wish.type_name.len() > MAX_TYPE_NAME || wish.type_name.contains('\0') {
            return Err(bad(format!(
                "the name of a type must have at most {MAX_TYPE_NAME} bytes and no NUL"
            )));
        }
        match &wish.role {
            Role::Publisher(offer) => check_offer(offer)?,
            Role::Subscriber(demand) | Role::Observer(demand) => check_demand(demand)?,
        }
        let index = match self.topics.find(wish.topic) {
            Some(index) => index,
            None => {
                let (control, registry) = (&mut self.control, &self.registry);
                self.topics
                    .create(wish.topic, self.limits.topics, control, registry)?
            }
        };
        let seat = self.join_topic(client, index, wish, sources);
        if seat.is_err() {
            self.remove_if_deserted(index);
        }
        seat
    }

    /// The same as `join`, for a client that is not in the zone yet. If it cannot join, it is removed from the zone again.
    pub(crate) fn join_first(
        &mut self,
        client: Client,
        wish: &Wish<'_>,
        sources: &mut dyn Sources,
        out: &mut Vec<OwnedFd>,
    ) -> Result<(Seat, ZoneGrant), Refusal> {
        let grant = self.admit(client, out)?;
        let seat = self.join(grant.client_index, wish, sources);
        if seat.is_err() {
            self.remove_client(grant.client_index);
        }
        Ok((seat?, grant))
    }

    /// Adds a client to the zone, and puts descriptors of registry and control segment for it into `out`.
    pub(crate) fn admit(
        &mut self,
        client: Client,
        out: &mut Vec<OwnedFd>,
    ) -> Result<ZoneGrant, Refusal> {
        let opened = self.registry.client_fd().and_then(|registry| {
            out.extend([registry, self.control.fd().try_clone_to_owned()?]);
            Ok(())
        });
        opened.map_err(|e| system("open the zone for you", e))?;
        let client_index = self
            .clients
            .add(&self.registry, self.limits.clients, client)?;
        let client_id = self.clients.get(client_index).map_or(0, |c| c.id);
        Ok(ZoneGrant {
            client_index,
            client_id,
        })
    }

    fn join_topic(
        &mut self,
        client: u32,
        index: u32,
        wish: &Wish<'_>,
        sources: &mut dyn Sources,
    ) -> Result<Seat, Refusal> {
        let topic = &self.topics[index];
        check_domain(topic, wish, &self.memory)?;
        check_paths(client, topic, wish, &self.clients, &self.memory)?;
        let named = topic.pool;
        let (side, slot, incarnation) = match wish.role {
            Role::Publisher(offer) => {
                let pool = match (wish.domain, named) {
                    // `check_domain` has refused another domain.
                    (_, Some(pool)) => pool,
                    (domain, None) => {
                        let domain = domain.unwrap_or(Domain::Host);
                        self.memory.pool_for(domain, &self.registry, sources)?
                    }
                };
                let added = self.add_publisher(client, index, offer, pool, wish)?;
                self.settle_pool(index, pool);
                added
            }
            Role::Subscriber(demand) | Role::Observer(demand) => {
                let reads = self.reading_pool(index, wish.domain, sources)?;
                self.add_subscriber(client, index, demand, reads, wish)?
            }
        };
        Ok(self.seat(Member {
            zone: self.id,
            topic: index,
            side,
            slot,
            incarnation,
        }))
    }

    /// The pool in which a subscriber reads that names a domain. None: the topic's.
    fn reading_pool(
        &mut self,
        index: u32,
        domain: Option<Domain>,
        sources: &mut dyn Sources,
    ) -> Result<Option<u32>, Refusal> {
        let Some(domain) = domain else {
            return Ok(None);
        };
        let pool = self.memory.pool_for(domain, &self.registry, sources)?;
        let topic = &self.topics[index];
        if topic.pool == Some(pool) {
            return Ok(None);
        }
        let mut foreign = topic.foreign_pools();
        foreign.insert(pool);
        if foreign.len() > MAX_REPLICAS {
            return Err(refuse(
                RefusalCode::LimitReached,
                format!(
                    "subscribers of topic '{}' already read in {MAX_REPLICAS} other domains, which is \
                     the limit; join without a domain, or read in one of those",
                    topic.name
                ),
            ));
        }
        Ok(Some(pool))
    }

    fn seat(&self, member: Member) -> Seat {
        let topic = &self.topics[member.topic];
        let (doorbell, ring, reads) = match member.side {
            Side::Publisher => topic
                .publisher(member.slot)
                .map(|p| (p.doorbell, p.ring, None))
                .unwrap_or_default(),
            Side::Subscriber => {
                let subscriber = topic.subscriber(member.slot);
                let doorbell = subscriber.map(|s| s.doorbell).unwrap_or_default();
                (doorbell, Ring::default(), subscriber.and_then(|s| s.pool))
            }
        };
        let grant = |pool: u32| self.memory.pool(pool).grant();
        Seat {
            member,
            region_offset: topic.region,
            topic_id: topic.id,
            doorbell,
            ring,
            pool: topic.pool.map(grant),
            reads: reads.map(grant),
        }
    }

    fn add_publisher(
        &mut self,
        client: u32,
        index: u32,
        offer: Offer,
        pool: u32,
        wish: &Wish<'_>,
    ) -> Result<(Side, u32, u64), Refusal> {
        let (slot, start) = self.publisher_slot(index)?;
        let geometry = PublisherRegion::for_history(offer.history.depth(), offer.loans);
        let (doorbell, region_offset) = self.take_ring(client, geometry.bytes())?;
        let known = self.clients.get(client);
        let publisher = Publisher {
            slot,
            owner: PublisherOwner::Client(client),
            client_name: known.map_or_else(String::new, |c| c.name.clone()),
            client_pid: known.map_or(0, |c| c.pid),
            incarnation: random::nonzero_u64(),
            offer,
            type_name: wish.type_name.to_owned(),
            forgotten: false,
            of_links: self.clients.is_links(client),
            ring: Ring {
                region_offset,
                ring_capacity: geometry.ring_capacity,
                block_capacity: geometry.block_capacity,
                depth: offer.history.depth(),
                start,
            },
            doorbell,
            pool,
            require: wish.require,
            remote_path: wish.remote_path.clone(),
            device: None,
        };
        if let Err(error) = self.registry.set_publisher(index, &publisher) {
            self.control.doorbells.give(doorbell);
            self.control.give(region_offset, geometry.bytes());
            return Err(system("write its registry", error));
        }
        let incarnation = publisher.incarnation;
        let topic = &mut self.topics[index];
        step!("join.publisher");
        fill_publisher(&self.control.topic(topic.region), topic, &publisher);
        topic.starts[slot as usize] = start;
        topic.publishers.push(publisher);
        announce(&self.control, topic);
        Ok((Side::Publisher, slot, incarnation))
    }

    /// Takes a doorbell, and a range of the control segment for a ring: both or neither.
    fn take_ring(&mut self, client: u32, bytes: u64) -> Result<(u32, u64), Refusal> {
        let doorbell = self.control.doorbells.take(client)?;
        let region = check_control_share(client, bytes, &self.clients, &self.topics)
            .and_then(|()| self.control.take(bytes, &self.registry));
        if region.is_err() {
            self.control.doorbells.give(doorbell);
        }
        Ok((doorbell, region?))
    }

    /// A free publisher slot, and the sequence number at which it goes on. Evicts history if no slot is free.
    fn publisher_slot(&mut self, index: u32) -> Result<(u32, u64), Refusal> {
        loop {
            let topic = &mut self.topics[index];
            let Some(slot) = topic.free_publisher_slot() else {
                if self.make_room(HistoryRoom::InTopic(index)) {
                    continue;
                }
                return Err(refuse(
                    RefusalCode::LimitReached,
                    format!(
                        "topic '{}' has {MAX_PUBLISHERS} publishers, which is the limit on \
                         a host (those that ended count while subscribers still read or hold their \
                         messages); close some, or spread them over several topics",
                        self.topics[index].name
                    ),
                ));
            };
            let least = topic.starts[slot as usize];
            let words = self.control.publisher(topic, slot);
            let head = words.head().load(Ordering::Acquire);
            if head >= least && head < SEQUENCE_END {
                return Ok((slot, head));
            }
            // Cursors may have followed the invalid head, so no number is safe for this slot.
            tracing::warn!(
                topic = topic.name,
                slot,
                head,
                "a process wrote an invalid head to a publisher's slot; the slot is not used any more"
            );
            topic.spoiled |= 1 << slot;
        }
    }

    fn add_subscriber(
        &mut self,
        client: u32,
        index: u32,
        demand: Demand,
        pool: Option<u32>,
        wish: &Wish<'_>,
    ) -> Result<(Side, u32, u64), Refusal> {
        self.deferred.release(&self.topics[index], &self.control);
        let is_links = self.clients.is_links(client);
        let seat = match is_links {
            true => self.take_seat(index, demand, pool),
            false => None,
        };
        let slot = match &seat {
            Some(seat) => seat.slot,
            None => self.subscriber_slot(index)?,
        };
        let doorbell = self.control.doorbells.take(client)?;
        let mut subscriber = Subscriber {
            slot,
            client,
            incarnation: random::nonzero_u64(),
            demand,
            observer: matches!(wish.role, Role::Observer(_)),
            type_name: wish.type_name.to_owned(),
            closed: false,
            doorbell,
            pool,
            path: None,
            device: None,
            remote: Vec::new(),
            require: wish.require,
        };
        if let Err(error) = self.registry.set_subscriber(index, &subscriber) {
            self.control.doorbells.give(doorbell);
            return Err(system("write its registry", error));
        }
        let incarnation = subscriber.incarnation;
        let topic = &mut self.topics[index];
        let view = self.control.topic(topic.region);
        if let Some(seat) = seat {
            step!("join.seat");
            self.control.doorbells.give(seat.doorbell);
            topic.past.add_subscriber(&view.subscriber(slot as usize));
            topic.subscribers.retain(|known| known.slot != slot);
            take_over_subscriber(&view, &subscriber);
            (subscriber.path, subscriber.remote) = (seat.path, seat.remote);
        } else {
            step!("join.subscriber");
            // A subscriber of the links does not count itself, and stands for nobody yet.
            fill_subscriber(&view, topic, &subscriber, u32::from(is_links));
        }
        topic.subscribers.push(subscriber);
        announce(&self.control, topic);
        self.forget_seatless();
        Ok((Side::Subscriber, slot, incarnation))
    }

    fn subscriber_slot(&self, index: u32) -> Result<u32, Refusal> {
        let topic = &self.topics[index];
        let slot = topic.free_subscriber_slot(self.deferred.slots_of(index));
        slot.ok_or_else(|| {
            refuse(
                RefusalCode::LimitReached,
                format!(
                    "topic '{}' has {MAX_SUBSCRIBERS} subscribers, which is the limit on a \
                     host; close some, or let one process read for several others",
                    topic.name
                ),
            )
        })
    }

    /// Vacates and returns an empty seat of the topic that suits links with this demand and pool. Removes the other empty seats of
    /// the topic, since links have only one subscriber there.
    fn take_seat(&mut self, index: u32, demand: Demand, pool: Option<u32>) -> Option<Subscriber> {
        let mut taken = None;
        for seat in empty_seats(&self.topics[index], &self.clients, &self.registry) {
            let topic = &self.topics[index];
            let is_taken = demand.reliable
                && seat.pool == pool
                && taken.is_none()
                && vacate_seat(topic, seat.slot, &self.clients, &self.control).is_some();
            match is_taken {
                true => taken = Some(seat),
                // `remove_subscriber` keeps the topic even if that empties it: a client is joining it.
                false => drop(self.remove_subscriber(index, seat.slot)),
            }
        }
        taken
    }

    /// Removes vacant clients without any seat left.
    fn forget_seatless(&mut self) {
        for index in self.clients.vacant() {
            if self.topics.members_of(index).is_empty() {
                self.remove_client(index);
            }
        }
    }

    /// Makes the first publisher's pool the topic's. Subscribers that joined earlier and read in that pool need no replicas.
    fn settle_pool(&mut self, index: u32, pool: u32) {
        let topic = &mut self.topics[index];
        if topic.pool.is_some() {
            return;
        }
        topic.pool = Some(pool);
        let view = self.control.topic(topic.region);
        view.elsewhere()
            .store(topic.replica_bits(), Ordering::Release);
        self.registry.set_topic_pool(index, pool);
    }
}

/// Refuses a range to a user whose publishers have their share of the control segment already. Root and the daemon's user have no
/// such limit.
fn check_control_share(
    client: u32,
    bytes: u64,
    clients: &Clients,
    topics: &Topics,
) -> Result<(), Refusal> {
    let uid_of = |client: u32| clients.get(client).map(|client| client.uid);
    let uid = uid_of(client);
    if uid.is_none_or(is_owner) {
        return Ok(());
    }
    let publishers = topics.iter().flat_map(|topic| &topic.publishers);
    let own = publishers.filter(|p| p.client().and_then(uid_of) == uid);
    let has: u64 = own.map(|publisher| publisher.geometry().bytes()).sum();
    if has + bytes <= CONTROL_BYTES / CONTROL_SHARE {
        return Ok(());
    }
    Err(refuse(
        RefusalCode::LimitReached,
        format!(
            "the publishers of user {} have {has} bytes of the control segment, of which one user gets 1/{CONTROL_SHARE}; \
             close publishers, or publish with less history",
            uid.unwrap_or_default()
        ),
    ))
}

//! Joining a topic.

use crate::history::Room;
use crate::membership::{announce, begin_topic, fill_publisher, fill_subscriber};
use crate::qos::{check_demand, check_offer};
use crate::random;
use crate::refuse::{bad, refuse, system};
use crate::sessions::is_owner;
use crate::sources::Sources;
use crate::step::step;
use crate::topic::{Counts, Owner, Publisher, Subscriber, Topic};
use crate::zone::Zone;
use rgaps_layout::{
    Domain, PublisherRegion, TopicRegion, CONTROL_BYTES, CONTROL_PAGE, MAX_PUBLISHERS,
    MAX_REPLICAS, MAX_SUBSCRIBERS, MAX_TOPICS, MAX_TYPE_NAME, SEQUENCE_END,
};
use rgaps_session::{
    CameOver, Demand, Member, Offer, PathKind, PoolGrant, Refusal, RefusalCode, Ring, Role, Side,
};
use rgaps_sync::atomic::Ordering;
use std::mem::size_of;

/// One user's publishers get this part of the control segment (one in so many bytes).
const CONTROL_SHARE: u64 = 4;

/// Bytes of a topic's range in the control segment.
pub(crate) const TOPIC_BYTES: u64 =
    (size_of::<TopicRegion>() as u64).next_multiple_of(CONTROL_PAGE);

/// What a client asks to join.
pub(crate) struct Wish<'a> {
    pub(crate) topic: &'a str,
    pub(crate) type_name: &'a str,
    pub(crate) domain: Option<Domain>,
    pub(crate) role: Role,
    pub(crate) require: Option<PathKind>,
    /// Of a publisher of the links: how its messages come to this host.
    pub(crate) came_over: Option<CameOver>,
}

/// What it got.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) member: Member,
    pub(crate) region_offset: u64,
    pub(crate) topic_id: u64,
    pub(crate) doorbell: u32,
    pub(crate) ring: Ring,
    pub(crate) pool: Option<PoolGrant>,
    pub(crate) reads: Option<PoolGrant>,
}

/// The best path from messages that live in `home` to who reads in a domain, and why it is no better. Whether
/// two GPUs are peers only their processes know.
///
/// `came_over`: the messages come from another host.
fn path(
    home: Domain,
    reads: Option<Domain>,
    came_over: Option<(PathKind, String)>,
) -> (PathKind, String) {
    let reads = reads.unwrap_or(home);
    match (came_over, home, reads) {
        (Some(path), ..) => path,
        (None, Domain::Cuda(from), Domain::Cuda(to)) if from != to => {
            let why = format!("the messages are on {home}, and the subscriber reads on {reads}");
            (PathKind::Peer, why)
        }
        (None, from, to) if from == to => (PathKind::ZeroCopy, String::new()),
        _ => {
            let why = format!("the messages are in {home}, and the subscriber reads in {reads}");
            (PathKind::Pinned, why)
        }
    }
}

/// The path of what the links publish, and why it is no better.
fn from_remote(came_over: Option<&CameOver>) -> (PathKind, String) {
    let unsaid = (PathKind::Tcp, "their path is not known yet");
    let (path, why) = came_over.map_or(unsaid, |over| (over.path, &over.why));
    let from = "the messages come from another host";
    match why {
        "" => (path, from.to_owned()),
        why => (path, format!("{from}: {why}")),
    }
}

/// Which side requires a faster path than this one.
fn too_slow(
    publisher: Option<PathKind>,
    subscriber: Option<PathKind>,
    (path, why): &(PathKind, String),
) -> Option<String> {
    let sides = [("publisher", publisher), ("subscriber", subscriber)];
    let (side, require) = sides
        .into_iter()
        .find_map(|(side, require)| Some((side, require.filter(|require| require > path)?)))?;
    Some(format!(
        "the {side} requires a path of {require} or better, and this one is {path}: {why}; read in the \
         domain of the messages, or require less"
    ))
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
                "the name of a type must have at most {MAX_TYPE_NAME} bytes and no NUL"
            )));
        }
        match &wish.role {
            Role::Publisher(offer) => check_offer(offer)?,
            Role::Subscriber(demand) | Role::Observer(demand) => check_demand(demand)?,
        }
        let index = match self.topics.find(wish.topic) {
            Some(index) => index,
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
        let topic = &self.topics[index];
        self.check_domain(topic, wish)?;
        self.check_paths(client, topic, wish)?;
        let named = topic.pool;
        let (side, slot, incarnation) = match wish.role {
            Role::Publisher(offer) => {
                let pool = match (wish.domain, named) {
                    // `check_domain` has compared them.
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

    /// Where a subscriber reads that names a domain; none: where the messages are.
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

    fn create_topic(&mut self, name: &str) -> Result<u32, Refusal> {
        let most = self.limits.topics.min(MAX_TOPICS as u32);
        let index = self
            .topics
            .free_index(most)
            .ok_or_else(|| {
                refuse(
                    RefusalCode::LimitReached,
                    format!(
                        "the limit of {most} topics is reached; raise limits.topics in rgaps.toml, then run 'rgaps down'"
                    ),
                )
            })?;
        let region = self.take_range(TOPIC_BYTES)?;
        let topic = Topic {
            index,
            name: name.to_owned(),
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
            past: Counts::default(),
        };
        begin_topic(&self.control, &topic);
        if let Err(error) = self.registry.set_topic(index, &topic.record()) {
            self.control.give(region, TOPIC_BYTES);
            return Err(system("write its registry", error));
        }
        self.topics.add(topic);
        Ok(index)
    }

    /// A range of the control segment. How far ranges go is written down before it is used; and
    /// each time, because it goes back where those that were highest have been given back.
    fn take_range(&mut self, bytes: u64) -> Result<u64, Refusal> {
        let offset = self.control.take(bytes).ok_or_else(|| {
            refuse(
                RefusalCode::LimitReached,
                "the control segment is full; close publishers, or publish with less history",
            )
        })?;
        if let Err(error) = self.registry.set_control_used(self.control.used_end()) {
            self.control.give(offset, bytes);
            return Err(system("write its registry", error));
        }
        Ok(offset)
    }

    /// Refuses a range to a user, other than root and the daemon's own, whose publishers have their share of the control
    /// segment.
    fn check_control_share(&self, client: u32, bytes: u64) -> Result<(), Refusal> {
        let uid_of = |client: u32| self.clients.get(client).map(|client| client.uid);
        let uid = uid_of(client);
        if uid.is_none_or(is_owner) {
            return Ok(());
        }
        let publishers = self.topics.iter().flat_map(|topic| &topic.publishers);
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

    /// A publisher's domain against the topic's.
    fn check_domain(&self, topic: &Topic, wish: &Wish<'_>) -> Result<(), Refusal> {
        let named = topic.pool.map(|pool| self.memory.domain(pool));
        if let (Role::Publisher(_), Some(has), Some(wants)) = (&wish.role, named, wish.domain) {
            if has != wants {
                return Err(refuse(
                    RefusalCode::DomainMismatch,
                    format!(
                        "topic '{}' is in {has}, not in {wants}; publish without a domain, or \
                         use another topic",
                        topic.name
                    ),
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn describe_publisher(&self, publisher: &Publisher) -> String {
        let gone = match publisher.is_orphan() {
            true => ", which has ended and left its history",
            false => "",
        };
        format!(
            "publisher '{}' (process {}){gone}",
            publisher.client_name, publisher.client_pid
        )
    }

    /// The paths to or from those who are there, against what either side requires. What goes to other
    /// hosts is for the links, which do not carry it where it is slower than its publisher requires.
    fn check_paths(&self, client: u32, topic: &Topic, wish: &Wish<'_>) -> Result<(), Refusal> {
        let own = self.clients.is_links(client);
        let domain_of = |pool: u32| self.memory.domain(pool);
        let clash = match wish.role {
            Role::Publisher(_) => {
                let home = topic.pool.map(domain_of).or(wish.domain);
                let home = home.unwrap_or(Domain::Host);
                let mut others = topic.subscribers.iter();
                others.find_map(|subscriber| {
                    if self.clients.is_links(subscriber.client) {
                        return None;
                    }
                    let came_over = own.then(|| from_remote(wish.came_over.as_ref()));
                    let path = path(home, subscriber.pool.map(domain_of), came_over);
                    let why = too_slow(wish.require, subscriber.require, &path)?;
                    let who = self.clients.describe(subscriber.client);
                    Some(format!("subscriber {who}: {why}"))
                })
            }
            Role::Subscriber(_) | Role::Observer(_) if own => None,
            Role::Subscriber(_) | Role::Observer(_) => {
                topic.publishers.iter().find_map(|publisher| {
                    let from_remote = || from_remote(publisher.came_over.as_ref());
                    let came_over = publisher.of_links.then(from_remote);
                    let path = path(domain_of(publisher.pool), wish.domain, came_over);
                    let why = too_slow(publisher.require, wish.require, &path)?;
                    Some(format!("{}: {why}", self.describe_publisher(publisher)))
                })
            }
        };
        match clash {
            None => Ok(()),
            Some(clash) => Err(refuse(
                RefusalCode::PathTooSlow,
                format!(
                    "joining topic '{}' is refused because of {clash}",
                    topic.name
                ),
            )),
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
            owner: Owner::Client(client),
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
            came_over: wish.came_over.clone(),
        };
        if let Err(error) =
            self.registry
                .set_publisher(index, slot, &publisher.record(), wish.type_name)
        {
            self.control.doorbells.give(doorbell);
            self.control.give(region_offset, geometry.bytes());
            return Err(system("write its registry", error));
        }
        let incarnation = publisher.incarnation;
        let topic = self
            .topics
            .get_mut(index)
            .expect("the topic that is being joined");
        step!("join.publisher");
        fill_publisher(&self.control.topic(topic.region), topic, &publisher);
        topic.starts[slot as usize] = start;
        topic.publishers.push(publisher);
        announce(&self.control, topic);
        Ok((Side::Publisher, slot, incarnation))
    }

    /// A doorbell, and a range of the control segment for a ring: both or neither.
    fn take_ring(&mut self, client: u32, bytes: u64) -> Result<(u32, u64), Refusal> {
        let doorbell = self.new_doorbell(client)?;
        let region = self
            .check_control_share(client, bytes)
            .and_then(|()| self.take_range(bytes));
        if region.is_err() {
            self.control.doorbells.give(doorbell);
        }
        Ok((doorbell, region?))
    }

    /// A free publisher slot and where its sequence numbers go on. Takes an orphan's if need be.
    fn publisher_slot(&mut self, index: u32) -> Result<(u32, u64), Refusal> {
        loop {
            let topic = self
                .topics
                .get_mut(index)
                .expect("the topic that is being joined");
            let Some(slot) = topic.free_publisher_slot() else {
                if self.evict_oldest_orphan(Room::InTopic(index)) {
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
        self.release_held_up(index);
        let is_links = self.clients.is_links(client);
        let seat = match is_links {
            true => self.take_seat(index, demand, pool),
            false => None,
        };
        if let Some(seat) = seat {
            let taken = self.sit_down(client, index, demand, wish, seat);
            self.forget_seatless();
            return taken;
        }
        let slot = self.subscriber_slot(index)?;
        let doorbell = self.new_doorbell(client)?;
        let incarnation = random::nonzero_u64();
        let subscriber = Subscriber {
            slot,
            client,
            incarnation,
            demand,
            observer: matches!(wish.role, Role::Observer(_)),
            type_name: wish.type_name.to_owned(),
            closed: false,
            doorbell,
            pool,
            path: None,
            remote: Vec::new(),
            require: wish.require,
        };
        if let Err(error) =
            self.registry
                .set_subscriber(index, slot, &subscriber.record(), wish.type_name)
        {
            self.control.doorbells.give(doorbell);
            return Err(system("write its registry", error));
        }
        let topic = self
            .topics
            .get_mut(index)
            .expect("the topic that is being joined");
        step!("join.subscriber");
        // One of the links' is none itself, and stands for nobody yet.
        let stands_for = u32::from(is_links);
        fill_subscriber(
            &self.control.topic(topic.region),
            topic,
            &subscriber,
            stands_for,
        );
        topic.subscribers.push(subscriber);
        announce(&self.control, topic);
        Ok((Side::Subscriber, slot, incarnation))
    }

    fn subscriber_slot(&self, index: u32) -> Result<u32, Refusal> {
        let topic = &self.topics[index];
        topic.free_subscriber_slot().ok_or_else(|| {
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

    /// Links take the seat of those before them: its bit and its cursors stay as they are.
    fn sit_down(
        &mut self,
        client: u32,
        index: u32,
        demand: Demand,
        wish: &Wish<'_>,
        seat: Subscriber,
    ) -> Result<(Side, u32, u64), Refusal> {
        let doorbell = self.new_doorbell(client)?;
        let former = seat.doorbell;
        let subscriber = Subscriber {
            client,
            incarnation: random::nonzero_u64(),
            demand,
            observer: matches!(wish.role, Role::Observer(_)),
            type_name: wish.type_name.to_owned(),
            closed: false,
            doorbell,
            require: wish.require,
            ..seat
        };
        let (slot, incarnation) = (subscriber.slot, subscriber.incarnation);
        if let Err(error) =
            self.registry
                .set_subscriber(index, slot, &subscriber.record(), wish.type_name)
        {
            self.control.doorbells.give(doorbell);
            return Err(system("write its registry", error));
        }
        step!("join.seat");
        self.control.doorbells.give(former);
        let topic = self
            .topics
            .get_mut(index)
            .expect("the topic that is being joined");
        let view = self.control.topic(topic.region);
        let words = view.subscriber(slot as usize);
        topic.past.add_subscriber(&words);
        words.received().store(0, Ordering::Relaxed);
        words.missed().store(0, Ordering::Relaxed);
        words.held().store(0, Ordering::Relaxed);
        words.depth().store(demand.depth, Ordering::Relaxed);
        words.resumes().store(1, Ordering::Relaxed);
        words.doorbell().store(doorbell, Ordering::Relaxed);
        words.incarnation().store(incarnation, Ordering::Release);
        if let Some(known) = topic.subscribers.iter_mut().find(|s| s.slot == slot) {
            *known = subscriber;
        }
        announce(&self.control, topic);
        Ok((Side::Subscriber, slot, incarnation))
    }

    /// The first publisher's pool becomes the topic's. Subscribers that came before it and read there
    /// read elsewhere no more.
    fn settle_pool(&mut self, index: u32, pool: u32) {
        let topic = self
            .topics
            .get_mut(index)
            .expect("the topic that was joined");
        if topic.pool.is_some() {
            return;
        }
        topic.pool = Some(pool);
        let view = self.control.topic(topic.region);
        view.elsewhere()
            .store(topic.replica_bits(), Ordering::Release);
        if let Err(error) = self.registry.set_topic_pool(index, pool) {
            tracing::error!(%error, topic = topic.name, "recording the pool of a topic failed");
        }
    }
}

//! One thread that owns what the links know: this host's topics, other hosts, and what goes between them.
//! Zenoh's threads, the links' and the one here that looks at the daemon send it what happened; a few times a
//! second it makes what is so what should be so.

use crate::committed::Committed;
use crate::forward::{Forwarder, Order, Route};
use crate::keys::{Node as Host, Want, PLANE_VERSION};
use crate::land::{Heard, Landing, Landings, Ours};
use crate::peer::{Incoming, Peer};
use crate::plane::{random_u64, versions, Address, LaneSecret, News, Plane};
use crate::wire::{clip, Said, Stream, SAID};
use anyhow::Context;
use rgaps::links::{Demand, InterestRow, Links, LinksTls, LINKS_CLIENT, MAX_REMOTE_HOSTS};
use rgaps::{
    Config, Domain, Late, Node, PeersInfo, PublisherQos, RemoteRow, Subscriber, SubscriberQos,
};
use rgaps_transport::{
    Endpoint, EndpointConfig, Event, Flow, LaneKey, LinkConfig, Peer as LanePeer, Security, Tls,
    TlsFiles,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often this host's topics are looked at, and what is so is made what should be.
const LOOK: Duration = Duration::from_millis(50);
/// How long a want that was taken back stays, in case that the host is gone and not the want.
const WANT_STAYS: Duration = Duration::from_millis(500);
/// Pause before a host is asked again how to reach it.
const MEET_AGAIN: Duration = Duration::from_millis(200);
/// Pause before what this host's daemon refused is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How often the daemon is told of the other hosts.
const TELL: Duration = Duration::from_millis(500);
/// Hosts that are linked with.
const MAX_PEERS: usize = MAX_REMOTE_HOSTS;
/// Lives of hosts that are remembered.
const MAX_LIVES: usize = 4 * MAX_PEERS;
/// How long former links may take to be gone.
const FORMER_LIMIT: Duration = Duration::from_secs(10);
/// Topics that one host wants.
const MAX_WANTS: usize = 8192;
/// Threads that forward topics.
const FORWARDERS: usize = 2;
/// Loans of a publisher that stands for one elsewhere.
const LANDING_LOANS: u32 = 256;

/// What is known of a life of another host's links. A dead one may be heard of for a while beside the next.
struct Life {
    node: Host,
    /// Once its token was seen.
    protocol: Option<u32>,
    wants: BTreeMap<String, Want>,
}

/// A topic of this host that others want.
struct Outward {
    /// What its subscriber asks for, once there is one.
    has: Option<(Demand, Subscriber)>,
    /// The streams of the hosts that it goes to.
    streams: BTreeMap<String, (u64, Want)>,
    /// Why there is no subscriber, and when that is tried again.
    failed: Option<(String, Instant)>,
    /// What the daemon was told.
    told: Option<Vec<RemoteRow>>,
    /// Publishers that were seen.
    publishers: BTreeSet<u64>,
}

/// The links of this host.
pub struct Coordinator {
    node: Node,
    config: Config,
    own: Host,
    plane: Plane,
    endpoint: Endpoint,
    committed: Committed,
    ours: Ours,
    forwarders: Vec<Forwarder>,
    peers: BTreeMap<String, Peer>,
    /// The last that came is the last.
    lives: Vec<Life>,
    topics: BTreeMap<String, Outward>,
    rows: BTreeMap<String, InterestRow>,
    /// Of the rows, and of the daemon that told them.
    version: (u64, u64),
    news: Receiver<News>,
    heard: Receiver<(String, Heard)>,
    hear: Sender<(String, Heard)>,
    told: Option<(PeersInfo, Instant)>,
    /// Something has changed since the topics were looked at.
    dirty: bool,
    reconcile_at: Instant,
}

impl Coordinator {
    /// Joins the daemon and the realm's other hosts.
    pub fn start(config: Config) -> anyhow::Result<Coordinator> {
        let links = &config.links;
        let host = links.host_name().map_err(anyhow::Error::msg)?;
        let own = Host {
            host,
            incarnation: random_u64()?,
        };
        let mut of_node = config.clone();
        // Whoever links hosts does not start daemons.
        of_node.autostart = false;
        let node = Node::builder(LINKS_CLIENT).config(of_node).build()?;
        let mut beside = config.socket_path().into_os_string();
        beside.push(".links");
        wait_for_former(&node)?;
        let departed = node.interest(0)?.departed.into_iter().collect();
        let committed = Committed::open(beside.as_ref(), &departed)?;
        let listen = links.listen.context("links.listen names no address")?;
        let security = security(links)?;
        let endpoint = Endpoint::new(EndpointConfig {
            incarnation: own.incarnation,
            realm: number_of(&config.realm),
            listen: Some(listen),
            security,
        })?;
        let lanes: Vec<SocketAddr> = endpoint.local_addr().into_iter().collect();
        let ours = Ours::default();
        let forwarders = (0..FORWARDERS).map(|_| Forwarder::start(&node, ours.clone()));
        let forwarders = forwarders
            .collect::<std::io::Result<_>>()
            .context("creating a thread")?;
        let (told, news) = channel();
        let (hear, heard) = channel();
        let plane = Plane::join(&config.realm, links, own.clone(), lanes.clone(), told)?;
        tracing::info!(
            host = own.host,
            realm = config.realm,
            ?lanes,
            "links are ready"
        );
        Ok(Coordinator {
            node,
            own,
            plane,
            endpoint,
            committed,
            ours,
            forwarders,
            peers: BTreeMap::new(),
            lives: Vec::new(),
            topics: BTreeMap::new(),
            rows: BTreeMap::new(),
            version: (0, 0),
            news,
            heard,
            hear,
            told: None,
            dirty: true,
            reconcile_at: Instant::now(),
            config,
        })
    }

    /// Runs until it is to stop, or the daemon is gone for good.
    pub fn run(mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            // What links tell is what others wait for; the rest has time.
            while let Ok((host, heard)) = self.heard.try_recv() {
                self.listen(&host, heard);
            }
            while let Ok(news) = self.news.try_recv() {
                self.learn(news);
            }
            match self.look() {
                Ok(()) => {}
                Err(error) => tracing::warn!("the daemon does not say who is there: {error:#}"),
            }
            self.reconcile();
            self.tell();
            let left = LOOK.saturating_sub(begun.elapsed());
            if let Ok((host, heard)) = self.heard.recv_timeout(left) {
                self.listen(&host, heard);
            }
        }
        self.leave();
        Ok(())
    }

    fn leave(self) {
        let Coordinator {
            plane,
            endpoint,
            forwarders,
            peers,
            topics,
            ..
        } = self;
        drop((forwarders, topics));
        plane.leave();
        for peer in peers.values() {
            if let Some(link) = peer.linked() {
                link.close();
            }
        }
        drop((peers, endpoint));
    }

    /// Looks who publishes and subscribes here.
    fn look(&mut self) -> anyhow::Result<()> {
        let interest = self.node.interest(self.version.0)?;
        if interest.daemon != self.version.1 {
            // It knows nothing of what the last one was told.
            self.told = None;
            self.dirty = true;
            self.topics.values_mut().for_each(|topic| topic.told = None);
        }
        self.version = (interest.version, interest.daemon);
        let Some(rows) = interest.rows else {
            return Ok(());
        };
        self.dirty = true;
        for landed in rows.iter().flat_map(|row| &row.landed) {
            // Also those of a former life of ours.
            self.ours.insert(*landed);
        }
        self.rows = rows
            .into_iter()
            .map(|row| (row.name.clone(), row))
            .collect();
        self.announce_wants();
        self.end_gone_publishers();
        Ok(())
    }

    /// Tells other hosts what is wanted here.
    fn announce_wants(&mut self) {
        for name in self.plane.wanted() {
            if self.rows.get(&name).is_none_or(|row| row.subscribers == 0) {
                let _ = self.plane.want(&name, None);
            }
        }
        for row in self.rows.values().filter(|row| row.subscribers > 0) {
            let want = Want {
                subscribers: row.subscribers,
                demand: row.demand,
            };
            if let Err(error) = self.plane.want(&row.name, Some(want)) {
                tracing::warn!("{error:#}");
            }
        }
    }

    fn end_gone_publishers(&mut self) {
        for (name, topic) in &mut self.topics {
            let row = self.rows.get(name);
            let publishers = row.map_or_else(BTreeSet::new, |row| {
                row.publishers.iter().map(|p| p.incarnation).collect()
            });
            let gone: Vec<u64> = topic.publishers.difference(&publishers).copied().collect();
            topic.publishers = publishers;
            if !gone.is_empty() {
                let order = Order::Gone(name.clone(), gone);
                forwarder(&self.forwarders, name).order(order);
            }
        }
    }

    fn learn(&mut self, news: News) {
        self.dirty = true;
        match news {
            News::Came(node, protocol) => {
                if let Some(life) = self.life(&node) {
                    life.protocol = Some(protocol);
                }
                self.came(node, protocol);
            }
            News::Went(node) => self.went(&node),
            News::Wants(node, topic, want) => {
                if let Some(life) = self.life(&node) {
                    if life.wants.len() < MAX_WANTS {
                        life.wants.insert(topic.clone(), want);
                    }
                }
                if let Some(peer) = self.known(&node) {
                    peer.wanted.remove(&topic);
                    if peer.wants.len() < MAX_WANTS {
                        peer.wants.insert(topic, want);
                    }
                }
            }
            News::WantsNot(node, topic, want) => {
                // Another want of the same topic came before this one went.
                let life = self.lives.iter_mut().find(|life| life.node == node);
                if let Some(life) = life.filter(|life| life.wants.get(&topic) == Some(&want)) {
                    life.wants.remove(&topic);
                }
                if let Some(peer) = self.known(&node) {
                    if peer.wants.get(&topic) == Some(&want) {
                        peer.wanted.insert(topic, (want, Instant::now()));
                    }
                }
            }
            News::Met(node, secret) => self.accept(&node, secret),
            News::Meeting(node, outcome) => self.met(&node, outcome),
        }
    }

    /// A life of a host, remembered from now on; none: there are too many.
    fn life(&mut self, node: &Host) -> Option<&mut Life> {
        let at = self.lives.iter().position(|life| life.node == *node);
        let at = match at {
            Some(at) => at,
            None if self.lives.len() >= MAX_LIVES => return None,
            None => {
                self.lives.push(Life {
                    node: node.clone(),
                    protocol: None,
                    wants: BTreeMap::new(),
                });
                self.lives.len() - 1
            }
        };
        self.lives.get_mut(at)
    }

    fn went(&mut self, node: &Host) {
        self.lives.retain(|life| life.node != *node);
        let Some(peer) = self.known(node) else { return };
        tracing::info!(host = node.host, "a host is gone");
        peer.lost = Some(Instant::now());
        // Another life of it may have come before.
        let of_host = self.lives.iter().rev();
        let next = of_host
            .filter(|life| life.node.host == node.host)
            .find_map(|life| Some((life.node.clone(), life.protocol?)));
        if let Some((node, protocol)) = next {
            self.came(node, protocol);
        }
    }

    /// The host, if that is the life of it that is known.
    fn known(&mut self, node: &Host) -> Option<&mut Peer> {
        self.peers
            .get_mut(&node.host)
            .filter(|peer| peer.node == *node)
    }

    fn came(&mut self, node: Host, protocol: u32) {
        if !self.peers.contains_key(&node.host) {
            if self.peers.len() >= MAX_PEERS {
                let given_up = self.peers.iter().find(|(_, peer)| peer.given_up);
                if let Some(host) = given_up.map(|(host, _)| host.clone()) {
                    if let Some(peer) = self.peers.remove(&host) {
                        peer.linked().iter().for_each(|link| link.close());
                    }
                }
            }
            if self.peers.len() >= MAX_PEERS {
                tracing::error!(
                    host = node.host,
                    "more than {MAX_PEERS} hosts: one is left out"
                );
                return;
            }
            let landings = Landings::new(&node.host, self.hear.clone());
            let peer = Peer::new(node.clone(), protocol, landings);
            self.peers.insert(node.host.clone(), peer);
        }
        let life = self.lives.iter().find(|life| life.node == node);
        let wants = life.map(|life| life.wants.clone()).unwrap_or_default();
        let Some(peer) = self.peers.get_mut(&node.host) else {
            return;
        };
        if peer.node != node {
            tracing::info!(host = node.host, "a host's links were started again");
            peer.node = node;
            // What its former life wanted, this one may want in a moment.
            let former = std::mem::take(&mut peer.wants);
            peer.wanted = former
                .iter()
                .map(|(topic, want)| (topic.clone(), (*want, Instant::now())))
                .collect();
            peer.wants = former;
        }
        for wanted in peer.wanted.values_mut() {
            wanted.1 = Instant::now();
        }
        for (topic, want) in wants {
            peer.wanted.remove(&topic);
            peer.wants.insert(topic, want);
        }
        peer.given_up = false;
        peer.protocol = protocol;
        peer.lost = None;
        let refused = (protocol != PLANE_VERSION).then(|| versions(&peer.node.host, protocol));
        if let Some(why) = refused.as_ref().filter(|_| peer.refused.is_none()) {
            tracing::error!("{why}");
        }
        peer.refused = refused;
        peer.meet_at = Some(Instant::now());
    }

    /// We asked a host how to reach it.
    fn met(&mut self, node: &Host, outcome: Result<Address, String>) {
        let Some(peer) = self.known(node) else { return };
        match outcome {
            Ok(address) => self.join(node, address.secret, address.lanes),
            Err(why) => {
                tracing::debug!(host = node.host, why, "a host cannot be met");
                peer.detail = clip(&why);
                peer.meet_at = Some(Instant::now() + MEET_AGAIN);
            }
        }
    }

    /// A host has asked us: it will come with this secret.
    fn accept(&mut self, node: &Host, secret: LaneSecret) {
        // It was heard of before, or its token is on its way.
        if self
            .peers
            .get(&node.host)
            .is_none_or(|peer| peer.node != *node)
        {
            self.came(node.clone(), PLANE_VERSION);
        }
        self.join(node, secret, Vec::new());
    }

    /// Makes the link with a host, or has it go on with another life of it.
    fn join(&mut self, node: &Host, secret: LaneSecret, dial: Vec<SocketAddr>) {
        let links = &self.config.links;
        let Some(peer) = self
            .peers
            .get_mut(&node.host)
            .filter(|peer| peer.node == *node)
        else {
            return;
        };
        let lanes = LanePeer {
            incarnation: node.incarnation,
            key: LaneKey(secret.0),
            dial,
        };
        let outcome = match &peer.link {
            Some((_, link)) => link.set_peer(lanes).map(|()| None),
            None => {
                let config = link_config(links);
                self.endpoint
                    .link(&node.host, config, lanes, peer.landings.clone())
                    .map(Some)
            }
        };
        match outcome {
            Ok(Some(link)) => peer.begin_link(node.incarnation, link),
            Ok(None) => {
                if let Some((life, _)) = &mut peer.link {
                    if *life != node.incarnation {
                        *life = node.incarnation;
                        peer.forget_said();
                    }
                }
            }
            Err(error) => {
                tracing::error!(%error, host = node.host, "a host cannot be linked with");
                peer.detail = clip(&error.to_string());
                peer.meet_at = Some(Instant::now() + TRY_AGAIN);
            }
        }
    }

    fn listen(&mut self, host: &str, heard: Heard) {
        self.dirty = true;
        let Some(peer) = self.peers.get_mut(host) else {
            return;
        };
        match heard {
            Heard::Said(bytes) => match Said::decode(&bytes) {
                Ok(Said::Stream(stream)) => self.announced(host, stream),
                Ok(Said::Ready(stream, outcome)) => {
                    if peer.announced.contains_key(&stream) {
                        peer.ready.insert(stream, outcome);
                    }
                }
                Err(error) => {
                    tracing::error!(host, "a host says what it may not: {error:#}");
                }
            },
            Heard::Event(Event::Up) => {
                tracing::info!(host, "a host is linked");
                peer.up = true;
                if std::mem::take(&mut peer.said_lost) {
                    // Once more, all of it: what of it was heard does no harm twice.
                    peer.announced.clear();
                    let here = peer.incoming.iter();
                    let answers: Vec<Said> = here
                        .filter(|(_, incoming)| incoming.former.is_none())
                        .map(|(stream, incoming)| Said::Ready(*stream, incoming.outcome.clone()))
                        .collect();
                    for answer in answers {
                        peer.say(self.own.incarnation, &answer);
                    }
                }
            }
            Heard::Event(Event::Down { why }) => {
                tracing::warn!(host, why, "the link with a host is down");
                (peer.up, peer.detail) = (false, why);
            }
            Heard::Event(Event::PeerRestarted) => {
                peer.forget_said();
                for incoming in peer.incoming.values_mut() {
                    incoming.former.get_or_insert_with(Instant::now);
                }
            }
            Heard::Event(Event::Refused { why }) => {
                peer.detail = clip(&why);
                // Its secret may be of another life.
                peer.meet_at = Some(Instant::now() + MEET_AGAIN);
            }
            Heard::Event(Event::Closed { flow }) => {
                if let Some(incoming) = peer.incoming.get_mut(&flow.topic) {
                    incoming.landings.remove(&flow.incarnation);
                    incoming
                        .stream
                        .publishers
                        .retain(|(publisher, _)| *publisher != flow.incarnation);
                    if incoming.landings.is_empty() && incoming.stream.publishers.is_empty() {
                        peer.incoming.remove(&flow.topic);
                    }
                }
                peer.landings.remove(flow);
            }
            Heard::Event(Event::GaveUp { flow, .. }) if flow.topic == SAID => {
                peer.said_lost = true;
            }
            Heard::Event(Event::GaveUp { first, next, .. }) => {
                peer.gave_up.0 += next - first;
                peer.tell_given_up();
            }
            Heard::Event(_) => {}
        }
    }

    /// A host says that messages of a topic come from there.
    fn announced(&mut self, host: &str, stream: Stream) {
        let Some(peer) = self.peers.get_mut(host) else {
            return;
        };
        let (number, topic) = (stream.number, stream.topic.clone());
        // The same publisher may come in a stream that takes the place of another, and goes on where
        // that one stands.
        let mut landings: HashMap<u64, Arc<Landing>> = peer
            .incoming
            .values()
            .filter(|incoming| incoming.stream.topic == topic)
            .flat_map(|incoming| &incoming.landings)
            .map(|(publisher, landing)| (*publisher, landing.clone()))
            .collect();
        let mut outcome = Ok(());
        for (publisher, offer) in &stream.publishers {
            let flow = Flow {
                topic: number,
                incarnation: *publisher,
            };
            if peer.landings.has(flow) {
                continue;
            }
            let landing = match landings.remove(publisher) {
                Some(landing) => Ok(landing),
                None => {
                    let qos = PublisherQos {
                        history: offer.history,
                        reliable: offer.reliable,
                        transient_local: offer.transient_local,
                        deadline: Duration::ZERO,
                        loan_timeout: Duration::ZERO,
                        max_loans: LANDING_LOANS,
                    };
                    let mut builder = self.node.publisher(&topic).type_name(&stream.type_name);
                    // Where the topic lives here, or on the host.
                    if self.rows.get(&topic).is_none_or(|row| row.domain.is_none()) {
                        builder = builder.domain(Domain::Host);
                    }
                    builder.qos(qos).create().map(|created| {
                        let mark = self.committed.mark(*publisher);
                        let most = self.config.links.landing_max.0;
                        Landing::new(created, self.ours.clone(), mark, most)
                    })
                }
            };
            match landing {
                Ok(landing) => {
                    peer.landings.insert(flow, landing.clone());
                    let incoming = peer.incoming.entry(number).or_insert_with(|| Incoming {
                        stream: stream.clone(),
                        landings: HashMap::new(),
                        outcome: Ok(()),
                        former: None,
                    });
                    incoming.landings.insert(*publisher, landing);
                }
                Err(error) => {
                    tracing::warn!(%error, host, topic, "messages of another host have no place here");
                    outcome = Err(clip(&error.to_string()));
                }
            }
        }
        peer.landings.refuse(number, outcome.is_err());
        let incoming = peer.incoming.entry(number).or_insert_with(|| Incoming {
            stream: stream.clone(),
            landings: HashMap::new(),
            outcome: Ok(()),
            former: None,
        });
        (incoming.stream, incoming.outcome) = (stream, outcome.clone());
        if let Some(link) = peer.linked() {
            link.retry();
        }
        peer.say(self.own.incarnation, &Said::Ready(number, outcome));
    }

    /// Makes what is so what should be so.
    fn reconcile(&mut self) {
        self.reconcile_peers();
        let now = Instant::now();
        if !self.dirty && now < self.reconcile_at {
            return;
        }
        self.dirty = false;
        self.reconcile_at = now + TRY_AGAIN;
        let wanted: BTreeSet<String> = self
            .peers
            .values()
            .filter(|peer| peer.is_usable())
            .flat_map(|peer| peer.wants.keys().cloned())
            .collect();
        let over: Vec<String> = self
            .topics
            .keys()
            .filter(|topic| !wanted.contains(*topic))
            .cloned()
            .collect();
        for name in over {
            self.end_topic(&name);
        }
        for name in wanted {
            self.reconcile_topic(&name);
        }
    }

    fn reconcile_peers(&mut self) {
        let now = Instant::now();
        let outage = Duration::from_millis(self.config.links.outage_ms);
        let own = self.own.clone();
        for (host, peer) in &mut self.peers {
            if !peer.given_up && !peer.up && peer.lost.is_some_and(|since| now - since > outage) {
                tracing::warn!(host, "a host is given up: nothing is kept for it any more");
                peer.given_up = true;
                peer.wants.clear();
                peer.wanted.clear();
                peer.incoming.clear();
                peer.landings.clear();
                self.dirty = true;
            }
            if peer.lost.is_none() {
                let due = |since: &Instant| now - *since > WANT_STAYS;
                let gone: Vec<(String, Want)> = peer
                    .wanted
                    .iter()
                    .filter(|(_, (_, since))| due(since))
                    .map(|(topic, (want, _))| (topic.clone(), *want))
                    .collect();
                for (topic, want) in gone {
                    peer.wanted.remove(&topic);
                    if peer.wants.get(&topic) == Some(&want) {
                        peer.wants.remove(&topic);
                    }
                    self.dirty = true;
                }
            }
            // One of the two opens the lanes.
            let opens = own.host < *host;
            let linked = peer.link.as_ref().map(|(life, _)| *life);
            let meets = opens
                && peer.refused.is_none()
                && peer.lost.is_none()
                && peer.meet_at.is_some_and(|at| now >= at)
                && (linked != Some(peer.node.incarnation) || !peer.up);
            if meets {
                peer.meet_at = None;
                if let Err(error) = self.plane.meet(&peer.node) {
                    tracing::error!("{error:#}");
                    peer.meet_at = Some(now + MEET_AGAIN);
                }
            }
            // What a former life of it published ends if this one does not go on with it.
            let over = |incoming: &Incoming| incoming.former.is_some_and(|at| now - at > outage);
            let former: Vec<u64> = peer
                .incoming
                .iter()
                .filter(|(_, incoming)| over(incoming))
                .map(|(stream, _)| *stream)
                .collect();
            for stream in former {
                let incoming = peer.incoming.remove(&stream);
                for incarnation in incoming.iter().flat_map(|i| i.landings.keys()) {
                    peer.landings.remove(Flow {
                        topic: stream,
                        incarnation: *incarnation,
                    });
                }
            }
            peer.tell_given_up();
            peer.say_more(own.incarnation);
        }
    }

    fn end_topic(&mut self, name: &str) {
        if let Some(topic) = self.topics.remove(name) {
            for (host, (stream, _)) in &topic.streams {
                if let Some(peer) = self.peers.get_mut(host) {
                    peer.announced.remove(stream);
                    peer.ready.remove(stream);
                }
            }
            forwarder(&self.forwarders, name).order(Order::End(name.to_owned()));
        }
    }

    fn reconcile_topic(&mut self, name: &str) {
        let now = Instant::now();
        let topic = self
            .topics
            .entry(name.to_owned())
            .or_insert_with(|| Outward {
                has: None,
                streams: BTreeMap::new(),
                failed: None,
                told: None,
                publishers: BTreeSet::new(),
            });
        let wants: BTreeMap<&String, Want> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.is_usable())
            .filter_map(|(host, peer)| Some((host, *peer.wants.get(name)?)))
            .collect();
        let mut demand = Demand {
            reliable: false,
            transient_local: false,
            depth: 0,
        };
        for want in wants.values() {
            demand.reliable |= want.demand.reliable;
            demand.transient_local |= want.demand.transient_local;
            demand.depth = demand.depth.max(want.demand.depth);
        }
        let before = topic.streams.clone();
        topic.streams.retain(|host, _| wants.contains_key(host));
        let mut wants_history = false;
        for (host, want) in &wants {
            let known = topic.streams.get_mut(*host);
            match known {
                Some((_, known)) => *known = *want,
                None => {
                    // Without a number there is no stream; there will be one in a moment.
                    let Ok(number) = random_u64() else { continue };
                    topic.streams.insert((*host).clone(), (number, *want));
                    wants_history |= want.demand.transient_local;
                }
            }
        }
        let fits = topic
            .has
            .as_ref()
            .is_some_and(|(has, _)| *has == demand && !wants_history);
        let waits = topic.failed.as_ref().is_some_and(|(_, at)| now < *at);
        let mut subscriber = None;
        if !fits && (!waits || before.len() != topic.streams.len()) {
            let qos = SubscriberQos {
                reliable: demand.reliable,
                late: match demand.transient_local {
                    true => Late::AllKept,
                    false => Late::Nothing,
                },
                depth: demand.depth,
                max_held: self.config.links.held_max,
                ..SubscriberQos::default()
            };
            let builder = self.node.subscriber(name).domain(Domain::Host).qos(qos);
            match builder.create() {
                Ok(created) => {
                    topic.has = Some((demand, created.clone()));
                    (topic.failed, topic.told) = (None, None);
                    subscriber = Some(created);
                }
                Err(error) => {
                    let why = clip(&error.to_string());
                    if topic.failed.as_ref().is_none_or(|(known, _)| *known != why) {
                        tracing::warn!(topic = name, "a topic cannot leave this host: {why}");
                    }
                    topic.failed = Some((why, now + TRY_AGAIN));
                }
            }
        }
        if topic.has.is_none() {
            return;
        }
        let changed = before
            .iter()
            .map(|(host, (stream, want))| (host, *stream, want.demand.reliable))
            .ne(topic
                .streams
                .iter()
                .map(|(host, (stream, want))| (host, *stream, want.demand.reliable)));
        if changed || subscriber.is_some() {
            let routes = topic.streams.iter().filter_map(|(host, (stream, want))| {
                let peer = self.peers.get(host)?;
                Some(Route {
                    link: peer.linked()?.clone(),
                    stream: *stream,
                    reliable: want.demand.reliable,
                    sent: peer.departed.clone(),
                })
            });
            let order = Order::Topic(name.to_owned(), subscriber, routes.collect());
            forwarder(&self.forwarders, name).order(order);
        }
        self.announce(name);
        self.tell_remote(name);
    }

    /// Says what goes where, where that has changed.
    fn announce(&mut self, name: &str) {
        let (Some(topic), row) = (self.topics.get(name), self.rows.get(name)) else {
            return;
        };
        for (host, (number, _)) in &topic.streams {
            // What is said without lanes may be given up; there will be some.
            let Some(peer) = self.peers.get_mut(host).filter(|peer| peer.up) else {
                continue;
            };
            let stream = Stream {
                number: *number,
                topic: name.to_owned(),
                type_name: row.map(|row| row.type_name.clone()).unwrap_or_default(),
                publishers: row.map_or_else(Vec::new, |row| {
                    let publishers = row.publishers.iter();
                    publishers.map(|p| (p.incarnation, p.offer)).collect()
                }),
            };
            if peer.announced.get(number) != Some(&stream) {
                peer.announced.insert(*number, stream.clone());
                peer.say(self.own.incarnation, &Said::Stream(stream));
            }
        }
    }

    /// Tells the daemon whom the topic's subscriber stands for.
    fn tell_remote(&mut self, name: &str) {
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        let rows: Vec<RemoteRow> = topic
            .streams
            .iter()
            .filter_map(|(host, (stream, want))| {
                let peer = self.peers.get(host)?;
                let said = peer.ready.get(stream);
                let (ready, path) = match (&topic.failed, said, peer.up) {
                    (Some((why, _)), ..) => (false, format!("not: {why}")),
                    (None, Some(Err(why)), _) => (false, format!("not: {why}")),
                    (None, _, false) => (false, "not now: the host is not linked".to_owned()),
                    (None, None, true) => (false, "not yet: the host prepares".to_owned()),
                    (None, Some(Ok(())), true) => (
                        true,
                        format!(
                            "{}, once for the host; zero copy there (there are no RDMA lanes yet)",
                            kind(&self.config.links)
                        ),
                    ),
                };
                let mut path = path;
                while path.len() > rgaps_session::MAX_PATH_BYTES {
                    path.pop();
                }
                Some(RemoteRow {
                    host: host.clone(),
                    subscribers: want.subscribers,
                    ready,
                    path,
                })
            })
            .collect();
        if topic.told.as_ref() == Some(&rows) {
            return;
        }
        let Some((_, subscriber)) = &topic.has else {
            return;
        };
        match self.node.stands_for(subscriber, rows.clone()) {
            Ok(()) => topic.told = Some(rows),
            Err(error) => tracing::debug!(%error, "the daemon does not know of other hosts"),
        }
    }

    /// Tells the daemon how it is with other hosts.
    fn tell(&mut self) {
        let now = Instant::now();
        if self.told.as_ref().is_some_and(|(_, at)| now - *at < TELL) {
            return;
        }
        let info = PeersInfo {
            host: self.own.host.clone(),
            peers: self.peers.values().map(Peer::row).collect(),
        };
        if self.told.as_ref().is_some_and(|(told, _)| *told == info) {
            return;
        }
        match self.node.set_peers(info.clone()) {
            Ok(()) => self.told = Some((info, now)),
            Err(error) => tracing::debug!(%error, "the daemon does not know of other hosts"),
        }
    }
}

/// Waits until what a former life of the links left is cleaned up: then it is known what it published.
fn wait_for_former(node: &Node) -> anyhow::Result<()> {
    let until = Instant::now() + FORMER_LIMIT;
    loop {
        let clients = node.clients()?.into_iter();
        let links = clients.filter(|client| client.name == LINKS_CLIENT).count();
        if links <= 1 {
            return Ok(());
        }
        if Instant::now() >= until {
            anyhow::bail!(
                "another process has the links of this host already; stop it ('rgaps status' names it)"
            );
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What lanes are made of.
fn kind(links: &Links) -> &'static str {
    match links.has_tls() {
        true => "tcp with TLS",
        false => "tcp",
    }
}

fn forwarder<'a>(forwarders: &'a [Forwarder], topic: &str) -> &'a Forwarder {
    &forwarders[(number_of(topic) % forwarders.len() as u64) as usize]
}

/// A number that all derive from a name (FNV-1a).
fn number_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// How lanes are secured: as the control plane, where that has certificates.
fn security(links: &Links) -> anyhow::Result<Security> {
    let LinksTls {
        ca,
        certificate,
        key,
    } = &links.tls;
    let (Some(ca), Some(certificate), Some(key)) = (ca, certificate, key) else {
        return Ok(match links.insecure {
            true => Security::Insecure,
            false => Security::Loopback,
        });
    };
    let read =
        |path: &std::path::Path| std::fs::read(path).with_context(|| path.display().to_string());
    let files = TlsFiles {
        roots: read(ca)?,
        chain: read(certificate)?,
        key: read(key)?,
    };
    Ok(Security::Tls(Tls::new(&files).context("links.tls")?))
}

fn link_config(links: &Links) -> LinkConfig {
    let mut config = LinkConfig {
        lanes: links.lanes as usize,
        ..LinkConfig::default()
    };
    config.beat_ms = (links.lease_ms / 4).clamp(50, 1000);
    config.quiet_ms = (links.lease_ms * 3 / 2).max(300);
    config.sender.retained_bytes_max = links.in_flight_max.0;
    config.sender.outage_bytes_max = links.outage_max.0;
    config.sender.outage_ms = links.outage_ms;
    config.receiver.watermark = match links.watermark {
        rgaps::links::Watermark::Each => rgaps_transport::cursors::Watermark::Zero,
        rgaps::links::Watermark::Eighth => rgaps_transport::cursors::Watermark::Eighth,
        rgaps::links::Watermark::Quarter => rgaps_transport::cursors::Watermark::Quarter,
        rgaps::links::Watermark::Half => rgaps_transport::cursors::Watermark::Half,
    };
    config
}

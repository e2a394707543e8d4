//! Which hosts are reached through which: what is said about that, and what comes of it.

use super::egress_plan::Outward;
use super::onward::Onward;
use super::{forwarder, Coordinator};
use crate::forward::Order;
use crate::host_link::Flow;
use crate::keys::Want;
use crate::land::Landing;
use crate::peer::{Incoming, Peer};
use crate::through::{Reached, Wanted};
use crate::ways::{self, Way};
use crate::wire::{clip, FlowDescription};
use rgaps_client::links::Direction;
use rgaps_client::{PeerRow, PeerState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A host without lanes for so long is reached through another, if it can be; and a way has to be there for so long.
const RELAY_AFTER: Duration = Duration::from_millis(500);
/// What was wanted stays for so long after the way to a host has changed.
const WANTS_OVERLAP: Duration = Duration::from_secs(2);
/// How long messages wait for a way that is to be there, beside those of a host that was started again.
pub(super) const WAY_PATIENCE: Duration = Duration::from_secs(3);
/// How often ways are looked at when nothing has changed.
const LOOK: Duration = Duration::from_millis(250);

/// How a host is reached.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hop {
    /// The host that leads there: itself, if it is linked with.
    pub(super) next: String,
    /// The host that did before.
    before: Option<String>,
    since: Instant,
}

/// Where a publisher's messages land.
struct Landed {
    landing: Weak<Landing>,
    /// The hosts that they go on to, as the forwarder was told.
    hosts: BTreeSet<String>,
}

/// What hosts are reached how.
#[derive(Default)]
pub(super) struct Routes {
    pub(super) ways: ways::Ways,
    hops: BTreeMap<String, Hop>,
    looked: Option<Instant>,
    /// What lands here, by topics and publishers; it may come through several hosts.
    landings: BTreeMap<(String, u64), Landed>,
    /// Publishers that are gone, and of which something is on its way on; with the hosts they came from.
    leaving: Vec<(String, Flow, FlowDescription, Arc<Landing>)>,
    /// Hosts that were started again: what they had and did not carry on goes there once more.
    pub(super) restarted: BTreeSet<String>,
}

impl Routes {
    /// How a host is reached.
    pub(super) fn hop(&self, host: &str) -> Option<&Hop> {
        self.hops.get(host)
    }

    /// Where a publisher's messages land, whatever host they come through.
    pub(super) fn landing(&self, topic: &str, publisher: u64) -> Option<Arc<Landing>> {
        let known = self.landings.get(&(topic.to_owned(), publisher))?;
        known.landing.upgrade()
    }

    pub(super) fn landed(&mut self, topic: &str, publisher: u64, landing: &Arc<Landing>) {
        let key = (topic.to_owned(), publisher);
        let known = self.landings.get(&key);
        if known.is_none_or(|known| known.landing.as_ptr() != Arc::as_ptr(landing)) {
            let landed = Landed {
                landing: Arc::downgrade(landing),
                hosts: BTreeSet::new(),
            };
            self.landings.insert(key, landed);
        }
    }

    /// A publisher is gone; what is on its way on is not.
    pub(super) fn leave(&mut self, host: &str, flow: Flow, incoming: Incoming) {
        if let Some(landing) = incoming.landing.filter(|landing| !landing.relay.is_idle()) {
            let host = host.to_owned();
            self.leaving
                .push((host, flow, incoming.description, landing));
        }
    }

    /// Publishers elsewhere whose messages go on, or may still.
    pub(super) fn publishers(&self, topic: &str) -> BTreeSet<u64> {
        let of_topic = (topic.to_owned(), 0)..=(topic.to_owned(), u64::MAX);
        let here = self.landings.range(of_topic);
        let here = here.filter(|(_, landed)| landed.landing.strong_count() > 0);
        here.map(|((_, publisher), _)| *publisher).collect()
    }

    /// The hosts between this one and another that one leads to, in their order.
    pub(super) fn way(&self, end: &str, next: &str) -> &[String] {
        let way = self.ways.by(end, next).filter(|_| next != end);
        way.map_or(&[], |(way, _)| &way[..way.len() - 1])
    }

    /// The hosts between this one and another, as it is reached now.
    pub(super) fn between(&self, end: &str) -> &[String] {
        self.hops
            .get(end)
            .map_or(&[], |hop| self.way(end, &hop.next))
    }
}

impl Coordinator {
    /// Finds out how each host is reached, and says so. Whether that has changed is in `dirty`.
    pub(super) fn update_routes(&mut self) {
        let looked = self.routes.looked;
        if !self.dirty && looked.is_some_and(|at| at.elapsed() < LOOK) {
            return;
        }
        self.routes.looked = Some(Instant::now());
        let outage = Duration::from_millis(self.config.links.outage_ms);
        self.routes.ways.expire(outage);
        for peer in self.peers.values_mut() {
            self.dirty |= peer.through.forget_doubted(outage);
        }
        self.routes
            .leaving
            .retain(|(.., landing)| !landing.relay.is_idle());
        self.routes
            .landings
            .retain(|_, landed| landed.landing.strong_count() > 0);
        let mut ends: BTreeSet<String> = self.routes.ways.ends().into_iter().cloned().collect();
        ends.extend(self.peers.keys().cloned());
        ends.remove(&self.own.host);
        let mut hops = BTreeMap::new();
        for end in ends {
            let Some(next) = self.choose(&end) else {
                continue;
            };
            let hop = match self.routes.hops.get(&end) {
                Some(hop) if hop.next == next => hop.clone(),
                known => {
                    if next != end {
                        tracing::info!(
                            host = end,
                            through = next,
                            "the route to a host goes through another host"
                        );
                    }
                    Hop {
                        next,
                        before: known.map(|hop| hop.next.clone()),
                        since: Instant::now(),
                    }
                }
            };
            hops.insert(end, hop);
        }
        if hops != self.routes.hops {
            self.dirty = true;
            self.routes.hops = hops;
        }
        if self.dirty {
            self.tell_ways();
            self.ask();
            self.tell_wants();
        }
    }

    /// The host that leads to another.
    fn choose(&self, end: &str) -> Option<String> {
        let is_near = |host: &str| {
            let peer = self.peers.get(host);
            peer.is_some_and(|peer| peer.is_near(RELAY_AFTER))
        };
        if is_near(end) {
            return Some(end.to_owned());
        }
        if let Some(way) = self.routes.ways.best(end, RELAY_AFTER, is_near) {
            return way.first().cloned();
        }
        // Whoever led there last has what it was sent, and may be back.
        let is_kept = |host: &str| self.peers.get(host).is_some_and(|peer| !peer.given_up);
        let last = self.routes.hops.get(end).map(|hop| &hop.next);
        let last = last.filter(|next| {
            is_kept(next) && (*next == end || self.routes.ways.by(end, next).is_some())
        });
        let direct = || is_kept(end).then(|| end.to_owned());
        last.cloned().or_else(direct)
    }

    /// Whether messages come to a host that is reached through another, as far as is known.
    fn is_led_to(&self, end: &str, hop: &Hop) -> bool {
        let near = self.peers.get(&hop.next).is_some_and(|peer| peer.up);
        let there = self.routes.ways.by(end, &hop.next);
        near && (hop.next == end || there.is_some_and(|(_, is_there)| is_there))
    }

    fn tell_ways(&mut self) {
        let mut ways: Vec<Way> = Vec::new();
        if self.config.links.relay {
            for (end, hop) in &self.routes.hops {
                if self.is_led_to(end, hop) {
                    let mut way = self.routes.between(end).to_vec();
                    way.push(end.clone());
                    ways.push(way);
                }
            }
        }
        for (host, peer) in self.peers.iter_mut().filter(|(_, peer)| peer.up) {
            let told = ways::tell(&self.own.host, host, ways.iter().map(Vec::as_slice));
            if let Some(said) = peer.through.tell_ways(told) {
                peer.say(&said);
            }
        }
    }

    fn ask(&mut self) {
        // Of these, what was said the way before is all there is.
        let hops = self.routes.hops.iter();
        let unsaid = hops.filter(|(end, hop)| !self.said_wants(end, &hop.next).1);
        let unsaid: BTreeSet<String> = unsaid.map(|(end, _)| end.clone()).collect();
        for (host, peer) in self.peers.iter_mut().filter(|(_, peer)| peer.up) {
            let hops = self.routes.hops.iter();
            let led = hops.filter(|(end, hop)| {
                let stays = hop.since.elapsed() < WANTS_OVERLAP || unsaid.contains(*end);
                let was = hop.before.as_ref() == Some(host) && stays;
                *end != host && (hop.next == *host || was)
            });
            let mut hosts: BTreeSet<String> = led.map(|(end, _)| end.clone()).collect();
            if peer.agreement.asks {
                hosts.insert(host.clone());
            }
            if let Some(said) = peer.through.ask(hosts) {
                peer.say(&said);
            }
        }
    }

    /// Tells those who ask what hosts want that this one leads to, and what it wants itself.
    fn tell_wants(&mut self) {
        let mut all = Vec::new();
        let links = &self.config.links;
        for (asker, peer) in self.peers.iter().filter(|(_, peer)| peer.up) {
            for end in &peer.through.asks {
                if *end == self.own.host {
                    all.push((asker.clone(), end.clone(), Some(self.plane.wants())));
                    continue;
                }
                let hop = self.routes.hops.get(end).filter(|_| links.relay);
                let between = self.routes.between(end);
                // A host that was started again says nothing of another before it knows all that that one wants: for
                // who asks, what is not said then is not wanted.
                let leads = hop.is_some_and(|hop| {
                    self.is_led_to(end, hop)
                        && (peer.through.tells(end) || self.knows_wants(end, &hop.next))
                }) && end != asker
                    && !between.contains(asker);
                let may = |topic: &String| {
                    let mut on = between.iter().chain([end]);
                    links.may_cross(Direction::Receive, asker, topic).is_ok()
                        && on.all(|host| links.may_cross(Direction::Send, host, topic).is_ok())
                };
                let wants = leads.then(|| {
                    let wants = self.wants_of(end).into_iter();
                    wants.filter(|(topic, _)| may(topic)).collect::<Wanted>()
                });
                all.push((asker.clone(), end.clone(), wants));
            }
        }
        for (asker, end, wants) in all {
            let Some(peer) = self.peers.get_mut(&asker) else {
                continue;
            };
            for said in peer.through.tell_wants(&end, wants) {
                peer.say(&said);
            }
        }
    }

    /// Whether all is known that a host wants.
    fn knows_wants(&self, end: &str, next: &str) -> bool {
        let Some(peer) = self.peers.get(next) else {
            return false;
        };
        let lead = peer.through.leads.get(end);
        let is_told = lead.is_some_and(|lead| lead.is_whole);
        is_told || next == end && peer.agreement.is_whole
    }

    /// What a host wants, as far as the host says that leads there.
    fn said_wants(&self, end: &str, next: &str) -> (Option<&Wanted>, bool) {
        let Some(peer) = self.peers.get(next).filter(|peer| peer.is_usable()) else {
            return (None, false);
        };
        match next == end {
            true => (Some(&peer.wants), true),
            false => match peer.through.leads.get(end) {
                Some(lead) => (Some(&lead.wants), lead.is_whole),
                None => (None, false),
            },
        }
    }

    fn wants_of(&self, end: &str) -> Wanted {
        let Some(hop) = self.routes.hops.get(end) else {
            return Wanted::new();
        };
        let (said, is_whole) = self.said_wants(end, &hop.next);
        let mut wants = said.cloned().unwrap_or_default();
        // What was wanted the other way, until all is said this way.
        if !is_whole || hop.since.elapsed() < WANTS_OVERLAP {
            let before = hop.before.as_ref();
            let before = before.and_then(|before| self.said_wants(end, before).0);
            for (topic, want) in before.into_iter().flatten() {
                wants.entry(topic.clone()).or_insert(*want);
            }
        }
        wants
    }

    /// What all other hosts want, by topics.
    pub(super) fn all_wants(&self) -> BTreeMap<String, BTreeMap<String, Want>> {
        let mut all: BTreeMap<String, BTreeMap<String, Want>> = BTreeMap::new();
        for (end, hop) in &self.routes.hops {
            let usable = self.peers.get(&hop.next).is_some_and(Peer::is_usable);
            if !usable {
                continue;
            }
            for (topic, want) in self.wants_of(end) {
                all.entry(topic).or_default().insert(end.clone(), want);
            }
        }
        all
    }

    /// What goes on from here, by topics.
    pub(super) fn onward(&self) -> BTreeMap<String, Vec<Onward>> {
        let mut all: BTreeMap<String, Vec<Onward>> = BTreeMap::new();
        if !self.config.links.relay {
            return all;
        }
        let incoming = self.peers.iter().flat_map(|(host, peer)| {
            let lands = |i: &&Incoming| i.former.is_none() && i.landing.is_some();
            let lands = peer.incoming.values().filter(lands);
            lands.map(move |incoming| (host, &incoming.description))
        });
        let leaving = self.routes.leaving.iter();
        let leaving = leaving.map(|(host, _, description, _)| (host, description));
        for (host, description) in incoming.chain(leaving) {
            if !description.carry.is_empty() {
                let of_topic = all.entry(description.topic.clone()).or_default();
                of_topic.push(Onward {
                    peer: host.clone(),
                    source: description.clone(),
                });
            }
        }
        all
    }

    /// What lands here is held until it is there where this host reaches, and no longer.
    pub(super) fn serve(&mut self, onward: &BTreeMap<String, Vec<Onward>>) {
        let leaving = &self.routes.leaving;
        for ((topic, publisher), landed) in &mut self.routes.landings {
            let Some(landing) = landed.landing.upgrade() else {
                continue;
            };
            let goes = onward.get(topic).is_some_and(|all| {
                let mut all = all.iter();
                all.any(|onward| onward.source.publisher == *publisher)
            });
            let of_topic = self.topics.get(topic).filter(|of| of.has.is_some());
            let leaving = || leaving.iter().any(|(.., l)| Arc::ptr_eq(l, &landing));
            let hosts: BTreeSet<String> = match of_topic {
                Some(of_topic) if goes || leaving() => {
                    let hosts = of_topic.hosts.values().flat_map(BTreeMap::keys);
                    hosts.cloned().collect()
                }
                _ => BTreeSet::new(),
            };
            if hosts != landed.hosts {
                landed.hosts.clone_from(&hosts);
                let order = Order::Serve(landing.relay.clone(), hosts);
                forwarder(&self.forwarders, topic).order(order);
            }
        }
    }

    /// Tells other hosts how far their messages are that are carried on from here. Whether any are on their way.
    pub(super) fn tell_passed(&mut self) -> bool {
        let mut passing = false;
        for (host, peer) in self.peers.iter_mut().filter(|(_, peer)| peer.up) {
            let mut all = BTreeMap::new();
            let onward = peer.incoming.iter();
            for (flow, incoming) in onward.filter(|(_, i)| !i.description.carry.is_empty()) {
                // What is refused here is nobody's to wait for. What waits for a place here, is.
                let passed = peer.landings.passed(*flow);
                let passed = passed.unwrap_or(match incoming.refused {
                    Some(_) => u64::MAX,
                    None => 0,
                });
                let landing = incoming.landing.as_ref();
                passing |= landing.is_some_and(|landing| !landing.relay.is_idle());
                all.insert(*flow, passed);
            }
            let leaving = self.routes.leaving.iter().filter(|(of, ..)| of == host);
            for (_, flow, _, landing) in leaving {
                // All of it has come.
                all.insert(*flow, landing.relay.floor());
            }
            for said in peer.through.tell_passed(all) {
                peer.say(&said);
                // Something moved, and more may in a moment.
                passing = true;
            }
        }
        passing
    }

    /// Tells other hosts which of the hosts that they send for are reached.
    pub(super) fn tell_reached(&mut self) {
        let mut all: BTreeMap<String, Reached> = BTreeMap::new();
        for (host, peer) in self.peers.iter().filter(|(_, peer)| peer.up) {
            let of_peer = all.entry(host.clone()).or_default();
            for (flow, incoming) in &peer.incoming {
                let of = &incoming.description;
                for end in &of.carry {
                    let topic = self.topics.get(&of.topic);
                    let outcome = match incoming.former.is_some() || !self.config.links.relay {
                        true => Err("this host carries nothing on".to_owned()),
                        false => self.reaches(topic, end, host).map_err(|why| clip(&why)),
                    };
                    of_peer.insert((flow.topic, end.clone()), outcome);
                }
            }
        }
        for (host, reached) in all {
            let Some(peer) = self.peers.get_mut(&host) else {
                continue;
            };
            for said in peer.through.tell_reached(reached) {
                peer.say(&said);
            }
        }
    }

    /// Whether messages of a topic that come from a host reach another, or why not.
    fn reaches(&self, topic: Option<&Outward>, end: &str, from: &str) -> Result<(), String> {
        let topic = topic.ok_or("the host between prepares")?;
        if let Some((why, _)) = &topic.failed {
            return Err(why.clone());
        }
        if let Some((_, why)) = topic.refused.get(end) {
            return Err(why.clone());
        }
        let mut why = "the host between prepares".to_owned();
        for (next, ends) in &topic.hosts {
            if next == from || !ends.contains_key(end) {
                continue;
            }
            let stream = topic.streams.get(next).zip(self.peers.get(next));
            let Some(((number, _), peer)) = stream else {
                continue;
            };
            match peer.reaches(*number, end) {
                Ok(()) => return Ok(()),
                Err(not) => why = not.to_owned(),
            }
        }
        Err(why)
    }

    /// Hosts that are reached through others, for the listing.
    pub(super) fn led_rows(&self, rows: &mut Vec<PeerRow>) {
        for (end, hop) in &self.routes.hops {
            if hop.next == *end || !self.is_led_to(end, hop) {
                continue;
            }
            let topics = self.topics.values();
            let goes = topics.filter(|topic| {
                let hosts = topic.hosts.get(&hop.next);
                hosts.is_some_and(|hosts| hosts.contains_key(end))
            });
            let detail = clip(&format!("through {}", self.routes.between(end).join(", ")));
            let topics_out = goes.count() as u32;
            match rows.iter_mut().find(|row| row.host == *end) {
                Some(row) => {
                    (row.state, row.detail, row.topics_out) =
                        (PeerState::Through, detail, topics_out);
                }
                None => rows.push(PeerRow {
                    host: end.clone(),
                    state: PeerState::Through,
                    detail,
                    topics_out,
                    ..PeerRow::default()
                }),
            }
        }
        rows.sort_by(|a, b| a.host.cmp(&b.host));
        rows.truncate(rgaps_client::links::MAX_REMOTE_HOSTS);
    }
}

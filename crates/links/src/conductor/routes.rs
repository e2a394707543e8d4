//! Which hosts are reached through which: what is said about that, and what comes of it.

use super::egress_plan::EgressPlan;
use super::onward::Onward;
use super::{egress_thread, LinksConductor};
use crate::egress::EgressCommand;
use crate::host_link::Flow;
use crate::ingress::RemotePublisher;
use crate::keys::TopicInterest;
use crate::remote_host::{IngressPlan, RemoteHost};
use crate::through::Reached;
use crate::wire::{clip, FlowDescription};
use rgaps_client::{PeerRow, PeerState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long messages wait for a way that is to be there, beside those of a host that was started again.
pub(super) const ROUTE_PATIENCE: Duration = Duration::from_secs(3);
/// How often ways are looked at when nothing has changed.
const LOOK: Duration = Duration::from_millis(250);

/// How a host is reached.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hop {
    /// The host that leads there: itself, if it is linked with.
    pub(super) next: String,
    /// The hosts between.
    pub(super) between: Vec<String>,
    /// Since when there is no path. Whoever led there last has what it was sent, and may be back.
    lost: Option<Instant>,
}

impl Hop {
    fn to(path: &[String]) -> Option<Hop> {
        let (end, between) = path.split_last()?;
        Some(Hop {
            next: between.first().unwrap_or(end).clone(),
            between: between.to_vec(),
            lost: None,
        })
    }
}

/// Where a publisher's messages land.
struct Landed {
    landing: Weak<RemotePublisher>,
    /// The hosts that they go on to, as the egress thread was told.
    hosts: BTreeSet<String>,
}

/// What hosts are reached how.
#[derive(Default)]
pub(super) struct Routes {
    hops: BTreeMap<String, Hop>,
    /// When hops were looked at, and at which version of the network.
    looked: Option<(Instant, u64)>,
    /// What lands here, by topics and publishers; it may come through several hosts.
    landings: BTreeMap<(String, u64), Landed>,
    /// Publishers that are gone, and of which something is on its way on; with the hosts they came from.
    leaving: Vec<(String, Flow, FlowDescription, Arc<RemotePublisher>)>,
    /// Hosts that were started again: what they had and did not carry on goes there once more.
    pub(super) restarted: BTreeSet<String>,
}

impl Routes {
    /// How a host is reached.
    pub(super) fn hop(&self, host: &str) -> Option<&Hop> {
        self.hops.get(host)
    }

    /// Where a publisher's messages land, whatever host they come through.
    pub(super) fn landing(&self, topic: &str, publisher: u64) -> Option<Arc<RemotePublisher>> {
        let known = self.landings.get(&(topic.to_owned(), publisher))?;
        known.landing.upgrade()
    }

    pub(super) fn landed(&mut self, topic: &str, publisher: u64, landing: &Arc<RemotePublisher>) {
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
    pub(super) fn leave(&mut self, host: &str, flow: Flow, incoming: IngressPlan) {
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

    /// The hosts between this one and another, as it is reached now.
    pub(super) fn between(&self, end: &str) -> &[String] {
        self.hops.get(end).map_or(&[], |hop| &hop.between)
    }

    /// How messages come to a host that another leads to, in words.
    pub(super) fn through(&self, end: &str, next: &str) -> String {
        match self.hops.get(end).filter(|hop| hop.next == next) {
            Some(hop) => format!("through {}: ", hop.between.join(", ")),
            None => format!("through {next}: "),
        }
    }
}

impl LinksConductor {
    /// Sends what there is to say of routes and interest.
    pub(super) fn exchange(&mut self) {
        for (host, said) in self.network.poll(self.config.links.relay) {
            if let Some(peer) = self.peers.get(&host) {
                peer.say(&said);
            }
        }
    }

    /// Finds out how each host is reached. Whether that has changed is in `dirty`.
    pub(super) fn update_routes(&mut self) {
        self.exchange();
        let version = self.network.version();
        let is_known = |(at, of): (Instant, u64)| of == version && at.elapsed() < LOOK;
        if !self.dirty && self.routes.looked.is_some_and(is_known) {
            return;
        }
        self.routes.looked = Some((Instant::now(), version));
        let outage = Duration::from_millis(self.config.links.outage_ms);
        let kept = self.peers.iter().filter(|(_, peer)| !peer.given_up);
        self.dirty |= self.network.expire(outage, kept.map(|(host, _)| host));
        self.routes
            .leaving
            .retain(|(.., landing)| !landing.relay.is_idle());
        self.routes
            .landings
            .retain(|_, landed| landed.landing.strong_count() > 0);
        let ends = self.network.reached().chain(self.peers.keys());
        let ends: BTreeSet<&String> = ends.chain(self.routes.hops.keys()).collect();
        let hops = ends.into_iter();
        let hops = hops.filter_map(|end| Some((end.clone(), self.hop_to(end, outage)?)));
        let hops: BTreeMap<String, Hop> = hops.collect();
        if hops != self.routes.hops {
            self.dirty = true;
            self.routes.hops = hops;
        }
    }

    /// How a host is reached; none: it is given up.
    fn hop_to(&self, end: &str, outage: Duration) -> Option<Hop> {
        let known = self.routes.hops.get(end);
        if let Some(hop) = self.network.path(end).and_then(|path| Hop::to(&path)) {
            if hop.next != *end && known.is_none_or(|known| known.next != hop.next) {
                tracing::info!(
                    host = end,
                    through = hop.next,
                    "the route to a host goes through another host"
                );
            }
            return Some(hop);
        }
        let is_kept = |host: &str| self.peers.get(host).is_some_and(|peer| !peer.given_up);
        let last = known.filter(|hop| is_kept(&hop.next)).map(|hop| Hop {
            lost: Some(hop.lost.unwrap_or_else(Instant::now)),
            ..hop.clone()
        });
        let is_over = |hop: &Hop| hop.lost.is_some_and(|since| since.elapsed() >= outage);
        let last = last.filter(|hop| hop.next == *end || !is_over(hop));
        last.or_else(|| Hop::to(&[end.to_owned()]).filter(|_| is_kept(end)))
    }

    /// Whether messages come to a host that is reached through another, as far as is known.
    fn is_led_to(&self, hop: &Hop) -> bool {
        hop.lost.is_none() && self.peers.get(&hop.next).is_some_and(|peer| peer.up)
    }

    /// What all other hosts want, by topics.
    pub(super) fn all_wants(&self) -> BTreeMap<String, BTreeMap<String, TopicInterest>> {
        let mut all: BTreeMap<String, BTreeMap<String, TopicInterest>> = BTreeMap::new();
        for (end, hop) in &self.routes.hops {
            let usable = self.peers.get(&hop.next).is_some_and(RemoteHost::is_usable);
            if !usable {
                continue;
            }
            for (topic, want) in self.network.wants(end) {
                let hosts = all.entry(topic.clone()).or_default();
                hosts.insert(end.clone(), *want);
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
            let lands = |i: &&IngressPlan| i.orphaned.is_none() && i.landing.is_some();
            let lands = peer.incoming.values().filter(lands);
            lands.map(move |incoming| (host, &incoming.description))
        });
        let leaving = self.routes.leaving.iter();
        let leaving = leaving.map(|(host, _, description, _)| (host, description));
        for (host, description) in incoming.chain(leaving) {
            if !description.destinations.is_empty() {
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
                let command = EgressCommand::Serve(landing.relay.clone(), hosts);
                egress_thread(&self.egress, topic).send(command);
            }
        }
    }

    /// Tells other hosts how far their messages are that are carried on from here. Whether any are on their way.
    pub(super) fn send_confirmed(&mut self) -> bool {
        let mut in_transit = false;
        for (host, peer) in self.peers.iter_mut().filter(|(_, peer)| peer.up) {
            let mut all = BTreeMap::new();
            let onward = peer.incoming.iter();
            for (flow, incoming) in onward.filter(|(_, i)| !i.description.destinations.is_empty()) {
                // What is refused here is nobody's to wait for. What waits for a place here, is.
                let confirmed = peer.ingress.confirmed(*flow);
                let confirmed = confirmed.unwrap_or(match incoming.refused {
                    Some(_) => u64::MAX,
                    None => 0,
                });
                let landing = incoming.landing.as_ref();
                in_transit |= landing.is_some_and(|landing| !landing.relay.is_idle());
                all.insert(*flow, confirmed);
            }
            let leaving = self.routes.leaving.iter().filter(|(of, ..)| of == host);
            for (_, flow, _, landing) in leaving {
                // All of it has come.
                all.insert(*flow, landing.relay.floor());
            }
            for said in peer.through.send_confirmed(all) {
                peer.say(&said);
                // Something moved, and more may in a moment.
                in_transit = true;
            }
        }
        in_transit
    }

    /// Tells other hosts which of the hosts that they send for are reached.
    pub(super) fn send_reached(&mut self) {
        let mut all: BTreeMap<String, Reached> = BTreeMap::new();
        for (host, peer) in self.peers.iter().filter(|(_, peer)| peer.up) {
            let of_peer = all.entry(host.clone()).or_default();
            for (flow, incoming) in &peer.incoming {
                let of = &incoming.description;
                for end in &of.destinations {
                    let topic = self.topics.get(&of.topic);
                    let outcome = match incoming.orphaned.is_some() || !self.config.links.relay {
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
            for said in peer.through.send_reached(reached) {
                peer.say(&said);
            }
        }
    }

    /// Whether messages of a topic that come from a host reach another, or why not.
    fn reaches(&self, topic: Option<&EgressPlan>, end: &str, from: &str) -> Result<(), String> {
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
            if hop.next == *end || !self.is_led_to(hop) {
                continue;
            }
            let topics = self.topics.values();
            let goes = topics.filter(|topic| {
                let hosts = topic.hosts.get(&hop.next);
                hosts.is_some_and(|hosts| hosts.contains_key(end))
            });
            let detail = clip(&format!("through {}", hop.between.join(", ")));
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

//! Topics: what this host wants, and what goes from here to those that want it.

use super::{forwarder, Coordinator, TRY_AGAIN};
use crate::forward::{Limits, Order, Route};
use crate::keys::Want;
use crate::peer::Peer;
use crate::plane::random_u64;
use crate::quotas::{Kind, Quotas, Reserved};
use crate::wire::{clip, Said, Stream};
use rgaps::links::{Demand, Direction, InterestPublisher, Links};
use rgaps::{Domain, Late, PathKind, RemoteRow, Subscriber, SubscriberQos};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// A topic of this host that others want.
pub(super) struct Outward {
    /// What its subscriber asks for, once there is one.
    pub(super) has: Option<(Demand, Subscriber)>,
    /// The streams of the hosts that it goes to.
    pub(super) streams: BTreeMap<String, (u64, Want)>,
    /// Why there is no subscriber, and when that is tried again.
    pub(super) failed: Option<(String, Instant)>,
    /// What the daemon was told.
    pub(super) told: Option<Vec<RemoteRow>>,
    /// Publishers that were seen.
    publishers: BTreeSet<u64>,
    /// Hosts that want it and do not get it: their subscribers, and why.
    pub(super) refused: BTreeMap<String, (u32, String)>,
    /// What its publishers have of quotas, or why not.
    reserved: BTreeMap<(String, u64), Result<Reserved, String>>,
    /// What of it may go to each host; and why nothing, if that is so.
    pub(super) limits: BTreeMap<String, (Limits, Option<String>)>,
}

impl Outward {
    /// Finds out what may go to each host.
    fn set_limits(
        &mut self,
        name: &str,
        links: &Links,
        quotas: &Quotas,
        peers: &BTreeMap<String, Peer>,
        publishers: &[InterestPublisher],
    ) {
        let mut used = BTreeSet::new();
        let mut all = BTreeMap::new();
        for (host, (stream, _)) in &self.streams {
            let Some(peer) = peers.get(host) else {
                continue;
            };
            let mut limits = Limits {
                paused: matches!(peer.ready.get(stream), Some(Err(_))),
                ..Limits::default()
            };
            let mut why = None;
            for publisher in publishers {
                let Some(require) = publisher.require.filter(|path| *path > PathKind::Tcp) else {
                    continue;
                };
                limits.barred.insert(publisher.incarnation);
                let slow = format!(
                    "the publisher requires a path of {require} or better, and this one is tcp: there are no RDMA lanes"
                );
                peer.landings.notes.refused(name, 0, &slow);
                why = Some(slow);
            }
            if let Some(quota) = links.quota(host, name) {
                limits.quota = quota.name.clone();
                limits.message_max = quota.message_max.map(|max| max.0);
                limits.rate = quota.rate_max.map(|rate| rate.0);
                let goes = |p: &&InterestPublisher| !limits.barred.contains(&p.incarnation);
                for publisher in publishers.iter().filter(goes).collect::<Vec<_>>() {
                    let key = (quota.name.clone(), publisher.incarnation);
                    used.insert(key.clone());
                    if !matches!(self.reserved.get(&key), Some(Ok(_))) {
                        let (number, offer) = (publisher.incarnation, &publisher.offer);
                        match quotas.reserve(quota, Kind::Staging, number, offer) {
                            Ok(None) => continue,
                            Ok(Some(reserved)) => {
                                self.reserved.insert(key.clone(), Ok(reserved));
                            }
                            Err(why) => {
                                self.reserved.insert(key.clone(), Err(why));
                            }
                        }
                    }
                    match &self.reserved[&key] {
                        Ok(reserved) => {
                            limits.staging.insert(publisher.incarnation, reserved.bytes);
                        }
                        Err(short) => {
                            limits.barred.insert(publisher.incarnation);
                            if peer.landings.notes.refused(name, 0, short) {
                                tracing::warn!(
                                    host,
                                    topic = name,
                                    "a publisher does not leave this host: {short}"
                                );
                            }
                            why = Some(short.clone());
                        }
                    }
                }
            }
            let some = publishers
                .iter()
                .any(|publisher| !limits.barred.contains(&publisher.incarnation));
            all.insert(host.clone(), (limits, why.filter(|_| !some)));
        }
        self.reserved.retain(|key, _| used.contains(key));
        self.limits = all;
    }
}

/// Whether a topic goes to a host, as far as rules and the quotas of links say.
fn may_go(links: &Links, quotas: &mut Quotas, host: &str, topic: &str) -> Result<(), String> {
    links.may_cross(Direction::Send, host, topic)?;
    if let Some(quota) = links.quota(host, topic) {
        quotas.rate(links, quota, host, topic)?;
    }
    Ok(())
}

impl Coordinator {
    /// Tells other hosts what is wanted here.
    pub(super) fn announce_wants(&mut self) {
        for name in self.plane.wanted() {
            let none = self.rows.get(&name).is_none_or(|row| row.subscribers == 0);
            if none || self.config.links.may_come(&name).is_err() {
                let _ = self.plane.want(&name, None);
            }
        }
        for row in self.rows.values().filter(|row| row.subscribers > 0) {
            if self.config.links.may_come(&row.name).is_err() {
                continue;
            }
            let want = Want {
                subscribers: row.subscribers,
                demand: row.demand,
            };
            if let Err(error) = self.plane.want(&row.name, Some(want)) {
                tracing::warn!("{error:#}");
            }
        }
    }

    pub(super) fn end_gone_publishers(&mut self) {
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

    /// Makes what is so what should be so.
    pub(super) fn reconcile(&mut self) {
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
        self.ask_again();
        self.tell_unserved();
    }

    pub(super) fn end_topic(&mut self, name: &str) {
        if let Some(topic) = self.topics.remove(name) {
            for host in topic.streams.keys() {
                self.quotas.give(host, name);
                if let Some(peer) = self.peers.get_mut(host) {
                    peer.end_stream(name);
                }
            }
            for (host, (stream, _)) in &topic.streams {
                if let Some(peer) = self.peers.get_mut(host) {
                    peer.announced.remove(stream);
                    peer.ready.remove(stream);
                }
            }
            forwarder(&self.forwarders, name).order(Order::End(name.to_owned()));
        }
    }

    pub(super) fn reconcile_topic(&mut self, name: &str) {
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
                refused: BTreeMap::new(),
                reserved: BTreeMap::new(),
                limits: BTreeMap::new(),
            });
        let mut wants: BTreeMap<String, Want> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.is_usable())
            .filter_map(|(host, peer)| Some((host.clone(), *peer.wants.get(name)?)))
            .collect();
        for host in topic
            .streams
            .keys()
            .filter(|host| !wants.contains_key(*host))
        {
            self.quotas.give(host, name);
            if let Some(peer) = self.peers.get_mut(host) {
                peer.end_stream(name);
            }
        }
        let (links, quotas, peers) = (&self.config.links, &mut self.quotas, &self.peers);
        topic.refused.clear();
        wants.retain(|host, want| {
            let why = may_go(links, quotas, host, name).err();
            let Some(notes) = peers.get(host).map(|peer| &peer.landings.notes) else {
                return false;
            };
            let Some(why) = why else { return true };
            if notes.refused(name, 0, &why) {
                tracing::warn!(host, topic = name, "a topic does not go to a host: {why}");
            }
            topic
                .refused
                .insert((*host).clone(), (want.subscribers, why));
            false
        });
        if wants.is_empty() {
            if topic.has.take().is_some() {
                forwarder(&self.forwarders, name).order(Order::End(name.to_owned()));
            }
            topic.streams.clear();
            topic.told = None;
            return;
        }
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
        let (before, limited) = (topic.streams.clone(), topic.limits.clone());
        topic.streams.retain(|host, _| wants.contains_key(host));
        let (mut wants_history, mut begun) = (false, Vec::new());
        for (host, want) in &wants {
            let known = topic.streams.get_mut(host);
            match known {
                Some((_, known)) => *known = *want,
                None => {
                    // Without a number there is no stream; there will be one in a moment.
                    let Ok(number) = random_u64() else { continue };
                    begun.push((host.clone(), number));
                    topic.streams.insert(host.clone(), (number, *want));
                    wants_history |= want.demand.transient_local;
                }
            }
        }
        let row = self.rows.get(name);
        let publishers = row.map_or(&[][..], |row| &row.publishers[..]);
        topic.set_limits(
            name,
            &self.config.links,
            &self.quotas,
            &self.peers,
            publishers,
        );
        for (host, number) in begun {
            if let Some(peer) = self.peers.get_mut(&host) {
                peer.begin_stream(number, name);
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
        if changed || limited != topic.limits || subscriber.is_some() {
            let routes = topic.streams.iter().filter_map(|(host, (stream, want))| {
                let peer = self.peers.get(host)?;
                Some(Route {
                    link: peer.linked()?.clone(),
                    stream: *stream,
                    reliable: want.demand.reliable,
                    sent: peer.departed.clone(),
                    notes: peer.landings.notes.clone(),
                    limits: topic.limits.get(host)?.0.clone(),
                })
            });
            let order = Order::Topic(name.to_owned(), subscriber, routes.collect());
            forwarder(&self.forwarders, name).order(order);
        }
        self.announce(name);
        self.tell_remote(name);
    }

    /// Says what goes where, where that has changed.
    pub(super) fn announce(&mut self, name: &str) {
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
                    let barred = topic.limits.get(host).map(|(limits, _)| &limits.barred);
                    let goes = publishers
                        .filter(|p| barred.is_none_or(|barred| !barred.contains(&p.incarnation)));
                    goes.map(|p| (p.incarnation, p.offer)).collect()
                }),
                resumed: peer.broken.contains(name),
            };
            if peer.announced.get(number) != Some(&stream) {
                peer.announced.insert(*number, stream.clone());
                peer.say(self.own.incarnation, &Said::Stream(stream));
            }
        }
    }
}

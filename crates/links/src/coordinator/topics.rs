//! Topics: what this host wants, and what goes from here to those that want it.

use super::direct::reads_in;
use super::egress_plan::{all_of, Hosts, Outward};
use super::onward::Onward;
use super::{forwarder, Coordinator, GATHER, LOOK_ALL, TRY_AGAIN};
use crate::ended;
use crate::forward::{Order, Route};
use crate::keys::{number_of, Want};
use crate::peer::Peer;
use crate::plane::random_u64;
use crate::quotas::Quotas;
use crate::wire::{clip, Said, Stream};
use rgaps_client::links::{Direction, Links, LinksSubscriberBuilder};
use rgaps_client::{Domain, Late, SubscriberQos};
use std::collections::BTreeMap;
use std::time::Instant;

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
        let subscribed = self.rows.values().filter(|row| row.subscribers > 0);
        let subscribed = subscribed.map(|row| number_of(&row.name));
        self.committed.keep_wanted(&subscribed.collect());
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

    fn end_gone_publishers(&mut self) {
        for (name, topic) in &mut self.topics {
            let row = self.rows.get(name);
            let mut publishers = self.routes.publishers(name);
            publishers.extend(
                row.iter()
                    .flat_map(|row| &row.publishers)
                    .map(|p| p.incarnation),
            );
            let gone: Vec<u64> = topic.publishers.difference(&publishers).copied().collect();
            let come = publishers.difference(&topic.publishers);
            let back = topic.gone.take_back(come);
            topic.publishers = publishers;
            topic.gone.add(&gone);
            topic.renews |= !back.is_empty();
            let forwarder = forwarder(&self.forwarders, name);
            if !gone.is_empty() {
                forwarder.order(Order::Gone(name.clone(), gone));
            }
            if !back.is_empty() {
                forwarder.order(Order::Back(name.clone(), back));
            }
        }
    }

    /// Makes what is so what should be so.
    pub(super) fn reconcile(&mut self) {
        self.reconcile_peers();
        self.update_routes();
        let now = Instant::now();
        if !self.dirty && now < self.reconcile_at {
            return;
        }
        self.dirty = false;
        self.reconcile_at = now + LOOK_ALL;
        self.end_gone_publishers();
        let onward = self.onward();
        let wanted = self.all_wants();
        let over: Vec<String> = self
            .topics
            .keys()
            .filter(|topic| !wanted.contains_key(*topic))
            .cloned()
            .collect();
        for name in over {
            self.end_topic(&name);
        }
        for (name, wants) in wanted {
            let onward = onward.get(&name).map_or(&[][..], Vec::as_slice);
            self.reconcile_topic(&name, wants, onward);
        }
        self.order_over();
        self.routes.restarted.clear();
        self.serve(&onward);
        self.tell_reached();
        self.tell_landings();
        self.ask_again();
        self.tell_unserved();
        let outward = self.topics.values();
        let mut incoming = self.peers.values().flat_map(|peer| peer.incoming.values());
        if outward.into_iter().any(Outward::lacks_something) || incoming.any(|i| i.again) {
            self.reconcile_at = now + TRY_AGAIN;
        }
        if self.gathers() {
            self.reconcile_at = now;
        }
    }

    /// Hosts hear that streams are over when the threads that forward their topics have closed them, and have taken again what
    /// goes on in others: what comes after that word is thrown away there.
    fn order_over(&mut self) {
        for (host, peer) in &mut self.peers {
            for (stream, topic) in peer.ended.drain(..) {
                forwarder(&self.forwarders, &topic).order(Order::Over(host.clone(), stream));
            }
        }
    }

    /// Whether links that have just begun wait for other hosts, before they take any message: what they take before they know that
    /// a host wants it does not go there.
    fn gathers(&self) -> bool {
        let linked = self.peers.values().filter(|peer| peer.up).count();
        linked < self.config.links.connect.len() && self.begun.elapsed() < GATHER
    }

    fn end_topic(&mut self, name: &str) {
        if let Some(topic) = self.topics.remove(name) {
            for (host, (stream, _)) in &topic.streams {
                self.quotas.give(host, name);
                if let Some(peer) = self.peers.get_mut(host) {
                    peer.end_stream(*stream, name, false);
                }
            }
            forwarder(&self.forwarders, name).order(Order::End(name.to_owned()));
        }
    }

    /// The hosts that a topic goes to, and which of them lead to others: what rules and quotas let go.
    fn set_hosts(&mut self, name: &str, wants: BTreeMap<String, Want>) -> Hosts {
        let Some(topic) = self.topics.get_mut(name) else {
            return Hosts::new();
        };
        topic.refused.clear();
        let mut hosts = Hosts::new();
        for (end, want) in wants {
            let Some(hop) = self.routes.hop(&end) else {
                continue;
            };
            let next = &hop.next;
            let links = &self.config.links;
            let mut on = self.routes.between(&end).iter().chain([&end]);
            let may = may_go(links, &mut self.quotas, next, name).and_then(|()| {
                on.try_for_each(|host| links.may_cross(Direction::Send, host, name))
            });
            if let Err(why) = may {
                let notes = self.peers.get(next).map(|peer| &peer.landings.notes);
                if notes.is_some_and(|notes| notes.refused(name, 0, &why)) {
                    tracing::warn!(
                        host = end,
                        topic = name,
                        "a topic is not sent to a host: {why}"
                    );
                }
                topic.refused.insert(end.clone(), (want.subscribers, why));
                continue;
            }
            // The way before stays until this one is there.
            if !topic.reaches(&self.peers, next, &end) {
                for (before, ends) in &topic.hosts {
                    let usable = self.peers.get(before).is_some_and(Peer::is_usable);
                    if before != next && usable && ends.contains_key(&end) {
                        let of = hosts.entry(before.clone()).or_default();
                        of.insert(end.clone(), want);
                    }
                }
            }
            let of = hosts.entry(next.clone()).or_default();
            of.insert(end.clone(), want);
        }
        hosts
    }

    /// Begins and ends streams. What is to have history is told.
    fn set_streams(&mut self, name: &str, hosts: Hosts) -> bool {
        let Some(topic) = self.topics.get_mut(name) else {
            return false;
        };
        let gone = topic
            .streams
            .keys()
            .filter(|host| !hosts.contains_key(*host));
        for host in gone.cloned().collect::<Vec<_>>() {
            let moved = topic.hosts.get(&host).is_some_and(|ends| {
                ends.keys()
                    .all(|end| hosts.values().any(|ends| ends.contains_key(end)))
            });
            self.quotas.give(&host, name);
            if let Some((stream, _)) = topic.streams.remove(&host) {
                if let Some(peer) = self.peers.get_mut(&host) {
                    peer.end_stream(stream, name, moved);
                }
            }
        }
        let mut wants_history = false;
        for (next, ends) in &hosts {
            let want = all_of(ends.values());
            let had = topic.hosts.get(next);
            let is_new = |end: &String| had.is_none_or(|had| !had.contains_key(end));
            let is_moved = |end: &String| {
                let mut others = topic.hosts.iter().filter(|(other, _)| *other != next);
                others.any(|(_, ends)| ends.contains_key(end))
            };
            let mut begun = ends.iter().filter(|(end, _)| is_new(end));
            // What a host had that was started again, and had not carried on, goes there once more.
            let again = self.routes.restarted.contains(next)
                && had.is_some_and(|had| had.keys().any(|end| end != next));
            let takes_over = again || begun.clone().any(|(end, _)| is_moved(end));
            let has_stream = topic.streams.contains_key(next);
            // A host that the topic goes to already gets what landed there.
            let history = begun
                .any(|(end, want)| want.demand.transient_local && !(has_stream && end == next));
            // Nobody there wanted history so far: what it was not sent of it goes there in the same stream.
            wants_history |= ends.iter().any(|(end, want)| {
                let had = had.and_then(|had| had.get(end));
                want.demand.transient_local && had.is_some_and(|had| !had.demand.transient_local)
            });
            if let Some((_, known)) = topic.streams.get_mut(next) {
                *known = want;
                if !takes_over && !history {
                    continue;
                }
            }
            // Without a number there is no stream; there will be one in a moment.
            let (Ok(number), Some(peer)) = (random_u64(), self.peers.get_mut(next)) else {
                continue;
            };
            if let Some((former, _)) = topic.streams.insert(next.clone(), (number, want)) {
                peer.end_stream(former, name, true);
            }
            peer.begin_stream(number, name);
            if takes_over {
                topic.takes_over.insert(number);
            }
            wants_history |= history;
        }
        let streams = &topic.streams;
        topic
            .takes_over
            .retain(|number| streams.values().any(|(stream, _)| stream == number));
        topic.hosts = hosts;
        wants_history
    }

    /// Streams begin again under other numbers where what is said of them could come too late.
    fn renew_streams(&mut self, name: &str, onward: &[Onward]) {
        let (Some(topic), row) = (self.topics.get_mut(name), self.rows.get(name)) else {
            return;
        };
        let streams = topic.streams.iter();
        let streams: Vec<(String, u64)> = streams
            .map(|(host, (number, _))| (host.clone(), *number))
            .collect();
        let renews = std::mem::take(&mut topic.renews);
        for (host, former) in streams {
            let Some(peer) = self.peers.get_mut(&host) else {
                continue;
            };
            let said = peer.announced.get(&former);
            let grows = |said| ended::grows(said, &topic.sources(&host, row, onward));
            if !(renews || said.is_some_and(grows)) {
                continue;
            }
            if let (Ok(number), Some((_, want))) = (random_u64(), topic.streams.remove(&host)) {
                topic.streams.insert(host, (number, want));
                topic.takes_over.insert(number);
                peer.end_stream(former, name, true);
                peer.begin_stream(number, name);
            }
        }
    }

    /// `wants`: of all hosts; `onward`: publishers elsewhere whose messages go on.
    fn reconcile_topic(&mut self, name: &str, wants: BTreeMap<String, Want>, onward: &[Onward]) {
        let (now, gathers) = (Instant::now(), self.gathers());
        self.topics.entry(name.to_owned()).or_default();
        let hosts = self.set_hosts(name, wants);
        let Some(topic) = self.topics.get(name) else {
            return;
        };
        let (before, limited) = (topic.routes(), topic.limits.clone());
        let wants_history = self.set_streams(name, hosts);
        self.renew_streams(name, onward);
        let row = self.rows.get(name);
        let mut publishers = row.map_or_else(Vec::new, |row| row.publishers.clone());
        publishers.extend(onward.iter().map(Onward::publisher));
        publishers.sort_by_key(|publisher| publisher.incarnation);
        publishers.dedup_by_key(|publisher| publisher.incarnation);
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        if topic.streams.is_empty() {
            if topic.has.take().is_some() {
                forwarder(&self.forwarders, name).order(Order::End(name.to_owned()));
            }
            topic.told = None;
            return;
        }
        let demand = all_of(topic.streams.values().map(|(_, want)| want)).demand;
        let direct = reads_in(row, self.known.as_deref(), topic, &self.peers);
        let domain = direct.clone().unwrap_or(Domain::Host);
        topic.not_read = direct.err();
        topic.set_limits(
            name,
            &self.config.links,
            &self.quotas,
            &self.peers,
            &publishers,
        );
        let fits = topic
            .has
            .as_ref()
            .is_some_and(|(has, at, _)| (*has, *at) == (demand, domain) && !wants_history);
        let waits = topic.failed.as_ref().is_some_and(|(_, at)| now < *at);
        let mut subscriber = None;
        if topic.has.is_none() && gathers {
            return;
        }
        if !fits && (!waits || before.len() != topic.streams.len()) {
            let qos = SubscriberQos {
                reliable: demand.reliable,
                late: match demand.transient_local {
                    true => Late::AllKept,
                    false => Late::Nothing,
                },
                depth: (demand.depth > 0).then_some(demand.depth),
                max_held: self.config.links.held_max,
                spin: self.config.links.spin(),
            };
            // It stands for subscribers elsewhere: each of them is matched where it is, and what one of them
            // demands keeps nothing from the others.
            let builder = self.node.subscriber(name).domain(domain).qos(qos);
            let builder = builder.observer().of_links();
            match builder.create() {
                Ok(created) => {
                    topic.has = Some((demand, domain, created.clone()));
                    (topic.failed, topic.told) = (None, None);
                    subscriber = Some(created);
                }
                Err(error) => {
                    let why = clip(&error.to_string());
                    if let (Domain::Cuda(gpu), Some(known)) = (domain, &self.known) {
                        known.reads_not(gpu, &why);
                    }
                    if topic.failed.as_ref().is_none_or(|(known, _)| *known != why) {
                        tracing::warn!(
                            topic = name,
                            "a topic cannot be sent to other hosts: {why}"
                        );
                    }
                    topic.failed = Some((why, now + TRY_AGAIN));
                }
            }
        }
        if topic.has.is_none() {
            return;
        }
        topic.note_histories();
        if before != topic.routes() || limited != topic.limits || subscriber.is_some() {
            let routes = topic.streams.iter().filter_map(|(host, (stream, want))| {
                let peer = self.peers.get(host)?;
                Some(Route {
                    host: host.clone(),
                    leads_to: topic.hosts.get(host)?.keys().cloned().collect(),
                    link: peer.linked()?.clone(),
                    stream: *stream,
                    reliable: want.demand.reliable,
                    sent: peer.departed.clone(),
                    notes: peer.landings.notes.clone(),
                    limits: topic.limits.get(host)?.0.clone(),
                    takes_over: topic.takes_over.contains(stream),
                    unconfirmed_max: self.config.links.in_flight_max.0,
                    longest: longest(&self.config.links),
                })
            });
            let order = Order::Topic(name.to_owned(), subscriber, routes.collect());
            forwarder(&self.forwarders, name).order(order);
        }
        self.announce(name, onward);
        self.tell_remote(name);
    }

    /// Says what goes where, where that has changed.
    fn announce(&mut self, name: &str, onward: &[Onward]) {
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
                publishers: topic.sources(host, row, onward),
                read: topic.is_read(),
            };
            if peer.announced.get(number) != Some(&stream) {
                peer.announced.insert(*number, stream.clone());
                peer.say(self.own.incarnation, &Said::Stream(stream));
            }
        }
    }
}

/// Bytes of the longest message that can be in flight, and is kept for a host that is away for a while.
fn longest(config: &Links) -> (u64, &'static str) {
    let keys = [
        (config.in_flight_max.0, "links.in_flight_max"),
        (config.outage_max.0, "links.outage_max"),
    ];
    keys.into_iter().min().expect("there are two")
}

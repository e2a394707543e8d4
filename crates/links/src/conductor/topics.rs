//! Topics: what this host wants, and what goes from here to those that want it.

use super::egress_plan::{EgressPlan, Trees, Wants};
use super::gpu_path::reads_in;
use super::{egress_thread, LinksConductor, GATHER, LOOK_ALL, TRY_AGAIN};
use crate::control_plane::random_u64;
use crate::egress::{EgressCommand, FlowTarget};
use crate::keys::{number_of, TopicInterest};
use crate::quotas::check_rate;
use crate::remote_host::{OutgoingFlow, OutgoingStream, RemoteHost};
use crate::wire::{clip, Takes, Tree};
use rgaps_client::links::{Direction, Links, LinksSubscriberBuilder};
use rgaps_client::{Domain, Late, Subscriber, SubscriberQos};
use rgaps_routing::FlowName;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long until the conductor checks again whether a stream with a broken branch has to begin anew.
const BROKEN_AGAIN: Duration = Duration::from_millis(500);

/// What a host takes of a topic.
fn takes(want: &TopicInterest) -> Takes {
    match want.demand.reliable {
        true => Takes::Reliable,
        false => Takes::BestEffort,
    }
}

/// The tree that begins at a host.
fn branch<'a>(trees: &'a mut Trees, next: &str) -> &'a mut Tree {
    let tree = trees.entry(next.to_owned());
    tree.or_insert_with(|| Tree::new(next))
}

impl LinksConductor {
    /// Tells other hosts what is wanted here.
    pub(super) fn announce_wants(&mut self) {
        let subscribed = self.rows.values().filter(|row| row.subscribers > 0);
        let subscribed = subscribed.map(|row| number_of(&row.name));
        self.committed.forget_unwanted(&subscribed.collect());
        for name in self.network.wanted() {
            let none = self.rows.get(&name).is_none_or(|row| row.subscribers == 0);
            if none || self.config.links.may_come(&name).is_err() {
                self.network.want(&name, None);
            }
        }
        for row in self.rows.values().filter(|row| row.subscribers > 0) {
            if self.config.links.may_come(&row.name).is_err() {
                continue;
            }
            let want = TopicInterest {
                subscribers: row.subscribers,
                demand: row.demand,
            };
            self.network.want(&row.name, Some(want));
        }
    }

    fn end_publishers(&mut self) {
        for (name, topic) in &mut self.topics {
            let row = self.rows.get(name);
            let publishers = row.iter().flat_map(|row| &row.publishers);
            let publishers = publishers.map(|publisher| publisher.incarnation);
            let (ended, back) = topic.set_publishers(publishers.collect());
            for (host, stream) in &topic.streams {
                let Some(peer) = self.peers.get_mut(host) else {
                    continue;
                };
                for publisher in &ended {
                    peer.end_publisher(FlowName {
                        stream: *stream,
                        publisher: *publisher,
                    });
                }
            }
            if !ended.is_empty() || !back.is_empty() {
                let command = EgressCommand::Publishers(name.clone(), ended, back);
                egress_thread(&self.egress, name).send(command);
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
        self.end_publishers();
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
            self.reconcile_topic(&name, wants);
        }
        self.reconcile_transits();
        self.report_landings();
        self.admit_again();
        self.report_unserved();
        let outward = self.topics.values();
        let mut incoming = self.peers.values().flat_map(|peer| peer.incoming.values());
        if outward.into_iter().any(EgressPlan::lacks_something)
            || incoming.any(|i| i.waits.is_some())
            || self.any_transit_refused()
        {
            self.reconcile_at = now + TRY_AGAIN;
        }
        let mut streams = self.peers.values().flat_map(|peer| peer.outgoing.values());
        if streams.any(|stream| stream.is_broken) {
            self.reconcile_at = now + BROKEN_AGAIN;
        }
        if self.gathers() {
            self.reconcile_at = now;
        }
    }

    /// Whether links that have just begun wait for other hosts, before they take any message: what they take before they know that
    /// a host wants it does not go there.
    fn gathers(&self) -> bool {
        let linked = self.peers.iter().filter(|(_, peer)| peer.is_up());
        let heard = linked.filter(|(host, _)| self.network.knows_wants(host));
        heard.count() < self.config.links.connect.len() && self.begun.elapsed() < GATHER
    }

    fn end_topic(&mut self, name: &str) {
        if let Some(topic) = self.topics.remove(name) {
            for (host, stream) in &topic.streams {
                if let Some(peer) = self.peers.get_mut(host) {
                    peer.end_stream(*stream, false);
                }
            }
            egress_thread(&self.egress, name).send(EgressCommand::End(name.to_owned()));
        }
    }

    /// Whether a topic goes to a host that is linked with, as far as rules and rates let it.
    pub(super) fn may_go(&self, host: &str, topic: &str) -> Result<(), String> {
        let links = &self.config.links;
        links.may_cross(Direction::Send, host, topic)?;
        let goes_to = |of: &EgressPlan| of.streams.contains_key(host);
        if self.topics.get(topic).is_some_and(goes_to) {
            // It keeps its rate.
            return Ok(());
        }
        check_rate(links, (host, topic), || {
            let own = self.topics.iter().filter(|(_, of)| goes_to(of));
            let all = own
                .map(|(name, _)| name)
                .chain(self.transits.topics_to(host));
            all.filter(|of| *of != topic).collect()
        })
    }

    /// The same for a path.
    fn may_go_by(&self, name: &str, path: &[String]) -> Result<(), String> {
        let links = &self.config.links;
        self.may_go(path.first().map_or("", String::as_str), name)?;
        let mut on = path.iter();
        on.try_for_each(|host| links.may_cross(Direction::Send, host, name))
    }

    /// The hosts that a topic goes to, and by which trees.
    fn plan_trees(&mut self, name: &str, wants: Wants) -> (Wants, Trees) {
        let (mut served, mut trees) = (Wants::new(), Trees::new());
        let Some(topic) = self.topics.get_mut(name) else {
            return (served, trees);
        };
        topic.refused.clear();
        let largest = topic.largest;
        let planned = match wants.len() < 2 || self.goes_directly(name) {
            true => u64::MAX,
            false => self.bytes_planned(largest),
        };
        let mut in_tree = self.tree_paths(wants.keys(), planned);
        let mut moving = Vec::new();
        for (end, want) in wants {
            let Some(hop) = self.routes.hop(&end) else {
                continue;
            };
            let mut path = hop.path.clone();
            let is_off = self.topics[name].off_trees.contains(&end);
            let by_tree = in_tree.remove(&end).filter(|_| !is_off);
            if let Some(other) = by_tree.filter(|path| self.may_go_by(name, path).is_ok()) {
                path = other;
            } else if let Err(why) = self.may_go_by(name, &path) {
                self.refuse_end(name, (&end, want.subscribers), &path[0], why);
                continue;
            }
            let next = path.remove(0);
            branch(&mut trees, &next).add(&path, takes(&want));
            moving.push((next, end.clone()));
            served.insert(end, want);
        }
        // The way before stays until this one is there.
        let Some(topic) = self.topics.get_mut(name) else {
            return (served, trees);
        };
        let mut is_moving = false;
        moving.retain(|(next, end)| !topic.reaches(&self.peers, next, end));
        for (next, end) in moving {
            for (before, tree) in &topic.trees {
                let usable = self.peers.get(before).is_some_and(RemoteHost::is_usable);
                if *before != next && usable && tree.ends_at(&end) {
                    branch(&mut trees, before).add(&tree.path(&end), takes(&served[&end]));
                    is_moving = true;
                }
            }
        }
        topic.set_planned(planned, is_moving);
        (served, trees)
    }

    /// A topic does not go to a host that wants it, for this reason.
    fn refuse_end(&mut self, name: &str, (end, subscribers): (&str, u32), next: &str, why: String) {
        let issues = self.peers.get(next).map(|peer| &peer.ingress.counts.issues);
        if issues.is_some_and(|issues| issues.refused(name, 0, &why)) {
            tracing::warn!(
                host = end,
                topic = name,
                "a topic is not sent to a host: {why}"
            );
        }
        if let Some(topic) = self.topics.get_mut(name) {
            topic.refused.insert(end.to_owned(), (subscribers, why));
        }
    }

    /// Ends the streams to hosts that a topic does not go to any more.
    fn end_streams(&mut self, name: &str, trees: &Trees) {
        let Some(topic) = self.topics.get(name) else {
            return;
        };
        let ended = topic.streams.keys();
        let ended = ended.filter(|host| !trees.contains_key(*host));
        for host in ended.cloned().collect::<Vec<_>>() {
            let is_reached = |end: &String| trees.values().any(|tree| tree.ends_at(end));
            let Some(topic) = self.topics.get_mut(name) else {
                return;
            };
            let tree = topic.trees.get(&host);
            let moved = tree.is_some_and(|tree| tree.ends().all(is_reached));
            let stream = topic.streams.remove(&host);
            if let Some((number, peer)) = stream.zip(self.peers.get_mut(&host)) {
                peer.end_stream(number, moved);
            }
        }
    }

    /// Begins streams, some of them again under another number. Whether something is to have history.
    fn begin_streams(&mut self, name: &str, (wants, trees): (Wants, Trees)) -> bool {
        let Some(topic) = self.topics.get_mut(name) else {
            return false;
        };
        let network = &self.network;
        let previous_trees = std::mem::replace(&mut topic.trees, trees);
        let previous = (std::mem::replace(&mut topic.wants, wants), previous_trees);
        let renews = std::mem::take(&mut topic.renews);
        let mut wants_history = false;
        for (next, tree) in topic.trees.clone() {
            let Some(peer) = self.peers.get_mut(&next) else {
                continue;
            };
            let known = topic.streams.get(&next);
            let known = known.and_then(|number| peer.outgoing.get(number));
            wants_history |= topic.wants_history(&tree, &previous);
            let stays = |known: &OutgoingStream| {
                let is_read_as_before = known.is_read == topic.not_read.is_none();
                !renews && is_read_as_before && !known.is_to_begin_again(&tree, network)
            };
            if known.is_some_and(stays) {
                continue;
            }
            // Without a number there is no stream; there will be one in a moment.
            let Ok(number) = random_u64() else {
                continue;
            };
            if let Some(previous) = topic.streams.insert(next.clone(), number) {
                peer.end_stream(previous, true);
            }
            let mut stream = OutgoingStream::new(tree, network);
            stream.is_read = topic.not_read.is_none();
            peer.begin_stream(number, name, stream);
        }
        wants_history
    }

    /// `wants`: of all hosts.
    fn reconcile_topic(&mut self, name: &str, wants: Wants) {
        let gathers = self.gathers();
        let planned_before = self.topics.entry(name.to_owned()).or_default().planned;
        let (wants, trees) = self.plan_trees(name, wants);
        let Some(topic) = self.topics.get(name) else {
            return;
        };
        let before = (topic.streams.clone(), topic.trees.clone(), planned_before);
        let limits = topic.limits.clone();
        self.end_streams(name, &trees);
        let row = self.rows.get(name);
        let direct = reads_in(row, self.known.as_deref(), trees.keys(), &self.peers);
        let domain = direct.clone().unwrap_or(Domain::Host);
        if let Some(topic) = self.topics.get_mut(name) {
            topic.not_read = direct.err();
        }
        let wants_history = self.begin_streams(name, (wants, trees));
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        if topic.streams.is_empty() {
            if topic.has.take().is_some() {
                egress_thread(&self.egress, name).send(EgressCommand::End(name.to_owned()));
            }
            topic.reported = None;
            return;
        }
        let row = self.rows.get(name);
        let publishers = row.map_or_else(Vec::new, |row| row.publishers.clone());
        let of_links = (&self.config.links, &self.quotas);
        topic.set_limits(name, of_links, &self.peers, &publishers);
        if topic.has.is_none() && gathers {
            return;
        }
        let is_new = before.0.len() != topic.streams.len();
        let subscriber = self.subscribe(name, domain, (wants_history, is_new));
        let Some(topic) = self.topics.get_mut(name).filter(|of| of.has.is_some()) else {
            return;
        };
        topic.note_histories();
        let described = self.describe(name);
        let Some(topic) = self.topics.get(name) else {
            return;
        };
        let (streams, trees, planned) = (&topic.streams, &topic.trees, topic.planned);
        let goes_elsewhere = (&before.0, &before.1, before.2) != (streams, trees, planned);
        if described || goes_elsewhere || limits != topic.limits || subscriber.is_some() {
            let routes = self.routes_of(topic);
            let command = EgressCommand::Topic(name.to_owned(), subscriber, routes, planned);
            egress_thread(&self.egress, name).send(command);
        }
        self.report_remote(name);
    }

    /// Gives a topic a subscriber as it is to be, unless it has one. `is_new`: another host wants it, so what failed is tried again.
    fn subscribe(
        &mut self,
        name: &str,
        domain: Domain,
        (wants_history, is_new): (bool, bool),
    ) -> Option<Subscriber> {
        let topic = self.topics.get_mut(name)?;
        let now = Instant::now();
        let demand = topic.demand();
        let has = topic.has.as_ref();
        let fits = has.is_some_and(|(has, at, _)| (*has, *at) == (demand, domain));
        let waits = topic.failed.as_ref().is_some_and(|(_, at)| now < *at);
        if fits && !wants_history || waits && !is_new {
            return None;
        }
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
        match builder.observer().of_links().create() {
            Ok(created) => {
                topic.has = Some((demand, domain, created.clone()));
                (topic.failed, topic.reported) = (None, None);
                Some(created)
            }
            Err(error) => {
                let why = clip(&error.to_string());
                if let (Domain::Cuda(gpu), Some(known)) = (domain, &self.known) {
                    known.reads_not(gpu, &why);
                }
                if topic.failed.as_ref().is_none_or(|(known, _)| *known != why) {
                    tracing::warn!(topic = name, "a topic cannot be sent to other hosts: {why}");
                }
                topic.failed = Some((why, now + TRY_AGAIN));
                None
            }
        }
    }

    fn routes_of(&self, topic: &EgressPlan) -> Vec<FlowTarget> {
        let routes = topic.streams.iter().filter_map(|(host, stream)| {
            let peer = self.peers.get(host)?;
            let of_stream = peer.outgoing.get(stream)?;
            let publishers = of_stream.publishers.values();
            let publishers = publishers.map(|flow| flow.description.clone());
            Some(FlowTarget {
                host: host.clone(),
                tree: of_stream.tree.clone(),
                link: peer.linked()?.clone(),
                stream: *stream,
                publishers: publishers.collect(),
                counts: peer.ingress.counts.clone(),
                limits: topic.limits.get(host)?.0.clone(),
                unconfirmed_max: Some(self.config.links.in_flight_max.0),
                longest: longest(&self.config.links),
            })
        });
        routes.collect()
    }

    /// Describes publishers whose flows are to be opened. Whether there are any.
    fn describe(&mut self, name: &str) -> bool {
        let (Some(topic), row) = (self.topics.get(name), self.rows.get(name)) else {
            return false;
        };
        let mut any = false;
        for (host, number) in &topic.streams {
            let stream = self.peers.get_mut(host);
            let Some(stream) = stream.and_then(|peer| peer.outgoing.get_mut(number)) else {
                continue;
            };
            for source in topic.sources(name, host, row) {
                let flow = stream.publishers.entry(source.publisher);
                flow.or_insert_with(|| {
                    any = true;
                    OutgoingFlow::new(Arc::new(source))
                });
            }
        }
        any
    }
}

/// Bytes of the longest message that can be in flight, and is kept for a host that is away for a while.
pub(super) fn longest(config: &Links) -> (u64, &'static str) {
    let keys = [
        (config.in_flight_max.0, "links.in_flight_max"),
        (config.outage_max.0, "links.outage_max"),
    ];
    keys.into_iter().min().expect("there are two")
}

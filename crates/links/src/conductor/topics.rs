//! Topics: what this host wants, and what goes from here to those that want it.

use super::egress_plan::{EgressPlan, Trees, Wants};
use super::landing::reads_in;
use super::{LinksConductor, GATHER, LOOK_ALL, TRY_AGAIN};
use crate::egress::{EgressCommand, FlowTarget};
use crate::keys::{number_of, TopicInterest};
use crate::quotas::check_rate;
use crate::remote_host::{OutgoingFlow, OutgoingStream, RemoteHost};
use crate::wire::{clip, Takes, Tree};
use rgaps_client::links::{Direction, InterestRow, LinksSubscriberBuilder};
use rgaps_client::{Domain, Late, Subscriber, SubscriberQos};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long until the conductor checks again whether a stream with a broken branch has to begin anew.
const BROKEN_AGAIN: Duration = Duration::from_millis(500);

fn takes(want: &TopicInterest) -> Takes {
    match want.demand.reliable {
        true => Takes::Reliable,
        false => Takes::BestEffort,
    }
}

fn branch<'a>(trees: &'a mut Trees, next: &str) -> &'a mut Tree {
    let tree = trees.entry(next.to_owned());
    tree.or_insert_with(|| Tree::new(next))
}

impl LinksConductor {
    pub(super) fn announce_wants(&mut self) {
        let subscribed = self.daemon.wanted().map(|row| number_of(&row.name));
        self.landings.set_wanted(&subscribed.collect());
        let rows = self.daemon.wanted();
        let rows = rows.filter(|row| self.config.links.may_arrive(&row.name).is_ok());
        let want = |row: &InterestRow| TopicInterest {
            subscribers: row.subscribers,
            demand: row.demand,
        };
        self.network
            .set_wants(rows.map(|row| (&row.name[..], want(row))).collect());
    }

    /// Ends the flows of publishers that are gone.
    fn end_publishers(&mut self, name: &str, topic: &mut EgressPlan) {
        let row = self.daemon.row(name);
        let publishers = row.iter().flat_map(|row| &row.publishers);
        let publishers: BTreeSet<u64> = publishers.map(|of| of.incarnation).collect();
        if publishers == topic.publishers {
            return;
        }
        topic.set_publishers(publishers.clone());
        let command = EgressCommand::Publishers(name.to_owned(), publishers);
        self.egress.send(name, command);
    }

    /// Reconciles the links with what is wanted.
    pub(super) fn reconcile(&mut self) {
        self.reconcile_peers();
        self.update_routes();
        let now = Instant::now();
        if !self.dirty && now < self.reconcile_at {
            return;
        }
        self.dirty = false;
        let mut wanted = self.all_wants();
        for name in self.topics.keys() {
            wanted.entry(name.clone()).or_default();
        }
        for (name, wants) in wanted {
            self.reconcile_topic(&name, wants);
        }
        let topics = self.topics.iter();
        let streams = topics.flat_map(|(name, topic)| {
            let branches = topic.branches.values();
            branches.map(|branch| (branch.stream, name.clone()))
        });
        self.streams = streams.collect();
        self.reconcile_transits();
        self.forget_staged();
        self.report_landings();
        self.admit_again();
        self.report_unserved();
        let mut incoming = self.peers.values().flat_map(|peer| peer.incoming.values());
        let waits = self.topics.values().any(EgressPlan::lacks_something)
            || incoming.any(|of| of.waits.is_some())
            || self.transits.limits().any(|of| !of.held.is_empty());
        let mut branches = self.topics.values().flat_map(|own| own.branches.values());
        let is_broken = branches.any(|branch| branch.is_broken);
        self.reconcile_at = match (self.gathers(), is_broken, waits) {
            (true, ..) => now,
            (_, true, _) => now + BROKEN_AGAIN,
            (.., true) => now + TRY_AGAIN,
            _ => now + LOOK_ALL,
        };
    }

    /// Gives back the parts of quotas that no flow of their publisher uses any more.
    fn forget_staged(&mut self) {
        let topics = self.topics.values();
        let branches = topics.flat_map(|topic| topic.branches.values());
        let limits = branches.map(|branch| &branch.limits);
        let used = limits.chain(self.transits.limits()).flat_map(|limits| {
            let quota = limits.quota.as_ref().map_or("", |quota| &quota.name);
            let publishers = limits.staging.keys();
            publishers.map(move |publisher| (quota, *publisher))
        });
        self.staged.set_used(&used.collect());
    }

    /// Whether links that have just begun wait for other hosts: a message that they take before a host says that it wants it is lost there.
    fn gathers(&self) -> bool {
        let linked = self.peers.iter().filter(|(_, peer)| peer.reach.is_up());
        let heard = linked.filter(|(host, _)| self.network.knows_wants(host));
        heard.count() < self.config.links.connect.len() && self.begun.elapsed() < GATHER
    }

    /// Whether a topic goes to a host that is linked with, as far as rules and rates let it.
    pub(super) fn may_go(&self, host: &str, topic: &str) -> Result<(), String> {
        let links = &self.config.links;
        links.may_cross(Direction::Send, host, topic)?;
        check_rate(links, (host, topic), || {
            let own = self.topics.iter();
            let own = own.filter(|(_, own)| own.branches.contains_key(host));
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
    fn plan_trees(&self, name: &str, topic: &mut EgressPlan, wants: Wants) -> (Wants, Trees) {
        let (mut served, mut trees) = (Wants::new(), Trees::new());
        topic.refused.clear();
        let planned = match wants.len() < 2 || self.goes_directly(name) {
            true => u64::MAX,
            false => self.bytes_planned(topic.largest),
        };
        let mut in_tree = self.tree_paths(wants.keys(), planned);
        let mut moving = Vec::new();
        for (end, want) in wants {
            let Some(hop) = self.routes.hop(&end) else {
                continue;
            };
            let mut path = hop.path.clone();
            let is_off = topic.off_trees.contains(&end);
            let by_tree = in_tree.remove(&end).filter(|_| !is_off);
            if let Some(other) = by_tree.filter(|path| self.may_go_by(name, path).is_ok()) {
                path = other;
            } else if let Err(why) = self.may_go_by(name, &path) {
                let what = format!("a topic is not sent to {end}");
                if let Some(next) = self.peers.get(&path[0]) {
                    let issues = &next.ingress.counts.issues;
                    issues.warn_refused(name, 0, &what, &why);
                }
                topic.refused.insert(end, (want.subscribers, why));
                continue;
            }
            let next = path.remove(0);
            branch(&mut trees, &next).add(&path, takes(&want));
            moving.push((next, end.clone()));
            served.insert(end, want);
        }
        // The way before stays until this one is there.
        let mut is_moving = false;
        moving.retain(|(next, end)| !topic.reaches(&self.peers, next, end));
        for (next, end) in moving {
            for (before, OutgoingStream { tree, .. }) in &topic.branches {
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

    /// Begins streams, some of them again under another number: among them the `late` ones, whose hosts begin with older messages now.
    fn begin_streams(&self, topic: &mut EgressPlan, trees: Trees, late: &BTreeSet<String>) {
        let network = &self.network;
        let renews = std::mem::take(&mut topic.renews);
        let is_read = topic.not_read.is_none();
        for (next, tree) in trees {
            let stays = |known: &OutgoingStream| {
                let is_described = !renews && known.is_read == is_read;
                is_described && !late.contains(&next) && !known.is_to_begin_again(&tree, network)
            };
            let is_known = self.peers.contains_key(&next);
            if !is_known || topic.branches.get(&next).is_some_and(stays) {
                continue;
            }
            let mut branch = OutgoingStream::new(tree, network);
            branch.is_read = is_read;
            topic.branches.insert(next, branch);
        }
    }

    /// `wants`: of all hosts. A topic that nobody wants ends.
    fn reconcile_topic(&mut self, name: &str, wants: Wants) {
        let is_wanted = !wants.is_empty();
        let mut topic = self.topics.remove(name).unwrap_or_default();
        self.end_publishers(name, &mut topic);
        self.reconcile_plan(name, &mut topic, wants);
        if is_wanted {
            self.topics.insert(name.to_owned(), topic);
        }
    }

    fn reconcile_plan(&mut self, name: &str, topic: &mut EgressPlan, wants: Wants) {
        let streams = |topic: &EgressPlan| -> Vec<u64> {
            let branches = topic.branches.values();
            branches.map(|branch| branch.stream).collect()
        };
        let before = (streams(topic), topic.planned);
        let (wants, trees) = self.plan_trees(name, topic, wants);
        topic.branches.retain(|host, _| trees.contains_key(host));
        let row = self.daemon.row(name);
        let direct = reads_in(row, &self.cards, trees.keys(), &self.peers);
        let domain = direct.clone().unwrap_or(Domain::Host);
        topic.not_read = direct.err();
        let late = topic.late_branches(&wants, &trees);
        topic.wants = wants;
        self.begin_streams(topic, trees, &late);
        if topic.branches.is_empty() {
            if topic.has.take().is_some() {
                self.egress.send(name, EgressCommand::End(name.to_owned()));
            }
            topic.reported = None;
            return;
        }
        let row = self.daemon.row(name);
        let publishers = row.map_or(&[][..], |row| &row.publishers[..]);
        let of_links = (&self.config.links, &mut self.staged);
        let is_limited = topic.set_limits(name, of_links, &self.peers, publishers);
        if topic.has.is_none() && self.gathers() {
            return;
        }
        let is_new = before.0.len() != topic.branches.len();
        let subscriber = self.subscribe(name, topic, domain, (!late.is_empty(), is_new));
        if topic.has.is_none() {
            return;
        }
        topic.note_histories();
        let is_described = self.describe(name, topic);
        let goes_elsewhere = before != (streams(topic), topic.planned);
        if is_described || goes_elsewhere || is_limited || subscriber.is_some() {
            let routes = self.routes_of(topic);
            let command = EgressCommand::Topic(name.to_owned(), subscriber, routes, topic.planned);
            self.egress.send(name, command);
        }
        self.report_remote(name, topic);
    }

    /// Gives a topic a subscriber as it is to be, unless it has one. `is_new`: another host wants it, so what failed is tried again.
    fn subscribe(
        &self,
        name: &str,
        topic: &mut EgressPlan,
        domain: Domain,
        (wants_history, is_new): (bool, bool),
    ) -> Option<Subscriber> {
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
        // The other hosts match their own subscribers, so an observer is enough here.
        let builder = self.daemon.node.subscriber(name).domain(domain).qos(qos);
        match builder.observer().of_links().create() {
            Ok(created) => {
                topic.has = Some((demand, domain, created.clone()));
                (topic.failed, topic.reported) = (None, None);
                Some(created)
            }
            Err(error) => {
                let why = clip(&error.to_string());
                if let Domain::Cuda(gpu) = domain {
                    self.cards.reads_not(gpu, &why);
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
        let routes = topic.branches.iter().filter_map(|(host, branch)| {
            let peer = self.peers.get(host)?;
            let flows = branch.flows.values();
            Some(FlowTarget {
                tree: branch.tree.clone(),
                link: peer.linked()?.clone(),
                stream: branch.stream,
                publishers: flows.map(|flow| flow.description.clone()).collect(),
                counts: peer.ingress.counts.clone(),
                limits: branch.limits.clone(),
                is_in_transit: false,
            })
        });
        routes.collect()
    }

    /// Describes publishers whose flows are to be opened. Whether there are any.
    fn describe(&self, name: &str, topic: &mut EgressPlan) -> bool {
        let row = self.daemon.row(name);
        let mut any = false;
        let mut branches = std::mem::take(&mut topic.branches);
        for branch in branches.values_mut() {
            let publishers = row.into_iter().flat_map(|row| &row.publishers);
            for publisher in publishers {
                let id = publisher.incarnation;
                if branch.opens(id) && !branch.flows.contains_key(&id) {
                    any = true;
                    let description = Arc::new(topic.description(name, &branch.tree, publisher));
                    let answers = BTreeMap::new();
                    let flow = OutgoingFlow {
                        description,
                        answers,
                    };
                    branch.flows.insert(id, flow);
                }
            }
        }
        topic.branches = branches;
        any
    }
}

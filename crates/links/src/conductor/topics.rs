//! Topics: what this host wants from others, and which of its own messages go to which of them.

use super::egress_plan::{EgressPlan, TopicWants, Trees};
use super::landing::reads_in;
use super::{LinksConductor, GATHER, LOOK_ALL, TRY_AGAIN};
use crate::egress::{EgressCommand, FlowTarget};
use crate::keys::{number_of, TopicInterest};
use crate::quotas::check_rate;
use crate::remote_host::{OutgoingStream, RemoteHost};
use crate::wire::{clip, Takes, Tree};
use rgaps_client::links::{Direction, InterestRow, LinksSubscriberBuilder};
use rgaps_client::{Domain, Late, Subscriber, SubscriberQos};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long until the conductor checks again whether another stream has to replace a broken one.
const BROKEN_AGAIN: Duration = Duration::from_millis(500);

fn takes(want: &TopicInterest) -> Takes {
    match want.demand.reliable {
        true => Takes::Reliable,
        false => Takes::BestEffort,
    }
}

/// The tree with this root, new if there is none.
fn branch<'a>(trees: &'a mut Trees, next: &str) -> &'a mut Tree {
    let tree = trees.entry(next.to_owned());
    tree.or_insert_with(|| Tree::new(next))
}

impl LinksConductor {
    /// Announces the topics that have subscribers here to other hosts.
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

    /// Ends the flows of publishers that ended.
    fn end_publishers(&mut self, name: &str, topic: &mut EgressPlan) {
        let row = self.daemon.row(name);
        let publishers = row.iter().flat_map(|row| &row.publishers);
        let publishers: BTreeSet<u64> = publishers.map(|of| of.incarnation).collect();
        if topic.set_publishers(publishers.clone()) {
            let command = EgressCommand::Publishers(name.to_owned(), publishers);
            self.egress.send(name, command);
        }
    }

    /// Reconciles hosts, streams, flows and reports with what is wanted, if something changed or it is time.
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
            let branches = topic.branches().values();
            branches.map(|branch| (branch.stream(), name.clone()))
        });
        self.streams = streams.collect();
        self.reconcile_transits();
        self.forget_staged();
        self.report_landings();
        self.admit_again();
        self.report_unserved();
        let waits = self.topics.values().any(EgressPlan::lacks_something)
            || self.peers.values().any(RemoteHost::has_waiting)
            || self.transits.limits().any(|of| !of.held.is_empty());
        let mut branches = self.topics.values().flat_map(|own| own.branches().values());
        let is_broken = branches.any(OutgoingStream::is_broken);
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
        let branches = topics.flat_map(|topic| topic.branches().values());
        let limits = branches.map(OutgoingStream::limits);
        let used = limits.chain(self.transits.limits()).flat_map(|limits| {
            let quota = limits.quota.as_ref().map_or("", |quota| &quota.name);
            let publishers = limits.staging.keys();
            publishers.map(move |publisher| (quota, *publisher))
        });
        self.staged.set_used(&used.collect());
    }

    /// Whether new links wait for other hosts: a host loses the messages that the links take before it says what it wants.
    fn gathers(&self) -> bool {
        let linked = self.peers.iter().filter(|(_, peer)| peer.reach().is_up());
        let known = linked.filter(|(host, _)| self.network.knows_wants(host));
        known.count() < self.config.links.connect.len() && self.begun.elapsed() < GATHER
    }

    /// Whether rules and rates let a topic go to a directly linked host, or why not.
    pub(super) fn may_go(&self, host: &str, topic: &str) -> Result<(), String> {
        let links = &self.config.links;
        links.may_cross(Direction::Send, host, topic)?;
        check_rate(links, (host, topic), || {
            let own = self.topics.iter();
            let own = own.filter(|(_, own)| own.branches().contains_key(host));
            let all = own
                .map(|(name, _)| name)
                .chain(self.transits.topics_to(host));
            all.filter(|of| *of != topic).collect()
        })
    }

    /// Whether rules and rates let a topic go along a path, or why not.
    fn may_go_by(&self, name: &str, path: &[String]) -> Result<(), String> {
        let links = &self.config.links;
        self.may_go(path.first().map_or("", String::as_str), name)?;
        let mut on = path.iter();
        on.try_for_each(|host| links.may_cross(Direction::Send, host, name))
    }

    /// Plans which hosts get a topic, and by which trees.
    fn plan_trees(
        &self,
        name: &str,
        topic: &mut EgressPlan,
        wants: TopicWants,
    ) -> (TopicWants, Trees) {
        let (mut served, mut trees) = (TopicWants::new(), Trees::new());
        let mut refused = BTreeMap::new();
        let planned = match wants.len() < 2 || self.goes_directly(name) {
            true => u64::MAX,
            false => self.bytes_planned(topic.largest()),
        };
        let mut in_tree = self.tree_paths(wants.keys(), planned);
        let mut moving = Vec::new();
        for (end, want) in wants {
            let Some(hop) = self.routes.hop(&end) else {
                continue;
            };
            let mut path = hop.path.clone();
            let is_off = topic.is_off_trees(&end);
            let by_tree = in_tree.remove(&end).filter(|_| !is_off);
            if let Some(other) = by_tree.filter(|path| self.may_go_by(name, path).is_ok()) {
                path = other;
            } else if let Err(why) = self.may_go_by(name, &path) {
                let what = format!("a topic is not sent to {end}");
                if let Some(next) = self.peers.get(&path[0]) {
                    let issues = &next.counts().issues;
                    issues.warn_refused(name, 0, &what, &why);
                }
                refused.insert(end, (want.subscribers, why));
                continue;
            }
            let next = path.remove(0);
            branch(&mut trees, &next).add(&path, takes(&want));
            moving.push((next, end.clone()));
            served.insert(end, want);
        }
        topic.set_refused(refused);
        // A host stays on its former routes until the planned one reaches it.
        let mut is_moving = false;
        moving.retain(|(next, end)| !topic.reaches(&self.peers, next, end));
        for (next, end) in moving {
            for (before, tree) in topic.previous_routes(&self.peers, (&next, &end)) {
                branch(&mut trees, before).add(&tree.path(&end), takes(&served[&end]));
                is_moving = true;
            }
        }
        topic.set_planned(planned, is_moving);
        (served, trees)
    }

    /// Reconciles a topic with `wants`, which are those of all hosts. A topic that no host wants ends.
    fn reconcile_topic(&mut self, name: &str, wants: TopicWants) {
        let is_wanted = !wants.is_empty();
        let mut topic = self.topics.remove(name).unwrap_or_default();
        self.end_publishers(name, &mut topic);
        self.reconcile_plan(name, &mut topic, wants);
        if is_wanted {
            self.topics.insert(name.to_owned(), topic);
        }
    }

    fn reconcile_plan(&mut self, name: &str, topic: &mut EgressPlan, wants: TopicWants) {
        let before = topic.routes_version();
        let (wants, trees) = self.plan_trees(name, topic, wants);
        let row = self.daemon.row(name);
        let direct = reads_in(row, &self.cards, trees.keys(), &self.peers);
        let domain = direct.clone().unwrap_or(Domain::Host);
        let wants_history = topic.set_plan((wants, trees), direct, (&self.peers, &self.network));
        if topic.branches().is_empty() {
            if topic.end() {
                self.egress.send(name, EgressCommand::End(name.to_owned()));
            }
            return;
        }
        let row = self.daemon.row(name);
        let publishers = row.map_or(&[][..], |row| &row.publishers[..]);
        let of_links = (&self.config.links, &mut self.staged);
        let is_limited = topic.set_limits(name, of_links, &self.peers, publishers);
        if !topic.has_subscriber() && self.gathers() {
            return;
        }
        let is_new = before.0.len() != topic.branches().len();
        let subscriber = self.subscribe(name, topic, domain, (wants_history, is_new));
        if !topic.has_subscriber() {
            return;
        }
        topic.note_histories();
        let publishers = self
            .daemon
            .row(name)
            .map_or(&[][..], |row| &row.publishers[..]);
        let is_opened = topic.open_flows(name, publishers);
        let is_rerouted = before != topic.routes_version();
        if is_opened || is_rerouted || is_limited || subscriber.is_some() {
            let routes = self.routes_of(topic);
            let planned = topic.planned();
            let command = EgressCommand::Topic(name.to_owned(), subscriber, routes, planned);
            self.egress.send(name, command);
        }
        self.report_remote(name, topic);
    }

    /// Creates a subscriber for what hosts want of a topic, unless it has one. `is_new`: another host wants it, so what failed is tried
    /// again.
    fn subscribe(
        &self,
        name: &str,
        topic: &mut EgressPlan,
        domain: Domain,
        (wants_history, is_new): (bool, bool),
    ) -> Option<Subscriber> {
        let demand = topic.lacks_subscriber(domain, (wants_history, is_new))?;
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
                topic.subscribed(demand, domain, created.clone());
                Some(created)
            }
            Err(error) => {
                let why = clip(&error.to_string());
                if let Domain::Cuda(gpu) = domain {
                    self.cards.reads_not(gpu, &why);
                }
                if topic.subscribing_failed(why.clone(), Instant::now() + TRY_AGAIN) {
                    tracing::warn!(topic = name, "a topic cannot be sent to other hosts: {why}");
                }
                None
            }
        }
    }

    fn routes_of(&self, topic: &EgressPlan) -> Vec<FlowTarget> {
        let branches = topic.branches().iter();
        let routes = branches.filter_map(|(host, branch)| branch.target(self.peers.get(host)?));
        routes.collect()
    }
}

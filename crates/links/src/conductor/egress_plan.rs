//! A topic of this host that other hosts want: the streams in which it goes out, and what rules and quotas let cross.

use crate::egress::{FlowLimits, Hold};
use crate::keys::TopicInterest;
use crate::network::Network;
use crate::quotas::Staged;
use crate::remote_host::{OutgoingStream, RemoteHost};
use crate::wire::{clip, FlowDescription, Tree};
use rgaps_client::links::{Demand, InterestPublisher, Links, LinksSubscriber};
use rgaps_client::{Domain, PathKind, RemoteRow, Subscriber};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// How many publishers a topic remembers after they ended.
const MAX_ENDED: usize = 1024;
/// How long large messages wait at most until hosts have moved to the planned routes.
const MOVE_LIMIT: Duration = Duration::from_secs(20);

#[derive(Default)]
pub(super) struct EgressPlan {
    /// The topic's subscriber, with the demand and the domain that it was created for. None: not created yet, or creating it failed.
    has: Option<(Demand, Domain, Subscriber)>,
    /// Why network cards do not read the topic's messages in GPU memory. None: they do.
    not_read: Option<String>,
    /// The streams, by the directly linked hosts that they go to.
    branches: BTreeMap<String, OutgoingStream>,
    /// By final hosts, what each wants of the topic, whether it is linked directly or reached through others.
    wants: TopicWants,
    /// Final hosts that must be reached by their shortest path: on a tree, their rules or those of a host between refused the topic.
    off_trees: BTreeSet<String>,
    /// Size in bytes of the largest message that has waited for routes.
    largest: u64,
    /// Size in bytes of the largest message that the trees are planned for. The egress keeps a larger one until there are trees for it.
    planned: u64,
    /// Since when some hosts are still reached on former routes, too. None: all have moved to the planned ones.
    moves_since: Option<Instant>,
    /// Why creating the subscriber failed, and when the conductor tries again.
    failed: Option<(String, Instant)>,
    /// The hosts that the daemon was last told of. None: it has to be told again.
    reported: Option<Vec<RemoteRow>>,
    /// By hosts and publishers, the number below which messages are history there: published before the host wanted the topic.
    histories: BTreeMap<String, BTreeMap<u64, u64>>,
    publishers: BTreeSet<u64>,
    /// The last [`MAX_ENDED`] publishers that ended, the oldest first.
    ended: VecDeque<u64>,
    /// Whether a publisher in `ended` is back. Its flows have ended in all open streams, so it needs new streams.
    renews: bool,
    /// Hosts that want the topic and do not get it: how many subscribers they have, and why.
    refused: BTreeMap<String, (u32, String)>,
}

/// By final hosts, what each wants of a topic.
pub(super) type TopicWants = BTreeMap<String, TopicInterest>;

/// The trees of a topic, by their roots: the hosts that it goes to directly.
pub(super) type Trees = BTreeMap<String, Tree>;

impl EgressPlan {
    /// The demand of all hosts together.
    fn demand(&self) -> Demand {
        let demands = self.wants.values().map(|want| want.demand);
        demands.reduce(Demand::and).unwrap_or_default()
    }

    /// Sets the topic's publishers on this host, and ends the flows of those that ended. Returns whether there is a change.
    pub(super) fn set_publishers(&mut self, publishers: BTreeSet<u64>) -> bool {
        if publishers == self.publishers {
            return false;
        }
        let ended: Vec<u64> = self.publishers.difference(&publishers).copied().collect();
        self.renews |= self.ended.iter().any(|of| publishers.contains(of));
        self.ended.retain(|of| !publishers.contains(of));
        self.ended.extend(&ended);
        let forgotten = self.ended.len().saturating_sub(MAX_ENDED);
        self.ended.drain(..forgotten);
        self.publishers = publishers;
        for branch in self.branches.values_mut() {
            branch.end_flows(&ended);
        }
        true
    }

    pub(super) fn branches(&self) -> &BTreeMap<String, OutgoingStream> {
        &self.branches
    }

    /// The stream to a directly linked host.
    pub(super) fn branch_mut(&mut self, host: &str) -> Option<&mut OutgoingStream> {
        self.branches.get_mut(host)
    }

    /// The stream with this number.
    pub(super) fn stream_mut(&mut self, number: u64) -> Option<&mut OutgoingStream> {
        let mut branches = self.branches.values_mut();
        branches.find(|branch| branch.stream() == number)
    }

    pub(super) fn wants(&self) -> &TopicWants {
        &self.wants
    }

    pub(super) fn largest(&self) -> u64 {
        self.largest
    }

    pub(super) fn planned(&self) -> u64 {
        self.planned
    }

    /// Hosts that want the topic and do not get it: how many subscribers they have, and why.
    pub(super) fn refused(&self) -> &BTreeMap<String, (u32, String)> {
        &self.refused
    }

    pub(super) fn set_refused(&mut self, refused: BTreeMap<String, (u32, String)>) {
        self.refused = refused;
    }

    /// Records that a message of so many bytes waits for routes.
    pub(super) fn waits_for_routes(&mut self, bytes: u64) {
        self.largest = self.largest.max(bytes);
    }

    pub(super) fn is_off_trees(&self, end: &str) -> bool {
        self.off_trees.contains(end)
    }

    /// Takes a host that refused the topic off its trees, for good.
    pub(super) fn take_off_trees(&mut self, end: String) {
        self.off_trees.insert(end);
    }

    pub(super) fn has_subscriber(&self) -> bool {
        self.has.is_some()
    }

    pub(super) fn into_subscriber(self) -> Option<Subscriber> {
        self.has.map(|(.., subscriber)| subscriber)
    }

    /// The demand for which the topic needs another subscriber in this domain. None: the one it has fits, or it is too early to try again.
    /// `is_new`: another host wants the topic, so it is never too early.
    pub(super) fn lacks_subscriber(
        &self,
        domain: Domain,
        (wants_history, is_new): (bool, bool),
    ) -> Option<Demand> {
        let demand = self.demand();
        let has = self.has.as_ref();
        let fits = has.is_some_and(|(has, at, _)| (*has, *at) == (demand, domain));
        let failed = self.failed.as_ref();
        let waits = failed.is_some_and(|(_, at)| Instant::now() < *at);
        let lacks = (is_new || !waits) && (wants_history || !fits);
        lacks.then_some(demand)
    }

    pub(super) fn subscribed(&mut self, demand: Demand, domain: Domain, subscriber: Subscriber) {
        self.has = Some((demand, domain, subscriber));
        (self.failed, self.reported) = (None, None);
    }

    /// Records why creating a subscriber failed, and when to try again. Returns whether the reason is another than at the last try.
    pub(super) fn subscribing_failed(&mut self, why: String, again_at: Instant) -> bool {
        let known = self.failed.as_ref();
        let is_other = known.is_none_or(|(known, _)| *known != why);
        self.failed = Some((why, again_at));
        is_other
    }

    /// Forgets the subscriber. Returns whether there was one.
    pub(super) fn end(&mut self) -> bool {
        self.reported = None;
        self.has.take().is_some()
    }

    /// Has the daemon told again which hosts the subscriber stands for: a new daemon does not know.
    pub(super) fn forget_reported(&mut self) {
        self.reported = None;
    }

    /// Tells the daemon, with `send`, which hosts the subscriber stands for, if it does not know these rows. `send`: whether that
    /// succeeded.
    pub(super) fn report(
        &mut self,
        rows: Vec<RemoteRow>,
        send: impl FnOnce(&Subscriber, Vec<RemoteRow>) -> bool,
    ) {
        let Some((.., subscriber)) = &self.has else {
            return;
        };
        if self.reported.as_ref() != Some(&rows) && send(subscriber, rows.clone()) {
            self.reported = Some(rows);
        }
    }

    /// Why no message goes out in a stream. None: messages of some publisher do.
    pub(super) fn barred<'a>(&'a self, branch: &'a OutgoingStream) -> Option<&'a String> {
        let failed = self.failed.as_ref().map(|(why, _)| why);
        failed.or(branch.barred())
    }

    /// The streams to usable hosts other than `next` that lead to a final host, with their roots: the routes before `next`.
    pub(super) fn previous_routes<'a>(
        &'a self,
        peers: &'a BTreeMap<String, RemoteHost>,
        (next, end): (&'a str, &'a str),
    ) -> impl Iterator<Item = (&'a String, &'a Tree)> {
        let branches = self.branches.iter();
        let trees = branches.map(|(host, branch)| (host, branch.tree()));
        trees.filter(move |(host, tree)| {
            let is_usable = peers.get(*host).is_some_and(RemoteHost::is_usable);
            *host != next && is_usable && tree.ends_at(end)
        })
    }

    /// The numbers of the streams, and the size that trees are planned for: a change means new routes for the egress.
    pub(super) fn routes_version(&self) -> (Vec<u64>, u64) {
        let streams = self.branches.values().map(OutgoingStream::stream);
        (streams.collect(), self.planned)
    }

    /// Sets the hosts that get the topic, and their trees: ends streams without a tree, and begins new ones where the old do not do.
    /// `direct`: whether network cards read the messages in GPU memory. Returns whether hosts want history that they were not sent.
    pub(super) fn set_plan(
        &mut self,
        (wants, trees): (TopicWants, Trees),
        direct: Result<Domain, String>,
        (peers, network): (&BTreeMap<String, RemoteHost>, &Network),
    ) -> bool {
        self.branches.retain(|host, _| trees.contains_key(host));
        self.not_read = direct.err();
        let late = self.late_branches(&wants, &trees);
        self.wants = wants;
        let renews = std::mem::take(&mut self.renews);
        let is_read = self.not_read.is_none();
        for (next, tree) in trees {
            let stays = |known: &OutgoingStream| {
                let is_described = !renews && known.is_read() == is_read;
                is_described && !late.contains(&next) && !known.is_to_be_replaced(&tree, network)
            };
            let is_known = peers.contains_key(&next);
            if is_known && !self.branches.get(&next).is_some_and(stays) {
                let branch = OutgoingStream::new(tree, network).with_read(is_read);
                self.branches.insert(next, branch);
            }
        }
        !late.is_empty()
    }

    /// Opens the flows of publishers in all streams where they have none and may. Returns whether it opened any.
    pub(super) fn open_flows(&mut self, name: &str, publishers: &[InterestPublisher]) -> bool {
        let mut any = false;
        let mut branches = std::mem::take(&mut self.branches);
        for branch in branches.values_mut() {
            for publisher in publishers {
                let describe = |tree: &Tree| self.description(name, tree, publisher);
                any |= branch.open(publisher.incarnation, describe);
            }
        }
        self.branches = branches;
        any
    }

    /// Whether the conductor has to look at the topic again soon: something was refused, the daemon could not be told, or routes change.
    pub(super) fn lacks_something(&self) -> bool {
        let mut branches = self.branches.values();
        self.failed.is_some()
            || self.moves_since.is_some()
            || !self.refused.is_empty()
            || self.has.is_some() && self.reported.is_none()
            || branches.any(|of| !of.limits().held.is_empty())
    }

    /// Sets the size in bytes that trees are planned for. While hosts are reached on two routes, larger messages wait: they would go twice.
    pub(super) fn set_planned(&mut self, planned: u64, is_moving: bool) {
        let since = self.moves_since.unwrap_or_else(Instant::now);
        self.moves_since = is_moving.then_some(since);
        self.planned = match is_moving && since.elapsed() < MOVE_LIMIT {
            true => self.planned.min(planned),
            false => planned,
        };
    }

    /// Whether the stream to `next` gets messages to `end`.
    pub(super) fn reaches(
        &self,
        peers: &BTreeMap<String, RemoteHost>,
        next: &str,
        end: &str,
    ) -> bool {
        let branch = self.branches.get(next);
        let branch = branch.filter(|branch| branch.tree().ends_at(end));
        let branch = branch.zip(peers.get(next));
        branch.is_some_and(|(branch, peer)| branch.reaches(peer, end).is_ok())
    }

    /// The roots of trees with final hosts that want history and were not sent it in that stream.
    fn late_branches(&self, wants: &TopicWants, trees: &Trees) -> BTreeSet<String> {
        let is_late = |wants: &TopicWants, end: &String| {
            let want = wants.get(end);
            want.is_some_and(|want| want.demand.transient_local)
        };
        let late = trees.iter().filter(|(next, tree)| {
            let had = self.branches.get(*next);
            let had = |end: &String| had.is_some_and(|had| had.tree().ends_at(end));
            let had_it = |end: &String| had(end) && is_late(&self.wants, end);
            let mut ends = tree.ends();
            ends.any(|end| is_late(wants, end) && !had_it(end))
        });
        late.map(|(next, _)| next.clone()).collect()
    }

    /// A publisher's description, as OPEN carries it to the hosts of a tree.
    fn description(
        &self,
        name: &str,
        tree: &Tree,
        publisher: &InterestPublisher,
    ) -> FlowDescription {
        FlowDescription {
            publisher: publisher.incarnation,
            topic: name.to_owned(),
            offer: publisher.offer,
            type_name: publisher.type_name.clone(),
            via: Vec::new(),
            tree: tree.clone(),
            history: self.history(tree, publisher.incarnation),
            begins: BTreeMap::new(),
            read: self.is_read(),
        }
    }

    /// The number below which a publisher's messages are history at the hosts of a tree.
    fn history(&self, tree: &Tree, publisher: u64) -> u64 {
        let histories = tree.ends().filter_map(|host| self.histories.get(host));
        let of_publisher = histories.filter_map(|history| history.get(&publisher));
        of_publisher.max().copied().unwrap_or(0)
    }

    /// Notes, for each host that the topic goes to since the last call, that all messages published so far are history there.
    pub(super) fn note_histories(&mut self) {
        let wants = &self.wants;
        self.histories.retain(|host, _| wants.contains_key(host));
        let begun = wants.keys();
        let begun = begun.filter(|end| !self.histories.contains_key(*end));
        let begun: Vec<String> = begun.cloned().collect();
        let Some((.., subscriber)) = self.has.as_ref().filter(|_| !begun.is_empty()) else {
            return;
        };
        let histories: BTreeMap<u64, u64> = subscriber.histories().into_iter().collect();
        let of_each = begun.into_iter().map(|host| (host, histories.clone()));
        self.histories.extend(of_each);
    }

    /// Sets what may go to each host, by requirements of publishers, answers and quotas. Returns whether that has changed.
    pub(super) fn set_limits(
        &mut self,
        name: &str,
        (links, staged): (&Links, &mut Staged),
        peers: &BTreeMap<String, RemoteHost>,
        publishers: &[InterestPublisher],
    ) -> bool {
        let mut is_changed = false;
        let mut branches = std::mem::take(&mut self.branches);
        for (host, branch) in &mut branches {
            let Some(peer) = peers.get(host) else {
                continue;
            };
            let mut limits = FlowLimits {
                held: branch.refused().map(|of| (of, Hold::Refused)).collect(),
                quota: links.quota(host, name).cloned(),
                ..FlowLimits::default()
            };
            let mut why = self.bar_slow(&mut limits, name, (branch, peer), publishers);
            if self.not_read.is_none() && branch.written().is_none() {
                let held = limits.held.values_mut();
                let barred = held.filter(|hold| **hold == Hold::Barred);
                barred.for_each(|hold| *hold = Hold::Asks);
            }
            for publisher in publishers {
                if limits.bars(publisher.incarnation) {
                    continue;
                }
                let short = limits.stage(staged, publisher.incarnation, &publisher.offer);
                if let Err(short) = short {
                    let what = format!("the messages of a publisher are not sent to {host}");
                    let issues = &peer.counts().issues;
                    issues.warn_refused(name, 0, &what, &short);
                    why = Some(short);
                }
            }
            let publishers = publishers.iter().map(|of| of.incarnation);
            is_changed |= branch.set_limits(limits, why, publishers);
        }
        self.branches = branches;
        is_changed
    }

    /// Bars publishers that require a better path to a host than it has. Returns why, if it barred any.
    fn bar_slow(
        &self,
        limits: &mut FlowLimits,
        name: &str,
        (branch, peer): (&OutgoingStream, &RemoteHost),
        publishers: &[InterestPublisher],
    ) -> Option<String> {
        let mut why = None;
        let (path, no_better) = self.path_to(branch, peer);
        for publisher in publishers {
            let Some(require) = publisher.require.filter(|require| *require > path) else {
                continue;
            };
            let held = limits.held.entry(publisher.incarnation);
            held.or_insert(Hold::Barred);
            let slow = format!(
                "the publisher requires a path of {require} or better, and this one is {path}: {no_better}"
            );
            peer.counts().issues.refused(name, 0, &slow);
            why = Some(slow);
        }
        why
    }

    /// Whether network cards read the topic's messages in GPU memory, or why not.
    pub(super) fn is_read(&self) -> Result<(), String> {
        self.not_read
            .as_deref()
            .map_or(Ok(()), |why| Err(clip(why)))
    }

    /// The path to the root of a stream, and why it is no better.
    fn path_to(&self, branch: &OutgoingStream, peer: &RemoteHost) -> (PathKind, String) {
        if peer.over().path != PathKind::Rdma {
            return (peer.over().path, peer.over().why_not.clone());
        }
        let (host, onward) = (peer.name(), branch.tree().ends_below().next());
        let why = match (onward, &self.not_read, branch.written()) {
            (Some(end), ..) => {
                format!("they go on to {end}, and so land in the memory of {host}")
            }
            (None, Some(why), _) => why.clone(),
            (None, None, None) => format!("{host} has not said yet how they land"),
            (None, None, Some(Err(why))) => format!("on {host}: {why}"),
            (None, None, Some(Ok(()))) => {
                return (PathKind::GpuDirect, "it leads to another host".to_owned())
            }
        };
        (PathKind::Rdma, why)
    }
}

//! What of a topic goes to which host: its streams, and what rules and quotas let cross.

use crate::egress::{FlowLimits, Hold};
use crate::keys::TopicInterest;
use crate::quotas::Staged;
use crate::remote_host::{OutgoingStream, RemoteHost};
use crate::wire::{clip, FlowDescription, Tree};
use rgaps_client::links::{Demand, InterestPublisher, Links, LinksSubscriber};
use rgaps_client::{Domain, PathKind, RemoteRow, Subscriber};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Publishers that are remembered when they are gone.
const MAX_ENDED: usize = 1024;
/// How long large messages wait for hosts to take a tree.
const MOVE_LIMIT: Duration = Duration::from_secs(20);

#[derive(Default)]
pub(super) struct EgressPlan {
    /// What its subscriber asks for, once there is one.
    pub(super) has: Option<(Demand, Domain, Subscriber)>,
    /// Why network cards do not read it on its GPU.
    pub(super) not_read: Option<String>,
    /// By the hosts that it goes to directly.
    pub(super) branches: BTreeMap<String, OutgoingStream>,
    /// What each host wants of it, whether it goes there directly or over others.
    pub(super) wants: Wants,
    /// Hosts that refused it on a tree, by their rules or those of a host between.
    pub(super) off_trees: BTreeSet<String>,
    /// Bytes of the largest message that has waited for routes.
    pub(super) largest: u64,
    /// Bytes of the largest message that the trees are for. The egress keeps a larger one until there are trees for it.
    pub(super) planned: u64,
    /// Since when some hosts are still reached on former routes, too: they have not moved to the planned ones yet.
    pub(super) moves_since: Option<Instant>,
    /// Why there is no subscriber, and when that is tried again.
    pub(super) failed: Option<(String, Instant)>,
    /// What the daemon was told.
    pub(super) reported: Option<Vec<RemoteRow>>,
    /// By hosts and publishers, the number below which messages are history there: published before the host wanted the topic.
    histories: BTreeMap<String, BTreeMap<u64, u64>>,
    pub(super) publishers: BTreeSet<u64>,
    /// The publishers that were gone last.
    ended: VecDeque<u64>,
    /// One of them is back: its flows have ended in all streams that there are.
    pub(super) renews: bool,
    /// Hosts that want it and do not get it: their subscribers, and why.
    pub(super) refused: BTreeMap<String, (u32, String)>,
}

pub(super) type Wants = BTreeMap<String, TopicInterest>;

pub(super) type Trees = BTreeMap<String, Tree>;

impl EgressPlan {
    pub(super) fn demand(&self) -> Demand {
        let demands = self.wants.values().map(|want| want.demand);
        demands.reduce(Demand::and).unwrap_or_default()
    }

    /// Publishers of this host are these now. Those that are gone have nothing more to send.
    pub(super) fn set_publishers(&mut self, publishers: BTreeSet<u64>) {
        let ended: Vec<u64> = self.publishers.difference(&publishers).copied().collect();
        self.renews |= self.ended.iter().any(|of| publishers.contains(of));
        self.ended.retain(|of| !publishers.contains(of));
        self.ended.extend(&ended);
        let forgotten = self.ended.len().saturating_sub(MAX_ENDED);
        self.ended.drain(..forgotten);
        self.publishers = publishers;
        for branch in self.branches.values_mut() {
            branch.flows.retain(|of, _| !ended.contains(of));
        }
    }

    /// Whether something was refused that may be there in a moment, or the daemon could not be told, or routes change.
    pub(super) fn lacks_something(&self) -> bool {
        let mut branches = self.branches.values();
        self.failed.is_some()
            || self.moves_since.is_some()
            || !self.refused.is_empty()
            || self.has.is_some() && self.reported.is_none()
            || branches.any(|of| !of.limits.held.is_empty())
    }

    /// Trees are for messages of up to so many bytes now. While hosts are reached on two routes, larger messages wait: they would go twice.
    pub(super) fn set_planned(&mut self, planned: u64, is_moving: bool) {
        let since = self.moves_since.unwrap_or_else(Instant::now);
        self.moves_since = is_moving.then_some(since);
        self.planned = match is_moving && since.elapsed() < MOVE_LIMIT {
            true => self.planned.min(planned),
            false => planned,
        };
    }

    pub(super) fn reaches(
        &self,
        peers: &BTreeMap<String, RemoteHost>,
        next: &str,
        end: &str,
    ) -> bool {
        let branch = self.branches.get(next);
        let branch = branch.filter(|branch| branch.tree.ends_at(end));
        let branch = branch.zip(peers.get(next));
        branch.is_some_and(|(branch, peer)| branch.reaches(peer, end).is_ok())
    }

    /// The branches with hosts that want history, and were not sent it there.
    pub(super) fn late_branches(&self, wants: &Wants, trees: &Trees) -> BTreeSet<String> {
        let is_late = |wants: &Wants, end: &String| {
            let want = wants.get(end);
            want.is_some_and(|want| want.demand.transient_local)
        };
        let late = trees.iter().filter(|(next, tree)| {
            let had = self.branches.get(*next);
            let had = |end: &String| had.is_some_and(|had| had.tree.ends_at(end));
            let had_it = |end: &String| had(end) && is_late(&self.wants, end);
            let mut ends = tree.ends();
            ends.any(|end| is_late(wants, end) && !had_it(end))
        });
        late.map(|(next, _)| next.clone()).collect()
    }

    /// What a host is told of a publisher.
    pub(super) fn description(
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

    /// Below which number a publisher's messages are history at the hosts of a tree.
    fn history(&self, tree: &Tree, publisher: u64) -> u64 {
        let histories = tree.ends().filter_map(|host| self.histories.get(host));
        let of_publisher = histories.filter_map(|history| history.get(&publisher));
        of_publisher.max().copied().unwrap_or(0)
    }

    /// Hosts that it goes to now, and did not before: what is published so far is history there.
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

    /// Finds out what may go to each host. Returns whether that has changed.
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
            if self.not_read.is_none() && branch.written.is_none() {
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
                    let issues = &peer.ingress.counts.issues;
                    issues.warn_refused(name, 0, &what, &short);
                    why = Some(short);
                }
            }
            let some = publishers.iter().any(|of| !limits.bars(of.incarnation));
            branch.barred = why.filter(|_| !some);
            is_changed |= branch.limits != limits;
            branch.limits = limits;
        }
        self.branches = branches;
        is_changed
    }

    /// Bars publishers that require a better path to a host than there is. Returns why, if there are any.
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
            peer.ingress.counts.issues.refused(name, 0, &slow);
            why = Some(slow);
        }
        why
    }

    /// Whether network cards read it on its GPU, or why not.
    pub(super) fn is_read(&self) -> Result<(), String> {
        self.not_read
            .as_deref()
            .map_or(Ok(()), |why| Err(clip(why)))
    }

    /// The path to a host that it goes to, and why it is no better.
    fn path_to(&self, branch: &OutgoingStream, peer: &RemoteHost) -> (PathKind, String) {
        if peer.over.path != PathKind::Rdma {
            return (peer.over.path, peer.over.why_not.clone());
        }
        let (host, onward) = (peer.name(), branch.tree.ends_below().next());
        let why = match (onward, &self.not_read, &branch.written) {
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

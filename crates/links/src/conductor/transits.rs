//! Flows in transit, which this host receives from one host and forwards to others, the children. A child is broken when its link
//! restarts or ends.
//!
//! | event | action |
//! |---|---|
//! | a flow is accepted, and its tree has children | open a flow to each child; report each child without a link as broken |
//! | a child refuses a flow | leave out the flow's messages to it; in a moment, open the flow again |
//! | a child's link restarts or ends, or a child reports a broken host | tell the host before; the origin resends unconfirmed messages |
//! | the flow is closed or cut, or the host before is gone | close the children's flows after their last message, or cut them |
//!
//! The children's flows are cut before a message that was forwarded only in part. The flow is forgotten when all of them have ended.
//!
//! The final hosts confirm messages to their origin. This host also tells the origin which rules and quotas keep a flow from a host
//! below.

use super::LinksConductor;
use crate::egress::{FlowLimits, FlowTarget, Hold, Transit, TransitCommand};
use crate::remote_host::{is_refused_now, FlowAnswer, RemoteHost};
use crate::wire::{clip, FlowDescription, LinkMessage};
use rgaps_client::links::Direction;
use rgaps_routing::FlowName;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Sender;
use std::sync::Arc;

/// The flows in transit.
pub(super) struct Transits {
    /// By the flows' names and the hosts that they come from.
    plans: BTreeMap<(FlowName, String), TransitPlan>,
    /// Commands to the thread that sends the messages on. Sending fails only after a panic of the thread, which has printed it.
    commands: Sender<TransitCommand>,
    /// How many transits have begun: the number of the last one.
    count: u64,
}

/// A flow in transit.
struct TransitPlan {
    /// The number by which the thread knows the flow.
    number: u64,
    description: FlowDescription,
    transit: Arc<Transit>,
    children: BTreeMap<String, ChildPlan>,
    /// Final hosts to which this host does not forward the flow, and why.
    refused: BTreeMap<String, String>,
    /// Whether no message follows.
    is_closing: bool,
}

/// A host to which a flow is forwarded.
pub(super) struct ChildPlan {
    /// The description in OPEN to the child.
    description: Arc<FlowDescription>,
    limits: FlowLimits,
    /// Whether the child gets no messages from this flow: another stream of the origin has to bring its messages.
    is_broken: bool,
    /// Whether the child has acknowledged all of the flow.
    pub(super) has_ended: bool,
    /// The child's last answer to OPEN. None: it has not answered yet.
    pub(super) answer: Option<FlowAnswer>,
}

impl Transits {
    pub(super) fn new(commands: Sender<TransitCommand>) -> Transits {
        Transits {
            plans: BTreeMap::new(),
            commands,
            count: 0,
        }
    }

    /// Topics whose messages this host forwards to `host`.
    pub(super) fn topics_to<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a String> {
        let plans = self.plans.values();
        let plans = plans.filter(move |plan| plan.children.contains_key(host));
        plans.map(|plan| &plan.description.topic)
    }

    /// The limits of all children of all flows.
    pub(super) fn limits(&self) -> impl Iterator<Item = &FlowLimits> {
        let plans = self.plans.values();
        let children = plans.flat_map(|plan| plan.children.values());
        children.map(|child| &child.limits)
    }

    /// How many streams in transit a host takes.
    pub(super) fn streams_taken_by(&self, host: &str) -> usize {
        let plans = self.plans.iter();
        let taken = plans.filter(|(_, plan)| {
            let answer = plan.children.get(host).and_then(|of| of.answer.as_ref());
            answer.is_some_and(|(answer, _)| answer.is_ok())
        });
        let streams: BTreeSet<u64> = taken.map(|((flow, _), _)| flow.stream).collect();
        streams.len()
    }

    /// The plans of a flow's child on a host: one for each host that the flow comes from.
    pub(super) fn children_of<'a>(
        &'a mut self,
        host: &'a str,
        flow: FlowName,
    ) -> impl Iterator<Item = &'a mut ChildPlan> {
        let plans = self.plans.iter_mut();
        let plans = plans.filter(move |((of, _), _)| *of == flow);
        plans.filter_map(|(_, plan)| plan.children.get_mut(host))
    }
}

impl TransitPlan {
    /// Whether the flow is closed, and all children have it whole, refused it or are broken.
    fn is_over(&self) -> bool {
        let refuses = |of: &ChildPlan| matches!(of.answer, Some((Err(_), _)));
        let mut children = self.children.values();
        self.is_closing && children.all(|of| of.is_broken || of.has_ended || refuses(of))
    }
}

impl LinksConductor {
    /// Begins the transit of a flow that another host opened. None: its tree has no children.
    pub(super) fn begin_transit(
        &mut self,
        host: &str,
        flow: FlowName,
        description: &FlowDescription,
    ) -> Option<Arc<Transit>> {
        let key = (flow, host.to_owned());
        match self.transits.plans.get(&key) {
            Some(plan) if !plan.is_closing => return Some(plan.transit.clone()),
            _ => self.forget_transit(&key),
        }
        let reporter = self.peers.get(host)?.ingress().reporter.clone();
        if !description.tree.leads_on() {
            return None;
        }
        let description = description.clone();
        self.transits.count += 1;
        let number = self.transits.count;
        let of = (number, description.publisher);
        let commands = self.transits.commands.clone();
        let transit = Transit::new(of, commands, reporter, self.config.links.landing_max.0);
        let mut plan = TransitPlan {
            number,
            description,
            transit: transit.clone(),
            children: BTreeMap::new(),
            refused: BTreeMap::new(),
            is_closing: false,
        };
        self.begin_children(host, &mut plan);
        let broken = plan.children.iter().filter(|(_, child)| child.is_broken);
        let broken: Vec<String> = broken.map(|(child, _)| child.clone()).collect();
        let origin = plan.description.origin(host);
        for (end, why) in &plan.refused {
            self.network.refuse(origin, flow, (end, why));
        }
        self.transits.plans.insert(key.clone(), plan);
        self.set_children(&key);
        for child in broken {
            self.say_broken(host, flow.stream, &child);
        }
        Some(transit)
    }

    /// Plans the children of a flow. Those without a link are broken from the start.
    fn begin_children(&self, host: &str, plan: &mut TransitPlan) {
        for tree in plan.description.tree.children() {
            let child = tree.root().to_owned();
            let topic = &plan.description.topic;
            let links = &self.config.links;
            let may = match links.relay {
                true => self.may_go(&child, topic),
                false => Err("this host carries nothing on".to_owned()),
            };
            let may_reach = |end: &str| {
                may.clone()?;
                let path = tree.path(end);
                let mut on = path.iter();
                on.try_for_each(|on| links.may_cross(Direction::Send, on, topic))
            };
            for end in tree.ends() {
                if let Err(why) = may_reach(end) {
                    plan.refused.insert(end.clone(), clip(&why));
                }
            }
            let tree = tree.narrowed(|end| !plan.refused.contains_key(end));
            if tree.ends().next().is_none() {
                continue;
            }
            // A child without a link is broken: it and the hosts below it get their messages in another stream.
            let is_broken = !self.peers.get(&child).is_some_and(RemoteHost::is_usable);
            let mut via = plan.description.via.clone();
            via.push(host.to_owned());
            let read = Err(clip(&format!("they pass through {}", self.own.host)));
            let description = Arc::new(FlowDescription {
                via,
                tree,
                read,
                ..plan.description.clone()
            });
            let child_plan = ChildPlan {
                description,
                limits: FlowLimits::default(),
                is_broken,
                has_ended: false,
                answer: None,
            };
            plan.children.insert(child, child_plan);
        }
    }

    /// The limits of a child, by its answer and its quota.
    fn child_limits(&mut self, host: &str, child: &ChildPlan) -> FlowLimits {
        let of = &child.description;
        let is_refused = is_refused_now(child.answer.as_ref());
        let refused = is_refused.then_some((of.publisher, Hold::Refused));
        let mut limits = FlowLimits {
            held: refused.into_iter().collect(),
            quota: self.config.links.quota(host, &of.topic).cloned(),
            ..FlowLimits::default()
        };
        let staged = limits.stage(&mut self.staged, of.publisher, &of.offer);
        if let (Err(why), Some(peer)) = (staged, self.peers.get(host)) {
            let what = "messages of another host do not go on";
            let issues = &peer.counts().issues;
            issues.warn_refused(&of.topic, 0, what, &why);
        }
        limits
    }

    /// Tells the thread which children a flow has. A closing flow keeps those that it has: it opens no flow again.
    fn set_children(&mut self, key: &(FlowName, String)) {
        let plans = &mut self.transits.plans;
        if plans.get(key).is_none_or(|plan| plan.is_closing) {
            return;
        }
        let Some(mut plan) = plans.remove(key) else {
            return;
        };
        let mut all = Vec::new();
        let children = plan.children.iter_mut();
        for (host, child) in children.filter(|(_, child)| !child.is_broken) {
            child.limits = self.child_limits(host, child);
            let peer = self.peers.get(host);
            let Some((peer, link)) = peer.and_then(|peer| Some((peer, peer.linked()?))) else {
                continue;
            };
            all.push(FlowTarget {
                tree: child.description.tree.clone(),
                link: link.clone(),
                stream: key.0.stream,
                publishers: vec![child.description.clone()],
                counts: peer.counts().clone(),
                limits: child.limits.clone(),
                is_in_transit: true,
            });
        }
        let topic = plan.description.topic.clone();
        let command = TransitCommand::Children(plan.number, topic, all);
        let _ = self.transits.commands.send(command);
        self.transits.plans.insert(key.clone(), plan);
    }

    /// Applies quotas and refusals again, and forgets flows that are over.
    pub(super) fn reconcile_transits(&mut self) {
        let plans = self.transits.plans.iter();
        let over = plans.filter(|(_, plan)| plan.is_over());
        let over: Vec<(FlowName, String)> = over.map(|(key, _)| key.clone()).collect();
        over.iter().for_each(|key| self.forget_transit(key));
        let keys: Vec<(FlowName, String)> = self.transits.plans.keys().cloned().collect();
        keys.iter().for_each(|key| self.set_children(key));
    }

    /// Reports a child as broken to the host that a stream comes from.
    fn say_broken(&self, host: &str, stream: u64, end: &str) {
        if let Some(peer) = self.peers.get(host) {
            peer.say(&LinkMessage::Broken(stream, end.to_owned()));
        }
    }

    /// Passes on a child's report that a host below it is broken.
    pub(super) fn broken_below(&self, child: &str, stream: u64, end: &str) {
        let before =
            self.transits.plans.iter().filter(|((flow, _), plan)| {
                flow.stream == stream && plan.children.contains_key(child)
            });
        let before: BTreeSet<&String> = before.map(|((_, host), _)| host).collect();
        for host in before {
            self.say_broken(host, stream, end);
        }
    }

    /// Call when the link with a host restarted or ended: closes the flows that came from there, and breaks the child in those that went
    /// there.
    pub(super) fn end_transits(&mut self, host: &str) {
        let keys: Vec<(FlowName, String)> = self.transits.plans.keys().cloned().collect();
        let mut reported = BTreeSet::new();
        for key in keys {
            if key.1 == host {
                self.close_transit(&key.1, key.0);
            } else if self.break_child(&key, host) && reported.insert((key.0.stream, key.1.clone()))
            {
                self.say_broken(&key.1, key.0.stream, host);
            }
        }
    }

    /// Marks a child of a flow as broken. Returns whether it was not before.
    fn break_child(&mut self, key: &(FlowName, String), child: &str) -> bool {
        let plan = self.transits.plans.get_mut(key);
        let of = plan.and_then(|plan| plan.children.get_mut(child));
        let Some(of) = of.filter(|of| !of.is_broken) else {
            return false;
        };
        of.is_broken = true;
        self.set_children(key);
        true
    }

    /// Call when a message that was forwarded in part arrived again: breaks all children, which need another flow.
    pub(super) fn transit_broken(&mut self, number: u64) {
        let mut plans = self.transits.plans.iter();
        let Some((key, plan)) = plans.find(|(_, plan)| plan.number == number) else {
            return;
        };
        let (key, children) = (key.clone(), plan.children.keys().cloned());
        for child in children.collect::<Vec<String>>() {
            if self.break_child(&key, &child) {
                self.say_broken(&key.1, key.0.stream, &child);
            }
        }
    }

    /// Tells origins that may have lost this information again to which hosts their flows are not forwarded, and why.
    pub(super) fn refuse_again(&mut self, is_renewed: impl Fn(&str) -> bool) {
        for ((flow, host), plan) in &self.transits.plans {
            let origin = plan.description.origin(host);
            for (end, why) in plan.refused.iter().filter(|_| is_renewed(origin)) {
                self.network.refuse(origin, *flow, (end, why));
            }
        }
    }

    /// Closes a flow: no message follows.
    pub(super) fn close_transit(&mut self, host: &str, flow: FlowName) {
        if let Some(plan) = self.transits.plans.get_mut(&(flow, host.to_owned())) {
            plan.is_closing = true;
            plan.transit.close();
        }
    }

    fn forget_transit(&mut self, key: &(FlowName, String)) {
        if let Some(plan) = self.transits.plans.remove(key) {
            let command = TransitCommand::Forget(plan.number);
            let _ = self.transits.commands.send(command);
        }
    }
}

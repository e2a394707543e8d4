//! Flows that come from another host and go on from here: their children, and which of them break.
//!
//! | event | action |
//! |---|---|
//! | a flow is accepted, and its tree has children | open a flow to each child; report each that is not linked with as broken |
//! | a child refuses a flow | its messages are left out; in a moment it is opened again |
//! | the link with a child restarts or ends, or a child reports a host below as broken | report that to the host before; its origin sends again what was not confirmed |
//! | the flow is closed, or cut; the host before restarts, or is given up | close the children's flows behind their last message, or cut them before one that went on in part; forget the flow when all have ended |
//!
//! The final hosts confirm messages to their origin. Rules and quotas that keep a flow from a host below are told to the origin, too.

use super::LinksConductor;
use crate::egress::{FlowLimits, FlowTarget, Hold, Transit, TransitCommand};
use crate::remote_host::{is_refused_now, FlowAnswer, RemoteHost};
use crate::wire::{clip, FlowDescription, LinkMessage};
use rgaps_client::links::Direction;
use rgaps_routing::FlowName;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Sender;
use std::sync::Arc;

/// Flows that go on, by their names and the hosts that they come from.
pub(super) struct Transits {
    plans: BTreeMap<(FlowName, String), TransitPlan>,
    /// To their thread. Sending fails only after its panic, which is printed.
    commands: Sender<TransitCommand>,
    /// How many there were.
    count: u64,
}

/// A flow that goes on.
struct TransitPlan {
    number: u64,
    description: FlowDescription,
    transit: Arc<Transit>,
    children: BTreeMap<String, ChildPlan>,
    /// Hosts that it does not go on to, and why.
    refused: BTreeMap<String, String>,
    is_closing: bool,
}

/// A host that a flow goes on to.
pub(super) struct ChildPlan {
    /// What OPEN says there.
    description: Arc<FlowDescription>,
    limits: FlowLimits,
    is_broken: bool,
    /// It has acknowledged all of the flow.
    pub(super) has_ended: bool,
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

    /// Topics whose messages go on to a host.
    pub(super) fn topics_to<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a String> {
        let plans = self.plans.values();
        let plans = plans.filter(move |plan| plan.children.contains_key(host));
        plans.map(|plan| &plan.description.topic)
    }

    /// What may go to the children of all flows.
    pub(super) fn limits(&self) -> impl Iterator<Item = &FlowLimits> {
        let plans = self.plans.values();
        let children = plans.flat_map(|plan| plan.children.values());
        children.map(|child| &child.limits)
    }

    /// How many streams a host takes that go on to it.
    pub(super) fn streams_taken_by(&self, host: &str) -> usize {
        let plans = self.plans.iter();
        let taken = plans.filter(|(_, plan)| {
            let answer = plan.children.get(host).and_then(|of| of.answer.as_ref());
            answer.is_some_and(|(answer, _)| answer.is_ok())
        });
        let streams: BTreeSet<u64> = taken.map(|((flow, _), _)| flow.stream).collect();
        streams.len()
    }

    /// What there is of a flow at a host that it goes on to.
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
    /// Whether its children have all of it, and know that nothing follows.
    fn is_over(&self) -> bool {
        let refuses = |of: &ChildPlan| matches!(of.answer, Some((Err(_), _)));
        let mut children = self.children.values();
        self.is_closing && children.all(|of| of.is_broken || of.has_ended || refuses(of))
    }
}

impl LinksConductor {
    /// Has a flow go on, if it is to.
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
        let reporter = self.peers.get(host)?.ingress.reporter.clone();
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

    /// Finds the children of a flow. Those that are not linked with are broken.
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
            // The hosts below one that is not linked with get their messages in another stream.
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

    /// What may go to a child, by its quota.
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
            let issues = &peer.ingress.counts.issues;
            issues.warn_refused(&of.topic, 0, what, &why);
        }
        limits
    }

    /// Tells the thread that sends messages on which children a flow has. One that is closing opens no flow again.
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
                counts: peer.ingress.counts.clone(),
                limits: child.limits.clone(),
                is_in_transit: true,
            });
        }
        let topic = plan.description.topic.clone();
        let command = TransitCommand::Children(plan.number, topic, all);
        let _ = self.transits.commands.send(command);
        self.transits.plans.insert(key.clone(), plan);
    }

    /// Looks at quotas and refusals again, and forgets what is over.
    pub(super) fn reconcile_transits(&mut self) {
        let plans = self.transits.plans.iter();
        let over = plans.filter(|(_, plan)| plan.is_over());
        let over: Vec<(FlowName, String)> = over.map(|(key, _)| key.clone()).collect();
        over.iter().for_each(|key| self.forget_transit(key));
        let keys: Vec<(FlowName, String)> = self.transits.plans.keys().cloned().collect();
        keys.iter().for_each(|key| self.set_children(key));
    }

    fn say_broken(&self, host: &str, stream: u64, end: &str) {
        if let Some(peer) = self.peers.get(host) {
            peer.say(&LinkMessage::Broken(stream, end.to_owned()));
        }
    }

    /// A child of a stream reports a host below it as broken.
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

    /// The link with a host is another one now, or gone: nothing that went there goes on, and nothing that came from there.
    pub(super) fn end_transits(&mut self, host: &str) {
        let keys: Vec<(FlowName, String)> = self.transits.plans.keys().cloned().collect();
        let mut told = BTreeSet::new();
        for key in keys {
            if key.1 == host {
                self.close_transit(&key.1, key.0);
            } else if self.break_child(&key, host) && told.insert((key.0.stream, key.1.clone())) {
                self.say_broken(&key.1, key.0.stream, host);
            }
        }
    }

    /// Nothing of a flow goes on to a child any more. Whether it went there.
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

    /// A message that went on in part came once more: all children need another flow.
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

    /// An origin may not know any more to which hosts its flows do not go on.
    pub(super) fn refuse_again(&mut self, is_renewed: impl Fn(&str) -> bool) {
        for ((flow, host), plan) in &self.transits.plans {
            let origin = plan.description.origin(host);
            for (end, why) in plan.refused.iter().filter(|_| is_renewed(origin)) {
                self.network.refuse(origin, *flow, (end, why));
            }
        }
    }

    /// No message of a flow follows.
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

//! The plan of an origin: how its flows should be. [`Delivery`](super::Delivery) says by which rule.

use super::{Delivery, FinalHost, Flow, FlowCommand, GivenUp};
use crate::build::{build, Load};
use crate::graph::Graph;
use crate::ids::{Life, Time};
use crate::transit::{FlowDescription, FlowId};
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// Hosts whose holes begin within so many messages catch up together.
const CATCH_UP_SPREAD: u64 = 16;

/// What a host lacks: up to which number (none: all to come), and from which on.
type Hole = (Option<u64>, u64, Life);

impl Delivery {
    /// Makes flows what they should be. Returns the hosts that were given up.
    pub fn plan(&mut self, graph: &Graph, load: Load, now: Time) -> Vec<GivenUp> {
        self.is_dirty = false;
        let reachable = graph.parents();
        let given_up = self.give_up(&reachable, now);
        self.drop_useless_flows();
        let wanted = self.hosts.values().map(|host| host.life);
        let wanted: BTreeSet<Life> = wanted
            .filter(|life| reachable.contains_key(life) && self.is_level(*life))
            .collect();
        self.plan_common_tree(&wanted, build(graph, &wanted, load));
        self.fill_holes(graph, load, &reachable);
        self.drop_useless_flows();
        given_up
    }

    fn give_up(&mut self, reachable: &BTreeMap<Life, Life>, now: Time) -> Vec<GivenUp> {
        for host in self.hosts.values_mut() {
            let is_reachable = reachable.contains_key(&host.life);
            host.unreachable = (!is_reachable).then(|| host.unreachable.unwrap_or(now));
        }
        let hosts = self.hosts.values();
        let lost = hosts.filter(|host| self.is_lost(host, now));
        let given_up = lost.map(|host| GivenUp {
            life: host.life,
            confirmed: host.confirmed,
        });
        let given_up: Vec<GivenUp> = given_up.collect();
        for lost in &given_up {
            self.hosts.remove(&lost.life.host);
        }
        let lives: BTreeSet<Life> = given_up.iter().map(|host| host.life).collect();
        let flows = self.flows.iter();
        let served = flows.filter(|(_, flow)| !flow.hosts.is_disjoint(&lives));
        let served: Vec<FlowId> = served.map(|(id, _)| *id).collect();
        for flow in served {
            self.cancel(flow);
        }
        self.release();
        given_up
    }

    /// Cancels flows that serve nobody, and those that are late.
    fn drop_useless_flows(&mut self) {
        let flows = self.flows.iter();
        let useless = flows.filter(|(_, flow)| flow.hosts.is_empty() || self.is_late(flow));
        let useless: Vec<FlowId> = useless.map(|(id, _)| *id).collect();
        for flow in useless {
            self.cancel(flow);
        }
    }

    /// The first number that no flow brings to a host, and the next one after it that a flow brings.
    fn hole(&self, host: &FinalHost) -> Option<(u64, Option<u64>)> {
        let flows = self.flows.values();
        let serving: Vec<&Flow> = flows
            .filter(|flow| flow.hosts.contains(&host.life))
            .collect();
        let mut at = host.confirmed;
        while let Some(flow) = serving.iter().find(|flow| flow.has(at)) {
            at = flow.end?;
        }
        let above = serving.iter().map(|flow| flow.first);
        Some((at, above.filter(|first| *first > at).min()))
    }

    /// Whether a host takes its next message together with the others.
    fn is_level(&self, life: Life) -> bool {
        let host = &self.hosts[&life.host];
        let mut flows = self.flows.values();
        let open = flows.find(|flow| flow.end.is_none() && flow.hosts.contains(&life));
        match open {
            Some(flow) => flow.is_common || flow.sent == self.next,
            None => self.hole(host).is_none_or(|(from, _)| from >= self.next),
        }
    }

    fn plan_common_tree(&mut self, wanted: &BTreeSet<Life>, tree: Tree) {
        let mut kept = BTreeSet::new();
        for branch in tree.children {
            let mut flows = self.flows.iter_mut();
            let same = flows.find(|(_, flow)| {
                flow.end.is_none()
                    && flow.hosts == branch.finals()
                    && flow.tree.has_shape_of(&branch)
            });
            let id = match same {
                Some((id, flow)) => {
                    flow.is_common = true;
                    *id
                }
                None => self.open(branch, self.next, None, true),
            };
            kept.insert(id);
        }
        let next = self.next;
        for (id, flow) in &mut self.flows {
            let is_replaced = flow.is_common || !flow.hosts.is_disjoint(wanted);
            if is_replaced && !kept.contains(id) {
                flow.ends_at(next);
            }
        }
    }

    fn fill_holes(&mut self, graph: &Graph, load: Load, reachable: &BTreeMap<Life, Life>) {
        let hosts = self.hosts.values();
        let hosts = hosts.filter(|host| reachable.contains_key(&host.life));
        let holes = hosts.filter_map(|host| {
            let (from, to) = self.hole(host)?;
            Some((to, from, host.life))
        });
        let mut holes: Vec<Hole> = holes.collect();
        holes.sort_unstable();
        let mut rest = &holes[..];
        while let Some(&(to, from, _)) = rest.first() {
            let is_alike = |hole: &&Hole| hole.0 == to && hole.1 - from <= CATCH_UP_SPREAD;
            let count = rest.iter().take_while(is_alike).count();
            let wanted = rest[..count].iter().map(|(_, _, life)| *life).collect();
            for branch in build(graph, &wanted, load).children {
                self.open(branch, from, to, false);
            }
            rest = &rest[count..];
        }
    }

    fn open(&mut self, mut tree: Tree, first: u64, end: Option<u64>, is_common: bool) -> FlowId {
        self.set_bases(&mut tree);
        self.flows_opened += 1;
        let id = FlowId(self.flows_opened);
        self.commands.push(FlowCommand::Open(FlowDescription {
            publisher: self.publisher,
            flow: id,
            first,
            tree: tree.clone(),
        }));
        let flow = Flow {
            hosts: tree.finals(),
            tree,
            first,
            end,
            sent: first,
            acknowledged: first,
            is_common,
            close_sent: false,
        };
        self.flows.insert(id, flow);
        id
    }

    fn set_bases(&self, tree: &mut Tree) {
        let host = self.hosts.get(&tree.life.host);
        tree.base = tree.base.and(host).map(|host| host.confirmed);
        for child in &mut tree.children {
            self.set_bases(child);
        }
    }
}

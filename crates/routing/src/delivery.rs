//! The origin: it numbers a publisher's messages, and keeps each until every final host has confirmed it or was given up.
//!
//! A *flow* carries messages in order, from its first number on, over one link to the hosts of one tree. It is *open* (it takes all
//! messages to come) or *ending* at a number. The whole of delivery rests on one rule:
//!
//! > For each final host that can be reached, every number from its confirmed position on is in a flow that serves the host.
//!
//! [`Delivery::plan`] restores it after every change:
//!
//! | what changed | action |
//! |---|---|
//! | a host joins | nothing is in a flow for it yet: a *hole* |
//! | a host breaks off a flow (`Broken`), or the link to the flow's first host ended | the flow no longer serves that host and those below it: holes |
//! | a hole below the next message | a *catch-up* flow fills it, for all hosts whose holes are about the same |
//! | a host that has no holes, or an open flow of its own that has sent everything | it belongs to the common tree |
//! | the best common tree differs from the open flows | new flows begin at the next message; those they replace end there |
//! | a flow has answered CLOSE, or serves nobody | it is forgotten |
//! | a host cannot be reached for `outage` | it is given up, and every flow that serves it is cancelled: it may wait there for numbers that nobody sends any more |
//! | all hosts have confirmed a number | it is released |
//!
//! Nothing can wait in a circle: a host waits in a flow only for lower numbers, those are in another flow, and of all hosts the
//! one that waits for the lowest number waits for nobody.

use crate::build::{build, Load};
use crate::graph::Graph;
use crate::ids::{HostId, Life, Publisher, Time};
use crate::transit::{FlowDescription, FlowId};
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Hosts whose holes begin within so many messages catch up together.
const CATCH_UP_SPREAD: u64 = 16;

/// What is to be done on links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowCommand {
    /// Open a flow to a neighbour, the root of the tree.
    Open(FlowDescription),
    /// No message follows in this flow.
    Close(Life, FlowId),
    /// Drop this flow at once, there and below.
    Cancel(Life, FlowId),
}

/// A host that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// The host.
    pub life: Life,
    /// It may have missed messages from this number on.
    pub confirmed: u64,
}

#[derive(Debug)]
struct FinalHost {
    life: Life,
    confirmed: u64,
    unreachable: Option<Time>,
}

#[derive(Debug)]
struct Flow {
    tree: Tree,
    /// The final hosts that it serves.
    hosts: BTreeSet<Life>,
    first: u64,
    end: Option<u64>,
    /// The next number to send.
    sent: u64,
    acknowledged: u64,
    is_common: bool,
    close_sent: bool,
}

impl Flow {
    /// Whether a number that is not confirmed is, was or will be in it.
    fn has(&self, number: u64) -> bool {
        self.first <= number && self.end.is_none_or(|end| number < end)
    }

    fn ends_at(&mut self, next: u64) {
        if self.end.is_none() {
            self.end = Some(next);
        }
    }
}

/// The messages of one publisher on their way to all reliable final hosts.
#[derive(Debug)]
pub struct Delivery {
    publisher: Publisher,
    outage: Duration,
    /// All below is released.
    released: u64,
    next: u64,
    hosts: BTreeMap<HostId, FinalHost>,
    flows: BTreeMap<FlowId, Flow>,
    flows_opened: u64,
    commands: Vec<FlowCommand>,
    is_dirty: bool,
}

impl Delivery {
    /// A publisher without messages. Hosts that cannot be reached for `outage` are given up.
    pub fn new(publisher: Publisher, outage: Duration) -> Delivery {
        Delivery {
            publisher,
            outage,
            released: 0,
            next: 0,
            hosts: BTreeMap::new(),
            flows: BTreeMap::new(),
            flows_opened: 0,
            commands: Vec::new(),
            is_dirty: false,
        }
    }

    /// The number of a new message.
    pub fn publish(&mut self) -> u64 {
        self.next += 1;
        self.release();
        self.next - 1
    }

    /// The numbers that are to be kept: the first may still be needed, the last is not published yet.
    pub fn retained(&self) -> std::ops::Range<u64> {
        self.released..self.next
    }

    /// A life wants the messages from `from` on; less if they are released. If an earlier life of the host is served, its
    /// confirmed position counts instead.
    pub fn add(&mut self, life: Life, from: u64) {
        let known = self.hosts.get(&life.host);
        if known.is_some_and(|known| known.life == life) {
            return;
        }
        let confirmed = known.map_or(from.clamp(self.released, self.next), |known| {
            known.confirmed
        });
        if let Some(earlier) = known.map(|known| known.life) {
            self.stop_serving(&BTreeSet::from([earlier]));
        }
        let host = FinalHost {
            life,
            confirmed,
            unreachable: None,
        };
        self.hosts.insert(life.host, host);
        self.is_dirty = true;
    }

    /// A host wants nothing any more.
    pub fn remove(&mut self, host: HostId) {
        if let Some(removed) = self.hosts.remove(&host) {
            self.stop_serving(&BTreeSet::from([removed.life]));
            self.release();
        }
    }

    /// The final hosts.
    pub fn hosts(&self) -> impl Iterator<Item = Life> + '_ {
        self.hosts.values().map(|host| host.life)
    }

    /// A final host has confirmed all messages below a number.
    pub fn confirmed(&mut self, life: Life, next: u64) {
        let end = self.next;
        let host = self.hosts.get_mut(&life.host);
        if let Some(host) = host.filter(|host| host.life == life) {
            host.confirmed = host.confirmed.max(next.min(end));
            self.release();
        }
    }

    /// The first host of a flow has acknowledged all messages below a number. If it is a final host, that confirms them.
    pub fn acknowledged(&mut self, flow: FlowId, next: u64) {
        let Some(flow) = self.flows.get_mut(&flow) else {
            return;
        };
        flow.acknowledged = flow.acknowledged.max(next.min(flow.sent));
        let (root, next) = (flow.tree.life, flow.acknowledged);
        if flow.tree.base.is_some() {
            self.confirmed(root, next);
        }
    }

    /// The first host of a flow has answered CLOSE: all hosts that it serves have everything below its end.
    pub fn closed(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(&id).filter(|flow| flow.close_sent) else {
            return;
        };
        // A flow that brought nothing may overtake the messages before it.
        if flow.sent > flow.first {
            let end = flow.sent;
            for life in flow.hosts.clone() {
                self.confirmed(life, end);
            }
        }
        self.flows.remove(&id);
        self.is_dirty = true;
    }

    /// A host of a flow broke off, with all below it.
    pub fn broken(&mut self, flow: FlowId, host: HostId) {
        let Some(known) = self.flows.get_mut(&flow) else {
            return;
        };
        if known.tree.life.host == host {
            self.flows.remove(&flow);
        } else if let Some(branch) = known.tree.prune(host) {
            for life in branch.finals() {
                known.hosts.remove(&life);
            }
        }
        self.is_dirty = true;
    }

    /// The link to a neighbour ended.
    pub fn link_ended(&mut self, neighbour: Life) {
        let count = self.flows.len();
        self.flows.retain(|_, flow| flow.tree.life != neighbour);
        self.is_dirty |= self.flows.len() < count;
    }

    /// The flows that have something to send: the flow, its first host, the message, and how many it has not acknowledged.
    pub fn due(&self) -> Vec<(FlowId, Life, u64, u64)> {
        let flows = self.flows.iter();
        let due = flows.filter(|(_, flow)| flow.sent < flow.end.unwrap_or(self.next));
        due.map(|(id, flow)| {
            (
                *id,
                flow.tree.life,
                flow.sent,
                flow.sent - flow.acknowledged,
            )
        })
        .collect()
    }

    /// A flow's next message was handed to its link.
    pub fn sent(&mut self, flow: FlowId) {
        if let Some(flow) = self.flows.get_mut(&flow) {
            flow.sent += 1;
            // A catch-up flow may be level now.
            self.is_dirty |= !flow.is_common && flow.end.is_none() && flow.sent == self.next;
        }
    }

    /// Whether [`Delivery::plan`] has something to do although the graph is the same.
    pub fn needs_plan(&self) -> bool {
        self.is_dirty || self.hosts.values().any(|host| host.unreachable.is_some())
    }

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

    /// What is to be done on links since the last call, in order; before any message that is [due](Delivery::due).
    pub fn take_commands(&mut self) -> Vec<FlowCommand> {
        let flows = self.flows.iter_mut();
        for (id, flow) in flows.filter(|(_, flow)| flow.end == Some(flow.sent)) {
            if !std::mem::replace(&mut flow.close_sent, true) {
                self.commands.push(FlowCommand::Close(flow.tree.life, *id));
            }
        }
        std::mem::take(&mut self.commands)
    }

    /// All flows, and whether each is open.
    pub fn flows(&self) -> impl Iterator<Item = (FlowId, bool)> + '_ {
        let flows = self.flows.iter();
        flows.map(|(id, flow)| (*id, flow.end.is_none()))
    }

    fn release(&mut self) {
        let confirmed = self.hosts.values().map(|host| host.confirmed);
        self.released = confirmed.min().unwrap_or(self.next);
    }

    fn give_up(&mut self, reachable: &BTreeMap<Life, Life>, now: Time) -> Vec<GivenUp> {
        let mut given_up = Vec::new();
        let outage = self.outage;
        self.hosts.retain(|_, host| {
            if reachable.contains_key(&host.life) {
                host.unreachable = None;
                return true;
            }
            let since = *host.unreachable.get_or_insert(now);
            let stays = now.saturating_sub(since) < outage;
            let (life, confirmed) = (host.life, host.confirmed);
            given_up.extend((!stays).then_some(GivenUp { life, confirmed }));
            stays
        });
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

    fn stop_serving(&mut self, lives: &BTreeSet<Life>) {
        for flow in self.flows.values_mut() {
            flow.hosts.retain(|life| !lives.contains(life));
        }
        self.is_dirty = true;
    }

    fn cancel(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.remove(&id) {
            self.commands.push(FlowCommand::Cancel(flow.tree.life, id));
        }
    }

    /// Cancels flows that serve nobody, or whose next message is released already: all their hosts have it.
    fn drop_useless_flows(&mut self) {
        let released = self.released;
        let flows = self.flows.iter();
        let useless = flows.filter(|(_, flow)| {
            let is_late = flow.sent < released && flow.end != Some(flow.sent);
            flow.hosts.is_empty() || is_late
        });
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
        let mut holes: Vec<(Option<u64>, u64, Life)> = holes.collect();
        holes.sort_unstable();
        let mut rest = &holes[..];
        while let Some(&(to, from, _)) = rest.first() {
            let is_alike =
                |hole: &&(Option<u64>, u64, Life)| hole.0 == to && hole.1 - from <= CATCH_UP_SPREAD;
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

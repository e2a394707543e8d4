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

mod plan;

use crate::ids::{HostId, Life, Publisher, Time};
use crate::transit::{FlowDescription, FlowId};
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

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
        let due = flows.filter(|(_, flow)| {
            let next = flow.end.unwrap_or(self.next);
            flow.sent < next && !self.is_late(flow)
        });
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
    pub fn needs_plan(&self, now: Time) -> bool {
        let mut hosts = self.hosts.values();
        self.is_dirty || hosts.any(|host| self.is_lost(host, now))
    }

    /// Whether a host could not be reached for too long.
    fn is_lost(&self, host: &FinalHost, now: Time) -> bool {
        let since = host.unreachable;
        since.is_some_and(|since| now.saturating_sub(since) >= self.outage)
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
        self.is_dirty |= self.flows.values().any(|flow| self.is_late(flow));
    }

    /// Whether a flow's next message is released already. Then all its hosts have it from another flow.
    fn is_late(&self, flow: &Flow) -> bool {
        flow.sent < self.released && flow.end != Some(flow.sent)
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
}

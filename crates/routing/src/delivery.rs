//! The origin's state of one publisher: what the final hosts have confirmed, and which messages each flow still has to send.
//!
//! A *flow* carries messages in ascending order over one link: to the host at its other end, its *root*, and to hosts behind that.
//! The user decides which flows exist. Delivery rests on one rule:
//!
//! > For each final host, every message from its confirmed position on was, is or will be sent in a flow that serves the host.
//!
//! | event | action |
//! |---|---|
//! | a message is published | it is due in all flows |
//! | a flow opens that replaces others | it begins at the lowest position that one of its hosts has confirmed: messages in flight may arrive twice |
//! | a flow opens for hosts that no flow serves yet | reliable ones are owed messages from the user's number on; best-effort ones get messages from the flow's beginning on |
//! | a flow opens for reliable hosts | OPEN names for each the number from which it is owed messages ([`Delivery::begins`]); a host that has had no message takes none below it |
//! | a flow opens again for a host that has confirmed no message, with a lower number from the user than the earlier flow had | the host is owed messages from the lower number on |
//! | a flow closes | hosts that no other flow serves are forgotten |
//! | the root acknowledges messages | that confirms them, if the root is a final host |
//! | a host refuses a flow | the flow retains nothing for it, until the host confirms something of the flow |
//! | the root refuses a flow, or a message is left out of it | the flow retains none of these messages for hosts behind the root |
//!
//! The origin retains the messages that are due, and those that a reliable host behind a root has not confirmed. The link retains those
//! that the root itself has not acknowledged.
//!
//! No flow waits for another: a final host takes every message that is not below its position. A reliable host begins with the number
//! that OPEN names for it, whichever flow arrives first, and no flow skips a message that the host is owed and has not confirmed. So
//! its position rises over all messages that it is owed.

use crate::ids::{HostId, StreamId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

#[derive(Debug)]
struct Flow {
    root: HostId,
    /// The final hosts that it serves, and whether each is reliable: it must miss nothing.
    hosts: BTreeMap<HostId, bool>,
    /// Hosts behind the root that refuse the flow.
    refused: BTreeSet<HostId>,
    /// The numbers of the messages that the flow still has to send.
    due: Range<u64>,
    /// The number after the last message that its link has taken; 0 if it has taken none, or has dropped them.
    taken: u64,
}

/// The position of a final host.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// The confirmed position, or the number with which the host begins.
    next: u64,
    /// Whether the host has confirmed `next`, after it has had a message.
    is_confirmed: bool,
}

/// The delivery of one publisher's messages to all final hosts. The messages' numbers may have gaps.
#[derive(Debug, Default)]
pub struct Delivery {
    next: u64,
    hosts: BTreeMap<HostId, Position>,
    flows: BTreeMap<StreamId, Flow>,
}

impl Delivery {
    /// A message becomes due in all flows. One that was published before becomes due only in flows whose range ends before it, or that have
    /// sent nothing.
    pub fn publish(&mut self, number: u64) {
        self.next = self.next.max(number + 1);
        for flow in self.flows.values_mut() {
            if flow.taken == 0 && flow.due.is_empty() && number < flow.due.start {
                flow.due = number..number;
            }
            flow.due.end = flow.due.end.max(number + 1);
        }
    }

    /// The number after the last message.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Opens a flow to these final hosts, of which the reliable ones are marked. A reliable host that has confirmed no message is owed
    /// those from `from` on, or from where it was to begin before, if that is lower. A best-effort host gets the messages that the flow
    /// has. False, without a change, if the flow is open.
    pub fn open(
        &mut self,
        id: StreamId,
        root: HostId,
        hosts: &BTreeMap<HostId, bool>,
        from: u64,
    ) -> bool {
        if self.flows.contains_key(&id) {
            return false;
        }
        let others = self.flows.values();
        let others = others.filter(|of| of.hosts.keys().any(|host| hosts.contains_key(host)));
        let end = others.map(|of| of.due.end).max();
        for (host, at) in &mut self.hosts {
            if hosts.contains_key(host) && !at.is_confirmed {
                at.next = at.next.min(from);
            }
        }
        let positions = hosts.keys();
        let positions = positions.map(|host| self.hosts.get(host).map_or(from, |at| at.next));
        let start = positions.min().unwrap_or(from);
        for (host, is_reliable) in hosts {
            self.hosts.entry(*host).or_insert(Position {
                next: if *is_reliable { from } else { start },
                is_confirmed: false,
            });
        }
        let flow = Flow {
            root,
            hosts: hosts.clone(),
            refused: BTreeSet::new(),
            due: start..end.unwrap_or(from),
            taken: 0,
        };
        self.flows.insert(id, flow);
        true
    }

    /// The number from which each reliable host of a flow is owed messages, for OPEN. A host is not owed messages that were left out before
    /// any message was sent to it.
    pub fn begins(&mut self, id: StreamId) -> BTreeMap<HostId, u64> {
        let hosts = self.flows.get(&id).into_iter().flat_map(|flow| &flow.hosts);
        let mut begins = BTreeMap::new();
        for (host, _) in hosts.filter(|(_, is_reliable)| **is_reliable) {
            let flows = self.flows.values();
            let flows = flows.filter(|flow| flow.hosts.contains_key(host));
            let is_unsent = flows.clone().all(|flow| flow.taken == 0);
            let first = flows.map(|flow| flow.due.start).min();
            if let Some(at) = self.hosts.get_mut(host) {
                if let (true, false, Some(first)) = (is_unsent, at.is_confirmed, first) {
                    at.next = at.next.max(first);
                }
                begins.insert(*host, at.next);
            }
        }
        begins
    }

    /// Closes a flow: nothing more is sent in it. The user opens the flows that replace it first, so that their hosts are not forgotten.
    pub fn close(&mut self, id: StreamId) {
        self.flows.remove(&id);
        let flows = &self.flows;
        self.hosts
            .retain(|host, _| flows.values().any(|flow| flow.hosts.contains_key(host)));
    }

    /// A host of a flow has confirmed all messages below a number.
    pub fn confirmed(&mut self, id: StreamId, host: HostId, next: u64) {
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        if flow.hosts.contains_key(&host) {
            // A host that has had no message reports 0 or its beginning, which confirms nothing.
            if let Some(at) = self.hosts.get_mut(&host).filter(|at| next > at.next) {
                (at.next, at.is_confirmed) = (next, true);
            }
            flow.refused.remove(&host);
        }
    }

    /// A host refuses a flow. If the host is the root, its link has dropped the flow's messages.
    pub fn refused(&mut self, id: StreamId, host: HostId) {
        match self.flows.get_mut(&id) {
            Some(flow) if flow.root == host => flow.taken = 0,
            Some(flow) => {
                flow.refused.insert(host);
            }
            None => {}
        }
    }

    /// The root of a flow has acknowledged all messages below a number.
    pub fn acknowledged(&mut self, id: StreamId, next: u64) {
        if let Some(root) = self.flows.get(&id).map(|flow| flow.root) {
            self.confirmed(id, root, next);
        }
    }

    /// The range of numbers whose messages a flow still has to send, in order; `None` if it has none to send.
    pub fn due(&self, id: StreamId) -> Option<Range<u64>> {
        let flow = self.flows.get(&id)?;
        (!flow.due.is_empty()).then(|| flow.due.clone())
    }

    /// A flow's link has taken a message (`is_taken`), or the user has left it out of the flow.
    pub fn sent(&mut self, id: StreamId, number: u64, is_taken: bool) {
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.due.start = flow.due.start.max(number + 1);
            if is_taken {
                flow.taken = number + 1;
            }
        }
    }

    /// The number from which on the user has to retain messages.
    pub fn retained(&self) -> u64 {
        let flows = self.flows.values();
        let needed = flows.flat_map(|flow| {
            let behind = flow.hosts.iter().filter(|(host, is_reliable)| {
                **is_reliable && **host != flow.root && !flow.refused.contains(host)
            });
            let confirmed = behind.map(|(host, _)| self.hosts[host].next);
            let due = (!flow.due.is_empty()).then_some(flow.due.start);
            confirmed.filter(|next| *next < flow.taken).chain(due)
        });
        needed.min().unwrap_or(self.next)
    }
}

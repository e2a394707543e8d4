//! The origin: what the final hosts have confirmed of a publisher's messages, and what is still to be sent in which flow.
//!
//! A *flow* carries messages in ascending order over one link: to the host at its other end, its *root*, and to hosts behind that.
//! The user decides which flows there are. The whole of delivery rests on one rule:
//!
//! > For each final host, every message from its confirmed position on was, is or will be sent in a flow that serves the host.
//!
//! | event | action |
//! |---|---|
//! | a message is published | it is due in all flows |
//! | a flow opens in the place of others | it begins at the least position that one of its hosts has confirmed: what is in flight may arrive twice |
//! | a flow opens for hosts that none serves yet | they are owed messages from where the user says; best-effort ones get them from where the flow begins for others |
//! | a flow opens for reliable hosts | OPEN tells each the number from which it is owed messages ([`Delivery::begins`]); one that has had none takes none below it |
//! | a flow opens for a host that has confirmed no message, and the user says a lower number now | the host is owed messages from there on |
//! | a flow closes | hosts that no other flow serves are forgotten |
//! | the root acknowledges messages | that confirms them, if the root is a final host |
//! | a host refuses a flow | nothing is retained for it there, until it confirms something of that flow |
//! | the root refuses a flow, or a message is left out there | nothing of that is retained for hosts behind the root |
//!
//! Messages are retained that are due, or that a reliable host behind a root has not confirmed. What the root itself has not
//! acknowledged, its link retains.
//!
//! Nothing waits for another flow: a final host takes every message that is not below its position. A reliable host begins with the
//! number that it is told, whichever flow comes first, and no flow skips a message that the host is owed and has not confirmed. So its
//! position rises over all that it is owed.

use crate::ids::{HostId, StreamId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

#[derive(Debug)]
struct Flow {
    root: HostId,
    /// The final hosts that it serves, and whether they are to miss nothing.
    hosts: BTreeMap<HostId, bool>,
    refused: BTreeSet<HostId>,
    due: Range<u64>,
    /// Its link has taken messages, all of them below this number.
    taken: u64,
}

/// How far a final host is.
#[derive(Clone, Copy, Debug)]
struct Position {
    next: u64,
    /// The host has said so, and has had a message. If not, that is where it begins.
    is_confirmed: bool,
}

/// The messages of one publisher on their way to final hosts. Their numbers may have gaps.
#[derive(Debug, Default)]
pub struct Delivery {
    next: u64,
    hosts: BTreeMap<HostId, Position>,
    flows: BTreeMap<StreamId, Flow>,
}

impl Delivery {
    /// A message is due. If it was published before, then only in flows that have not been there, or have sent nothing.
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

    /// A flow opens to these final hosts, and those that are to miss nothing are marked. One that has confirmed no message is owed those
    /// from `from` on, or from where it was to begin before; a best-effort one gets what the flow has. False: it was open before, and
    /// nothing changes.
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

    /// What OPEN tells hosts of a flow that are to miss nothing: the number from which each is owed messages. What was left out before
    /// anything was sent to a host, it is not owed.
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

    /// Nothing more is sent in a flow. It closes after those that take its place open.
    pub fn close(&mut self, id: StreamId) {
        self.flows.remove(&id);
        let flows = &self.flows;
        self.hosts
            .retain(|host, _| flows.values().any(|flow| flow.hosts.contains_key(host)));
    }

    /// A host of a flow has all messages below a number.
    pub fn confirmed(&mut self, id: StreamId, host: HostId, next: u64) {
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        if flow.hosts.contains_key(&host) {
            // A host that has no message yet says 0, or where it begins: that confirms nothing.
            if let Some(at) = self.hosts.get_mut(&host).filter(|at| next > at.next) {
                (at.next, at.is_confirmed) = (next, true);
            }
            flow.refused.remove(&host);
        }
    }

    /// A host of a flow takes none of its messages. If it is the root, its link has dropped them.
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

    /// The numbers of which a flow has to send the messages that there are, in order.
    pub fn due(&self, id: StreamId) -> Option<Range<u64>> {
        let flow = self.flows.get(&id)?;
        (!flow.due.is_empty()).then(|| flow.due.clone())
    }

    /// A flow's link has taken a message, or it was left out there.
    pub fn sent(&mut self, id: StreamId, number: u64, is_taken: bool) {
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.due.start = flow.due.start.max(number + 1);
            if is_taken {
                flow.taken = number + 1;
            }
        }
    }

    /// The number from which on messages are to be retained.
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

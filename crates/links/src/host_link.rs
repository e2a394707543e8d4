//! The link with a host, as topics use it. It names flows as control messages do, and goes on when the host restarts.
//!
//! The link's machine retains messages until they are acknowledged, and never gives one up. What it does not know is here:
//!
//! - *Names.* A [`FlowName`] is the same for both hosts, while each end numbers its flows. OPEN carries the name, and the description.
//! - *Groups.* Flows that begin together are one [`Group`], so that the receiver knows all of them before it takes messages.
//! - *Restart.* When the host restarts, all flows are opened again, each stream as one group.
//! - *Successors.* A flow that another flow of the same publisher replaces is closed when the host has accepted that one. If CLOSE arrived
//!   first, the publisher that stands for it there would end, and another would begin.
//! - *Outage.* A host without lanes for `outage_ms` gets nothing of what was retained. Before that, a reliable flow retains no more than
//!   `outage_max`, and a best-effort one its newest message.
//! - *Back-pressure.* A reliable flow holds its sender back at `in_flight_max`; a best-effort one gives up its oldest message instead,
//!   of those of which no byte is on its way.
//!
//! **Locks.** The link's comes first, then `Sending`; neither is held while topics learn what happened.

use crate::counts::HostCounts;
use crate::event::ConductorEvent;
use crate::lock;
use crate::wire::{clip, FlowDescription};
use rgaps_routing::FlowName;
use rgaps_transport::machine::frame::Description;
use rgaps_transport::machine::{LinkMachine, SendFlow, FLOWS_MAX};
use rgaps_transport::{
    Endpoint, EndpointError, FlowEvent, FlowId, FlowReceiver, Link, LinkConfig, LinkEvent,
    LinkRuntime, LinkStatus, LinkUser, Payload, Peer,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Flows of a stream that are opened in one step: the receiver takes messages of none before it knows all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// No other group of this link has it.
    pub number: u32,
    pub flows: u16,
}

pub struct NewFlow {
    pub flow: FlowName,
    pub retained_max: u64,
    pub description: Arc<FlowDescription>,
    /// The host sends its messages on. Its next life needs more of them than the flow retains, so another flow takes this one's place.
    pub leads_on: bool,
}

/// What OPEN carries: the flow's name, its group, and its own description.
fn encode_open(flow: FlowName, group: Group, description: &[u8]) -> Option<Description> {
    let mut to = postcard::to_stdvec(&(flow, group)).ok()?;
    to.extend(description);
    Description::new(&to)
}

pub fn decode_open(from: &[u8]) -> Option<(FlowName, Group, &[u8])> {
    let ((flow, group), rest) = postcard::take_from_bytes::<(FlowName, Group)>(from).ok()?;
    (group.flows > 0).then_some((flow, group, rest))
}

/// Where messages from a host arrive, the listener for events, which does not block, and the host's counts.
pub type LinkEnds = (
    Arc<dyn FlowReceiver>,
    Box<dyn Fn(ConductorEvent) + Send + Sync>,
    Arc<HostCounts>,
);

/// How long messages are retained, and how many.
#[derive(Clone, Copy, Debug)]
pub struct RetainLimits {
    /// Bytes of a flow, as long as the host has lanes.
    pub in_flight_max: u64,
    pub outage_max: u64,
    /// A host that has no lanes for so long gets nothing of what was retained.
    pub outage: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is retained until it is acknowledged or given up.
    Taken,
    /// Not now: a reliable publisher waits.
    Full,
    /// Never: the flow is closed, there is no room for a best-effort message, or the message is empty, too large or too late.
    Never,
}

/// The link with a host. The last clone closes it.
#[derive(Clone)]
pub struct HostLink {
    link: Link,
    user: Arc<HostUser>,
    pub limits: RetainLimits,
}

struct SentFlow {
    id: FlowId,
    of: NewFlow,
    is_accepted: bool,
    is_closing: bool,
    /// It closes when the host has answered to this flow.
    successor: Option<FlowName>,
    /// What it retains is sent in another stream, too.
    is_replaced: bool,
}

impl SentFlow {
    fn gave_up(&self, messages: usize, counts: &HostCounts) {
        if messages > 0 && !self.is_replaced {
            let messages = messages as u64;
            counts.given_up.fetch_add(messages, Ordering::Relaxed);
            let topic = &self.of.description.topic;
            counts.issues.gave_up(topic, messages);
        }
    }
}

#[derive(Default)]
struct Sending {
    flows: BTreeMap<FlowName, SentFlow>,
    names: HashMap<FlowId, FlowName>,
    down_since: Option<Instant>,
    /// The last group that was opened.
    groups: u32,
}

impl Sending {
    fn group(&mut self, flows: usize) -> Group {
        self.groups = self.groups.wrapping_add(1);
        Group {
            number: self.groups,
            flows: u16::try_from(flows).expect("there are no more than FLOWS_MAX"),
        }
    }

    /// The flow that replaces one, if the host has not answered to it yet.
    fn successor(&self, flow: FlowName) -> Option<FlowName> {
        let replaces = |(other, sent): &(&FlowName, &SentFlow)| {
            let is_other = **other != flow && other.publisher == flow.publisher;
            is_other && !sent.is_accepted && !sent.is_closing
        };
        let mut flows = self.flows.iter();
        flows.find(replaces).map(|(successor, _)| *successor)
    }

    /// The host has answered to a flow, or never will: those that it replaces are closed. None: to all flows.
    fn close_replaced(&mut self, successor: Option<FlowName>, link: &mut LinkMachine) {
        for sent in self.flows.values_mut() {
            let is_due = |of: &mut FlowName| successor.is_none_or(|answered| answered == *of);
            if sent.successor.take_if(is_due).is_some() {
                link.close(sent.id);
            }
        }
    }

    /// Without lanes, cuts flows that close and were replaced: otherwise they would retain what goes another way until the host is linked
    /// again. The caller drops the result without locks.
    fn cut_replaced(&mut self, link: &mut LinkMachine) -> Vec<Arc<dyn Payload>> {
        if link.has_lanes() {
            return Vec::new();
        }
        let closing = self.flows.iter().filter(|(_, sent)| sent.is_closing);
        let closing: BTreeSet<FlowName> = closing.map(|(flow, _)| *flow).collect();
        let flows = self.flows.values_mut().filter(|sent| {
            // Its end must not arrive before its host has answered to the successor: the publisher there would leave.
            let has_successor = sent.successor.is_some_and(|of| !closing.contains(&of));
            sent.is_closing && sent.is_replaced && !has_successor
        });
        let dropped = flows.flat_map(|sent| {
            sent.successor = None;
            link.cut(sent.id)
        });
        dropped.collect()
    }

    /// Opens flows again for the host's next life, but for those that lead on. The caller drops the result without locks.
    fn begin_again(&mut self, link: &mut LinkMachine) -> Vec<Arc<dyn Payload>> {
        self.close_replaced(None, link);
        let mut dropped = Vec::new();
        let mut streams: BTreeMap<u64, Vec<FlowName>> = BTreeMap::new();
        let is_waiting = |id| link.sent(id).is_some_and(SendFlow::is_waiting);
        let waiting = self.flows.iter().filter(|(_, of)| is_waiting(of.id));
        let waiting: Vec<FlowName> = waiting.map(|(flow, _)| *flow).collect();
        for flow in waiting {
            let sent = &self.flows[&flow];
            if !sent.of.leads_on {
                streams.entry(flow.stream).or_default().push(flow);
            } else if sent.is_closing {
                dropped.extend(self.cut(flow, link));
            }
        }
        for flows in streams.into_values() {
            let group = self.group(flows.len());
            for flow in flows {
                let sent = self.flows.get_mut(&flow).expect("it waits");
                sent.is_accepted = false;
                let next = link.sent(sent.id).map_or(0, SendFlow::acknowledged);
                let description = sent.of.description.resumed(next);
                if let Some(description) = encode_open(flow, group, &description.encode()) {
                    link.reopen(sent.id, description);
                }
            }
        }
        dropped
    }

    /// Ends a flow that the host has not heard of.
    fn cut(&mut self, flow: FlowName, link: &mut LinkMachine) -> Vec<Arc<dyn Payload>> {
        let sent = self.flows.remove(&flow);
        // No answer to it will come.
        self.close_replaced(Some(flow), link);
        sent.map_or_else(Vec::new, |sent| {
            self.names.remove(&sent.id);
            link.cut(sent.id)
        })
    }

    fn accepted(&mut self, id: FlowId) -> Option<FlowName> {
        let flow = self.names.get(&id)?;
        self.flows.get_mut(flow)?.is_accepted = true;
        Some(*flow)
    }

    fn end(&mut self, id: FlowId) -> Option<SentFlow> {
        self.flows.remove(&self.names.remove(&id)?)
    }
}

struct HostUser {
    report: Box<dyn Fn(ConductorEvent) + Send + Sync>,
    counts: Arc<HostCounts>,
    sending: Mutex<Sending>,
}

impl LinkUser for HostUser {
    fn flow_event(&self, event: FlowEvent, link: &LinkRuntime) {
        let event = match event {
            FlowEvent::Acknowledged { .. } => return,
            FlowEvent::Accepted { flow } => {
                let flow = lock(&self.sending).accepted(flow);
                flow.map(|flow| ConductorEvent::Answered(flow, Ok(())))
            }
            FlowEvent::Refused { flow, why, dropped } => {
                let ended = lock(&self.sending).end(flow);
                ended.map(|SentFlow { of, .. }| {
                    let why = clip(&String::from_utf8_lossy(why.as_slice()));
                    let (topic, dropped) = (&of.description.topic, dropped.len() as u64);
                    self.counts.issues.refused(topic, dropped, &why);
                    ConductorEvent::Answered(of.flow, Err(why))
                })
            }
            FlowEvent::Ended { flow } => {
                let ended = lock(&self.sending).end(flow);
                ended.map(|sent| ConductorEvent::Ended(sent.of.flow))
            }
        };
        let Some(event) = event else { return };
        if let ConductorEvent::Answered(flow, _) | ConductorEvent::Ended(flow) = event {
            link.change(|link| lock(&self.sending).close_replaced(Some(flow), link));
        }
        (self.report)(event);
    }

    fn event(&self, event: LinkEvent, link: &LinkRuntime) {
        match event {
            LinkEvent::Up => lock(&self.sending).down_since = None,
            LinkEvent::Down { .. } => {
                let dropped = link.change(|link| {
                    let mut sending = lock(&self.sending);
                    sending.down_since = Some(Instant::now());
                    sending.cut_replaced(link)
                });
                drop(dropped);
            }
            LinkEvent::Restarted => {
                let dropped = link.change(|link| lock(&self.sending).begin_again(link));
                drop(dropped);
            }
            _ => {}
        }
        (self.report)(ConductorEvent::Link(event));
    }
}

impl HostLink {
    pub fn new(
        endpoint: &Endpoint,
        host: &str,
        (config, limits): (LinkConfig, RetainLimits),
        peer: Peer,
        (receiver, report, counts): LinkEnds,
    ) -> Result<HostLink, EndpointError> {
        let user = Arc::new(HostUser {
            report,
            counts,
            sending: Mutex::new(Sending {
                down_since: Some(Instant::now()),
                ..Sending::default()
            }),
        });
        let link = endpoint.link(host, config, peer, (receiver, user.clone()))?;
        Ok(HostLink { link, user, limits })
    }

    /// What the control plane says of the host.
    pub fn set_peer(&self, peer: Peer) -> Result<(), EndpointError> {
        self.link.set_peer(peer)
    }

    /// Has lanes write what was sent.
    pub fn settle(&self) {
        self.link.settle();
    }

    /// There may be receive buffers again.
    pub fn buffer_free(&self) {
        self.link.buffer_free();
    }

    pub fn status(&self) -> LinkStatus {
        self.link.status()
    }

    /// Ends its lanes, and waits for their threads.
    pub fn close(&self) {
        self.link.close();
    }

    /// Bytes of the longest message that can be in flight, and is kept for a host that is away for a while; and the key that says so.
    pub fn longest(&self) -> (u64, &'static str) {
        let keys = [
            (self.limits.in_flight_max, "links.in_flight_max"),
            (self.limits.outage_max, "links.outage_max"),
        ];
        keys.into_iter().min().expect("there are two")
    }

    /// Says something to the host, in its turn. A host that restarts does not hear what it had not heard. False: too much waits.
    pub fn say(&self, said: Vec<u8>) -> bool {
        self.link.change(|link| link.say(Arc::new(said)))
    }

    /// Begins flows of one stream as a group, but for those that are there. Their messages may have any numbers.
    pub fn open(&self, mut flows: Vec<NewFlow>) {
        self.link.change(|link| {
            let mut sending = lock(&self.user.sending);
            flows.retain(|new| !sending.flows.contains_key(&new.flow));
            let room = FLOWS_MAX - sending.flows.len();
            if flows.len() > room {
                tracing::error!(
                    "a host gets too many publishers' messages; those of some are not sent"
                );
                flows.truncate(room);
            }
            let group = sending.group(flows.len());
            for new in flows {
                let description = encode_open(new.flow, group, &new.description.encode());
                let id = description.and_then(|description| link.open(0, description));
                if let Some(id) = id {
                    sending.names.insert(id, new.flow);
                    let sent = SentFlow {
                        id,
                        of: new,
                        is_accepted: false,
                        is_closing: false,
                        successor: None,
                        is_replaced: false,
                    };
                    sending.flows.insert(sent.of.flow, sent);
                }
            }
        });
    }

    /// Sends a message without blocking: once it is taken, it leaves with [`settle`](LinkRuntime::settle). Sequences ascend, and the host
    /// misses those that are left out. `reliable`: without room it is refused ([`Sent::Full`]); others are given up for it only while the host
    /// has no lanes.
    pub fn send(
        &self,
        (flow, reliable): (FlowName, bool),
        sequence: u64,
        payload: Arc<dyn Payload>,
        description: Description,
    ) -> Sent {
        let mut given_up = Vec::new();
        let outcome = self.link.change_unsettled(|link| {
            let sending = lock(&self.user.sending);
            let Some(sent) = sending.flows.get(&flow) else {
                return Sent::Never;
            };
            let bytes = payload.bytes() as u64;
            let [all, outage] = [self.limits.in_flight_max, self.limits.outage_max]
                .map(|max| max.min(sent.of.retained_max));
            if bytes > all.min(outage) {
                return Sent::Never;
            }
            let max = match (link.has_lanes(), reliable) {
                (true, _) => all,
                (false, true) => outage,
                (false, false) => bytes,
            };
            let holds_back = reliable && link.has_lanes();
            while link.sent(sent.id).map_or(0, |of| of.retained) + bytes > max {
                let oldest = match holds_back {
                    true => None,
                    false => link.sent(sent.id).and_then(SendFlow::oldest_unsent),
                };
                let Some(oldest) = oldest else {
                    return if reliable { Sent::Full } else { Sent::Never };
                };
                given_up.extend(link.cancel(sent.id, oldest));
            }
            sent.gave_up(given_up.len(), &self.user.counts);
            match link.send(sent.id, sequence, payload, description) {
                true => Sent::Taken,
                false => Sent::Never,
            }
        });
        drop(given_up);
        if outcome != Sent::Taken {
            // For the messages that were given up.
            self.settle();
        }
        outcome
    }

    fn change<T: Default>(
        &self,
        flow: FlowName,
        act: impl FnOnce(&mut LinkMachine, &SentFlow) -> T,
    ) -> T {
        self.link.change(|link| {
            let sending = lock(&self.user.sending);
            let sent = sending.flows.get(&flow);
            sent.map_or_else(T::default, |sent| act(link, sent))
        })
    }

    /// So many bytes of a message that was sent while it grew are there now; see [`Payload::ready`].
    pub fn ready(&self, flow: FlowName, sequence: u64, ready: u64) {
        self.change(flow, |link, sent| link.ready(sent.id, sequence, ready));
    }

    /// A message that was sent while it grew never will be complete: the host misses it. A complete one goes on.
    pub fn give_up(&self, flow: FlowName, sequence: u64) {
        let given_up = self.change(flow, |link, sent| {
            let of = link.sent(sent.id);
            let is_growing = of.is_some_and(|of| of.is_growing(sequence));
            let given_up = is_growing.then(|| link.cancel(sent.id, sequence))?;
            sent.gave_up(given_up.iter().count(), &self.user.counts);
            given_up
        });
        drop(given_up);
    }

    pub fn acknowledged(&self, flow: FlowName) -> u64 {
        self.change(flow, |link, sent| {
            link.sent(sent.id).map_or(0, SendFlow::acknowledged)
        })
    }

    /// The host misses the messages of a flow below this one that were not sent.
    pub fn skip(&self, flow: FlowName, next: u64) {
        self.change(flow, |link, sent| link.skip(sent.id, next));
    }

    /// No message of a flow follows. It closes when the host has answered to the flow that replaces it, and ends when all that it retains
    /// is acknowledged or given up. One that is cut ends at once; the host misses nothing of it, since the rest comes in another flow.
    pub fn end_flow(&self, flow: FlowName, is_cut: bool) {
        let dropped = self.link.change(|link| {
            let mut sending = lock(&self.user.sending);
            let successor = sending.successor(flow).filter(|_| !is_cut);
            let Some(sent) = sending.flows.get_mut(&flow) else {
                return Vec::new();
            };
            let is_waiting = link.sent(sent.id).is_some_and(SendFlow::is_waiting);
            if sent.of.leads_on && is_waiting {
                return sending.cut(flow, link);
            }
            sent.is_closing = true;
            sent.successor = successor;
            if is_cut {
                return link.cut(sent.id);
            }
            if successor.is_none() {
                link.close(sent.id);
            }
            Vec::new()
        });
        drop(dropped);
    }

    /// Gives up all that is retained for a host that has had no lanes for too long. To be called now and then.
    pub fn give_up_outage(&self) {
        let down_since = lock(&self.user.sending).down_since;
        if down_since.is_none_or(|at| at.elapsed() < self.limits.outage) {
            return;
        }
        let given_up = self.link.change(|link| {
            if link.has_lanes() {
                return Vec::new();
            }
            let sending = lock(&self.user.sending);
            let flows = sending.flows.values();
            let given_up = flows.flat_map(|sent| {
                let given_up = link.cancel_all(sent.id);
                sent.gave_up(given_up.len(), &self.user.counts);
                given_up
            });
            given_up.collect()
        });
        drop(given_up);
    }

    /// What a flow that ends retains is sent in others, which are open.
    pub fn replaced(&self, flow: FlowName) {
        let dropped = self.link.change(|link| {
            let mut sending = lock(&self.user.sending);
            if let Some(sent) = sending.flows.get_mut(&flow) {
                sent.is_replaced = true;
            }
            sending.cut_replaced(link)
        });
        drop(dropped);
    }
}

#[cfg(test)]
#[path = "host_link_tests.rs"]
mod tests;

//! The link with a host, as topics use it. It knows flows by their names, and survives restarts of the host.
//!
//! The link's machine retains messages until they are acknowledged, and never gives one up. This module adds:
//!
//! - *Names.* A [`FlowName`] is the same for both hosts, while each end numbers its flows. OPEN carries the name, and the description.
//! - *Groups.* Flows that begin together are one [`Group`], so that the receiver knows all of them before it takes messages.
//! - *Restart.* When the host restarts, all flows are opened again, each stream as one group.
//! - *Successors.* A flow that another flow of the same publisher replaces, its successor, is closed when the host has accepted the
//!   successor. If CLOSE arrived first, the landing there would end, and another would begin.
//! - *Outage.* Messages that are retained for a host without lanes are dropped after `outage_ms`. Until then, a reliable flow retains no
//!   more than `outage_max`, and a best-effort one its newest message.
//! - *Back-pressure.* A reliable flow back-pressures its sender at `in_flight_max`; a best-effort one instead gives up its oldest
//!   message of which no byte is on its way.
//!
//! **Locks.** The link's lock is taken before that of `Sending`; neither is held while an event is reported.

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
    /// The group's number, which no other group of this link has.
    pub number: u32,
    /// How many flows the group has, at least 1.
    pub flows: u16,
}

/// A flow to open.
pub struct NewFlow {
    pub flow: FlowName,
    /// The most bytes that the flow may retain.
    pub retained_max: u64,
    pub description: Arc<FlowDescription>,
    /// Whether the host forwards the messages. Its next life needs more of them than this flow retains, so after a restart another flow
    /// replaces this one.
    pub leads_on: bool,
}

/// The description in OPEN: the flow's name, its group, and the encoded [`FlowDescription`].
fn encode_open(flow: FlowName, group: Group, description: &[u8]) -> Option<Description> {
    let mut to = postcard::to_stdvec(&(flow, group)).ok()?;
    to.extend(description);
    Description::new(&to)
}

pub fn decode_open(from: &[u8]) -> Option<(FlowName, Group, &[u8])> {
    let ((flow, group), rest) = postcard::take_from_bytes::<(FlowName, Group)>(from).ok()?;
    (group.flows > 0).then_some((flow, group, rest))
}

/// The receiver of a host's messages, the listener for events, which must not block, and the host's counts.
pub type LinkEnds = (
    Arc<dyn FlowReceiver>,
    Box<dyn Fn(ConductorEvent) + Send + Sync>,
    Arc<HostCounts>,
);

/// How long messages are retained, and how many.
#[derive(Clone, Copy, Debug)]
pub struct RetainLimits {
    /// The most bytes that a flow retains while the host has lanes.
    pub in_flight_max: u64,
    /// The most bytes that a reliable flow retains while the host has none.
    pub outage_max: u64,
    /// How long messages are retained for a host without lanes.
    pub outage: Duration,
}

/// What became of a message that was offered to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The link retains it until it is acknowledged or given up.
    Taken,
    /// There is no room now; the message of a reliable flow waits.
    Full,
    /// It is not sent: the flow is closed, there is no room for a best-effort message, or the message is empty, too large or too late.
    Never,
}

/// The link with a host. The last clone closes it.
#[derive(Clone)]
pub struct HostLink {
    link: Link,
    user: Arc<HostUser>,
    pub limits: RetainLimits,
}

/// A flow that is sent to the host.
struct SentFlow {
    /// The number by which this end of the link knows the flow.
    id: FlowId,
    of: NewFlow,
    is_accepted: bool,
    is_closing: bool,
    /// The flow that replaces this one, which closes when the host has answered to that. None: it does not wait for one.
    successor: Option<FlowName>,
    /// Whether another stream sends the retained messages, too: then dropping them loses nothing.
    is_replaced: bool,
}

impl SentFlow {
    /// Counts messages that were dropped, unless another stream sends them.
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
    /// Since when the link has no lanes. None: it has some.
    down_since: Option<Instant>,
    /// The number of the last group that was opened.
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

    /// An open flow of the same publisher to which the host has not answered yet: it replaces this one.
    fn successor(&self, flow: FlowName) -> Option<FlowName> {
        let replaces = |(other, sent): &(&FlowName, &SentFlow)| {
            let is_other = **other != flow && other.publisher == flow.publisher;
            is_other && !sent.is_accepted && !sent.is_closing
        };
        let mut flows = self.flows.iter();
        flows.find(replaces).map(|(successor, _)| *successor)
    }

    /// Closes the flows that `successor` replaces: the host has answered to it, or never will. None: closes all that wait for a successor.
    fn close_replaced(&mut self, successor: Option<FlowName>, link: &mut LinkMachine) {
        for sent in self.flows.values_mut() {
            let is_due = |of: &mut FlowName| successor.is_none_or(|answered| answered == *of);
            if sent.successor.take_if(is_due).is_some() {
                link.close(sent.id);
            }
        }
    }

    /// Without lanes, cuts closing flows that were replaced: otherwise they would retain messages that go by another route until the host
    /// is linked again. The caller drops the result without locks.
    fn cut_replaced(&mut self, link: &mut LinkMachine) -> Vec<Arc<dyn Payload>> {
        if link.has_lanes() {
            return Vec::new();
        }
        let closing = self.flows.iter().filter(|(_, sent)| sent.is_closing);
        let closing: BTreeSet<FlowName> = closing.map(|(flow, _)| *flow).collect();
        let flows = self.flows.values_mut().filter(|sent| {
            // The flow's end must not arrive before the host has answered to the successor: the landing there would end.
            let has_successor = sent.successor.is_some_and(|of| !closing.contains(&of));
            sent.is_closing && sent.is_replaced && !has_successor
        });
        let dropped = flows.flat_map(|sent| {
            sent.successor = None;
            link.cut(sent.id)
        });
        dropped.collect()
    }

    /// Opens flows again for the host's next life, except those that the host forwards. The caller drops the result without locks.
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

    /// Ends a flow that the host's current life does not know.
    fn cut(&mut self, flow: FlowName, link: &mut LinkMachine) -> Vec<Arc<dyn Payload>> {
        let sent = self.flows.remove(&flow);
        // The host will not answer to this flow, so flows that it replaces need not wait.
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

    /// Sets the host's life and address, as the control plane reported them.
    pub fn set_peer(&self, peer: Peer) -> Result<(), EndpointError> {
        self.link.set_peer(peer)
    }

    /// Makes lanes write all messages that were sent so far.
    pub fn settle(&self) {
        self.link.settle();
    }

    /// Call when there may be receive buffers again: the link asks again for messages that found none.
    pub fn buffer_free(&self) {
        self.link.buffer_free();
    }

    pub fn status(&self) -> LinkStatus {
        self.link.status()
    }

    /// Ends the lanes, and waits for their threads.
    pub fn close(&self) {
        self.link.close();
    }

    /// Bytes of the longest message that `limits` allow both in flight and during an outage, and the key of the limit that is lower.
    pub fn longest(&self) -> (u64, &'static str) {
        let keys = [
            (self.limits.in_flight_max, "links.in_flight_max"),
            (self.limits.outage_max, "links.outage_max"),
        ];
        keys.into_iter().min().expect("there are two")
    }

    /// Sends an encoded control message to the host, in order. When the host restarts, the link drops those that it had not received.
    /// False: too many bytes are unacknowledged.
    pub fn say(&self, said: Vec<u8>) -> bool {
        self.link.change(|link| link.say(Arc::new(said)))
    }

    /// Opens flows of one stream as a group, except those that are open already. Their first messages may have any sequence.
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

    /// Sends a message, without blocking. Lanes write it after [`settle`](LinkRuntime::settle). Sequences ascend; the host misses those
    /// that are left out. Without room, the flow gives up its oldest messages of which no byte was sent; but a reliable flow with lanes
    /// gives up none. If there is still no room, a reliable message waits ([`Sent::Full`]), and another is dropped ([`Sent::Never`]).
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

    /// Records that the first `ready` bytes of a message that is sent while it grows are complete; see [`Payload::ready`].
    pub fn ready(&self, flow: FlowName, sequence: u64, ready: u64) {
        self.change(flow, |link, sent| link.ready(sent.id, sequence, ready));
    }

    /// Gives up a message that was sent while it grew and will never be complete: the host misses it. Leaves a complete one alone.
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

    /// Tells the host that it misses the messages of a flow below `next` that were not sent.
    pub fn skip(&self, flow: FlowName, next: u64) {
        self.change(flow, |link, sent| link.skip(sent.id, next));
    }

    /// Ends a flow: no message follows. It closes when the host has answered to its successor, if there is one, and ends when all messages
    /// that it retains are acknowledged or given up. `is_cut`: it ends at once; the host misses nothing, since another flow has the rest.
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

    /// Gives up all messages that are retained for a host that has had no lanes for [`RetainLimits::outage`]. Call it periodically.
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

    /// Records that other open flows send the messages that a closing flow retains, and drops those if the host has no lanes.
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

//! A topic that other hosts want.
//!
//! The egress takes one message after the other from the topic's subscriber, and sends it over the flows of all hosts that want it. When a
//! host wants history, the conductor replaces the subscriber by one that reads the history first. The previous subscriber is read to its
//! end before that.

use super::host_flow::HostFlow;
use super::message::{MessageInfo, OutgoingMessage};
use super::publisher::Publisher;
use super::{FlowTarget, OwnPublishers};
use crate::wire::MessageDescription;
use rgaps_client::links::WithMetadata;
use rgaps_client::{Domain, RecvError, Sample, Subscriber, Token, WaitSet};
use rgaps_routing::{FlowName, HostId};
use rgaps_sync::{monotonic_ns, to_wall, wall_offset_ns};
use rgaps_transport::{Description, Payload};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Messages that a topic sends before other topics get their turn.
const TURN: usize = 32;

/// A topic that other hosts want.
pub struct EgressTopic {
    pub subscriber: Subscriber,
    /// The subscriber before this one, until its last message is read.
    previous: Option<Subscriber>,
    /// `subscriber` replaced another, and has not yet read the history.
    reads_history: bool,
    pub token: Option<Token>,
    host_flows: Vec<HostFlow>,
    /// A message that was taken, and has no bytes yet.
    unfinished: Option<Sample>,
    /// A message that was taken, and not yet published to the flows.
    outgoing: Option<Arc<OutgoingMessage>>,
    /// The conductor knows that `outgoing` waits for routes.
    is_reported: bool,
    /// Messages that were sent and are not yet complete, each with the number of its bytes that the links know.
    growing: Vec<(Arc<OutgoingMessage>, usize)>,
    publishers: BTreeMap<u64, Publisher>,
    /// The publishers with messages that are due on some flow.
    due: BTreeSet<u64>,
    /// The publishers that ended, and whose flows are still open.
    ended: BTreeSet<u64>,
    /// The last turn left messages behind. The thread looks again without a doorbell.
    pub held_up: bool,
    /// The largest message, in bytes, that the routes are planned for. A larger one waits until the conductor has planned others.
    planned: u64,
    /// The size in bytes of a message that waits for routes, until the conductor takes it.
    pub unplanned: Option<u64>,
}

enum Next {
    /// A message, or one that is skipped.
    Taken,
    Nothing,
    /// A message that cannot be taken now.
    Waits,
}

/// A publisher's entry, which may be a new one.
fn entry(
    publishers: &mut BTreeMap<u64, Publisher>,
    id: u64,
    reads_previous: bool,
) -> &mut Publisher {
    let publisher = publishers.entry(id);
    publisher.or_insert_with(|| Publisher::new(reads_previous))
}

fn skip(topic: &str, error: &RecvError) -> Next {
    tracing::warn!(%error, topic, "a message cannot be sent to other hosts; skipped");
    Next::Taken
}

impl EgressTopic {
    pub fn new(subscriber: Subscriber) -> EgressTopic {
        EgressTopic {
            subscriber,
            previous: None,
            reads_history: false,
            token: None,
            host_flows: Vec::new(),
            unfinished: None,
            outgoing: None,
            is_reported: false,
            growing: Vec::new(),
            publishers: BTreeMap::new(),
            due: BTreeSet::new(),
            ended: BTreeSet::new(),
            held_up: false,
            planned: 0,
            unplanned: None,
        }
    }

    /// Takes the subscriber out of the set: its messages do not wake the thread any more.
    pub fn detach(&mut self, set: &mut WaitSet) {
        if let Some(token) = self.token.take() {
            set.detach(token);
        }
    }

    pub fn into_subscribers(self) -> impl Iterator<Item = Subscriber> {
        std::iter::once(self.subscriber).chain(self.previous)
    }

    /// Replaces the subscriber by one that reads the history first. It was created before the former one stops, so it misses nothing.
    pub fn set_subscriber(&mut self, subscriber: Subscriber) {
        let previous = std::mem::replace(&mut self.subscriber, subscriber);
        // After two changes in a row, the first subscriber has the most messages left.
        self.previous.get_or_insert(previous);
        self.reads_history = true;
        let publishers = self.publishers.values_mut();
        publishers.for_each(|of| of.history_read = Some(0));
    }

    /// Sends to these hosts from now on. `planned`: the largest message, in bytes, that the routes are for.
    pub fn set_routes(&mut self, routes: Vec<FlowTarget>, planned: u64) {
        self.planned = planned;
        self.publishers.retain(|_, of| !of.is_over());
        let reads_previous = self.previous.is_some();
        for of in routes.iter().flat_map(|route| &route.publishers) {
            let publisher = entry(&mut self.publishers, of.publisher, reads_previous);
            publisher.description = Some(of.clone());
        }
        let streams: BTreeSet<u64> = routes.iter().map(|route| route.stream).collect();
        for route in routes {
            let mut known = self.host_flows.iter_mut();
            match known.find(|of| of.route.stream == route.stream) {
                Some(known) => known.set_route(route),
                None => self.host_flows.push(self.new_flow(route)),
            }
        }
        let flows = std::mem::take(&mut self.host_flows).into_iter();
        let (stay, mut over): (Vec<_>, Vec<_>) =
            flows.partition(|of| streams.contains(&of.route.stream));
        self.host_flows = stay;
        for over in &over {
            let publishers = self.publishers.iter_mut();
            publishers.for_each(|(id, of)| of.note_acknowledged(*id, over));
        }
        // A flow ends only once the flows that replace it are open.
        self.open_all();
        for over in &mut over {
            self.publishers.values_mut().for_each(|of| of.close(over));
            over.close_all();
            for publisher in self.publishers.keys() {
                if over.is_replaced_by(&self.host_flows, *publisher) {
                    over.route.link.replaced(over.flow(*publisher));
                }
            }
        }
    }

    fn new_flow(&self, route: FlowTarget) -> HostFlow {
        let mut new = HostFlow::new(route);
        let mut served = self.host_flows.iter().filter(|of| !of.skips_previous);
        let is_served = served.any(|of| new.finals.keys().any(|host| of.finals.contains_key(host)));
        new.wants_history = self.previous.is_some();
        new.skips_previous = new.wants_history && !is_served;
        new
    }

    /// Opens the flows of all publishers to all hosts. A publisher that ended gets one only if some of its messages are due.
    fn open_all(&mut self) {
        for host_flow in &mut self.host_flows {
            let is_skipping = host_flow.skips_previous;
            for (id, publisher) in self.publishers.iter_mut().filter(|_| !is_skipping) {
                publisher.open(host_flow);
                if host_flow.route.limits.is_refused(*id) {
                    publisher.confirm(host_flow.route.stream, host_flow.root, u64::MAX);
                }
                if !publisher.is_due(host_flow) {
                    continue;
                }
                self.due.insert(*id);
                if let (true, Some(past)) = (publisher.has_ended, &publisher.description) {
                    host_flow.add_past(past);
                    self.ended.insert(*id);
                }
            }
            let stream = host_flow.route.stream;
            host_flow.open_flows(|publisher| {
                let publisher = self.publishers.get_mut(&publisher);
                publisher.map_or_else(BTreeMap::new, |of| of.begins(stream))
            });
        }
    }

    /// A host of a flow's tree has all messages below `next`. `u64::MAX`: it refuses them, for now.
    pub fn confirmed(&mut self, flow: FlowName, host: HostId, next: u64) {
        if let Some(publisher) = self.publishers.get_mut(&flow.publisher) {
            publisher.confirm(flow.stream, host, next);
        }
    }

    pub fn close_all(&mut self) {
        self.host_flows.iter_mut().for_each(HostFlow::close_all);
    }

    /// These publishers of this host exist now. The flows of all others are closed when their last message is sent.
    pub fn set_publishers(&mut self, publishers: &BTreeSet<u64>) {
        self.ended.retain(|of| !publishers.contains(of));
        for (id, publisher) in &mut self.publishers {
            let is_there = publishers.contains(id);
            let had_ended = std::mem::replace(&mut publisher.has_ended, !is_there);
            if !is_there && !had_ended {
                self.ended.insert(*id);
            }
        }
        self.close_ended();
    }

    /// Whether a message waits for its publisher to be known, so that the conductor has to look. Each wait is reported once.
    pub fn asks(&mut self) -> bool {
        let all = self.host_flows.iter_mut();
        all.fold(false, |asks, of| std::mem::take(&mut of.asks) | asks)
    }

    pub fn is_growing(&self) -> bool {
        !self.growing.is_empty() || self.unfinished.is_some()
    }

    /// Closes the flows of publishers that ended, once all that was taken of them is sent.
    fn close_ended(&mut self) {
        let outgoing = self.outgoing.as_ref().map(|of| of.info.publisher);
        let unfinished = self.unfinished.as_ref().map(Sample::publisher_id);
        self.ended.retain(|publisher| {
            let of = Some(*publisher);
            let waits = outgoing == of || unfinished == of || self.due.contains(publisher);
            if !waits {
                let flows = self.host_flows.iter_mut();
                flows.for_each(|of| of.close(*publisher));
            }
            waits
        });
    }

    fn receive(&mut self) -> Result<Option<Sample>, RecvError> {
        if let Some(unfinished) = self.unfinished.take() {
            return Ok(Some(unfinished));
        }
        if let Some(previous) = &self.previous {
            let received = previous.try_recv();
            if let Err(RecvError::TooManyHeld { .. }) = received {
                // The flows that carry history hold messages back, and there is no room for more. They send these now, and the older
                // history is left out.
                self.end_history();
            }
            if let Some(sample) = received? {
                return Ok(Some(sample));
            }
            self.previous = None;
            let flows = self.host_flows.iter_mut();
            flows.for_each(|host_flow| host_flow.skips_previous = false);
            self.open_all();
        }
        let received = self.subscriber.try_recv()?;
        if received.is_none() {
            self.end_history();
        }
        Ok(received)
    }

    /// The history is read. The messages that the flows for it held back are due now.
    fn end_history(&mut self) {
        if !self.reads_history {
            return;
        }
        // Publishers and flows that come while the previous subscriber is read hold messages back, too.
        self.reads_history = self.previous.is_some();
        for (id, publisher) in &mut self.publishers {
            if publisher.history_read.take().is_some() {
                self.due.insert(*id);
            }
        }
        for host_flow in &mut self.host_flows {
            host_flow.wants_history &= host_flow.skips_previous;
        }
    }

    /// Sends what there is, up to [`TURN`] messages. Returns whether there may be more.
    pub fn egress(&mut self, name: &str, own_publishers: &OwnPublishers) -> bool {
        let is_more = self.send_turn(name, own_publishers);
        self.host_flows.iter_mut().for_each(HostFlow::settle);
        is_more
    }

    fn send_turn(&mut self, name: &str, own_publishers: &OwnPublishers) -> bool {
        self.held_up = false;
        for _ in 0..TURN {
            if !self.send(name) {
                self.held_up = true;
                return false;
            }
            if !self.ended.is_empty() {
                self.close_ended();
            }
            match self.take(name, own_publishers) {
                Next::Taken => {}
                // The end of the history may have made messages due.
                Next::Nothing if self.due.is_empty() => return false,
                Next::Nothing => {}
                Next::Waits => {
                    self.held_up = true;
                    return false;
                }
            }
        }
        true
    }

    fn take(&mut self, name: &str, own_publishers: &OwnPublishers) -> Next {
        let sample = match self.receive() {
            Ok(Some(sample)) => sample,
            Ok(None) => return Next::Nothing,
            // The links release messages as hosts acknowledge them.
            Err(RecvError::TooManyHeld { .. } | RecvError::Client(_)) => return Next::Waits,
            Err(error) => return skip(name, &error),
        };
        if own_publishers
            .read()
            .expect("no panic")
            .contains(&sample.publisher_id())
        {
            return Next::Taken;
        }
        match sample.ready_bytes() {
            // Sending begins with the first bytes.
            Ok(ready) if ready > 0 || sample.is_empty() => {}
            Ok(_) => {
                self.unfinished = Some(sample);
                return Next::Waits;
            }
            Err(error) => return skip(name, &error),
        }
        let is_read_here = sample.domain() == Domain::Host;
        if let Some(Err(error)) = is_read_here.then(|| sample.ready_slice()) {
            return skip(name, &error);
        }
        self.set_taken(sample);
        Next::Taken
    }

    fn set_taken(&mut self, sample: Sample) {
        let (publisher, sequence) = (sample.publisher_id(), sample.sequence());
        let taken_ns = monotonic_ns();
        let meta = MessageDescription {
            bytes: sample.len(),
            tag: sample.tag(),
            published_ns: to_wall(sample.publish_ns(), wall_offset_ns(taken_ns)),
            tensor: sample.tensor().copied(),
            metadata: sample.metadata().cloned().unwrap_or_default(),
        };
        let info = MessageInfo {
            publisher,
            sequence,
            meta: Description::new(&meta.encode()).expect("descriptions are short"),
            published_ns: sample.publish_ns(),
            taken_ns,
            received_from: None,
        };
        let message = OutgoingMessage::sample(sample, info);
        let ready = message.look().unwrap_or(0);
        if ready < message.bytes() {
            self.growing.push((message.clone(), 0));
        }
        self.outgoing = Some(message);
    }

    /// Tells the links how many bytes their unfinished messages have now. Returns whether any has grown.
    pub fn grow(&mut self, name: &str) -> bool {
        let mut grew = false;
        self.growing.retain_mut(|(message, reported)| {
            let (publisher, sequence) = (message.info.publisher, message.info.sequence);
            let flows = self.host_flows.iter();
            let flows = flows.map(|of| (&of.route.link, of.flow(publisher)));
            let is_this = |of: &Arc<OutgoingMessage>| Arc::ptr_eq(of, message);
            match message.look() {
                Ok(ready) => {
                    if ready > *reported {
                        *reported = ready;
                        grew = true;
                        flows.for_each(|(link, flow)| link.ready(flow, sequence, ready as u64));
                    }
                    // A flow that gets the message later sees then how many bytes it has. But only this list notices that its publisher
                    // aborts it, so a message stays here while some flow may still get it.
                    let is_outgoing = self.outgoing.as_ref().is_some_and(is_this);
                    let is_due = self.publishers.get(&publisher).is_some_and(|of| {
                        let mut flows = self.host_flows.iter();
                        flows.any(|host_flow| of.has_due(host_flow, sequence))
                    });
                    ready < message.bytes() || is_outgoing || is_due
                }
                Err(error) => {
                    flows.for_each(|(link, flow)| link.give_up(flow, sequence));
                    self.outgoing.take_if(|of| is_this(of));
                    if let Some(publisher) = self.publishers.get_mut(&publisher) {
                        publisher.forget(sequence);
                    }
                    skip(name, &error);
                    false
                }
            }
        });
        grew
    }

    /// Whether a message of this size has to wait: for routes, or until hosts behind others have confirmed enough.
    fn waits(&mut self, bytes: u64) -> bool {
        if bytes > self.planned {
            if !std::mem::replace(&mut self.is_reported, true) {
                self.unplanned = Some(bytes);
            }
            return true;
        }
        let Some(leading) = self.host_flows.iter().find(|of| of.leads_on()) else {
            return false;
        };
        let max = leading.route.link.limits.in_flight_max;
        let retained = self.publishers.values().map(|of| of.retained_bytes);
        let retained: u64 = retained.sum();
        let mut publishers = self.publishers.values();
        // While the history is read, only further reading releases retained messages, so it must not wait.
        retained > 0 && retained + bytes > max && publishers.all(|of| of.history_read.is_none())
    }

    /// Sends the message that was taken. False: some flow has no room for it now, or it waits.
    fn send(&mut self, name: &str) -> bool {
        if !self.send_due(name) {
            return false;
        }
        let Some(message) = self.outgoing.take() else {
            return true;
        };
        if self.waits(message.bytes() as u64) {
            self.outgoing = Some(message);
            return false;
        }
        self.is_reported = false;
        let id = message.info.publisher;
        let reads_previous = self.previous.is_some();
        let publisher = entry(&mut self.publishers, id, reads_previous);
        let flows = self.host_flows.iter().filter(|of| !of.skips_previous);
        flows.for_each(|host_flow| publisher.open(host_flow));
        let has_read = !reads_previous && publisher.has_read_history(message.info.sequence);
        publisher.publish(message);
        self.due.insert(id);
        if has_read {
            // The history of all publishers precedes new messages of any.
            self.end_history();
        }
        self.send_due(name)
    }

    fn send_due(&mut self, name: &str) -> bool {
        let mut is_full = false;
        self.due.retain(|id| {
            let publisher = self.publishers.get_mut(id);
            publisher.is_some_and(|of| {
                let flows = self.host_flows.iter_mut();
                flows.fold(false, |waits, host_flow| {
                    is_full |= !of.send(name, host_flow);
                    waits | of.is_due(host_flow)
                })
            })
        });
        !is_full
    }
}

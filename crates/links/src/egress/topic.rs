//! A topic that other hosts want.

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

/// Messages of a topic before others get their turn.
const TURN: usize = 32;
/// One message after the other goes to all hosts that want it.
pub struct EgressTopic {
    pub subscriber: Subscriber,
    /// The subscriber before this one, as long as there is something that only it has.
    previous: Option<Subscriber>,
    pub token: Option<Token>,
    host_flows: Vec<HostFlow>,
    /// Taken, and its bytes are not there yet.
    unfinished: Option<Sample>,
    /// Taken, and not published to its hosts yet.
    outgoing: Option<Arc<OutgoingMessage>>,
    /// The conductor knows that it waits for routes.
    is_reported: bool,
    /// Sent, and not whole yet; with how many bytes the links know to be there.
    growing: Vec<(Arc<OutgoingMessage>, usize)>,
    publishers: BTreeMap<u64, Publisher>,
    /// Those of which something is due to some host.
    due: BTreeSet<u64>,
    /// Those whose flows are to be closed.
    ended: BTreeSet<u64>,
    /// The next look may find something without a doorbell.
    pub held_up: bool,
    /// Bytes of the largest message that its routes are for. A larger one waits until the conductor has planned routes for it.
    planned: u64,
    /// Bytes of a message that waits for that, of which the conductor does not know yet.
    pub unplanned: Option<u64>,
}

enum Next {
    /// A message, or one that is skipped.
    Taken,
    Nothing,
    /// A message that cannot be taken now.
    Waits,
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

    /// Its messages wake the thread no more.
    pub fn detach(&mut self, set: &mut WaitSet) {
        if let Some(token) = self.token.take() {
            set.detach(token);
        }
    }

    pub fn into_subscribers(self) -> impl Iterator<Item = Subscriber> {
        std::iter::once(self.subscriber).chain(self.previous)
    }

    /// Another subscriber, which began before the one that it takes the place of ends.
    pub fn set_subscriber(&mut self, subscriber: Subscriber) {
        let previous = std::mem::replace(&mut self.subscriber, subscriber);
        // Of two changes at once, the first one is what has most.
        self.previous.get_or_insert(previous);
        let publishers = self.publishers.values_mut();
        publishers.for_each(|of| of.history_read = Some(0));
    }

    /// The hosts that it goes to, with messages of up to so many bytes.
    pub fn set_routes(&mut self, routes: Vec<FlowTarget>, planned: u64) {
        self.planned = planned;
        self.publishers.retain(|_, of| !of.is_over());
        let reads_previous = self.previous.is_some();
        for of in routes.iter().flat_map(|route| &route.publishers) {
            let publisher = self.publishers.entry(of.publisher);
            let publisher = publisher.or_insert_with(|| Publisher::new(reads_previous));
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
        // Others end when those that take their places are there.
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

    /// Opens the flows of all publishers to all hosts. A publisher that is gone gets one only if some of its messages are still to be sent.
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

    /// A host that another leads to has the messages of a flow below this one; `u64::MAX`: it refuses them, for now.
    pub fn confirmed(&mut self, flow: FlowName, host: HostId, next: u64) {
        if let Some(publisher) = self.publishers.get_mut(&flow.publisher) {
            publisher.confirm(flow.stream, host, next);
        }
    }

    pub fn close_all(&mut self) {
        self.host_flows.iter_mut().for_each(HostFlow::close_all);
    }

    /// Its publishers are these: others are gone, or not known yet.
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

    /// Whether the conductor has to look for a publisher that is unknown. Asking resets it.
    pub fn asks(&mut self) -> bool {
        let all = self.host_flows.iter_mut();
        all.fold(false, |asks, of| std::mem::take(&mut of.asks) | asks)
    }

    pub fn is_growing(&self) -> bool {
        !self.growing.is_empty() || self.unfinished.is_some()
    }

    /// Flows of publishers that are gone end when all that was taken of theirs is sent.
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
                // The flows for the history hold some of these back. What they then send comes before the older history, which is left out.
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

    /// All of the history is read. What the flows for it held back is due now.
    fn end_history(&mut self) {
        for (id, publisher) in &mut self.publishers {
            if publisher.history_read.take().is_some() {
                self.due.insert(*id);
            }
        }
        for host_flow in &mut self.host_flows {
            host_flow.wants_history &= host_flow.skips_previous;
        }
    }

    /// Sends what there is. True: there may be more.
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
                // The end of the history makes more due.
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
            // What the links hold comes back when it is acknowledged.
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
            // The first part of it is enough.
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
        // What it says is the links' to hear when they have the message.
        let ready = message.look().unwrap_or(0);
        if ready < message.bytes() {
            self.growing.push((message.clone(), 0));
        }
        self.outgoing = Some(message);
    }

    /// Tells the links how far messages are that they have. Whether any has grown.
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
                    // A route that gets the message later sees how much is there then. That the message will never be complete, only
                    // this list finds out.
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

    /// Whether a message waits for routes, or until hosts behind others have confirmed some.
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
        // What is retained until the history is read ends by reading on.
        retained > 0 && retained + bytes > max && publishers.all(|of| of.history_read.is_none())
    }

    /// Sends what was taken. False: some route has no room for it now, or it waits.
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
        let publisher = self.publishers.entry(id);
        let publisher = publisher.or_insert_with(|| Publisher::new(reads_previous));
        let flows = self.host_flows.iter().filter(|of| !of.skips_previous);
        flows.for_each(|host_flow| publisher.open(host_flow));
        let has_read = !reads_previous && publisher.has_read_history(message.info.sequence);
        publisher.publish(message);
        self.due.insert(id);
        if has_read {
            // The history of all publishers comes before what is new of any.
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

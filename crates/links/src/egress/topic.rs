//! A topic that other hosts want.

use super::host_flow::HostFlow;
use super::message::{
    MessageInfo, OutgoingMessage, PartialMessage, RetainedMessage, RetainedReference,
};
use super::FlowTarget;
use crate::own_publishers::OwnPublishers;
use crate::wire::{FlowDescription, MessageDescription};
use rgaps_client::links::WithMetadata;
use rgaps_client::{Domain, RecvError, Sample, Subscriber, Token};
use rgaps_routing::FlowName;
use rgaps_sync::{monotonic_ns, to_wall, wall_offset_ns};
use rgaps_transport::{Description, Payload};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Messages of a topic before others get their turn.
const TURN: usize = 32;
/// Messages that are looked for among what links hold: twice what a subscriber may hold.
const KEPT_MAX: usize = 8192;

/// One message after the other goes to all hosts that want it.
pub struct EgressTopic {
    pub subscriber: Subscriber,
    /// The subscriber before this one, as long as there is something that only it has.
    previous: Option<Subscriber>,
    /// In the wait set.
    pub token: Option<Token>,
    host_flows: Vec<HostFlow>,
    /// Taken, and its bytes are not there yet.
    unfinished: Option<(Sample, bool)>,
    outgoing: Option<PendingSend>,
    /// Sent, and not whole yet.
    growing: Vec<PartialMessage>,
    /// What links may hold, the oldest first.
    kept: VecDeque<RetainedReference>,
    /// Publishers of all that is kept or to come, as they were described last.
    described: BTreeMap<u64, Arc<FlowDescription>>,
    /// Publishers that are to be closed, and those of what is kept that were.
    ended: Vec<u64>,
    past: BTreeSet<u64>,
    /// The next look may find something without a doorbell.
    pub held_up: bool,
    /// Bytes of the largest message that its routes are for. A larger one waits until the conductor has planned routes for it.
    planned: u64,
    /// Bytes of a message that waits for that, of which the conductor does not know yet.
    unplanned: Option<u64>,
}

/// A message that some route may not have had yet.
struct PendingSend {
    message: OutgoingMessage,
    /// The former subscriber's: routes that began since get it in another way, or not at all.
    is_previous: bool,
    /// Routes that have had it, by their streams.
    done: Vec<u64>,
    /// The conductor knows that it waits for routes.
    is_reported: bool,
}

/// What there was to take.
enum Next {
    /// A message, or one that is skipped.
    Taken,
    Nothing,
    /// A message that cannot be taken now.
    Waits,
}

/// A message cannot be read.
fn skip(topic: &str, error: &RecvError) -> Next {
    tracing::warn!(%error, topic, "a message cannot be sent to other hosts; skipped");
    Next::Taken
}

impl EgressTopic {
    /// One that goes nowhere yet.
    pub fn new(subscriber: Subscriber) -> EgressTopic {
        EgressTopic {
            subscriber,
            previous: None,
            token: None,
            host_flows: Vec::new(),
            unfinished: None,
            outgoing: None,
            growing: Vec::new(),
            kept: VecDeque::new(),
            described: BTreeMap::new(),
            ended: Vec::new(),
            past: BTreeSet::new(),
            held_up: false,
            planned: 0,
            unplanned: None,
        }
    }

    /// Its subscribers.
    pub fn into_subscribers(self) -> impl Iterator<Item = Subscriber> {
        std::iter::once(self.subscriber).chain(self.previous)
    }

    /// Another subscriber, which began before the one that it takes the place of ends.
    pub fn set_subscriber(&mut self, subscriber: Subscriber) {
        let previous = std::mem::replace(&mut self.subscriber, subscriber);
        // Of two changes at once, the first one is what has most.
        self.previous.get_or_insert(previous);
    }

    /// The hosts that it goes to, with messages of up to so many bytes.
    pub fn set_routes(&mut self, routes: Vec<FlowTarget>, planned: u64) {
        self.planned = planned;
        self.note_described(&routes);
        let mut previous = std::mem::take(&mut self.host_flows);
        let mut reopened = BTreeSet::new();
        for route in routes {
            let same = previous
                .iter()
                .position(|host_flow| host_flow.route.stream == route.stream);
            self.host_flows.push(match same {
                Some(at) => {
                    let mut host_flow = previous.swap_remove(at);
                    host_flow.set_route(route);
                    host_flow
                }
                None => {
                    let again = self.kept.iter().filter(|_| route.takes_over);
                    let mut again: Vec<OutgoingMessage> =
                        again.filter_map(RetainedReference::outgoing).collect();
                    // What went again to others may have come after what follows it.
                    again.sort_by_key(|message| (message.info.publisher, message.info.sequence));
                    let backlog = VecDeque::from(again);
                    let begun = backlog
                        .iter()
                        .map(|message: &OutgoingMessage| message.info.publisher);
                    reopened.extend(begun.filter(|publisher| self.past.contains(publisher)));
                    let skips_previous = self.previous.is_some() && !route.takes_over;
                    let route = self.with_past(route, &backlog);
                    HostFlow::new(route, backlog, skips_previous)
                }
            });
        }
        self.ended.extend(reopened);
        previous.iter_mut().for_each(HostFlow::close_all);
    }

    fn note_described(&mut self, routes: &[FlowTarget]) {
        let kept: BTreeSet<u64> = self.kept.iter().map(RetainedReference::publisher).collect();
        self.described
            .retain(|publisher, _| kept.contains(publisher));
        for of in routes.iter().flat_map(|route| &route.publishers) {
            self.described.insert(of.publisher, of.clone());
        }
    }

    /// A route also opens flows of publishers that are gone, for what is sent of theirs again.
    fn with_past(&self, mut route: FlowTarget, backlog: &VecDeque<OutgoingMessage>) -> FlowTarget {
        for publisher in backlog.iter().map(|message| message.info.publisher) {
            let is_described = |of: &Arc<FlowDescription>| of.publisher == publisher;
            if route.publishers.iter().any(is_described) {
                continue;
            }
            if let Some(past) = self.described.get(&publisher) {
                route.publishers.push(Arc::new(FlowDescription {
                    tree: route.tree.clone(),
                    ..(**past).clone()
                }));
            }
        }
        route
    }

    /// A host that another leads to has the messages of a flow below this one.
    pub fn confirmed(&mut self, flow: FlowName, end: &str, next: u64) {
        let mut host_flow = self.host_flows.iter_mut();
        if let Some(host_flow) = host_flow.find(|host_flow| host_flow.route.stream == flow.stream) {
            host_flow.confirm(flow.publisher, end, next);
        }
    }

    /// It goes nowhere any more.
    pub fn close_all(&mut self) {
        self.host_flows.iter_mut().for_each(HostFlow::close_all);
    }

    /// Publishers are gone, and others are there again.
    pub fn set_publishers(&mut self, ended: Vec<u64>, back: &[u64]) {
        self.past.extend(&ended);
        self.ended.extend(ended);
        self.close_ended();
        self.ended.retain(|ended| !back.contains(ended));
        self.past.retain(|past| !back.contains(past));
    }

    /// Whether the conductor has to look for a publisher that is unknown. Asking resets it.
    pub fn asks(&mut self) -> bool {
        let all = self.host_flows.iter_mut();
        all.fold(false, |asks, host_flow| host_flow.asks() | asks)
    }

    /// Bytes of a message that waits until the conductor has planned routes for it; once.
    pub fn take_unplanned(&mut self) -> Option<u64> {
        self.unplanned.take()
    }

    /// Whether there are messages that are not whole yet.
    pub fn is_growing(&self) -> bool {
        !self.growing.is_empty() || self.unfinished.is_some()
    }

    /// Flows of publishers that are gone end when all that was taken of theirs is sent.
    fn close_ended(&mut self) {
        let waits = self.outgoing.as_ref();
        let waits = waits.map(|offered| offered.message.info.publisher);
        let unfinished = self.unfinished.as_ref();
        let unfinished = unfinished.map(|(sample, _)| sample.publisher_id());
        let mut ended = std::mem::take(&mut self.ended);
        ended.retain(|publisher| {
            if waits == Some(*publisher) || unfinished == Some(*publisher) {
                return true;
            }
            let waits = self
                .host_flows
                .iter()
                .any(|host_flow| host_flow.waits(*publisher));
            if !waits {
                let all = self.host_flows.iter_mut();
                all.for_each(|host_flow| host_flow.close(*publisher));
            }
            waits
        });
        self.ended = ended;
    }

    /// The next sample, and whether the former subscriber had it.
    fn receive(&mut self) -> Result<Option<(Sample, bool)>, RecvError> {
        if let Some(unfinished) = self.unfinished.take() {
            return Ok(Some(unfinished));
        }
        if let Some(previous) = &self.previous {
            if let Some(sample) = previous.try_recv()? {
                return Ok(Some((sample, true)));
            }
            self.previous = None;
            self.host_flows.iter_mut().for_each(HostFlow::begin);
        }
        let sample = self.subscriber.try_recv()?;
        Ok(sample.map(|sample| (sample, false)))
    }

    /// Sends what there is. True: there may be more.
    pub fn egress(&mut self, name: &str, own_publishers: &OwnPublishers) -> bool {
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
                Next::Nothing => return false,
                Next::Waits => {
                    self.held_up = true;
                    return false;
                }
            }
        }
        true
    }

    /// Takes the next message.
    fn take(&mut self, name: &str, own_publishers: &OwnPublishers) -> Next {
        let (sample, is_previous) = match self.receive() {
            Ok(Some(sample)) => sample,
            Ok(None) => return Next::Nothing,
            // What the links hold comes back when it is acknowledged.
            Err(RecvError::TooManyHeld { .. } | RecvError::Client(_)) => return Next::Waits,
            Err(error) => return skip(name, &error),
        };
        if own_publishers.contains(sample.publisher_id()) {
            return Next::Taken;
        }
        match sample.ready_bytes() {
            // The first part of it is enough.
            Ok(ready) if ready > 0 || sample.is_empty() => {}
            Ok(_) => {
                self.unfinished = Some((sample, is_previous));
                return Next::Waits;
            }
            Err(error) => return skip(name, &error),
        }
        let is_read_here = sample.domain() == Domain::Host;
        if let Some(Err(error)) = is_read_here.then(|| sample.ready_slice()) {
            return skip(name, &error);
        }
        self.set_taken(sample, is_previous);
        Next::Taken
    }

    /// Describes a message that was taken, for all routes.
    fn set_taken(&mut self, sample: Sample, is_previous: bool) {
        let (publisher, sequence) = (sample.publisher_id(), sample.sequence());
        let meta = MessageDescription {
            bytes: sample.len(),
            tag: sample.tag(),
            published_ns: to_wall(sample.publish_ns(), wall_offset_ns()),
            tensor: sample.tensor().copied(),
            metadata: sample.metadata().cloned().unwrap_or_default(),
        };
        let info = MessageInfo {
            publisher,
            sequence,
            meta: Description::new(&meta.encode()).expect("descriptions are short"),
            published_ns: sample.publish_ns(),
            taken_ns: monotonic_ns(),
            received_from: None,
        };
        let held = RetainedMessage::sample(sample);
        // What it says is the links' to hear when they have the message.
        let ready = held.look().unwrap_or(0);
        if ready < held.bytes() {
            self.growing.push(PartialMessage {
                held: held.clone(),
                publisher,
                sequence,
                reported: 0,
            });
        }
        self.set_outgoing(OutgoingMessage { held, info }, is_previous);
    }

    fn set_outgoing(&mut self, message: OutgoingMessage, is_previous: bool) {
        while self
            .kept
            .front()
            .is_some_and(RetainedReference::is_released)
        {
            self.kept.pop_front();
        }
        if self.kept.len() >= KEPT_MAX {
            self.kept.retain(|kept| !kept.is_released());
        }
        if !self.past.is_empty() {
            let publishers: BTreeSet<u64> =
                self.kept.iter().map(RetainedReference::publisher).collect();
            self.past.retain(|publisher| publishers.contains(publisher));
        }
        self.kept.push_back(message.kept());
        self.outgoing = Some(PendingSend {
            message,
            is_previous,
            done: Vec::new(),
            is_reported: false,
        });
    }

    /// Tells the links how far messages are that they have. Whether any has grown.
    pub fn grow(&mut self, name: &str) -> bool {
        let mut grew = false;
        let EgressTopic {
            growing,
            host_flows,
            outgoing,
            ..
        } = self;
        growing.retain_mut(|message| {
            let PartialMessage {
                held,
                publisher,
                sequence,
                reported,
            } = message;
            // Routes that it is still to be offered to see what is there then, but not that it never will be whole.
            let is_outgoing = outgoing
                .as_ref()
                .is_some_and(|offered| Arc::ptr_eq(&offered.message.held, held));
            match held.look() {
                Ok(ready) if ready > *reported => {
                    *reported = ready;
                    grew = true;
                    for host_flow in host_flows.iter() {
                        let flow = host_flow.flow(*publisher);
                        host_flow.route.link.ready(flow, *sequence, ready as u64);
                    }
                    ready < held.bytes() || is_outgoing
                }
                Ok(ready) => ready < held.bytes() || is_outgoing,
                Err(error) => {
                    for host_flow in host_flows.iter() {
                        let flow = host_flow.flow(*publisher);
                        host_flow.route.link.give_up(flow, *sequence);
                    }
                    if is_outgoing {
                        *outgoing = None;
                    }
                    tracing::warn!(%error, topic = name, "a message cannot be sent to other hosts; skipped");
                    false
                }
            }
        });
        grew
    }

    /// Whether the message that is next waits for routes. A stream that takes over from others has it already: see `kept`.
    fn waits_for_routes(&mut self) -> bool {
        let planned = self.planned;
        let bytes = |outgoing: &PendingSend| outgoing.message.held.bytes() as u64;
        let outgoing = self.outgoing.as_mut().filter(|of| bytes(of) > planned);
        let Some(outgoing) = outgoing else {
            return false;
        };
        if !std::mem::replace(&mut outgoing.is_reported, true) {
            self.unplanned = Some(bytes(outgoing));
        }
        true
    }

    /// False: some route has no room for it now, or it waits for routes.
    fn send(&mut self, name: &str) -> bool {
        let waits = self.waits_for_routes();
        let mut all = !waits;
        let offered = &mut self.outgoing.as_mut().filter(|_| !waits);
        for host_flow in &mut self.host_flows {
            let stream = host_flow.route.stream;
            if !host_flow.catch_up(name) {
                all = false;
                continue;
            }
            let Some(offered) = offered else { continue };
            if offered.done.contains(&stream) {
                continue;
            }
            let skips = offered.is_previous && host_flow.skips_previous;
            match skips || host_flow.offer(name, &offered.message) {
                true => offered.done.push(stream),
                false => all = false,
            }
        }
        if all {
            self.outgoing = None;
        }
        all
    }
}

//! A topic on its way to one host.

use super::message::{OutgoingMessage, RetainedMessage};
use super::timed::Carried;
use super::FlowTarget;
use crate::host_link::{NewFlow, Sent};
use crate::rate::Rate;
use crate::wire::FlowDescription;
use rgaps_client::Stage;
use rgaps_routing::FlowName;
use rgaps_sync::monotonic_ns;
use rgaps_transport::Payload;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a message waits for its publisher to be known.
const UNKNOWN_LIMIT: Duration = Duration::from_secs(2);
/// How long it waits for the host to say how the publisher's messages land there.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A host that a topic goes to, and how far that is.
pub struct HostFlow {
    pub route: FlowTarget,
    /// Its bytes a second.
    rate: Option<Rate>,
    /// Per publisher whose flow is open, what it gets next.
    next: HashMap<u64, u64>,
    /// A message waits since then, because its publisher, or the path of that one, is not known yet.
    unknown: Option<(u64, Instant)>,
    /// Whether the conductor has still to be asked about it.
    asks: bool,
    /// What goes there before anything else.
    backlog: VecDeque<OutgoingMessage>,
    /// Messages that reliable hosts behind this one have not confirmed: by publishers.
    unconfirmed: HashMap<u64, Unconfirmed>,
    unconfirmed_bytes: u64,
    /// It began with another subscriber: what the former one still has is not for it.
    pub skips_previous: bool,
}

/// A publisher's messages on their way to hosts behind the next one.
#[derive(Default)]
struct Unconfirmed {
    /// In their order.
    messages: VecDeque<(u64, Arc<RetainedMessage>)>,
    /// Below which number each host has confirmed them.
    confirmed: BTreeMap<String, u64>,
}

impl HostFlow {
    /// `backlog` goes there first.
    pub fn new(
        route: FlowTarget,
        backlog: VecDeque<OutgoingMessage>,
        skips_previous: bool,
    ) -> HostFlow {
        let mut going = HostFlow {
            rate: None,
            next: HashMap::new(),
            unknown: None,
            asks: false,
            backlog,
            unconfirmed: HashMap::new(),
            unconfirmed_bytes: 0,
            skips_previous,
            route,
        };
        going.set_rate();
        going.open_flows();
        going
    }

    /// Goes on with other limits.
    pub fn set_route(&mut self, route: FlowTarget) {
        self.route = route;
        self.set_rate();
        self.open_flows();
    }

    /// Opens the flows of publishers that are known, all at once: before their messages, or with the first of them.
    fn open_flows(&mut self) {
        let refused = &self.route.limits.refused;
        for publisher in refused {
            self.next.remove(publisher);
            let waiting = self.unconfirmed.remove(publisher).into_iter();
            let dropped = waiting.flat_map(|of| of.messages);
            self.unconfirmed_bytes -= dropped.map(|(_, of)| of.bytes() as u64).sum::<u64>();
        }
        let FlowTarget {
            limits,
            publishers,
            link,
            ..
        } = &self.route;
        let is_new = |of: &&Arc<FlowDescription>| {
            !limits.refused.contains(&of.publisher) && !self.next.contains_key(&of.publisher)
        };
        let new = publishers.iter().filter(is_new);
        let new: Vec<NewFlow> = new
            .map(|of| NewFlow {
                flow: self.flow(of.publisher),
                retained_max: *limits.staging.get(&of.publisher).unwrap_or(&u64::MAX),
                description: of.encode(),
                leads_on: self.route.is_in_transit() || of.tree.leads_on(),
            })
            .collect();
        self.next
            .extend(new.iter().map(|new| (new.flow.publisher, 0)));
        if !new.is_empty() {
            link.open(new);
        }
    }

    /// Whether somebody is to find out who publishes.
    pub fn asks(&mut self) -> bool {
        std::mem::take(&mut self.asks)
    }

    /// A message's publisher, or its path, is not known yet. Whether that has been so for too long: one that is gone never will be.
    fn skips_unknown(&mut self, publisher: u64, limit: Duration) -> bool {
        match self.unknown {
            Some((of, since)) if of == publisher => since.elapsed() >= limit,
            _ => {
                self.unknown = Some((publisher, Instant::now()));
                self.asks = true;
                false
            }
        }
    }

    fn set_rate(&mut self) {
        let now = monotonic_ns();
        let known = self.rate.map(|rate| rate.bytes_s());
        if known != self.route.limits.rate {
            self.rate = self.route.limits.rate.map(|rate| Rate::new(rate, now));
        }
    }

    /// A publisher's messages on this link.
    pub fn flow(&self, publisher: u64) -> FlowName {
        FlowName {
            stream: self.route.stream,
            publisher,
        }
    }

    /// The former subscriber has nothing any more.
    pub fn begin(&mut self) {
        self.skips_previous = false;
    }

    /// A host behind this one has a publisher's messages below this sequence; `u64::MAX`: it refuses them, for now.
    pub fn confirm(&mut self, publisher: u64, end: &str, next: u64) {
        let of = self.unconfirmed.entry(publisher).or_default();
        let known = of.confirmed.entry(end.to_owned()).or_default();
        *known = match *known {
            u64::MAX => next,
            known => next.max(known),
        };
        self.release(publisher);
    }

    /// Lets go of what all reliable hosts behind this one have.
    fn release(&mut self, publisher: u64) {
        let Some(Unconfirmed {
            messages,
            confirmed,
        }) = self.unconfirmed.get_mut(&publisher)
        else {
            return;
        };
        let ends = self.route.tree.reliable_below();
        let confirmed = ends.map(|end| confirmed.get(end).copied().unwrap_or(0));
        let next = confirmed.min().unwrap_or(u64::MAX);
        while messages.front().is_some_and(|(of, _)| *of < next) {
            if let Some((_, held)) = messages.pop_front() {
                self.unconfirmed_bytes -= held.bytes() as u64;
            }
        }
        if messages.is_empty() && !self.next.contains_key(&publisher) {
            self.unconfirmed.remove(&publisher);
        }
    }

    /// Whether it leads to other hosts, which are not to miss anything and of which this host knows what they have.
    fn leads_on(&self) -> bool {
        !self.route.is_in_transit() && self.route.tree.reliable_below().next().is_some()
    }

    /// Whether something of a publisher's waits to go before anything else.
    pub fn waits(&self, publisher: u64) -> bool {
        let mut waiting = self.backlog.iter();
        waiting.any(|message| message.info.publisher == publisher)
    }

    /// Sends what goes first. False: not all of it yet.
    pub fn catch_up(&mut self, topic: &str) -> bool {
        while let Some(message) = self.backlog.pop_front() {
            if !self.offer(topic, &message) {
                self.backlog.push_front(message);
                return false;
            }
        }
        true
    }

    /// False: not now.
    pub fn offer(&mut self, topic: &str, message: &OutgoingMessage) -> bool {
        let info = &message.info;
        let (publisher, limits) = (info.publisher, &self.route.limits);
        let is_asked_about = limits.asks.contains(&publisher);
        let is_barred = limits.barred.contains(&publisher) && !is_asked_about;
        if limits.refused.contains(&publisher) || is_barred {
            return true;
        }
        let (next, limit) = match is_asked_about {
            true => (None, ANSWER_LIMIT),
            false => (self.next.get(&publisher).copied(), UNKNOWN_LIMIT),
        };
        let Some(next) = next else {
            let skips = self.skips_unknown(publisher, limit);
            self.leave_out(u64::from(skips));
            return skips;
        };
        let bytes = message.held.bytes() as u64;
        if let Some(why) = self.route.too_long(bytes) {
            if self.route.counts.issues.refused(topic, 1, &why) {
                tracing::warn!(topic, "messages are not sent to another host: {why}");
            }
            self.leave_out(1);
            return true;
        }
        let (leads_on, unconfirmed) = (self.leads_on(), self.unconfirmed_bytes);
        let most = self.route.unconfirmed_max.unwrap_or(u64::MAX);
        if leads_on && unconfirmed > 0 && unconfirmed + bytes > most {
            return false;
        }
        let now_ns = monotonic_ns();
        if self.rate.as_mut().is_some_and(|rate| !rate.is_open(now_ns)) {
            self.leave_out(u64::from(!self.route.reliable));
            return !self.route.reliable;
        }
        // Of a subscriber that began again where the history does.
        if info.sequence < next {
            return true;
        }
        match self.send(topic, message) {
            Sent::Taken => {
                if let Some(rate) = &mut self.rate {
                    rate.spend(bytes);
                }
                if leads_on {
                    let of = self.unconfirmed.entry(publisher).or_default();
                    of.messages.push_back((info.sequence, message.held.clone()));
                    self.unconfirmed_bytes += bytes;
                    self.release(publisher);
                }
            }
            Sent::Full if self.route.reliable => return false,
            Sent::Full | Sent::Never => self.leave_out(1),
        }
        self.next.insert(publisher, info.sequence + 1);
        true
    }

    fn leave_out(&self, messages: u64) {
        let skipped = &self.route.counts.skipped;
        skipped.fetch_add(messages, Ordering::Relaxed);
    }

    fn send(&self, topic: &str, message: &OutgoingMessage) -> Sent {
        let (info, bytes) = (&message.info, message.held.bytes() as u64);
        let (publisher, sequence) = (info.publisher, info.sequence);
        let FlowTarget {
            link,
            reliable,
            counts,
            ..
        } = &self.route;
        let traces = counts.traces.as_ref();
        let mut trace = traces.and_then(|traces| traces.pick(topic, publisher, sequence, bytes));
        if let Some(trace) = &mut trace {
            trace.received_from.clone_from(&info.received_from);
        }
        let (held, taken_ns) = (message.held.clone(), info.taken_ns);
        let carried = Carried::new(held, counts.clone(), taken_ns, trace.clone());
        let flow = (self.flow(publisher), *reliable);
        let outcome = link.send(flow, sequence, carried, info.meta.clone());
        if outcome == Sent::Taken {
            counts.times(Stage::Take).span(info.published_ns, taken_ns);
            if let (Some(traces), Some(trace)) = (traces, &trace) {
                if info.received_from.is_none() && message.held.trace_once() {
                    traces.taken(trace, info.published_ns, taken_ns);
                }
            }
            counts.messages_out.fetch_add(1, Ordering::Relaxed);
            counts.bytes_out.fetch_add(bytes, Ordering::Relaxed);
        }
        outcome
    }

    /// A publisher is gone, and all that was taken of its messages is sent.
    pub fn close(&mut self, publisher: u64) {
        let flow = self.flow(publisher);
        if self.next.remove(&publisher).is_some() {
            self.route.link.end_flow(flow, false);
            self.release(publisher);
        }
    }

    /// The topic does not go there any more.
    pub fn close_all(&mut self) {
        for publisher in self.next.keys().copied().collect::<Vec<_>>() {
            self.close(publisher);
        }
    }
}

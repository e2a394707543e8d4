//! Sends a topic's messages to one linked host.

use super::message::{Carried, OutgoingMessage};
use super::{FlowTarget, Hold};
use crate::host_link::{NewFlow, Sent};
use crate::network::id;
use crate::rate::Rate;
use crate::wire::FlowDescription;
use rgaps_client::Stage;
use rgaps_routing::{FlowName, HostId};
use rgaps_sync::monotonic_ns;
use rgaps_transport::Payload;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a message waits until the conductor knows its publisher.
const UNKNOWN_LIMIT: Duration = Duration::from_secs(2);
/// How long a message waits until the host says how its publisher's messages land there.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// How many messages leave together, after one that leaves at once.
const BATCH: u32 = 16;

fn with_begins(of: &Arc<FlowDescription>, begins: BTreeMap<HostId, u64>) -> Arc<FlowDescription> {
    if begins.is_empty() {
        return of.clone();
    }
    Arc::new(FlowDescription {
        begins,
        ..FlowDescription::clone(of)
    })
}

/// The flows of a topic's publishers to one linked host.
pub struct HostFlow {
    pub route: FlowTarget,
    /// The linked host.
    pub root: HostId,
    /// The final hosts of the tree, and whether each is reliable: it must not miss a message.
    pub finals: BTreeMap<HostId, bool>,
    /// Whether some final host is reliable.
    is_reliable: bool,
    /// The quota's rate. None: no limit.
    rate: Option<Rate>,
    /// Publishers whose flows are open.
    open: BTreeSet<u64>,
    /// The publisher of the message that waits, and since when: the conductor does not know the publisher yet, or the host has not said how
    /// its messages land.
    unknown: Option<(u64, Instant)>,
    /// Whether the conductor has still to be asked about the publisher in `unknown`.
    pub asks: bool,
    /// Messages that were sent since the last [`HostFlow::settle`]. The link was settled for the first one, and for each [`BATCH`] since.
    in_batch: u32,
    /// Whether the flow began with a new subscriber, whose history its new hosts get.
    pub wants_history: bool,
    /// Whether the flow skips messages that the former subscriber still holds: the new one's history has them.
    pub skips_previous: bool,
}

impl HostFlow {
    pub fn new(route: FlowTarget) -> HostFlow {
        let finals = route.tree.finals();
        let finals: BTreeMap<HostId, bool> = finals
            .map(|(host, is_reliable)| (id(host), is_reliable))
            .collect();
        HostFlow {
            root: id(route.tree.root()),
            is_reliable: finals.values().any(|is_reliable| *is_reliable),
            finals,
            rate: route
                .limits
                .rate()
                .map(|rate| Rate::new(rate, monotonic_ns())),
            open: BTreeSet::new(),
            unknown: None,
            asks: false,
            in_batch: 0,
            wants_history: false,
            skips_previous: false,
            route,
        }
    }

    /// Replaces the route, with other limits or publishers.
    pub fn set_route(&mut self, route: FlowTarget) {
        let before = std::mem::replace(&mut self.route, route).limits.rate();
        let rate = self.route.limits.rate();
        if before != rate {
            self.rate = rate.map(|rate| Rate::new(rate, monotonic_ns()));
        }
    }

    /// Opens the flows of all known publishers together, before their first messages. `begins` returns a publisher's
    /// [`FlowDescription::begins`] for OPEN; if it is empty, OPEN has the one of the description.
    pub fn open_flows(&mut self, mut begins: impl FnMut(u64) -> BTreeMap<HostId, u64>) {
        let limits = &self.route.limits;
        self.open.retain(|publisher| !limits.is_refused(*publisher));
        let is_new = |of: &&Arc<FlowDescription>| {
            !limits.is_refused(of.publisher) && !self.open.contains(&of.publisher)
        };
        let new = self.route.publishers.iter().filter(is_new);
        let new: Vec<NewFlow> = new
            .map(|of| NewFlow {
                flow: self.flow(of.publisher),
                retained_max: *limits.staging.get(&of.publisher).unwrap_or(&u64::MAX),
                description: with_begins(of, begins(of.publisher)),
                leads_on: self.route.is_in_transit || of.tree.leads_on(),
            })
            .collect();
        self.open.extend(new.iter().map(|new| new.flow.publisher));
        if !new.is_empty() {
            self.route.link.open(new);
        }
    }

    /// Records that a message waits as `unknown` says. Returns whether it has waited too long: a publisher that ended stays unknown.
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

    pub fn flow(&self, publisher: u64) -> FlowName {
        FlowName {
            stream: self.route.stream,
            publisher,
        }
    }

    /// Has the flow of an ended publisher opened with the others: some of its messages are sent again.
    pub fn add_past(&mut self, past: &FlowDescription) {
        self.route.publishers.push(Arc::new(FlowDescription {
            tree: self.route.tree.clone(),
            ..past.clone()
        }));
    }

    /// Whether there are reliable final hosts below the root.
    pub fn leads_on(&self) -> bool {
        let mut finals = self.finals.iter();
        finals.any(|(host, is_reliable)| *is_reliable && *host != self.root)
    }

    /// Sends a message, unless a limit bars it or the link has no room.
    pub fn offer(&mut self, topic: &str, message: &Arc<OutgoingMessage>) -> Sent {
        let publisher = message.info.publisher;
        let waits_for = match self.route.limits.held.get(&publisher) {
            Some(Hold::Refused | Hold::Barred) => return Sent::Never,
            Some(Hold::Asks) => Some(ANSWER_LIMIT),
            None => (!self.open.contains(&publisher)).then_some(UNKNOWN_LIMIT),
        };
        if let Some(limit) = waits_for {
            return match self.skips_unknown(publisher, limit) {
                true => self.leave_out(),
                false => Sent::Full,
            };
        }
        let bytes = message.bytes() as u64;
        if let Some(why) = self.route.too_long(bytes) {
            let what = "messages are not sent to another host";
            self.route.counts.issues.warn_refused(topic, 1, what, &why);
            return self.leave_out();
        }
        let rate = self.rate.as_mut();
        let has_rate = rate.is_none_or(|rate| rate.is_open(monotonic_ns()));
        let sent = match (has_rate, self.is_reliable) {
            (true, _) => self.send(topic, message),
            (false, true) => Sent::Full,
            (false, false) => Sent::Never,
        };
        match sent {
            Sent::Taken => {
                self.rate.iter_mut().for_each(|rate| rate.spend(bytes));
                self.in_batch += 1;
                if self.in_batch % BATCH == 1 {
                    self.route.link.settle();
                }
            }
            Sent::Full => {}
            Sent::Never => return self.leave_out(),
        }
        sent
    }

    /// Call when no message follows at once: lets all sent messages leave.
    pub fn settle(&mut self) {
        let sent = std::mem::take(&mut self.in_batch);
        if sent > 0 && sent % BATCH != 1 {
            self.route.link.settle();
        }
    }

    /// Counts a message that the host does not get.
    fn leave_out(&self) -> Sent {
        self.route.counts.skipped.fetch_add(1, Ordering::Relaxed);
        Sent::Never
    }

    fn send(&self, topic: &str, message: &Arc<OutgoingMessage>) -> Sent {
        let (info, bytes) = (&message.info, message.bytes() as u64);
        let (publisher, sequence) = (info.publisher, info.sequence);
        let counts = &self.route.counts;
        let traces = counts.traces.as_ref();
        let mut trace = traces.and_then(|traces| traces.pick(topic, publisher, sequence, bytes));
        if let Some(trace) = &mut trace {
            trace.received_from.clone_from(&info.received_from);
        }
        let carried = Arc::new(Carried {
            message: message.clone(),
            counts: counts.clone(),
            written_ns: AtomicU64::new(0),
            trace: trace.clone(),
        });
        let flow = (self.flow(publisher), self.is_reliable);
        let meta = info.meta.clone();
        let outcome = self.route.link.send(flow, sequence, carried, meta);
        if outcome == Sent::Taken {
            let (published_ns, taken_ns) = (info.published_ns, info.taken_ns);
            counts.times(Stage::Take).span(published_ns, taken_ns);
            if let (Some(traces), Some(trace)) = (traces, &trace) {
                if info.received_from.is_none() && message.trace_once() {
                    traces.taken(trace, published_ns, taken_ns);
                }
            }
            counts.messages_out.fetch_add(1, Ordering::Relaxed);
            counts.bytes_out.fetch_add(bytes, Ordering::Relaxed);
        }
        outcome
    }

    /// Closes the flow of a publisher that ended and whose messages are all sent.
    pub fn close(&mut self, publisher: u64) {
        if self.open.remove(&publisher) {
            self.route.link.end_flow(self.flow(publisher), false);
        }
    }

    /// Whether `others` send the messages of a publisher that this one retains to all hosts that want them.
    pub fn is_replaced_by(&self, others: &[HostFlow], publisher: u64) -> bool {
        let sends = |of: &&HostFlow| {
            let held = of.route.limits.held.get(&publisher);
            !of.skips_previous && !matches!(held, Some(Hold::Refused | Hold::Barred))
        };
        let others: Vec<&HostFlow> = others.iter().filter(sends).collect();
        let is_sent = |host| others.iter().any(|of| of.finals.contains_key(host));
        others.iter().any(|of| of.root == self.root) || self.finals.keys().all(is_sent)
    }

    pub fn close_all(&mut self) {
        for publisher in std::mem::take(&mut self.open) {
            self.route.link.end_flow(self.flow(publisher), false);
        }
    }
}

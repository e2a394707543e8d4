//! A topic on its way to one host.

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

/// How long a message waits for its publisher to be known.
const UNKNOWN_LIMIT: Duration = Duration::from_secs(2);
/// How long it waits for the host to say how the publisher's messages land there.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Messages that leave together, behind one that leaves at once.
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

pub struct HostFlow {
    pub route: FlowTarget,
    /// The host, and those that messages go to there: whether they are not to miss anything.
    pub root: HostId,
    pub finals: BTreeMap<HostId, bool>,
    is_reliable: bool,
    rate: Option<Rate>,
    open: BTreeSet<u64>,
    /// The publisher of a message that waits, and since when: the publisher, or the path to it, is not known yet.
    unknown: Option<(u64, Instant)>,
    /// The conductor has still to be asked about it.
    pub asks: bool,
    /// Messages that were sent since the last [`HostFlow::settle`]. The link was settled for the first one, and for each [`BATCH`] since.
    in_batch: u32,
    /// It began with a new subscriber: hosts that are new get that one's history, and skip what the former subscriber still has.
    pub wants_history: bool,
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

    /// Goes on with other limits.
    pub fn set_route(&mut self, route: FlowTarget) {
        let before = std::mem::replace(&mut self.route, route).limits.rate();
        let rate = self.route.limits.rate();
        if before != rate {
            self.rate = rate.map(|rate| Rate::new(rate, monotonic_ns()));
        }
    }

    /// Opens the flows of publishers that are known, all at once: before their messages, or with the first of them. `begins` gives, for a
    /// publisher, what OPEN says in [`FlowDescription::begins`]; if that is nothing, OPEN keeps what the description has.
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

    /// A message's publisher, or the path to it, is not known yet. Whether that has lasted too long: a publisher that is gone stays unknown.
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

    /// The flow of a publisher that is gone, of which something is sent again, is opened with the others.
    pub fn add_past(&mut self, past: &FlowDescription) {
        self.route.publishers.push(Arc::new(FlowDescription {
            tree: self.route.tree.clone(),
            ..past.clone()
        }));
    }

    /// Whether it leads to other hosts, which are not to miss anything.
    pub fn leads_on(&self) -> bool {
        let mut finals = self.finals.iter();
        finals.any(|(host, is_reliable)| *is_reliable && *host != self.root)
    }

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

    /// No more messages follow at once: all that were sent leave.
    pub fn settle(&mut self) {
        let sent = std::mem::take(&mut self.in_batch);
        if sent > 0 && sent % BATCH != 1 {
            self.route.link.settle();
        }
    }

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

    /// A publisher is gone, and all that was taken of its messages is sent.
    pub fn close(&mut self, publisher: u64) {
        if self.open.remove(&publisher) {
            self.route.link.end_flow(self.flow(publisher), false);
        }
    }

    /// Whether others, which are open, send what it retains of a publisher, as far as anybody wants it.
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

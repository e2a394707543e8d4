//! The receiving side. For each publisher of another host there is a publisher on this host, a [`RemotePublisher`]. Bytes go from the
//! socket into its loans, and it publishes the messages in the order of their origin.

mod arriving;
mod remote_publisher;

pub use self::remote_publisher::{ArrivalLimits, MemoryRequest, RemotePublisher};

use self::arriving::{control_buffer, receive_buffer};
use crate::counts::HostCounts;
use crate::egress::Transit;
use crate::event::{ConductorEvent, LinkReporter, SourcedEvent};
use crate::host_link::{decode_open, LinkEnds};
use crate::lock;
use crate::wire::FlowDescription;
use rgaps_routing::FlowName;
use rgaps_transport::machine::frame::CONTROL_FLOW;
use rgaps_transport::machine::BufferReply;
use rgaps_transport::{Description, FlowId, FlowReceiver, LinkEvent, OpenReply};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

/// Where a flow's messages go.
#[derive(Clone)]
pub struct Bound {
    /// Publishes the messages here. None: no subscriber here wants them.
    pub landing: Option<Arc<RemotePublisher>>,
    /// Sends the messages on to other hosts. None: they end here.
    pub transit: Option<Arc<Transit>>,
    /// The delivered position: all messages below it were delivered or never come. None: the origin needs no confirmation.
    pub position: Option<Arc<AtomicU64>>,
}

/// The publishers of messages that were read at once: subscribers are woken for the first one, and for all others together.
#[derive(Default)]
struct PublishBatch {
    publishers: Mutex<Vec<Arc<RemotePublisher>>>,
    is_any: AtomicBool,
}

impl PublishBatch {
    /// Records that a landing published a message. `is_quiet`: it has not woken the subscribers.
    fn published(&self, landing: &Arc<RemotePublisher>, is_quiet: bool) {
        if is_quiet {
            landing.is_unrung.store(true, Ordering::Release);
        }
        // `end` clears `is_in_batch` before it looks at `is_unrung`: either it sees the store above, or this message begins the next batch.
        if !landing.is_in_batch.swap(true, Ordering::AcqRel) {
            lock(&self.publishers).push(landing.clone());
            self.is_any.store(true, Ordering::Release);
        }
    }

    /// Ends the batch, when no message follows at once: wakes subscribers for its quiet messages.
    fn end(&self) {
        if !self.is_any.swap(false, Ordering::AcqRel) {
            return;
        }
        let publishers = std::mem::take(&mut *lock(&self.publishers));
        for landing in publishers {
            landing.is_in_batch.swap(false, Ordering::AcqRel);
            landing.ring();
        }
    }
}

/// The conductor's answer to a flow that its sender opened: where its messages go, or why they are refused. None: not decided yet.
type Standing = Option<Result<Bound, String>>;

#[derive(Default)]
struct IngressFlows {
    all: HashMap<FlowId, (FlowName, Standing)>,
    /// By numbers of incomplete groups, the flows that were opened so far. The conductor gets a group when all of its flows are open.
    groups: HashMap<u32, Vec<(FlowName, FlowDescription)>>,
}

impl IngressFlows {
    fn standing(&mut self, flow: FlowName) -> Option<&mut Standing> {
        let mut all = self.all.values_mut();
        let found = all.find(|(of, _)| *of == flow);
        found.map(|(_, standing)| standing)
    }
}

/// What arrives over the link with a host: its flows, and where their messages go.
pub struct LinkIngress {
    flows: Mutex<IngressFlows>,
    pub counts: Arc<HostCounts>,
    pub reporter: LinkReporter,
    /// To the thread that asks the daemon for memory.
    memory: Sender<MemoryRequest>,
    batch: PublishBatch,
    /// Whether the conductor has been sent a `Progress` that it has not acted on yet.
    is_reported: AtomicBool,
}

impl LinkIngress {
    /// The ingress of a new link. It reports to `to`, and sends requests for memory, which the daemon answers, to `memory`.
    pub fn new(
        host: &str,
        to: Sender<SourcedEvent>,
        memory: Sender<MemoryRequest>,
        counts: Arc<HostCounts>,
    ) -> Arc<LinkIngress> {
        Arc::new(LinkIngress {
            flows: Mutex::default(),
            counts,
            reporter: LinkReporter::new(host, to),
            memory,
            batch: PublishBatch::default(),
            is_reported: AtomicBool::new(false),
        })
    }

    /// The ingress of the next link with the same host: it has no flows yet, and shares the counts.
    pub fn next(&self) -> Arc<LinkIngress> {
        let LinkReporter { source, to } = &self.reporter;
        let (memory, counts) = (self.memory.clone(), self.counts.clone());
        LinkIngress::new(&source.host, to.clone(), memory, counts)
    }

    fn bound(&self, flow: FlowId) -> Option<Bound> {
        match lock(&self.flows).all.get(&flow) {
            Some((_, Some(Ok(bound)))) => Some(bound.clone()),
            _ => None,
        }
    }

    /// Sets the conductor's answer to a flow, which the link gets when it asks next.
    pub fn answer(&self, flow: FlowName, answer: Result<Bound, String>) {
        if let Some(standing @ None) = lock(&self.flows).standing(flow) {
            *standing = Some(answer);
        }
    }

    /// Raises a flow's delivered position, and reports to the conductor that there is one to confirm.
    fn pass(&self, position: &AtomicU64, next: u64) {
        position.fetch_max(next, Ordering::AcqRel);
        if !self.is_reported.swap(true, Ordering::AcqRel) {
            self.reporter.report(ConductorEvent::Progress);
        }
    }

    /// Call before reading delivered positions: the next position that rises after this call is reported again.
    pub fn forget_reported(&self) {
        // A swap, and not a store: it acquires the positions that were raised before the last report.
        self.is_reported.swap(false, Ordering::AcqRel);
    }

    /// What a link needs of its owner: the receiver of its flows, the sink of its events, and its counts.
    pub fn ends(self: &Arc<Self>) -> LinkEnds {
        let ingress = self.clone();
        let report = Box::new(move |event| ingress.event(event));
        let receiver = Arc::new(Receiver(self.clone()));
        (receiver, report, self.counts.clone())
    }

    pub fn event(&self, event: ConductorEvent) {
        match &event {
            // The other host restarted, so its flows have ended.
            ConductorEvent::Link(LinkEvent::Restarted) => self.clear(),
            ConductorEvent::Link(LinkEvent::Up) => {
                self.counts.connects.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
        self.reporter.report(event);
    }

    /// Forgets all flows.
    pub fn clear(&self) {
        let ended = std::mem::take(&mut *lock(&self.flows));
        drop(ended);
    }
}

/// The ingress as the link sees it.
struct Receiver(Arc<LinkIngress>);

impl FlowReceiver for Receiver {
    fn opened(&self, id: FlowId, description: &Description) -> OpenReply {
        let mut flows = lock(&self.0.flows);
        match flows.all.get(&id) {
            Some((_, Some(Ok(_)))) => return OpenReply::Accepted,
            Some((_, None)) => return OpenReply::Waits,
            Some((_, Some(Err(why)))) => {
                let why = Description::new(why.as_bytes()).unwrap_or_default();
                flows.all.remove(&id);
                return OpenReply::Refused(why);
            }
            None => {}
        }
        let Some((flow, group, description)) = decode_open(description.as_slice()) else {
            return OpenReply::Violation("its description does not name it");
        };
        if flows.standing(flow).is_some() {
            return OpenReply::Violation("its publisher has a flow of this stream already");
        }
        let description = match FlowDescription::decode(flow.publisher, description) {
            Ok(description) => description,
            Err(what) => return OpenReply::Violation(what),
        };
        flows.all.insert(id, (flow, None));
        let of_group = flows.groups.entry(group.number).or_default();
        of_group.push((flow, description));
        if of_group.len() >= usize::from(group.flows) {
            let all = flows.groups.remove(&group.number).unwrap_or_default();
            self.0.reporter.report(ConductorEvent::Opened(all));
        }
        OpenReply::Waits
    }

    fn buffer(&self, id: FlowId, sequence: u64, description: &[u8], bytes: u64) -> BufferReply {
        if id == CONTROL_FLOW {
            return control_buffer(bytes, &self.0);
        }
        let Some(bound) = self.0.bound(id) else {
            return BufferReply::Full;
        };
        let room = receive_buffer(bound, sequence, description, bytes, &self.0);
        if matches!(room, BufferReply::Buffer(_)) {
            self.0.counts.messages_in.fetch_add(1, Ordering::Relaxed);
            self.0.counts.bytes_in.fetch_add(bytes, Ordering::Relaxed);
        }
        room
    }

    fn missed(&self, id: FlowId, _first: u64, next: u64) {
        let Some(bound) = self.0.bound(id) else {
            return;
        };
        // Nothing is counted here: the next message's number shows how many were missed, even after lost frames and kills.
        bound
            .landing
            .inspect(|landing| landing.follow_history(next));
        bound.transit.inspect(|transit| transit.miss(next));
        bound
            .position
            .inspect(|position| self.0.pass(position, next));
    }

    fn rest(&self) {
        self.0.batch.end();
    }

    fn closed(&self, id: FlowId) {
        // The flow is dropped after the lock is released: dropping a landing makes its publisher leave its topic, which takes time.
        let ended = lock(&self.0.flows).all.remove(&id);
        if let Some((flow, _)) = ended {
            self.0.event(ConductorEvent::Closed(flow));
        }
    }
}

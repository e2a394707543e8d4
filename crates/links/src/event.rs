//! Events that links, and the threads that send to them, report to the conductor.

use crate::control_plane::PlaneEvent;
use crate::wire::FlowDescription;
use rgaps_routing::FlowName;
use rgaps_transport::LinkEvent;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

/// The link that an event comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSource {
    pub host: String,
    /// The link's number, which no other link of this process has. The conductor ignores most events of links that were replaced.
    pub link: u64,
}

/// An event and its source. None: it comes from no link.
pub type SourcedEvent = (Option<EventSource>, ConductorEvent);

#[derive(Clone)]
pub struct LinkReporter {
    pub source: EventSource,
    pub to: Sender<SourcedEvent>,
}

impl LinkReporter {
    pub fn new(host: &str, to: Sender<SourcedEvent>) -> LinkReporter {
        static LINKS: AtomicU64 = AtomicU64::new(0);
        let host = host.to_owned();
        let link = LINKS.fetch_add(1, Ordering::Relaxed);
        let source = EventSource { host, link };
        LinkReporter { source, to }
    }

    /// Reports an event. After the conductor's end the event is lost.
    pub fn report(&self, event: ConductorEvent) {
        let _ = self.to.send((Some(self.source.clone()), event));
    }
}

/// What links, their threads and the control plane report to the conductor.
#[derive(Debug)]
pub enum ConductorEvent {
    /// An event of the link as a whole.
    Link(LinkEvent),
    /// The host accepts a flow that is sent there; or it refuses the flow for this reason, and the flow has ended.
    Answered(FlowName, Result<(), String>),
    /// All messages of a flow that arrives were delivered, and nothing follows.
    Closed(FlowName),
    /// The host has acknowledged all messages of a flow that is sent there, and knows that nothing follows.
    Ended(FlowName),
    /// An encoded [`LinkMessage`](crate::wire::LinkMessage) arrived.
    LinkMessage(Vec<u8>),
    /// There is memory again for messages that wait for a receive buffer.
    Room,
    /// An event of the control plane. It comes from no link.
    PlaneEvent(PlaneEvent),
    /// The host has opened all flows of a group, one for each publisher.
    Opened(Vec<(FlowName, FlowDescription)>),
    /// A delivered position has risen that has to be confirmed to an origin.
    Progress,
    /// A message of a flow in transit was sent on in part, and then arrived again: the number of its `Transit`.
    TransitBroken(u64),
    /// A publisher that the links do not know yet has published. It comes from no link.
    Unknown,
    /// A topic's message of so many bytes waits until there are routes for messages of that size. It comes from no link.
    Unplanned(String, u64),
}

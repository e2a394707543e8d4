//! Events that links, and the threads that send to them, report to the conductor.

use crate::control_plane::PlaneEvent;
use crate::wire::FlowDescription;
use rgaps_routing::FlowName;
use rgaps_transport::LinkEvent;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSource {
    pub host: String,
    /// Numbers all links. An event of a link that another has replaced is out of date.
    pub link: u64,
}

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

    /// Reports an event. After the conductor's end nobody is interested.
    pub fn report(&self, event: ConductorEvent) {
        let _ = self.to.send((Some(self.source.clone()), event));
    }
}

/// What links, and the threads that send to them, tell the conductor.
#[derive(Debug)]
pub enum ConductorEvent {
    /// Something happened to the link, and to no flow of it.
    Link(LinkEvent),
    /// The host accepts a flow that is sent there; or it refuses the flow for this reason, and the flow has ended.
    Answered(FlowName, Result<(), String>),
    /// All messages of a flow that arrives were delivered, and nothing follows.
    Closed(FlowName),
    /// The host has acknowledged all messages of a flow that is sent there, and knows that nothing follows.
    Ended(FlowName),
    LinkMessage(Vec<u8>),
    /// A message that waits for memory may get some now.
    Room,
    /// Something happened to another host. It comes from no link.
    PlaneEvent(PlaneEvent),
    /// All flows of a group begin, one for each publisher.
    Opened(Vec<(FlowName, FlowDescription)>),
    /// Messages have passed here, and their origins wait to learn that.
    Progress,
    /// A message of a flow in transit was sent on in part, and then arrived again: the number of its `Transit`.
    TransitBroken(u64),
    /// A publisher that the links do not know yet has published. It comes from no link.
    Unknown,
    /// A topic's message of so many bytes waits until there are routes for messages of that size. It comes from no link.
    Unplanned(String, u64),
}

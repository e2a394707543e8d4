//! Events that links, and the threads that send to them, report to the conductor.

use crate::control_plane::PlaneEvent;
use crate::host_link::{Flow, HostEvent};
use crate::wire::FlowDescription;

/// What links, and the threads that send to them, tell the conductor.
#[derive(Debug)]
pub enum ConductorEvent {
    /// Something happened.
    Event(HostEvent),
    /// The peer said something.
    LinkMessage(Vec<u8>),
    /// A message that waited for memory may have some.
    Room,
    /// Something happened to another host; it is said for no host.
    PlaneEvent(PlaneEvent),
    /// Publishers' flows begin, all of a group.
    Opened(Vec<(Flow, FlowDescription)>),
    /// A publisher has published of which nothing is known yet; it is said for no host.
    Unknown,
}

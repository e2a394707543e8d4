//! Events that links, and the threads that send to them, report to the coordinator.

use crate::host_link::{Flow, HostEvent};
use crate::plane::News;
use crate::wire::FlowDescription;

/// What links, and the threads that forward to them, tell the coordinator.
#[derive(Debug)]
pub enum Heard {
    /// Something happened.
    Event(HostEvent),
    /// The peer said something.
    Said(Vec<u8>),
    /// A message that waited for memory may have some.
    Room,
    /// Something happened to another host; it is said for no host.
    News(News),
    /// Publishers' flows begin, all of a group.
    Opened(Vec<(Flow, FlowDescription)>),
    /// A publisher has published of which nothing is known yet; it is said for no host.
    Unknown,
}

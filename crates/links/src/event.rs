//! Events that links, and the threads that send to them, report to the coordinator.

use crate::host_link::HostEvent;
use crate::plane::News;

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
    /// All is done of a stream that goes to the host no more.
    Over(u64),
}

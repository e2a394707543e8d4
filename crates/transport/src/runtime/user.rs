//! Who learns what happens on a running link.

use super::lane::LaneEnd;
use super::LinkRuntime;
use crate::machine::FlowEvent;

/// Who learns what happens on a link: one event at a time, in order. The link is not locked and may be called. It does not block.
pub trait LinkUser: Send + Sync + 'static {
    /// Something happened to a flow that is sent.
    fn flow_event(&self, event: FlowEvent, link: &LinkRuntime) {
        let _ = (event, link);
    }

    /// Something happened to the link.
    fn event(&self, event: LinkEvent, link: &LinkRuntime) {
        let _ = (event, link);
    }
}

/// What happened on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// There is a lane, where there was none.
    Up,
    /// There is no lane any more; both ends keep what is not acknowledged and go on when there is one again.
    Down {
        /// Why the last one ended.
        why: String,
    },
    /// A lane ended; others may go on.
    LaneEnded {
        /// Its number.
        lane: u32,
        /// Why.
        end: LaneEnd,
        /// In words: for RDMA with the status of the work that failed.
        why: String,
    },
    /// The peer is another incarnation (or the pair has another key). All flows that arrived are over; the user
    /// [opens those again](crate::machine::LinkMachine::reopen) that it sends.
    Restarted,
    /// The peer refused a lane, or this end refused one.
    LaneRefused {
        /// Why, with what both sides have.
        why: String,
    },
}

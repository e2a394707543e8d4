//! Who uses a running link: one has the memory for messages that arrive, the other learns what happens.

use super::lane::LaneEnd;
use super::LinkRuntime;
use crate::machine::frame::Description;
use crate::machine::{BufferReply, FlowEvent, FlowId};

/// Where a link's messages arrive. Except for [`FlowReceiver::buffer`], it is called as [`LinkUser`] is, one at a time with its events; but
/// whichever thread read a small message delivers it.
pub trait FlowReceiver: Send + Sync + 'static {
    /// Memory for a message: of a large one when it is requested, with the link locked; of a small one in its turn. It is quick
    /// and does not call the link.
    fn buffer(&self, flow: FlowId, sequence: u64, description: &[u8], bytes: u64) -> BufferReply;

    /// A flow begins, as its sender describes it, in its turn with the events. A user that is not ready for it is asked again, at each tick and after
    /// [`LinkRuntime::buffer_free`]; until it is, nothing of the flow is delivered, and no buffer is asked for.
    fn opened(&self, flow: FlowId, description: &Description) -> OpenReply {
        let _ = (flow, description);
        OpenReply::Accepted
    }

    /// These messages of a flow never arrive, or this end refused them.
    fn missed(&self, flow: FlowId, first: u64, next: u64) {
        let _ = (flow, first, next);
    }

    /// What was read is delivered as far as it can be, and the thread that read it is about to wait for more. What a user puts off for
    /// several messages, such as waking somebody, it does now.
    fn rest(&self) {}

    /// All of a flow is delivered, and nothing follows.
    fn closed(&self, flow: FlowId) {
        let _ = flow;
    }
}

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

/// The user's answer to a flow that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenReply {
    /// Its messages are taken.
    Accepted,
    /// Not yet.
    Waits,
    /// Never: its sender learns why.
    Refused(Description),
    /// No correct peer describes a flow so. The flow is refused, and the peer disconnected and counted.
    Violation(&'static str),
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

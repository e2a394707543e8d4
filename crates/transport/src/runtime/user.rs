//! The user of a running link: it has the memory for messages that arrive, and learns what happens.

use super::lane::LaneEnd;
use super::LinkRuntime;
use crate::machine::frame::{Description, CONTROL_FLOW};
use crate::machine::BufferReply;

/// A flow of a link, in one direction, as long as the peer lives. After [`LinkEvent::Restarted`] no flow of before exists, and a new
/// one never has the name of an old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId {
    /// Counts the machines of a link: each pair of incarnations has one.
    pub(super) machine: u64,
    pub(super) number: u64,
}

impl FlowId {
    /// Whether it is what the ends say to each other with [`super::LinkChange::say`].
    pub fn is_control(self) -> bool {
        self.number == CONTROL_FLOW
    }
}

/// The user of a link.
pub trait LinkUser: Send + Sync + 'static {
    /// Memory for a message: of a large one when it is requested, with the link locked; of a small one in its turn. It is quick
    /// and does not call the link.
    fn buffer(&self, flow: FlowId, sequence: u64, description: &[u8], bytes: u64) -> BufferReply;

    /// A flow begins, as its sender describes it, in its turn with the events. A user that is not ready for it is asked again, at each tick and after
    /// [`LinkRuntime::buffer_free`]; until it is, nothing of the flow is delivered, and no buffer is asked for.
    fn opened(&self, flow: FlowId, description: &Description) -> OpenReply {
        let _ = (flow, description);
        OpenReply::Accepted
    }

    /// Something happened. One at a time for a link and in order, but for small messages: their buffers are delivered by whichever
    /// thread read them. The link is not locked and may be called. It does not block.
    fn event(&self, event: LinkEvent, link: &LinkRuntime);
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
    /// Sending: the receiver has delivered (or skipped) a message.
    Acknowledged {
        /// Its flow.
        flow: FlowId,
        /// The message.
        sequence: u64,
    },
    /// Sending: the receiver takes a flow's messages; it had answered [`OpenReply::Accepted`].
    Accepted {
        /// The flow.
        flow: FlowId,
    },
    /// Sending: the receiver takes nothing more of a flow, which is closed and ends.
    FlowRefused {
        /// The flow.
        flow: FlowId,
        /// Why, in words.
        why: Description,
        /// The messages that were not acknowledged.
        dropped: Vec<u64>,
    },
    /// Sending: a closed flow has ended: the receiver has all of it.
    Ended {
        /// The flow.
        flow: FlowId,
    },
    /// Receiving: these messages never arrive, or this end refused them.
    Missed {
        /// Their flow.
        flow: FlowId,
        /// The first.
        first: u64,
        /// The number after the last.
        next: u64,
    },
    /// Receiving: all of a flow is delivered, and nothing follows.
    Closed {
        /// The flow.
        flow: FlowId,
        /// The number after its last message.
        next: u64,
    },
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
    /// The peer is another incarnation (or the pair has another key). All flows of both directions are over; the user opens those that
    /// it needs again, and sends again what was not acknowledged.
    Restarted,
    /// The peer refused a lane, or this end refused one.
    LaneRefused {
        /// Why, with what both sides have.
        why: String,
    },
}

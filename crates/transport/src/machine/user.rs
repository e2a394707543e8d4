//! What a link's machine asks of its user, and what it reports.

use super::buffer::ReceiveBuffer;
use super::frame::{Description, Remote};
use crate::payload::Payload;
use std::sync::Arc;
use thiserror::Error;

/// The number of a flow, in one direction. A link never gives one twice to the flows that it sends; a peer that restarts may.
pub type FlowId = u64;

/// The user's answer to a request for a receive buffer.
pub enum BufferReply {
    /// Memory for all its bytes.
    Buffer(Box<dyn ReceiveBuffer>),
    /// None now; [`super::LinkMachine::buffer_free`] or the next tick asks again.
    Full,
    /// Never: it is not wanted, or is here by another route. Its bytes do not cross, and in its turn it is [`Turn::Missed`].
    Refused,
}

/// Where a link's messages arrive. Except for [`FlowReceiver::buffer`], it is called as [`crate::LinkUser`] is, one at a time with its events; but
/// whichever thread read a small message delivers it.
pub trait FlowReceiver: Send + Sync + 'static {
    /// Memory for a message: of a large one when it is requested, with the link locked; of a small one in its turn. It is quick
    /// and does not call the link.
    fn buffer(&self, flow: FlowId, sequence: u64, description: &[u8], bytes: u64) -> BufferReply;

    /// A flow begins, as its sender describes it, in its turn with the events. A user that is not ready for it is asked again, at each tick and after
    /// [`crate::LinkRuntime::buffer_free`]; until it is, nothing of the flow is delivered, and no buffer is asked for.
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

/// The address of this memory, with so many bytes, for a peer that writes there itself (RDMA); none if it cannot. Called with the link
/// locked.
pub type RemoteOf = dyn Fn(u64, u64) -> Option<Remote> + Send + Sync;

/// What a flow's receiver gets in its turn. One at a time for each flow.
pub enum Turn {
    /// The flow begins.
    Opened {
        /// Its first message.
        first: u64,
        /// What its sender says of it.
        description: Description,
    },
    /// A small message that had to wait for its turn.
    Small {
        /// The message.
        sequence: u64,
        /// The description, and then its bytes.
        bytes: Box<[u8]>,
        /// Bytes of the description.
        description_bytes: usize,
    },
    /// A large message.
    Large {
        /// The message.
        sequence: u64,
        /// Its description.
        description: Description,
        /// Its bytes.
        buffer: Box<dyn ReceiveBuffer>,
    },
    /// These messages never arrive.
    Missed {
        /// The first.
        first: u64,
        /// The number after the last.
        next: u64,
    },
    /// Nothing follows.
    Closed {
        /// The number after the last message.
        next: u64,
    },
}

/// What happened to a flow that is sent.
pub enum FlowEvent {
    /// The receiver has delivered (or skipped) a message.
    Acknowledged {
        /// The flow.
        flow: FlowId,
        /// The message.
        sequence: u64,
        /// Its bytes, to be dropped; lanes may still read them, and hold them as long.
        payload: Arc<dyn Payload>,
    },
    /// The receiver's user has taken a flow's [`Turn::Opened`].
    Accepted {
        /// The flow.
        flow: FlowId,
    },
    /// The receiver takes nothing more of a flow. It is closed, and ends.
    Refused {
        /// The flow.
        flow: FlowId,
        /// Why, in words.
        why: Description,
        /// The messages that were not acknowledged, with their bytes.
        dropped: Vec<(u64, Arc<dyn Payload>)>,
    },
    /// A closed flow has ended: the receiver has all of it.
    Ended {
        /// The flow.
        flow: FlowId,
    },
}

/// What the machine reports. Its user carries it out after it has released the link's lock.
pub enum LinkOutput {
    /// Receiving: it is this one's turn. [`super::LinkMachine::delivered`] follows.
    Deliver {
        /// The flow.
        flow: FlowId,
        /// What to deliver.
        turn: Turn,
    },
    /// Something happened to a flow that is sent.
    Flow(FlowEvent),
    /// A violation that showed behind its frame: the peer is to be disconnected.
    Violation(ProtocolViolation),
    /// A peer asks for more than it reads: this lane is to be closed.
    Stuck {
        /// The lane.
        lane: u32,
    },
}

/// A frame that no correct peer sends. The link is reset, the peer disconnected and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the peer's {frame} is not valid here: {what}")]
pub struct ProtocolViolation {
    /// The kind of frame.
    pub frame: &'static str,
    /// What is wrong with it.
    pub what: &'static str,
}

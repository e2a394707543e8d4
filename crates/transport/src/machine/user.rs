//! The interface between a link's machine and its user: what the machine asks for, and what it reports.

use super::buffer::ReceiveBuffer;
use super::frame::{Description, Remote};
use crate::payload::Payload;
use std::sync::Arc;
use thiserror::Error;

/// The number of a flow, in one direction. A link numbers its sent flows from 1 and uses no number twice; a peer that restarts begins at 1.
pub type FlowId = u64;

/// The user's answer to a request for a receive buffer.
pub enum BufferReply {
    /// Memory of exactly the message's length. Any other length counts as [`BufferReply::Refused`].
    Buffer(Box<dyn ReceiveBuffer>),
    /// No memory for now; [`super::LinkMachine::buffer_free`] or the next tick asks again.
    Full,
    /// The user does not want the message, for example because it has it by another route. A large message's bytes are not sent. In
    /// its turn the user gets [`FlowReceiver::missed`].
    Refused,
}

/// Receives a link's messages. The runtime calls it as it calls [`crate::LinkUser`]: one call at a time, in order with the link's
/// events. Exceptions: any thread calls [`FlowReceiver::buffer`] and [`FlowReceiver::rest`], and the thread that read a small message
/// whose turn it is delivers it.
pub trait FlowReceiver: Send + Sync + 'static {
    /// Provides memory for a message: for a large one when its sender requests it, with the link locked; for a small one in its turn.
    /// It must be quick and must not call the link.
    fn buffer(&self, flow: FlowId, sequence: u64, description: &[u8], bytes: u64) -> BufferReply;

    /// A flow begins; `description` is its sender's. After [`OpenReply::Waits`] the link asks again at each tick and after
    /// [`crate::LinkRuntime::buffer_free`]. Until the user accepts the flow, the link delivers nothing of it and asks for no buffers.
    fn opened(&self, flow: FlowId, description: &Description) -> OpenReply {
        let _ = (flow, description);
        OpenReply::Accepted
    }

    /// The messages from `first` to before `next` never arrive: their sender gave them up, or this end refused them.
    fn missed(&self, flow: FlowId, first: u64, next: u64) {
        let _ = (flow, first, next);
    }

    /// A thread has delivered what it read, as far as possible, and is about to wait for more. The user now does the work that it put
    /// off to do once for several messages, such as waking subscribers.
    fn rest(&self) {}

    /// The flow has ended: all of it is delivered.
    fn closed(&self, flow: FlowId) {
        let _ = flow;
    }
}

/// The user's answer to a flow that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenReply {
    /// The user takes the flow's messages.
    Accepted,
    /// The user is not ready for the flow; the link asks again.
    Waits,
    /// The user does not take the flow, for this reason, which its sender receives.
    Refused(Description),
    /// No correct peer sends such a description. The link refuses the flow, disconnects the peer and counts that.
    Violation(&'static str),
}

/// Maps the address and length of memory to what a peer's card needs to write there (RDMA); `None` if it cannot. Called with the link
/// locked.
pub type RemoteOf = dyn Fn(u64, u64) -> Option<Remote> + Send + Sync;

/// One step of a flow, which the user gets in order. Of each flow one step is out for delivery at a time.
pub enum Turn {
    /// The flow begins.
    Opened {
        /// The number of its first message.
        first: u64,
        /// What its sender sent in OPEN.
        description: Description,
    },
    /// A small message that waited for its turn, or for the user to take it.
    Small {
        /// The message.
        sequence: u64,
        /// The description, then the message's bytes.
        bytes: Box<[u8]>,
        /// Bytes of the description.
        description_bytes: usize,
    },
    /// A large message, or a small one that is in its receive buffer and that the user could not take.
    Large {
        /// The message.
        sequence: u64,
        /// Its description.
        description: Description,
        /// Its bytes.
        buffer: Box<dyn ReceiveBuffer>,
    },
    /// These messages never arrive, or the user refused them.
    Missed {
        /// The first.
        first: u64,
        /// The number after the last.
        next: u64,
    },
    /// The flow ends.
    Closed {
        /// The number after the last message.
        next: u64,
    },
}

/// An event of a flow that this end sends.
pub enum FlowEvent {
    /// The receiver has delivered or skipped a message.
    Acknowledged {
        /// The flow.
        flow: FlowId,
        /// The message.
        sequence: u64,
        /// Its bytes, to be dropped. Lanes that still read them hold clones.
        payload: Arc<dyn Payload>,
    },
    /// The receiver's user has taken a flow's [`Turn::Opened`].
    Accepted {
        /// The flow.
        flow: FlowId,
    },
    /// The receiver takes nothing more of a flow. The machine has closed it; [`FlowEvent::Ended`] follows.
    Refused {
        /// The flow.
        flow: FlowId,
        /// The receiver's reason, as text.
        why: Description,
        /// The messages that were not acknowledged, with their bytes.
        dropped: Vec<(u64, Arc<dyn Payload>)>,
    },
    /// A flow that was closed, cut or refused has ended: nothing of it follows. If it was closed, the receiver has all of it.
    Ended {
        /// The flow.
        flow: FlowId,
    },
}

/// What the machine asks its user to do, after the user has released the link's lock.
pub enum LinkOutput {
    /// Deliver this step of a flow that arrives, then call [`super::LinkMachine::delivered`].
    Deliver {
        /// The flow.
        flow: FlowId,
        /// What to deliver.
        turn: Turn,
    },
    /// Handle an event of a flow that this end sends.
    Flow(FlowEvent),
    /// Disconnect the peer: one of its frames turned out to be a violation only after the machine had accepted it.
    Violation(ProtocolViolation),
    /// Close this lane: too many frames wait for it, because the peer causes more answers than it reads.
    Stuck {
        /// The lane.
        lane: u32,
    },
}

/// A frame that no correct peer sends. The link disconnects the peer and counts that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the peer's {frame} is not valid here: {what}")]
pub struct ProtocolViolation {
    /// The kind of frame.
    pub frame: &'static str,
    /// What is wrong with it.
    pub what: &'static str,
}

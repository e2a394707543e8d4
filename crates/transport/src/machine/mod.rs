//! Both ends of a link as one state machine without I/O. [`crate::LinkRuntime`] runs it.
//!
//! A *link* joins two hosts, a *lane* is one connection of it, a *flow* is one publisher's messages over it. When the peer restarts,
//! [`LinkMachine::restart`] forgets all that arrived. The sent flows keep their unacknowledged messages for the new peer.
//!
//! ```text
//!   user                     machine                         lanes
//!   open, send, say    -->   SendFlow    -> LaneQueue  -->   next, written
//!   ready, cancel, close     Granted: which chunk is next
//!   output             <--   Acknowledged, Refused, Ended
//!                                                            frame (small bytes)
//!   output: Deliver    <--   ReceiveFlow <- Grants     <--   frame -> WriteRange -> landed
//!   delivered          -->   Landed, Delivering, BackPressured
//! ```
//!
//! **Lock.** The link's lock guards the machine. Every thread that calls the machine takes it. The user's code runs after the lock is
//! released, except [`FlowReceiver::buffer`]. A lane writes a chunk's bytes without the lock, through a [`WriteRange`], and takes the
//! lock again only after a message's last chunk.
//!
//! **Who may touch which bytes:**
//!
//! | bytes | who | since | what ends that right |
//! |---|---|---|---|
//! | message at the sender | lanes read | `send` or `ready` | the last clone of its payload is dropped: the machine's when the message is acknowledged, cancelled or refused, each lane's when the lane has written it or ended |
//! | chunk that has not landed | the one lane that brings it ([`WriteRange`]); with RDMA, the peer's card through any lane of the grant | its CHUNK; GRANT | it has landed; or the lane has ended and is drained, or has brought ABANDON |
//! | landed chunks without a hole before them (the *prefix*) | everyone reads, through a [`PrefixMemory`] if it goes on to other hosts; nobody writes again | the bit before them | the last holder drops the buffer |
//! | landed chunks behind a hole | nobody but GPU copies, which may repeat | their bit | the hole closes, or a new grant writes them again |
//! | message in its turn | the one thread that delivers it | [`LinkOutput::Deliver`], [`FrameStep::Deliver`] | `delivered` |
//!
//! **Where a chunk is:** at the sender in `SendState::Granted`, then in a [`QueuedFrame`] of one lane, then on the wire, then in a
//! [`WriteRange`] of one grant, then a bit. `send_message.rs` and `receive_message.rs` list all states of a message.
//!
//! **Limits.** A flow's small messages: its window (HELLO gives the first one, ACK the rest). Its large ones: 4 grants, or up to
//! 64 of 4 MiB together; both ends check that. Flows: [`FLOWS_MAX`]. Chunks of a message: 65,536. Frames that wait for a lane: 1,024 of
//! flows, and 16,384 that the peer caused.

mod ack_debt;
mod buffer;
mod field;
mod flow_numbers;
pub mod frame;
mod grants;
mod lanes;
mod limits;
mod receive_flow;
mod receive_message;
mod receiving;
mod send_flow;
mod send_message;
mod send_queue;
mod sending;
mod user;
mod values;

pub use buffer::{CardBuffer, PrefixMemory, ReceiveBuffer, WriteRange};
pub use lanes::{QueuedFrame, WriteLimit};
pub use limits::{LinkLimits, FLOWS_MAX};
pub use receiving::FrameStep;
pub use send_flow::SendFlow;
pub use user::{
    BufferReply, FlowEvent, FlowId, FlowReceiver, LinkOutput, OpenReply, ProtocolViolation,
    RemoteOf, Turn,
};

use frame::{Chunk, Frame};
use lanes::Outgoing;
use receiving::ReceiveSide;
use sending::SendSide;
use std::sync::Arc;
use values::Checked;

/// What the receiving end of a link holds, for reports and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkHeld {
    /// Flows that arrive and have not ended.
    pub flows: usize,
    /// Large messages that their senders have requested and that are not delivered.
    pub large: usize,
    /// Grants whose lanes may still write.
    pub grants: usize,
}

/// Both ends of a link.
pub struct LinkMachine {
    sending: SendSide,
    receiving: ReceiveSide,
    out: Outgoing,
}

impl LinkMachine {
    /// A link without lanes.
    pub fn new(limits: LinkLimits, user: Arc<dyn FlowReceiver>, remote: Arc<RemoteOf>) -> Self {
        Self {
            sending: SendSide::new(limits),
            receiving: ReceiveSide::new(limits, user, remote),
            out: Outgoing::new(limits),
        }
    }

    /// Call when the peer has restarted, all lanes have ended and nothing is out for delivery. Forgets everything that arrived from the
    /// old peer, and ends the sent flows that were cut. The other sent flows keep their numbers and unacknowledged messages, and wait
    /// until the user [reopens](LinkMachine::reopen) or cuts them. The control flow starts again, empty. Drop the result without the lock.
    pub fn restart(&mut self) -> impl Sized {
        (
            self.sending.restart(&mut self.out),
            self.receiving.restart(),
        )
    }

    /// Adds a lane. `first_window` is from the peer's HELLO. False if the link has too many lanes, or this one already, or if an earlier
    /// HELLO of the peer named another window.
    pub fn lane_up(&mut self, lane: u32, first_window: u32) -> bool {
        if !self.out.add(lane) {
            return false;
        }
        if !self.sending.lane_up(first_window, &mut self.out) {
            self.lane_ended(lane);
            return false;
        }
        if self.out.is_only(lane) {
            self.receiving.report_refused(lane, &mut self.out);
        }
        self.buffer_free();
        true
    }

    /// Removes a lane that has ended: no thread or card reads or writes message bytes for it, and no frame of it follows.
    pub fn lane_ended(&mut self, lane: u32) {
        if self.out.remove(lane) {
            self.sending.lane_ended(lane, &mut self.out);
            self.receive_without(lane);
        }
    }

    /// Handles a frame that arrived. `payload`: the bytes that followed a small message's frame; empty for all other frames.
    ///
    /// # Panics
    /// If `payload` does not have the length that the frame names: the lane's reader is wrong.
    pub fn frame(
        &mut self,
        lane: u32,
        frame: &Frame,
        payload: &[u8],
    ) -> Result<FrameStep, ProtocolViolation> {
        let step = self.dispatch(lane, frame, payload);
        let frame = frame.name();
        let step = step.map_err(|what| ProtocolViolation { frame, what })?;
        self.sending.pump(&mut self.out);
        self.flush();
        Ok(step)
    }

    fn dispatch(&mut self, lane: u32, frame: &Frame, payload: &[u8]) -> Checked<FrameStep> {
        if self.out.confirm(lane).ok_or("its lane is not open")? {
            self.buffer_free();
        }
        let mut step = FrameStep::Done;
        match frame {
            Frame::Alive(_) => {}
            Frame::Ack(ack) => self.ack_arrived(ack)?,
            Frame::Grant(grant) => self.grant_arrived(grant)?,
            Frame::Refuse(refuse) => self.refuse_arrived(refuse)?,
            Frame::Open(open) => self.open_arrived(open, lane)?,
            Frame::Small(small) => step = self.small_arrived(small, payload, lane)?,
            Frame::Request(request) => self.request_arrived(request, lane)?,
            Frame::Chunk(chunk) => {
                step = FrameStep::Chunk(self.receiving.grants.lend(lane, chunk)?);
            }
            Frame::Abandon(abandon) => self.abandon_arrived(abandon.grant, lane)?,
            Frame::Gap(gap) => self.gap_arrived(gap, lane)?,
            Frame::Close(close) => self.close_arrived(close, lane)?,
            _ => return Err("it is not for the receiving end"),
        }
        Ok(step)
    }

    /// The CHUNK frame that a mark stands for: the peer's card has written a whole message of one chunk into its receive buffer, and
    /// announces it only by the low bits of the grant's number, those of `mask`.
    pub fn marked(&self, (mark, mask): (u32, u32), bytes: u32) -> Frame {
        let chunk = Chunk {
            grant: self.receiving.grants.marked(mark, mask),
            chunk: 0,
            bytes,
        };
        chunk.into()
    }

    /// Call every few milliseconds. Sends the acknowledgements that have waited, and asks the user again for the buffers that it did not
    /// have and the deliveries that it did not take.
    pub fn tick(&mut self) {
        self.receiving.pay_late(&mut self.out);
        self.buffer_free();
    }

    /// Whether the next tick has something to do.
    pub fn awaits_tick(&self) -> bool {
        self.receiving.awaits_tick()
    }

    /// How many messages this end has resent, and how many small messages arrived more than once.
    pub fn repeated(&self) -> (u64, u64) {
        (self.sending.resent, self.receiving.duplicates)
    }
}

//! Both ends of a link as one state machine without I/O. [`crate::LinkRuntime`] runs it.
//!
//! A *link* joins two hosts, a *lane* is one connection of it, a *flow* is one publisher's messages over it. When the peer restarts,
//! [`LinkMachine::restart`] forgets what arrived, and flows that are sent go on with what they retain.
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
//! **Lock.** The link's lock owns the machine. Whichever thread has something to say takes it; the user's code runs after it is
//! released, but for [`LinkUser`]. Bytes are written without it, by [`WriteRange`]. Only the last chunk of a message takes it again.
//!
//! **Who may touch which bytes:**
//!
//! | bytes | who | since | what ends that right |
//! |---|---|---|---|
//! | message at the sender | lanes read | `send` or `ready` | the last clone of its payload is dropped: the machine's when it is acknowledged, cancelled or refused, each lane's when it has written or ended |
//! | chunk that has not landed | the one lane that brings it ([`WriteRange`]); with RDMA, the peer's card through any lane of the grant | its CHUNK; GRANT | it has landed; or the lane has ended and is drained, or has brought ABANDON |
//! | landed chunks without a hole before them (the *prefix*) | everyone reads, through a [`PrefixMemory`] if it goes on to other hosts; nobody writes again | the bit before them | the last holder drops the buffer |
//! | landed chunks behind a hole | nobody but GPU copies, which may repeat | their bit | the hole closes, or a new grant writes them again |
//! | message in its turn | the one thread that delivers | [`LinkOutput::Deliver`], [`FrameStep::Deliver`] | `delivered` |
//!
//! **Where a chunk is:** at the sender in `SendState::Granted`, then in a [`QueuedFrame`] of one lane, then on the wire, then in a
//! [`WriteRange`] of one grant, then a bit. `send_message.rs` and `receive_message.rs` list all states of a message.
//!
//! **Limits.** A flow's small messages: its window (HELLO gives the first one, ACK the rest). Its large ones: 4 grants, or up to
//! 64 of 4 MiB together; both ends hold to that. Flows: [`FLOWS_MAX`]. Chunks of a message: 65,536. Frames that wait for a lane: 1,024 of flows,
//! and 16,384 that the peer asked for.

mod ack_debt;
mod buffer;
mod field;
mod flow_numbers;
pub mod frame;
mod granting;
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

pub use buffer::{CardBuffer, ChunkLanded, PrefixMemory, ReceiveBuffer, WriteRange};
pub use lanes::{QueuedFrame, WriteLimit};
pub use limits::{LaneLimits, LinkLimits, ReceiveConfig, SendConfig, FLOWS_MAX};
pub use receiving::FrameStep;
pub use user::{
    BufferReply, FlowEvent, FlowId, LinkOutput, LinkUser, ProtocolViolation, Turn, WindowViolation,
};

use crate::payload::Payload;
use frame::{Description, Frame};
use lanes::Outgoing;
use receiving::ReceiveSide;
use send_flow::SendFlow;
use sending::SendSide;
use std::sync::Arc;
use user::violation;

/// What a link holds, for reports and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkHeld {
    /// Flows that arrive and have not ended.
    pub flows: usize,
    /// Large messages that have arrived in part or whole and are not delivered.
    pub large: usize,
    /// Grants whose lanes may still write.
    pub grants: usize,
}

/// Both ends of a link.
pub struct LinkMachine {
    sending: SendSide,
    receiving: ReceiveSide,
    out: Outgoing,
    /// A frame broke the protocol, which shows only in its turn.
    violation: Option<ProtocolViolation>,
}

impl LinkMachine {
    /// A link without lanes.
    pub fn new(limits: LinkLimits, user: Arc<dyn LinkUser>) -> Self {
        Self {
            sending: SendSide::new(limits.send),
            receiving: ReceiveSide::new(limits.receive, user),
            out: Outgoing::new(limits.lane),
            violation: None,
        }
    }

    /// A flow that begins with this message, and what the receiver's user is told of it. Its number; `None` if there are [`FLOWS_MAX`] already.
    pub fn open(&mut self, first: u64, description: Description) -> Option<u64> {
        self.sending.open(first, description, &mut self.out)
    }

    /// The peer is another one, and all lanes have ended; nothing is out for delivery. What arrived of the former peer is over, and so
    /// are flows that were cut. Other flows keep their numbers, and wait with what they retain until they are
    /// [opened again](LinkMachine::reopen), or cut. The control flow begins anew. What is returned is dropped without the lock.
    pub fn restart(&mut self) -> impl Sized {
        self.violation = None;
        (
            self.sending.restart(&mut self.out),
            self.receiving.restart(),
        )
    }

    /// Opens a flow that waits since a restart: what it retains is sent to the new peer, whose user is told this of the flow.
    pub fn reopen(&mut self, flow: u64, description: Description) {
        self.sending
            .change(flow, &mut self.out, |of, _| of.reopen(description));
    }

    /// Whether a flow waits to be opened again.
    pub fn is_waiting(&self, flow: u64) -> bool {
        self.sending.get(flow).is_some_and(|of| of.is_waiting)
    }

    /// Whether there is a lane.
    pub fn has_lanes(&self) -> bool {
        !self.out.is_empty()
    }

    /// Sends a message of a flow, which retains it until it is acknowledged or cancelled; how many that may be is for its user to limit.
    /// Its bytes stay where they are, unchanged, until the last clone of `payload` is dropped. False: never, for the flow is closed or
    /// refused, or the message too large or empty, or its sequence has passed.
    pub fn send(
        &mut self,
        flow: u64,
        sequence: u64,
        payload: Arc<dyn Payload>,
        description: Description,
    ) -> bool {
        let is_taken = self.sending.change(flow, &mut self.out, |of, _| {
            of.push(sequence, payload, description)
        });
        is_taken == Some(true)
    }

    /// Sends the next message of the control flow, which lasts as long as this machine. False: too much of it waits, or it is empty or
    /// too large.
    pub fn say(&mut self, said: Arc<dyn Payload>) -> bool {
        self.sending.say(said, &mut self.out)
    }

    /// So many bytes of a message that grows are there now.
    pub fn ready(&mut self, flow: u64, sequence: u64, ready: u64) {
        self.sending
            .change(flow, &mut self.out, |of, _| of.ready(sequence, ready));
    }

    /// Gives a message up that is not acknowledged: the receiver learns of a gap, unless it has the message already. Its payload, to be
    /// dropped without the lock; `None` if there is nothing to give up.
    pub fn cancel(&mut self, flow: u64, sequence: u64) -> Option<Arc<dyn Payload>> {
        self.sending
            .change(flow, &mut self.out, |of, out| of.cancel(sequence, out))?
    }

    /// Gives up all messages of a flow. Their payloads, to be dropped without the lock.
    pub fn cancel_all(&mut self, flow: u64) -> Vec<Arc<dyn Payload>> {
        let cancelled = self
            .sending
            .change(flow, &mut self.out, SendFlow::cancel_all);
        cancelled.unwrap_or_default()
    }

    /// Whether bytes of a message that was sent are still to come.
    pub fn is_growing(&self, flow: u64, sequence: u64) -> bool {
        let of = self.sending.get(flow);
        of.is_some_and(|of| of.is_growing(sequence))
    }

    /// Bytes of a flow's messages that are not acknowledged.
    pub fn retained(&self, flow: u64) -> u64 {
        self.sending.get(flow).map_or(0, |of| of.retained)
    }

    /// Messages of a flow below this one are acknowledged.
    pub fn acknowledged(&self, flow: u64) -> u64 {
        self.sending.get(flow).map_or(0, SendFlow::acknowledged)
    }

    /// The oldest message of a flow of which no byte is on its way: to give it up wastes nothing.
    pub fn oldest_unsent(&self, flow: u64) -> Option<u64> {
        self.sending.get(flow)?.queue.oldest_unsent()
    }

    /// The receiver misses the messages of a flow below this one that it was not sent.
    pub fn skip(&mut self, flow: u64, next: u64) {
        self.sending
            .change(flow, &mut self.out, |of, _| of.skip(next));
    }

    /// No message follows. The flow ends when the receiver has all of it: [`FlowEvent::Ended`].
    pub fn close(&mut self, flow: u64) {
        self.sending.change(flow, &mut self.out, |of, _| of.close());
    }

    /// Ends a flow at once. What has not had its turn at the receiver never gets one, and is no gap: the receiver learns where the flow
    /// ends for it. The payloads, to be dropped without the lock.
    pub fn cut(&mut self, flow: u64) -> Vec<Arc<dyn Payload>> {
        self.sending.cut(flow, &mut self.out)
    }

    /// Whether a flow that this end opened has not ended.
    pub fn has_flow(&self, flow: u64) -> bool {
        self.sending.get(flow).is_some()
    }

    /// Takes nothing more of a flow that arrives; its sender learns why. What is out for delivery is not asked for again. False if
    /// there is no such flow.
    pub fn refuse(&mut self, flow: u64, why: Description) -> bool {
        self.receiving.refuse(flow, why, &mut self.out)
    }

    /// A lane is there; the peer's HELLO named this first window. False if there are too many, or this one already, or another lane's
    /// HELLO named another window.
    pub fn lane_up(&mut self, lane: u32, first_window: u32) -> bool {
        if !self.out.add(lane) {
            return false;
        }
        if !self.sending.lane_up(first_window, &mut self.out) {
            self.lane_ended(lane);
            return false;
        }
        let result = self.receiving.lane_up(&mut self.out);
        self.note(result);
        true
    }

    /// A lane has ended: nobody reads or writes for it any more, and nothing of the peer's arrives through it.
    pub fn lane_ended(&mut self, lane: u32) {
        if self.out.remove(lane) {
            self.sending.lane_ended(lane, &mut self.out);
            let result = self.receiving.lane_ended(lane, &mut self.out);
            self.note(result);
        }
    }

    /// A frame arrived. `payload` is what followed a small message's frame, and empty for all others.
    ///
    /// # Panics
    /// If `payload` does not have the length that the frame names: the lane's reader is wrong.
    pub fn frame(
        &mut self,
        lane: u32,
        frame: &Frame,
        payload: &[u8],
    ) -> Result<FrameStep, ProtocolViolation> {
        if let Some(before) = self.violation.take() {
            return Err(before);
        }
        let confirmed = self.out.confirm(lane);
        if confirmed.ok_or(violation(frame.name(), "its lane is not open"))? {
            self.receiving.lane_up(&mut self.out)?;
        }
        match frame {
            Frame::Alive { .. } => {}
            Frame::Ack { .. } | Frame::Grant { .. } | Frame::Refuse { .. } => {
                self.sending.frame(frame, &mut self.out)?;
            }
            Frame::Small { bytes, .. } => {
                assert_eq!(payload.len(), *bytes as usize, "the payload of the frame");
                return self.receiving.frame(lane, frame, payload, &mut self.out);
            }
            _ => return self.receiving.frame(lane, frame, &[], &mut self.out),
        }
        Ok(FrameStep::Done)
    }

    /// The peer's card has written a whole message of one chunk by itself, and says so by a mark: the low bits of the grant's number, as
    /// many as `mask` has.
    pub fn marked(
        &mut self,
        lane: u32,
        (mark, mask): (u32, u32),
        bytes: u32,
    ) -> Result<FrameStep, ProtocolViolation> {
        let chunk = Frame::Chunk {
            grant: self.receiving.granting.grants.marked(mark, mask),
            chunk: 0,
            bytes,
        };
        self.frame(lane, &chunk, &[])
    }

    /// The last chunk of a grant has landed ([`ChunkLanded::is_last`]).
    pub fn landed(&mut self, grant: u64) {
        let result = self.receiving.landed(grant, &mut self.out);
        self.note(result);
    }

    /// What was out for delivery is delivered; or it could not be, and is here again.
    ///
    /// # Panics
    /// If nothing of the flow was out.
    pub fn delivered(&mut self, flow: u64, outcome: Result<(), Turn>) {
        let result = self.receiving.delivered(flow, outcome, &mut self.out);
        self.note(result);
    }

    /// There may be receive buffers again, and room for what could not be delivered.
    pub fn buffer_free(&mut self) {
        let result = self.receiving.retry(&mut self.out);
        self.note(result);
    }

    /// A few milliseconds have passed: acknowledgements that waited leave, and all that had to wait for memory asks again.
    pub fn tick(&mut self) {
        self.receiving.pay_late(&mut self.out);
        self.buffer_free();
    }

    /// Whether the next tick does something.
    pub fn awaits_tick(&self) -> bool {
        self.receiving.awaits_tick() || self.violation.is_some()
    }

    /// Says that a lane works, if it has nothing else to say.
    pub fn beat(&mut self, lane: u32, beat: u64) {
        self.out.beat(lane, beat);
    }

    /// A lane has written so many payloads.
    pub fn written(&mut self, lane: u32, payloads: usize) {
        let written = (0..payloads).filter(|_| self.out.written(lane)).count();
        if written > 0 {
            self.sending.written(&mut self.out);
        }
    }

    /// A lane that got something to write since it was named last.
    pub fn changed_lane(&mut self) -> Option<u32> {
        self.out.changed()
    }

    /// Whether something within the limit waits for a lane; `None` if nothing waits at all.
    pub fn waiting(&self, lane: u32, limit: WriteLimit) -> Option<bool> {
        self.out.waiting(lane, limit)
    }

    /// The next frame that a lane writes. Acknowledgements that are owed leave with the first.
    pub fn next(&mut self, lane: u32, limit: WriteLimit) -> Option<QueuedFrame> {
        if self.out.first() == Some(lane) && self.out.waiting(lane, limit).is_some() {
            self.receiving.pay_all(&mut self.out);
        }
        let (queued, has_room) = self.out.next(lane, limit)?;
        if has_room {
            self.sending.written(&mut self.out);
        }
        Some(queued)
    }

    /// What the user is to do, without the link's lock.
    pub fn output(&mut self) -> Option<LinkOutput> {
        self.out.output()
    }

    /// A violation that showed behind its frame; the link is to be reset.
    pub fn violation(&mut self) -> Option<ProtocolViolation> {
        self.violation.take()
    }

    /// Messages that were sent again, and messages that arrived again.
    pub fn repeated(&self) -> (u64, u64) {
        (self.sending.resent, self.receiving.duplicates)
    }

    /// Bytes of messages that are not acknowledged.
    pub fn retained_bytes(&self) -> u64 {
        self.sending.retained_bytes()
    }

    /// Whether something is out for delivery: [`LinkMachine::delivered`] is to follow.
    pub fn is_delivering(&self) -> bool {
        self.receiving.is_delivering()
    }

    /// What it holds of what arrives.
    pub fn held(&self) -> LinkHeld {
        self.receiving.held()
    }

    fn note(&mut self, result: Result<(), ProtocolViolation>) {
        if let Err(violation) = result {
            self.violation.get_or_insert(violation);
        }
    }
}

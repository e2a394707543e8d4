//! One flow at its sender: the messages that it retains, its window, and which frame it sends next.

use super::frame::{
    Ack, Chunk, Close, Description, Gap, Grant, Open, Request, Small, CONTROL_FLOW, FLOW_ENDED,
    MESSAGE_BYTES_MAX, SEQUENCE_MAX,
};
use super::lanes::{Outgoing, QueuedFrame};
use super::limits::LinkLimits;
use super::send_message::{QueuedItem, SendGrant, SendMessage, SendState};
use super::send_queue::SendQueue;
use super::user::{FlowEvent, LinkOutput};
use super::values::Checked;
use crate::credits::SendWindow;
use crate::payload::Payload;
use std::sync::Arc;

/// What became of an attempt to send a frame of one message.
pub(super) enum Step {
    /// A frame is queued.
    Sent,
    /// The flow can send nothing until a lane or the window has room, a grant ends, or more of a growing message is complete.
    Blocked,
    /// This message has to wait, but a later one may be sent.
    Next,
}

/// How far a flow has been opened at its receiver.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Known {
    /// The peer has restarted, and the user has not reopened the flow: it retains messages and sends nothing.
    Waits,
    /// OPEN has not left.
    #[default]
    Unopened,
    /// OPEN has left, but on a lane that has ended.
    Lost,
    /// OPEN has left on the flow's lane.
    Opened,
    /// The receiver has answered with a frame of the flow.
    Confirmed,
    /// The receiver's user has accepted the flow.
    Accepted,
}

/// A flow at its sender.
#[derive(Default)]
pub struct SendFlow {
    number: u64,
    first: u64,
    description: Description,
    /// The number of the next message.
    pub(super) next: u64,
    /// The number after the last message or gap of which a frame was queued.
    sent_next: u64,
    pub(super) queue: SendQueue,
    /// Payload bytes of its messages that are not acknowledged.
    pub retained: u64,
    pub(super) window: SendWindow,
    known: Known,
    close_was_sent: bool,
    pub(super) is_closing: bool,
    /// All messages are dropped; only CLOSE is left to be sent.
    pub(super) is_cut: bool,
    /// The lane for all frames except chunks.
    lane: Option<u32>,
    /// The flow is in the link's list of runnable flows.
    pub(super) is_runnable: bool,
}

impl SendFlow {
    pub(super) fn new(
        number: u64,
        first: u64,
        description: Description,
        first_window: u64,
    ) -> Self {
        let mut window = SendWindow::default();
        window.raise(first_window);
        Self {
            number,
            first,
            description,
            next: first,
            sent_next: first,
            window,
            ..Self::default()
        }
    }

    /// The control flow, which is open from the start.
    pub(super) fn control() -> Self {
        Self {
            known: Known::Accepted,
            ..Self::new(CONTROL_FLOW, 0, Description::default(), 0)
        }
    }

    /// The peer has restarted: keeps the messages, and forgets what the old peer knew of them.
    pub(super) fn restart(&mut self) {
        let mut queue = std::mem::take(&mut self.queue);
        queue.change(SendMessage::restart);
        let first = queue.first().unwrap_or(self.next);
        *self = Self {
            queue,
            next: self.next,
            retained: self.retained,
            is_closing: self.is_closing,
            known: Known::Waits,
            ..Self::new(self.number, first, Description::default(), 0)
        };
    }

    /// Opens a waiting flow for the new peer, from its oldest unacknowledged message on.
    pub(super) fn reopen(&mut self, description: Description) {
        if self.is_waiting() {
            (self.known, self.description) = (Known::Unopened, description);
        }
    }

    /// Whether the flow waits since a restart for [`super::LinkMachine::reopen`].
    pub fn is_waiting(&self) -> bool {
        self.known == Known::Waits
    }

    /// Makes the flow runnable, unless it waits to be reopened. Returns whether it was not runnable before.
    pub(super) fn becomes_runnable(&mut self) -> bool {
        !self.is_waiting() && !std::mem::replace(&mut self.is_runnable, true)
    }

    /// Retains a message. False if it can never be sent: see [`super::LinkMachine::send`].
    pub(super) fn push(
        &mut self,
        sequence: u64,
        payload: Arc<dyn Payload>,
        description: Description,
    ) -> bool {
        let bytes = payload.bytes() as u64;
        let fits = bytes > 0 && bytes <= MESSAGE_BYTES_MAX;
        let is_next = sequence >= self.next && sequence <= SEQUENCE_MAX;
        if !fits || !is_next || self.is_closing {
            return false;
        }
        self.skip(sequence);
        let ready = payload.ready() as u64;
        let item = QueuedItem::Message {
            payload,
            description,
        };
        self.queue.push(SendMessage {
            ready,
            ..SendMessage::new(sequence, sequence + 1, item)
        });
        self.retained += bytes;
        self.next = sequence + 1;
        true
    }

    /// Numbers below `next` that have no message become a gap.
    pub(super) fn skip(&mut self, next: u64) {
        if next > self.next && !self.is_closing {
            self.queue.push_gap(self.next, next);
            self.next = next;
        }
    }

    /// More bytes of a growing message are complete.
    pub(super) fn ready(&mut self, sequence: u64, ready: u64) {
        if let Some(at) = self.queue.position(sequence) {
            let message = self.queue.at_mut(at);
            message.ready = message.ready.max(ready);
        }
    }

    /// Ends the flow after its last message.
    pub(super) fn close(&mut self) {
        if !self.is_closing && self.number != CONTROL_FLOW {
            self.push_end();
        }
    }

    fn push_end(&mut self) {
        self.is_closing = true;
        let end = SendMessage::new(self.next, self.next, QueuedItem::Close);
        self.queue.push(end);
    }

    /// Turns a message into a gap. Returns its payload; `None` if it is acknowledged or unknown.
    pub(super) fn cancel(&mut self, sequence: u64, out: &mut Outgoing) -> Option<Arc<dyn Payload>> {
        let at = self.queue.position(sequence)?;
        let message = self.queue.at_mut(at);
        self.retained -= message.bytes();
        message.leave_grant(out);
        self.queue.make_gap(at)
    }

    /// Cancels all messages.
    pub(super) fn cancel_all(&mut self, out: &mut Outgoing) -> Vec<Arc<dyn Payload>> {
        let all = self.queue.sequences().into_iter();
        all.filter_map(|sequence| self.cancel(sequence, out))
            .collect()
    }

    /// Whether a message is still incomplete at this end.
    pub fn is_growing(&self, sequence: u64) -> bool {
        let at = self.queue.position(sequence);
        at.is_some_and(|at| self.queue.at(at).is_growing())
    }

    /// The receiver has sent a frame of the flow, so it has OPEN. A violation if OPEN has not left.
    pub(super) fn confirm(&mut self) -> Checked<()> {
        if self.known <= Known::Unopened {
            return Err("its flow is not open");
        }
        self.known = self.known.max(Known::Confirmed);
        Ok(())
    }

    /// The oldest message of which no byte was sent: giving it up wastes no bandwidth.
    pub fn oldest_unsent(&self) -> Option<u64> {
        self.queue.oldest_unsent()
    }

    /// The acknowledged position: all messages below it are acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.queue.first().unwrap_or(self.next)
    }

    /// Handles ACK: removes the messages below its position. A limit above the first window says that the receiver's user has accepted
    /// the flow.
    pub(super) fn acknowledge(
        &mut self,
        ack: &Ack,
        first_window: u64,
        out: &mut Outgoing,
    ) -> Checked<()> {
        let Ack { flow, next, limit } = *ack;
        let is_end = next == FLOW_ENDED;
        if is_end && !self.close_was_sent {
            return Err("its flow is not closed");
        }
        if !is_end && next > self.sent_next {
            return Err("it acknowledges more than was sent");
        }
        self.window.raise(limit);
        if limit > first_window && self.known != Known::Accepted {
            self.known = Known::Accepted;
            out.report(LinkOutput::Flow(FlowEvent::Accepted { flow }));
        }
        while let Some(mut message) = self.queue.pop_below(next) {
            self.retained -= message.bytes();
            if message.has_work() {
                message.leave_grant(out);
            }
            if let QueuedItem::Message { payload, .. } = message.item {
                out.report(LinkOutput::Flow(FlowEvent::Acknowledged {
                    flow,
                    sequence: message.first,
                    payload,
                }));
            }
        }
        Ok(())
    }

    /// Drops all messages and ends the flow, because the receiver refused it or this end's user cut it. Returns the numbers and payloads
    /// of the messages that it retained; `None` if it was cut already.
    pub(super) fn cut(&mut self, out: &mut Outgoing) -> Option<Vec<(u64, Arc<dyn Payload>)>> {
        if std::mem::replace(&mut self.is_cut, true) {
            return None;
        }
        let mut dropped = Vec::new();
        for mut message in self.queue.take_all() {
            // Also if all chunks are queued: a lane may lose them, and the receiver must not wait for them.
            message.leave_grant(out);
            if let QueuedItem::Message { payload, .. } = message.item {
                dropped.push((message.first, payload));
            }
        }
        self.retained = 0;
        self.push_end();
        Some(dropped)
    }

    /// Handles GRANT. `is_open`: one of the grant's lanes is open. False if the grant is not used, because the message does not wait for
    /// one or no lane is open.
    pub(super) fn grant(&mut self, grant: &Grant, is_open: bool) -> Checked<bool> {
        let (sequence, number) = (grant.sequence, grant.grant);
        if sequence >= self.sent_next {
            return Err("the message was not requested");
        }
        let Some(at) = self.queue.position(sequence) else {
            return Ok(false);
        };
        let message = self.queue.at_mut(at);
        match &message.state {
            SendState::Granted(current) if current.grant.grant == number => return Ok(true),
            SendState::Requested { .. } if number > message.abandoned => {
                if u64::from(grant.from_chunk) >= message.chunks() {
                    return Err("the message has no such chunk");
                }
                if is_open {
                    message.state = SendState::Granted(SendGrant::new(grant.clone()));
                    return Ok(true);
                }
                // All lanes of the grant have ended: the message requests another.
                (message.abandoned, message.state) = (number, SendState::Queued);
            }
            _ => message.abandoned = message.abandoned.max(number),
        }
        Ok(false)
    }

    /// A lane ended: what it may have lost is queued again. Returns how many messages are to be resent.
    pub(super) fn lane_ended(&mut self, lane: u32, out: &mut Outgoing) -> u64 {
        if self.lane == Some(lane) {
            self.lane = None;
            if self.known == Known::Opened {
                self.known = Known::Lost;
            }
        }
        let mut resent = 0;
        self.queue.change(|message| {
            if message.is_lost_with(lane, |lane| out.has(lane)) {
                resent += u64::from(message.has_left());
                message.leave_grant(out);
                message.state = SendState::Queued;
            }
        });
        resent
    }

    /// Whether OPEN has to leave before any other frame of the flow.
    pub(super) fn is_unopened(&self) -> bool {
        self.known < Known::Opened
    }

    /// Queues one frame, if one can be sent. False if not.
    pub(super) fn step(&mut self, limits: &LinkLimits, small_max: u64, out: &mut Outgoing) -> bool {
        let Some(lane) = self.lane.or_else(|| out.least_busy()) else {
            return false;
        };
        self.lane = Some(lane);
        if out.is_full(lane) {
            return false;
        }
        if self.is_unopened() {
            self.known = Known::Opened;
            let open = Open {
                flow: self.number,
                first: self.first,
                description: self.description.clone(),
            };
            out.push(lane, open);
            return true;
        }
        if self.queue.is_empty() {
            return false;
        }
        let all_busy = out.all_busy();
        let mut from = 0;
        while let Some(at) = self.queue.work_from(from, all_busy) {
            match self.send_at(at, lane, limits, small_max, out) {
                Step::Sent => return true,
                Step::Blocked => return false,
                Step::Next => from = at + 1,
            }
        }
        false
    }

    /// Queues the next frame of the queue's message `at`.
    fn send_at(
        &mut self,
        at: usize,
        lane: u32,
        limits: &LinkLimits,
        small_max: u64,
        out: &mut Outgoing,
    ) -> Step {
        let Some(charge_end) = self.charge(at, small_max, limits) else {
            return Step::Blocked;
        };
        let message = self.queue.at(at);
        let mut state = SendState::Sent { lane };
        match &message.item {
            QueuedItem::Message { payload, .. } if message.is_granted() => {
                let payload = Arc::clone(payload);
                return self.send_chunk(at, payload, out);
            }
            QueuedItem::Message { .. } if message.is_large => {
                if !self.queue.may_request(message.bytes()) {
                    // Messages request in their order, so later ones wait, too.
                    return Step::Blocked;
                }
                state = SendState::Requested { lane };
            }
            // A small message leaves whole, and later ones wait for it.
            QueuedItem::Message { .. } if message.is_growing() => return Step::Blocked,
            QueuedItem::Message { .. }
                if out.free_among(&[lane], message.bytes_described()).is_none() =>
            {
                return Step::Next;
            }
            _ => {}
        }
        match message.item {
            QueuedItem::Close => self.close_was_sent = true,
            // From here on an ACK or GRANT for it is valid.
            _ => self.sent_next = self.sent_next.max(message.next),
        }
        out.push(lane, self.frame(message, charge_end));
        self.queue.at_mut(at).state = state;
        Step::Sent
    }

    /// The frame of a queued item that has no grant.
    fn frame(&self, message: &SendMessage, charge_end: u64) -> QueuedFrame {
        let (flow, sequence) = (self.number, message.first);
        match &message.item {
            QueuedItem::Message { description, .. } if message.is_large => {
                let request = Request {
                    flow,
                    sequence,
                    charge_end,
                    bytes: message.bytes(),
                    chunk_bytes: message.chunk_bytes,
                    description: description.clone(),
                };
                request.into()
            }
            QueuedItem::Message {
                payload,
                description,
            } => {
                let described = description.as_slice().len();
                let bytes = u32::try_from(message.bytes_described());
                let small = Small {
                    flow,
                    sequence,
                    charge_end,
                    bytes: bytes.expect("small messages have 32 bits"),
                    description_bytes: u16::try_from(described).expect("descriptions are short"),
                };
                QueuedFrame {
                    description: Some(description.clone()),
                    payload: Some((Arc::clone(payload), 0, payload.bytes())),
                    ..small.into()
                }
            }
            QueuedItem::Gap => {
                let gap = Gap {
                    flow,
                    first: sequence,
                    next: message.next,
                    charge_end,
                };
                gap.into()
            }
            QueuedItem::Close => {
                let next = if self.is_cut { FLOW_ENDED } else { self.next };
                Close { flow, next }.into()
            }
        }
    }

    /// Charges an item to the window, if it was not charged yet. Returns the sum of charges after it; `None` if the window has no room.
    fn charge(&mut self, at: usize, small_max: u64, limits: &LinkLimits) -> Option<u64> {
        let message = self.queue.at_mut(at);
        if message.charge_end.is_none() {
            let bytes = message.begin_turn(small_max, limits.chunk_bytes);
            message.charge_end = self.window.charge(bytes);
        }
        message.charge_end
    }

    /// Queues the next chunk of a granted message, on the lane of its grant that has the fewest bytes in hand.
    fn send_chunk(&mut self, at: usize, payload: Arc<dyn Payload>, out: &mut Outgoing) -> Step {
        let message = self.queue.at_mut(at);
        let SendState::Granted(SendGrant { grant: of, .. }) = &message.state else {
            unreachable!("its caller looked");
        };
        let (grant, chunk, lanes, remote) = (of.grant, of.from_chunk, of.lanes, of.remote);
        let chosen = message.ready_chunk(chunk).and_then(|(from, bytes)| {
            let lane = out.free_among(lanes.as_slice(), bytes.into())?;
            Some((lane, from, bytes))
        });
        let Some((lane, from, bytes)) = chosen else {
            return Step::Next;
        };
        if let SendState::Granted(grant) = &mut message.state {
            grant.sent_on(lane);
        }
        let frame = Chunk {
            grant,
            chunk,
            bytes,
        };
        let queued = QueuedFrame {
            payload: Some((payload, from, from + bytes as usize)),
            remote,
            ..frame.into()
        };
        out.push(lane, queued);
        Step::Sent
    }
}

//! The queues of frames that lanes write, and how many bytes of payloads each lane has in hand (queued or being written).
//!
//! A lane has two queues. *Answers* (ACK, GRANT, REFUSE, ALIVE) are for the peer's sending end; they are short, their order does not
//! matter, and they overtake the messages. *Messages* leave in the order in which they were queued: so OPEN precedes its flow's
//! frames, and ABANDON follows the last chunk.

use super::frame::{Abandon, Ack, Alive, Description, Frame, Lanes, Remote, LANES_MAX};
use super::limits::LinkLimits;
use super::user::LinkOutput;
use super::LinkMachine;
use crate::payload::Payload;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// When so many frames of messages wait for a lane, flows queue no more on it until half of them have left.
const QUEUE_MAX: usize = 1024;
/// The most frames in one queue of a lane. Only a peer that causes more answers than it reads reaches that, and loses the lane.
const FRAMES_MAX: usize = 16 << 10;
/// Only the lane's own thread writes payloads above this.
const BULK_BYTES: usize = 64 << 10;
/// The most payloads that a lane has in hand if they are small.
const PAYLOADS_SMALL_MAX: usize = 32;

/// Which of the waiting frames a thread may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteLimit {
    /// Short frames, which any thread may write, since that is quick.
    Short,
    /// Also payloads that the network card reads by itself.
    Posted,
    /// All frames.
    All,
}

/// A frame to write.
pub struct QueuedFrame {
    /// The frame.
    pub frame: Frame,
    /// The description of a small message: it precedes its bytes.
    pub description: Option<Description>,
    /// Bytes of a message: its payload, the first offset, and the offset after the last.
    pub payload: Option<(Arc<dyn Payload>, usize, usize)>,
    /// Of a chunk: where the lane's card may write the peer's receive buffer directly.
    pub remote: Option<Remote>,
}

impl QueuedFrame {
    pub(crate) fn bytes(&self) -> usize {
        self.payload.as_ref().map_or(0, |(_, from, to)| to - from)
    }

    fn is_within(&self, limit: WriteLimit) -> bool {
        match limit {
            WriteLimit::Short => self.bytes() <= BULK_BYTES,
            WriteLimit::Posted => self.bytes() <= BULK_BYTES || self.remote.is_some(),
            WriteLimit::All => true,
        }
    }
}

impl<F: Into<Frame>> From<F> for QueuedFrame {
    fn from(frame: F) -> Self {
        Self {
            frame: frame.into(),
            description: None,
            payload: None,
            remote: None,
        }
    }
}

/// The frames that wait for one lane.
#[derive(Default)]
pub(super) struct LaneQueue {
    answers: VecDeque<Frame>,
    messages: VecDeque<QueuedFrame>,
    /// The length of each payload that was queued and is not written, oldest first.
    in_hand: VecDeque<u64>,
    in_hand_bytes: u64,
    /// A frame has arrived on the lane, so the peer has added it, too.
    is_confirmed: bool,
    /// [`QUEUE_MAX`] was reached, and fewer than half of the frames have left since: flows wait.
    was_full: bool,
    /// [`FRAMES_MAX`] was reached, and frames were dropped. Reported once.
    is_stuck: bool,
}

impl LaneQueue {
    fn takes(&self, bytes: u64, limits: &LinkLimits) -> bool {
        let is_small = self.in_hand_bytes + bytes <= limits.payload_bytes_max;
        self.in_hand.len() < limits.payloads_max
            || (is_small && self.in_hand.len() < PAYLOADS_SMALL_MAX)
    }
}

/// All lanes' queues, and the outputs for the user.
pub(super) struct Outgoing {
    lanes: BTreeMap<u32, LaneQueue>,
    limits: LinkLimits,
    /// Lanes that got something to write since the user took them from here.
    changed: Vec<u32>,
    outputs: VecDeque<LinkOutput>,
}

impl Outgoing {
    pub(super) fn new(limits: LinkLimits) -> Self {
        Self {
            lanes: BTreeMap::new(),
            limits: LinkLimits {
                payloads_max: limits.payloads_max.max(1),
                ..limits
            },
            changed: Vec::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Adds a lane. False if the link has [`LANES_MAX`] lanes or this one already.
    pub(super) fn add(&mut self, lane: u32) -> bool {
        if self.lanes.len() == LANES_MAX || self.lanes.contains_key(&lane) {
            return false;
        }
        self.lanes.insert(lane, LaneQueue::default());
        // The peer lists a lane in grants only once it knows by a frame that this end has it.
        self.answer(lane, Alive {});
        true
    }

    pub(super) fn remove(&mut self, lane: u32) -> bool {
        self.changed.retain(|changed| *changed != lane);
        self.lanes.remove(&lane).is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Whether there is no other lane.
    pub(super) fn is_only(&self, lane: u32) -> bool {
        self.lanes.keys().eq([&lane])
    }

    pub(super) fn has(&self, lane: u32) -> bool {
        self.lanes.contains_key(&lane)
    }

    /// A frame arrived on a lane. Returns whether it is the lane's first one; `None` if there is no such lane.
    pub(super) fn confirm(&mut self, lane: u32) -> Option<bool> {
        let queue = self.lanes.get_mut(&lane)?;
        Some(!std::mem::replace(&mut queue.is_confirmed, true))
    }

    /// The lanes that both ends are known to have; `None` if there are none.
    pub(super) fn confirmed(&self) -> Option<Lanes> {
        let mut numbers = [0; LANES_MAX];
        let confirmed = self.lanes.iter().filter(|(_, queue)| queue.is_confirmed);
        let each = numbers.iter_mut().zip(confirmed);
        let count = each.map(|(number, (lane, _))| *number = *lane).count();
        Lanes::new(&numbers[..count])
    }

    /// The lane for frames that may go through any lane.
    pub(super) fn first(&self) -> Option<u32> {
        self.lanes.keys().next().copied()
    }

    /// The lane with the fewest payloads in hand.
    pub(super) fn least_busy(&self) -> Option<u32> {
        let least = self
            .lanes
            .iter()
            .min_by_key(|(_, queue)| queue.in_hand.len());
        least.map(|(lane, _)| *lane)
    }

    /// Among these lanes, the one with the fewest bytes in hand that takes a payload of `bytes`.
    pub(super) fn free_among(&self, among: &[u32], bytes: u64) -> Option<u32> {
        let lanes = among.iter().filter_map(|lane| {
            let queue = self.lanes.get(lane)?;
            queue.takes(bytes, &self.limits).then_some((lane, queue))
        });
        let least = lanes.min_by_key(|(_, queue)| queue.in_hand_bytes);
        least.map(|(lane, _)| *lane)
    }

    pub(super) fn all_busy(&self) -> bool {
        !self
            .lanes
            .values()
            .any(|queue| queue.takes(1, &self.limits))
    }

    /// Whether flows have to wait before they queue more frames on a lane.
    pub(super) fn is_full(&self, lane: u32) -> bool {
        let queue = self.lanes.get(&lane);
        queue.is_some_and(|queue| queue.was_full)
    }

    /// Queues a frame behind the lane's messages.
    pub(super) fn push(&mut self, lane: u32, queued: impl Into<QueuedFrame>) {
        let queued = queued.into();
        let Some(queue) = self.lanes.get_mut(&lane) else {
            return;
        };
        if queue.messages.len() >= FRAMES_MAX {
            return self.report_stuck(lane);
        }
        if queued.payload.is_some() {
            let bytes = queued.frame.payload_bytes();
            queue.in_hand.push_back(bytes);
            queue.in_hand_bytes += bytes;
        }
        queue.messages.push_back(queued);
        queue.was_full |= queue.messages.len() >= QUEUE_MAX;
        self.has_changed(lane);
    }

    /// Queues an answer, which overtakes messages. An ACK replaces an ACK of the same flow right before it.
    pub(super) fn answer(&mut self, lane: u32, frame: impl Into<Frame>) {
        let frame = frame.into();
        let Some(queue) = self.lanes.get_mut(&lane) else {
            return;
        };
        let replaces = matches!(
            (&frame, queue.answers.back()),
            (Frame::Ack(Ack { flow, .. }), Some(Frame::Ack(last))) if *flow == last.flow
        );
        if replaces {
            queue.answers.pop_back();
        }
        if queue.answers.len() >= FRAMES_MAX {
            return self.report_stuck(lane);
        }
        queue.answers.push_back(frame);
        self.has_changed(lane);
    }

    /// No chunk of a grant follows on these lanes.
    pub(super) fn abandon(&mut self, grant: u64, lanes: Lanes) {
        for lane in lanes.as_slice() {
            self.push(*lane, Abandon { grant });
        }
    }

    fn has_changed(&mut self, lane: u32) {
        if !self.changed.contains(&lane) {
            self.changed.push(lane);
        }
    }

    /// Asks the user, once, to close a lane that has dropped a frame.
    fn report_stuck(&mut self, lane: u32) {
        let queue = self.lanes.get_mut(&lane);
        if queue.is_some_and(|queue| !std::mem::replace(&mut queue.is_stuck, true)) {
            self.report(LinkOutput::Stuck { lane });
        }
    }

    /// Appends an output for the user.
    pub(super) fn report(&mut self, output: LinkOutput) {
        self.outputs.push_back(output);
    }
}

/// Calls of lanes and of the runtime.
impl LinkMachine {
    /// Whether the link has a lane.
    pub fn has_lanes(&self) -> bool {
        !self.out.is_empty()
    }

    /// Queues ALIVE on a lane that has no answer waiting.
    pub fn beat(&mut self, lane: u32) {
        let queue = self.out.lanes.get(&lane);
        if queue.is_some_and(|queue| queue.answers.is_empty()) {
            self.out.answer(lane, Alive {});
        }
    }

    /// Takes a lane that got something to write since it was taken last.
    pub fn changed_lane(&mut self) -> Option<u32> {
        let changed = &mut self.out.changed;
        (!changed.is_empty()).then(|| changed.remove(0))
    }

    /// Whether lanes other than `but` got something to write since they were taken last. `but` looks for itself and is removed.
    pub fn has_changed_lanes(&mut self, but: Option<u32>) -> bool {
        let changed = &mut self.out.changed;
        changed.retain(|lane| Some(*lane) != but);
        !changed.is_empty()
    }

    /// Whether the machine has nothing for the user, for lanes or for the next tick.
    pub fn is_settled(&self) -> bool {
        let out = &self.out;
        out.outputs.is_empty() && out.changed.is_empty() && !self.awaits_tick()
    }

    /// Whether the next frame that waits for a lane is within the limit; `None` if none waits.
    pub fn waiting(&self, lane: u32, limit: WriteLimit) -> Option<bool> {
        let queue = self.out.lanes.get(&lane)?;
        let first = queue.messages.front().map(|queued| queued.is_within(limit));
        match queue.answers.is_empty() {
            true => first,
            false => Some(true),
        }
    }

    /// Takes the next frame that a lane writes. When the link's first lane takes a frame, the owed acknowledgements leave with it.
    pub fn next(&mut self, lane: u32, limit: WriteLimit) -> Option<QueuedFrame> {
        if self.out.first() == Some(lane) && self.waiting(lane, limit).is_some() {
            self.receiving.pay_all(&mut self.out);
        }
        let queue = self.out.lanes.get_mut(&lane)?;
        if let Some(frame) = queue.answers.pop_front() {
            return Some(frame.into());
        }
        if !queue.messages.front()?.is_within(limit) {
            return None;
        }
        let queued = queue.messages.pop_front()?;
        if queue.was_full && queue.messages.len() <= QUEUE_MAX / 2 {
            // Waiting flows get a turn once per many frames, and not once per frame.
            queue.was_full = false;
            self.sending.written(&mut self.out);
        }
        Some(queued)
    }

    /// A lane has written its oldest `payloads` payloads in hand.
    pub fn written(&mut self, lane: u32, payloads: usize) {
        let Some(queue) = self.out.lanes.get_mut(&lane) else {
            return;
        };
        let count = payloads.min(queue.in_hand.len());
        queue.in_hand_bytes -= queue.in_hand.drain(..count).sum::<u64>();
        if count > 0 {
            self.sending.written(&mut self.out);
        }
    }

    /// Takes the next output, which the user handles without the link's lock.
    pub fn output(&mut self) -> Option<LinkOutput> {
        self.out.outputs.pop_front()
    }
}

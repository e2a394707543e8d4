//! The sending end of a link: its flows, and their turns (round robin, one frame each).

use super::frame::{Ack, Description, Grant, Refuse, CONTROL_FLOW, FLOW_ENDED, SEQUENCE_MAX};
use super::lanes::Outgoing;
use super::limits::{LinkLimits, FLOWS_MAX};
use super::send_flow::SendFlow;
use super::user::{FlowEvent, LinkOutput};
use super::values::Checked;
use super::LinkMachine;
use crate::payload::Payload;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The control flow takes no message while it retains so many bytes.
const CONTROL_RETAINED_MAX: u64 = 64 << 20;

/// The sending end.
#[derive(Default)]
pub(super) struct SendSide {
    limits: LinkLimits,
    flows: BTreeMap<u64, SendFlow>,
    /// The number of the flow that was opened last; 0 before the first.
    last: u64,
    /// The first window of each flow, from the peer's HELLO; `None` before the first lane.
    first_window: Option<u32>,
    /// Flows that may have something to send, in the order of their turns.
    runnable: VecDeque<u64>,
    /// Flows that have something to send and wait for a lane, a window or a grant.
    starved: BTreeSet<u64>,
    /// Counts messages that were resent because a lost lane may have taken them.
    pub(super) resent: u64,
}

/// Calls of the user for flows that it sends.
impl LinkMachine {
    /// Opens a flow whose first message is `first`; `description` goes to the receiver's user. Returns the flow's number; `None` if there
    /// are [`FLOWS_MAX`] already, or `first` is too large.
    pub fn open(&mut self, first: u64, description: Description) -> Option<u64> {
        let of = &mut self.sending;
        if of.flows.len() > FLOWS_MAX || first > SEQUENCE_MAX {
            return None;
        }
        of.last += 1;
        let (number, window) = (of.last, of.first_window.unwrap_or(0));
        let flow = SendFlow::new(number, first, description, window.into());
        of.flows.insert(number, flow);
        of.wake(number);
        of.pump(&mut self.out);
        Some(number)
    }

    /// Opens a flow that waits since a restart: the new peer gets this description and the messages that the flow retains.
    pub fn reopen(&mut self, flow: u64, description: Description) {
        self.change_flow(flow, |of, _| of.reopen(description));
    }

    /// Sends a message of a flow. The flow retains it until it is acknowledged or cancelled; the user limits how many that may be. The
    /// bytes stay in place and unchanged until the last clone of `payload` is dropped. False if the message can never be sent: the flow
    /// is closed or refused, the message too large or empty, or its sequence below the flow's next one.
    pub fn send(
        &mut self,
        flow: u64,
        sequence: u64,
        payload: Arc<dyn Payload>,
        description: Description,
    ) -> bool {
        let sent = self.change_flow(flow, |of, _| of.push(sequence, payload, description));
        sent == Some(true)
    }

    /// Sends the next message of the control flow, which is always open. False if too many bytes of the flow are unacknowledged, or the
    /// message is empty or too large.
    pub fn say(&mut self, message: Arc<dyn Payload>) -> bool {
        let sent = self.change_flow(CONTROL_FLOW, |control, _| {
            let has_room = control.retained < CONTROL_RETAINED_MAX;
            has_room && control.push(control.next, message, Description::default())
        });
        sent == Some(true)
    }

    /// The first `ready` bytes of a growing message are complete.
    pub fn ready(&mut self, flow: u64, sequence: u64, ready: u64) {
        self.change_flow(flow, |of, _| of.ready(sequence, ready));
    }

    /// Gives up a message that is not acknowledged: the receiver gets a gap, unless it has the message already. Returns the payload, to
    /// be dropped without the lock; `None` if there is no such message.
    pub fn cancel(&mut self, flow: u64, sequence: u64) -> Option<Arc<dyn Payload>> {
        self.change_flow(flow, |of, out| of.cancel(sequence, out))?
    }

    /// Gives up all messages of a flow. Returns their payloads, to be dropped without the lock.
    pub fn cancel_all(&mut self, flow: u64) -> Vec<Arc<dyn Payload>> {
        let cancelled = self.change_flow(flow, SendFlow::cancel_all);
        cancelled.unwrap_or_default()
    }

    /// Payload bytes of all messages that are not acknowledged.
    pub fn retained_bytes(&self) -> u64 {
        self.sending.flows.values().map(|flow| flow.retained).sum()
    }

    /// Tells the receiver that the numbers below `next` that were not sent will never arrive.
    pub fn skip(&mut self, flow: u64, next: u64) {
        self.change_flow(flow, |of, _| of.skip(next));
    }

    /// Closes a flow after its last message. [`FlowEvent::Ended`] follows when the receiver has all of it.
    pub fn close(&mut self, flow: u64) {
        self.change_flow(flow, |of, _| of.close());
    }

    /// Ends a flow at once. The receiver drops the messages that have not had their turn, without a gap, and closes the flow at its
    /// position. Returns the payloads, to be dropped without the lock.
    pub fn cut(&mut self, flow: u64) -> Vec<Arc<dyn Payload>> {
        if flow == CONTROL_FLOW {
            return Vec::new();
        }
        let dropped = self.change_flow(flow, SendFlow::cut).flatten();
        if self.sent(flow).is_some_and(SendFlow::is_waiting) {
            // The new peer does not know the flow, so there is no answer to wait for.
            self.end_flow(flow);
        }
        let dropped = dropped.unwrap_or_default().into_iter();
        dropped.map(|(_, payload)| payload).collect()
    }

    /// A flow that this end opened and that has not ended.
    pub fn sent(&self, number: u64) -> Option<&SendFlow> {
        self.sending.flows.get(&number)
    }

    /// Changes a flow that has not ended, then sends what can be sent.
    fn change_flow<T>(
        &mut self,
        number: u64,
        act: impl FnOnce(&mut SendFlow, &mut Outgoing) -> T,
    ) -> Option<T> {
        let flow = self.sending.flows.get_mut(&number)?;
        let result = act(flow, &mut self.out);
        self.sending.wake(number);
        self.sending.pump(&mut self.out);
        Some(result)
    }

    fn end_flow(&mut self, number: u64) {
        self.sending.flows.remove(&number);
        self.sending.starved.remove(&number);
        self.out
            .report(LinkOutput::Flow(FlowEvent::Ended { flow: number }));
    }
}

/// Handles frames for the sending end. The caller calls `pump` afterwards.
impl LinkMachine {
    pub(super) fn ack_arrived(&mut self, ack: &Ack) -> Checked<()> {
        let first_window = self.sending.first_window.unwrap_or(0).into();
        if let Some(flow) = self.sending.named(ack.flow)? {
            flow.acknowledge(ack, first_window, &mut self.out)?;
            if ack.next == FLOW_ENDED {
                self.end_flow(ack.flow);
            }
            self.sending.wake(ack.flow);
        }
        Ok(())
    }

    pub(super) fn grant_arrived(&mut self, grant: &Grant) -> Checked<()> {
        let mut lanes = grant.lanes.as_slice().iter();
        let is_open = lanes.any(|lane| self.out.has(*lane));
        let is_used = match self.sending.named(grant.flow)? {
            Some(flow) => flow.grant(grant, is_open)?,
            None => false,
        };
        if !is_used {
            self.out.abandon(grant.grant, grant.lanes);
        }
        self.sending.wake(grant.flow);
        Ok(())
    }

    pub(super) fn refuse_arrived(&mut self, refuse: &Refuse) -> Checked<()> {
        let number = refuse.flow;
        let flow = self.sending.named(number)?;
        if let Some(dropped) = flow.and_then(|flow| flow.cut(&mut self.out)) {
            let (flow, why) = (number, refuse.why.clone());
            let event = FlowEvent::Refused { flow, why, dropped };
            self.out.report(LinkOutput::Flow(event));
            self.sending.wake(number);
        }
        Ok(())
    }
}

impl SendSide {
    pub(super) fn new(limits: LinkLimits) -> Self {
        Self {
            limits,
            flows: BTreeMap::from([(CONTROL_FLOW, SendFlow::control())]),
            ..Self::default()
        }
    }

    /// The peer has restarted: flows wait until they are reopened, and those that were cut have ended. Returns the old control flow, to
    /// be dropped without the lock.
    pub(super) fn restart(&mut self, out: &mut Outgoing) -> Option<SendFlow> {
        self.first_window = None;
        self.runnable.clear();
        self.starved.clear();
        self.flows.retain(|number, flow| {
            if flow.is_cut {
                out.report(LinkOutput::Flow(FlowEvent::Ended { flow: *number }));
            }
            !flow.is_cut
        });
        self.flows.values_mut().for_each(SendFlow::restart);
        self.flows.insert(CONTROL_FLOW, SendFlow::control())
    }

    /// A lane was added. False if an earlier HELLO of this peer named another first window.
    pub(super) fn lane_up(&mut self, first_window: u32, out: &mut Outgoing) -> bool {
        if *self.first_window.get_or_insert(first_window) != first_window {
            return false;
        }
        for flow in self.flows.values_mut() {
            flow.window.raise(first_window.into());
        }
        self.wake_all();
        self.pump(out);
        true
    }

    pub(super) fn lane_ended(&mut self, lane: u32, out: &mut Outgoing) {
        for flow in self.flows.values_mut() {
            self.resent += flow.lane_ended(lane, out);
        }
        self.wake_all();
        self.pump(out);
    }

    /// A lane has room again: the starved flows get a turn.
    pub(super) fn written(&mut self, out: &mut Outgoing) {
        while let Some(number) = self.starved.pop_first() {
            self.wake(number);
        }
        self.pump(out);
    }

    /// The flow that a frame names; `None` if it has ended.
    fn named(&mut self, number: u64) -> Checked<Option<&mut SendFlow>> {
        if number > self.last {
            return Err("there was no such flow");
        }
        match self.flows.get_mut(&number) {
            Some(flow) => flow.confirm().map(|()| Some(flow)),
            None => Ok(None),
        }
    }

    /// Queues all frames that can be sent: the runnable flows queue one each in turn.
    pub(super) fn pump(&mut self, out: &mut Outgoing) {
        // Nothing can leave without a lane, and the first window comes with the first lane.
        let Some(window) = self.first_window.filter(|_| !out.is_empty()) else {
            return;
        };
        let small_max = u64::from(window.min(self.limits.small_bytes_max));
        while let Some(number) = self.runnable.pop_front() {
            let Some(flow) = self.flows.get_mut(&number) else {
                continue;
            };
            flow.is_runnable = false;
            let has_sent = flow.step(&self.limits, small_max, out);
            match (has_sent, flow.queue.has_work() || flow.is_unopened()) {
                (true, true) => self.wake(number),
                (false, true) => {
                    self.starved.insert(number);
                }
                (_, false) => {}
            }
        }
    }

    fn wake(&mut self, number: u64) {
        let flow = self.flows.get_mut(&number);
        if flow.is_some_and(SendFlow::becomes_runnable) {
            self.runnable.push_back(number);
        }
    }

    fn wake_all(&mut self) {
        self.starved.clear();
        let flows = self.flows.iter_mut();
        let woken = flows.filter_map(|(number, flow)| flow.becomes_runnable().then_some(*number));
        self.runnable.extend(woken);
    }
}

//! All flows that a link sends.

use super::frame::{Description, Frame, Lanes, Remote, CONTROL_FLOW, FLOW_ENDED, SEQUENCE_MAX};
use super::lanes::Outgoing;
use super::limits::SendConfig;
use super::limits::FLOWS_MAX;
use super::send_flow::{abandon, SendFlow};
use super::send_message::{QueuedItem, SendGrant, SendMessage, SendState};
use super::user::{violation, FlowEvent, ProtocolViolation};
use crate::payload::Payload;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Bytes that the control flow retains, but for its last message.
const CONTROL_RETAINED_MAX: u64 = 64 << 20;

/// The sending end.
pub(super) struct SendSide {
    config: SendConfig,
    flows: BTreeMap<u64, SendFlow>,
    /// The number of the flow that was opened last.
    last: u64,
    /// The first window of each flow, from the peer's HELLO.
    first_window: Option<u32>,
    /// Flows that may have something to send, in turn.
    runnable: VecDeque<u64>,
    /// Flows that have something, for which lanes or windows had no room.
    starved: BTreeSet<u64>,
    /// Memory for messages that are acknowledged at once.
    done: VecDeque<SendMessage>,
    /// Messages that may have left on a lane that is lost, and are sent again.
    pub(super) resent: u64,
}

impl SendSide {
    pub(super) fn new(config: SendConfig) -> Self {
        Self {
            config,
            flows: BTreeMap::from([(CONTROL_FLOW, SendFlow::control())]),
            last: CONTROL_FLOW,
            first_window: None,
            runnable: VecDeque::new(),
            starved: BTreeSet::new(),
            done: VecDeque::new(),
            resent: 0,
        }
    }

    /// A flow that begins. Its number; `None` if there are [`FLOWS_MAX`] already.
    pub(super) fn open(
        &mut self,
        first: u64,
        description: Description,
        out: &mut Outgoing,
    ) -> Option<u64> {
        if self.flows.len() > FLOWS_MAX || first > SEQUENCE_MAX {
            return None;
        }
        self.last += 1;
        let window = self.first_window.unwrap_or(0);
        let flow = SendFlow::new(self.last, first, description, window.into());
        self.flows.insert(self.last, flow);
        self.wake(self.last);
        self.pump(out);
        Some(self.last)
    }

    /// The peer is another one: flows wait until they are opened again, and those that were cut are over. The former control flow, to
    /// be dropped without the lock.
    pub(super) fn restart(&mut self, out: &mut Outgoing) -> Option<SendFlow> {
        self.first_window = None;
        self.runnable.clear();
        self.starved.clear();
        self.flows.retain(|number, flow| {
            if flow.is_cut {
                out.report_flow(FlowEvent::Ended { flow: *number });
            }
            !flow.is_cut
        });
        self.flows.values_mut().for_each(SendFlow::restart);
        self.flows.insert(CONTROL_FLOW, SendFlow::control())
    }

    /// A flow that has not ended.
    pub(super) fn get(&self, number: u64) -> Option<&SendFlow> {
        self.flows.get(&number)
    }

    /// Changes a flow, which has its turn then.
    pub(super) fn change<T>(
        &mut self,
        number: u64,
        out: &mut Outgoing,
        act: impl FnOnce(&mut SendFlow, &mut Outgoing) -> T,
    ) -> Option<T> {
        let result = act(self.flows.get_mut(&number)?, out);
        self.wake(number);
        self.pump(out);
        Some(result)
    }

    pub(super) fn say(&mut self, said: Arc<dyn Payload>, out: &mut Outgoing) -> bool {
        let said = self.change(CONTROL_FLOW, out, |control, _| {
            let has_room = control.retained < CONTROL_RETAINED_MAX;
            has_room && control.push(control.next, said, Description::default())
        });
        said == Some(true)
    }

    /// Ends a flow before what has not had its turn at the receiver. The payloads of all that was retained.
    pub(super) fn cut(&mut self, number: u64, out: &mut Outgoing) -> Vec<Arc<dyn Payload>> {
        if number == CONTROL_FLOW {
            return Vec::new();
        }
        let dropped = self.change(number, out, SendFlow::cut).flatten();
        if self.get(number).is_some_and(|flow| flow.is_waiting) {
            // The peer never heard of it.
            self.flows.remove(&number);
            out.report_flow(FlowEvent::Ended { flow: number });
        }
        let dropped = dropped.unwrap_or_default().into_iter();
        dropped.map(|(_, payload)| payload).collect()
    }

    /// Bytes of messages that are not acknowledged.
    pub(super) fn retained_bytes(&self) -> u64 {
        self.flows.values().map(|flow| flow.retained).sum()
    }

    /// A lane is there; the peer's HELLO named this first window. False if another lane's named another.
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
        let mut left = Vec::new();
        for flow in self.flows.values_mut() {
            self.resent += flow.lane_ended(lane, |lane| out.has(lane), &mut left);
        }
        for (grant, lanes) in left {
            abandon(grant, lanes, out);
        }
        self.wake_all();
        self.pump(out);
    }

    /// A lane has written something, so lanes have room.
    pub(super) fn written(&mut self, out: &mut Outgoing) {
        self.wake_starved();
        self.pump(out);
    }

    /// A frame for this end.
    pub(super) fn frame(
        &mut self,
        frame: &Frame,
        out: &mut Outgoing,
    ) -> Result<(), ProtocolViolation> {
        match *frame {
            Frame::Ack { flow, next, limit } => self.acknowledged(flow, next, limit, out)?,
            Frame::Grant {
                flow,
                sequence,
                grant,
                from_chunk,
                lanes,
                remote,
            } => self.granted(flow, sequence, grant, (from_chunk, lanes, remote), out)?,
            Frame::Refuse { flow, ref why } => self.refused(flow, why, out)?,
            _ => return Err(violation(frame.name(), "it is not for the sending end")),
        }
        self.pump(out);
        Ok(())
    }

    /// A flow that a frame names; `None` if it has ended.
    fn flow(
        &mut self,
        number: u64,
        frame: &'static str,
    ) -> Result<Option<&mut SendFlow>, ProtocolViolation> {
        if number > self.last {
            return Err(violation(frame, "there was no such flow"));
        }
        match self.flows.get_mut(&number) {
            Some(flow) => flow.confirm(frame).map(|()| Some(flow)),
            None => Ok(None),
        }
    }

    fn acknowledged(
        &mut self,
        number: u64,
        next: u64,
        limit: u64,
        out: &mut Outgoing,
    ) -> Result<(), ProtocolViolation> {
        let mut done = std::mem::take(&mut self.done);
        let first_window = self.first_window.unwrap_or(0);
        let Some(flow) = self.flow(number, "Ack")? else {
            return Ok(());
        };
        flow.acknowledge(next, limit, &mut done)?;
        if flow.accepts(limit, first_window.into()) {
            out.report_flow(FlowEvent::Accepted { flow: number });
        }
        for message in done.drain(..) {
            if let (SendState::Granted(grant), true) = (&message.state, message.has_work()) {
                abandon(grant.grant, grant.lanes, out);
            }
            if let QueuedItem::Message { payload, .. } = message.item {
                out.report_flow(FlowEvent::Acknowledged {
                    flow: number,
                    sequence: message.first,
                    payload,
                });
            }
        }
        self.done = done;
        if next == FLOW_ENDED {
            self.flows.remove(&number);
            self.starved.remove(&number);
            out.report_flow(FlowEvent::Ended { flow: number });
            return Ok(());
        }
        self.wake(number);
        Ok(())
    }

    fn granted(
        &mut self,
        number: u64,
        sequence: u64,
        grant: u64,
        (from_chunk, lanes, remote): (u32, Lanes, Option<Remote>),
        out: &mut Outgoing,
    ) -> Result<(), ProtocolViolation> {
        let is_open = lanes.as_slice().iter().any(|lane| out.has(*lane));
        let is_used = match self.flow(number, "Grant")? {
            Some(flow) => {
                let new = SendGrant::new(grant, lanes, remote, from_chunk);
                flow.grant(sequence, new, is_open)?
            }
            None => false,
        };
        if !is_used {
            abandon(grant, lanes, out);
        }
        self.wake(number);
        Ok(())
    }

    fn refused(
        &mut self,
        number: u64,
        why: &Description,
        out: &mut Outgoing,
    ) -> Result<(), ProtocolViolation> {
        let Some(flow) = self.flow(number, "Refuse")? else {
            return Ok(());
        };
        let Some(dropped) = flow.cut(out) else {
            return Ok(());
        };
        out.report_flow(FlowEvent::Refused {
            flow: number,
            why: why.clone(),
            dropped,
        });
        self.wake(number);
        Ok(())
    }

    /// Sends what can be sent, one frame of each flow after the other.
    fn pump(&mut self, out: &mut Outgoing) {
        // Without lanes there is no window either.
        let Some(window) = self.first_window.filter(|_| !out.is_empty()) else {
            return;
        };
        let small_max = u64::from(window.min(self.config.small_bytes_max));
        while let Some(number) = self.runnable.pop_front() {
            let Some(flow) = self.flows.get_mut(&number) else {
                continue;
            };
            flow.is_runnable = false;
            let has_sent = flow.step(&self.config, small_max, out);
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

    fn wake_starved(&mut self) {
        while let Some(number) = self.starved.pop_first() {
            self.wake(number);
        }
    }

    fn wake_all(&mut self) {
        self.starved.clear();
        for (number, flow) in &mut self.flows {
            if flow.becomes_runnable() {
                self.runnable.push_back(*number);
            }
        }
    }
}

//! The receiving end of a link: its flows, their deliveries, buffers and acknowledgements.

use super::buffer::WriteRange;
use super::flow_numbers::FlowNumbers;
use super::frame::{
    Ack, Close, Description, Gap, Open, Refuse, Request, Small, CONTROL_FLOW, FLOW_ENDED,
};
use super::grants::{settle, Grant, Grants};
use super::lanes::Outgoing;
use super::limits::{LinkLimits, FLOWS_MAX};
use super::receive_flow::{ReceiveFlow, SmallOutcome};
use super::user::{FlowReceiver, LinkOutput, ProtocolViolation, RemoteOf, Turn};
use super::values::Checked;
use super::{LinkHeld, LinkMachine};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// What a lane has to do after it passed a frame to the machine.
#[derive(Debug)]
pub enum FrameStep {
    /// Nothing. The machine has taken the bytes that followed the frame, or does not need them.
    Done,
    /// Write the chunk's bytes into this range, and report [`WriteRange::landed`].
    Chunk(WriteRange),
    /// Deliver the small message whose bytes followed the frame, and report [`super::LinkMachine::delivered`]. If the user cannot take
    /// it now, give it back as [`Turn::Small`], or as [`Turn::Large`] if it is in a receive buffer.
    Deliver(Small),
}

/// The receiving end.
pub(super) struct ReceiveSide {
    limits: LinkLimits,
    flows: BTreeMap<u64, ReceiveFlow>,
    /// Flows that the user refused, and why. Each stays until its sender answers REFUSE.
    refused: BTreeMap<u64, Description>,
    /// The numbers of all flows that the peer has opened, also of those that have ended.
    opened: FlowNumbers,
    pub(super) grants: Grants,
    /// Flows that the next [`LinkMachine::flush`] looks at: they may have an acknowledgement due or a message that waits for a buffer.
    active: Vec<u64>,
    /// Flows for which the user had no buffer or could not take a delivery. [`LinkMachine::buffer_free`] and the tick ask it again; frames
    /// do not.
    stalled: Vec<u64>,
    /// Flows that owe their senders an acknowledgement that is not due.
    owed: Vec<u64>,
    /// Counts small messages that arrived again.
    pub(super) duplicates: u64,
}

/// Calls of the user for flows that arrive.
impl LinkMachine {
    /// Refuses the rest of a flow that arrives; `why` goes to its sender. A turn that is out for delivery is not delivered again. False
    /// if there is no such flow, or it is the control flow.
    pub fn refuse(&mut self, flow: u64, why: Description) -> bool {
        if flow == CONTROL_FLOW {
            return false;
        }
        let Some(of) = self.receiving.flows.remove(&flow) else {
            return false;
        };
        if of.is_cut {
            // Its sender has ended it and waits for the answer to CLOSE, not for a refusal.
            self.answer_close(flow, of);
            return true;
        }
        if let Some(lane) = self.out.first() {
            let why = why.clone();
            self.out.answer(lane, Refuse { flow, why });
        }
        self.receiving.refused.insert(flow, why);
        true
    }

    /// The user has handled the flow's turn that was out for delivery. `Err`: it could not take the turn, which is delivered again later.
    ///
    /// # Panics
    /// If no turn of the flow was out.
    pub fn delivered(&mut self, flow: u64, outcome: Result<(), Turn>) {
        // A flow that was refused meanwhile is not in the table.
        let Some(of) = self.receiving.flows.get_mut(&flow) else {
            return;
        };
        if let Err(turn) = outcome {
            of.give_back(turn);
            self.receiving.stalled.push(flow);
            return;
        }
        if of.delivered() {
            let of = self.receiving.flows.remove(&flow);
            of.into_iter().for_each(|of| self.answer_close(flow, of));
            return;
        }
        if !of.debt.is_due && !std::mem::replace(&mut of.is_owed, true) {
            self.receiving.owed.push(flow);
        }
        self.receiving.activate(flow);
        self.advance(flow);
        self.flush();
    }

    /// The last chunk of a grant has landed.
    pub fn landed(&mut self, grant: u64) {
        if let Some(ended) = self.receiving.grants.take_whole(grant) {
            self.grant_ended(grant, ended);
            self.flush();
        }
    }

    /// The user may have receive buffers again, or be able to take deliveries that it could not take: asks it again.
    pub fn buffer_free(&mut self) {
        for flow in std::mem::take(&mut self.receiving.stalled) {
            let Some(of) = self.receiving.flows.get_mut(&flow) else {
                continue;
            };
            of.is_starved = false;
            if let Some(turn) = of.back_pressured.take() {
                self.out.report(LinkOutput::Deliver { flow, turn });
            }
            self.receiving.activate(flow);
        }
        self.flush();
    }

    /// Whether a turn is out for delivery, so that [`LinkMachine::delivered`] has to follow.
    pub fn is_delivering(&self) -> bool {
        let mut flows = self.receiving.flows.values();
        flows.any(ReceiveFlow::is_delivering)
    }

    /// What the receiving end holds, for reports and tests.
    pub fn held(&self) -> LinkHeld {
        let of = &self.receiving;
        LinkHeld {
            flows: of.flows.len() - 1 + of.refused.len(),
            large: of.flows.values().map(|of| of.held_large().0).sum(),
            grants: of.grants.len(),
        }
    }

    /// A lane ended: no chunk of a grant follows on it, and the answers that it may have lost are sent again.
    pub(super) fn receive_without(&mut self, lane: u32) {
        self.end_grants(lane, 0..=u64::MAX);
        self.receiving.lane_ended(lane, &mut self.out);
        self.flush();
    }

    /// No chunk of these grants follows on a lane.
    fn end_grants(&mut self, lane: u32, of: RangeInclusive<u64>) {
        for (number, ended) in self.receiving.grants.leave(lane, of) {
            self.grant_ended(number, ended);
        }
    }

    /// Hands out the flow's next turn, if there is one and none is out.
    fn advance(&mut self, flow: u64) {
        let Some(of) = self.receiving.flows.get_mut(&flow) else {
            return;
        };
        match of.next_turn() {
            Ok(Some(turn)) => self.out.report(LinkOutput::Deliver { flow, turn }),
            Ok(None) => {}
            Err(what) => {
                let frame = "earlier frame";
                self.out
                    .report(LinkOutput::Violation(ProtocolViolation { frame, what }));
            }
        }
        if of.debt.is_due {
            self.receiving.activate(flow);
        }
    }

    /// For all active flows: sends acknowledgements that are due, and gives buffers to messages that wait for them.
    pub(super) fn flush(&mut self) {
        if self.out.is_empty() {
            return;
        }
        while let Some(flow) = self.receiving.active.pop() {
            let Some(of) = self.receiving.flows.get_mut(&flow) else {
                continue;
            };
            of.is_active = false;
            if of.debt.is_due {
                of.acknowledge(flow, false, &mut self.out);
            }
            if of.is_starved {
                continue;
            }
            let has_landed = self.receiving.grants.give(of, &mut self.out);
            if of.is_starved {
                self.receiving.stalled.push(flow);
            }
            if has_landed {
                self.advance(flow);
            }
        }
    }

    fn grant_ended(&mut self, number: u64, grant: Grant) {
        let flow = grant.flow();
        if let Some(of) = self.receiving.flows.get_mut(&flow) {
            settle(of, number, grant);
            self.receiving.activate(flow);
            self.advance(flow);
        }
    }

    /// Answers the CLOSE of a flow that has ended, on each lane that brought it.
    fn answer_close(&mut self, flow: u64, of: ReceiveFlow) {
        for lane in of.close_lanes {
            self.out.answer(lane, ended(flow));
        }
    }
}

/// Handles frames for the receiving end. The caller calls `flush` afterwards.
impl LinkMachine {
    pub(super) fn small_arrived(
        &mut self,
        small: &Small,
        payload: &[u8],
        lane: u32,
    ) -> Checked<FrameStep> {
        let (flow, bytes) = (small.flow, small.bytes as usize);
        assert_eq!(payload.len(), bytes, "the payload of the frame");
        let Some(of) = self.open_flow(flow, lane)? else {
            return Ok(FrameStep::Done);
        };
        match of.small(small, payload)? {
            SmallOutcome::Deliver => return Ok(FrameStep::Deliver(small.clone())),
            SmallOutcome::Waits => {}
            SmallOutcome::Duplicate => {
                self.receiving.duplicates += 1;
                self.receiving.activate(flow);
            }
        }
        Ok(FrameStep::Done)
    }

    pub(super) fn request_arrived(&mut self, request: &Request, lane: u32) -> Checked<()> {
        if let Some(of) = self.open_flow(request.flow, lane)? {
            of.request(request)?;
            self.receiving.activate(request.flow);
        }
        Ok(())
    }

    pub(super) fn abandon_arrived(&mut self, grant: u64, lane: u32) -> Checked<()> {
        if !self.receiving.grants.was_given(grant) {
            return Err("there was no such grant");
        }
        self.end_grants(lane, grant..=grant);
        Ok(())
    }

    pub(super) fn gap_arrived(&mut self, gap: &Gap, lane: u32) -> Checked<()> {
        if let Some(of) = self.open_flow(gap.flow, lane)? {
            of.gap(gap)?;
            self.advance(gap.flow);
        }
        Ok(())
    }

    pub(super) fn open_arrived(&mut self, open: &Open, lane: u32) -> Checked<()> {
        let flow = open.flow;
        if self.receiving.opened.contains(flow) {
            if let Some(of) = self.open_flow(flow, lane)? {
                of.debt.is_due = true;
                self.receiving.activate(flow);
            }
            return Ok(());
        }
        let of = &mut self.receiving;
        // `flows` contains the control flow, which does not count.
        if of.flows.len() + of.refused.len() > FLOWS_MAX || !of.opened.insert(flow) {
            return Err("there are too many flows");
        }
        let opening = Turn::Opened {
            first: open.first,
            description: open.description.clone(),
        };
        let new = ReceiveFlow::new(of.limits, open.first, Some(opening));
        of.flows.insert(flow, new);
        self.advance(flow);
        Ok(())
    }

    pub(super) fn close_arrived(&mut self, close: &Close, lane: u32) -> Checked<()> {
        let Close { flow, next } = *close;
        if next == FLOW_ENDED {
            // Any other CLOSE left before REFUSE arrived. If it were answered, the sender would take all messages for delivered.
            self.receiving.refused.remove(&flow);
        }
        let Some(of) = self.flow(flow, lane)? else {
            return Ok(());
        };
        match next {
            FLOW_ENDED => of.cut(),
            _ => of.close(next)?,
        }
        if !of.close_lanes.contains(&lane) {
            of.close_lanes.push(lane);
        }
        self.advance(flow);
        Ok(())
    }

    /// The flow that a frame names; `None` if it was refused or has ended. If it has ended, answers so again on the lane that brought the
    /// frame, since the sender may not know it.
    fn flow(&mut self, flow: u64, lane: u32) -> Checked<Option<&mut ReceiveFlow>> {
        match self.receiving.flows.get_mut(&flow) {
            Some(of) => return Ok(Some(of)),
            None if self.receiving.refused.contains_key(&flow) => {}
            None if self.receiving.opened.contains(flow) => self.out.answer(lane, ended(flow)),
            None => return Err("its flow is not open"),
        }
        Ok(None)
    }

    /// Like `flow`, but also `None` for a flow that its sender has cut and whose user has not got the end yet.
    fn open_flow(&mut self, flow: u64, lane: u32) -> Checked<Option<&mut ReceiveFlow>> {
        Ok(self.flow(flow, lane)?.filter(|of| !of.is_cut))
    }
}

impl ReceiveSide {
    pub(super) fn new(
        limits: LinkLimits,
        user: Arc<dyn FlowReceiver>,
        remote: Arc<RemoteOf>,
    ) -> Self {
        let mut control = ReceiveFlow::new(limits, 0, None);
        control.is_active = true;
        Self {
            limits,
            flows: BTreeMap::from([(CONTROL_FLOW, control)]),
            refused: BTreeMap::new(),
            opened: FlowNumbers::default(),
            grants: Grants::new(user, remote),
            active: vec![CONTROL_FLOW],
            stalled: Vec::new(),
            owed: Vec::new(),
            duplicates: 0,
        }
    }

    /// The peer has restarted and has opened no flow. Returns what arrived from the old peer, to be dropped without the lock.
    pub(super) fn restart(&mut self) -> Self {
        let (user, remote) = (
            Arc::clone(&self.grants.user),
            Arc::clone(&self.grants.remote),
        );
        let next = Self {
            duplicates: self.duplicates,
            ..Self::new(self.limits, user, remote)
        };
        std::mem::replace(self, next)
    }

    /// Sends REFUSE again for all refused flows, since a lane may have lost it.
    pub(super) fn report_refused(&self, lane: u32, out: &mut Outgoing) {
        for (&flow, why) in &self.refused {
            let why = why.clone();
            out.answer(lane, Refuse { flow, why });
        }
    }

    fn lane_ended(&mut self, lane: u32, out: &mut Outgoing) {
        for (flow, of) in &mut self.flows {
            of.lane_ended(lane);
            if of.debt.is_due && !std::mem::replace(&mut of.is_active, true) {
                self.active.push(*flow);
            }
        }
        if let Some(lane) = out.first() {
            self.report_refused(lane, out);
            self.grants.report_again(lane, out);
        }
    }

    /// Sends all owed acknowledgements with the other frames that leave now.
    pub(super) fn pay_all(&mut self, out: &mut Outgoing) {
        while let Some(flow) = self.owed.pop() {
            self.pay(flow, true, out);
        }
    }

    /// Sends the owed acknowledgements that have waited long enough.
    pub(super) fn pay_late(&mut self, out: &mut Outgoing) {
        let mut at = 0;
        while let Some(&flow) = self.owed.get(at) {
            let of = self.flows.get_mut(&flow);
            if of.is_some_and(|of| of.debt.lets_wait()) {
                at += 1;
                continue;
            }
            self.owed.swap_remove(at);
            self.pay(flow, false, out);
        }
    }

    fn pay(&mut self, flow: u64, with_others: bool, out: &mut Outgoing) {
        if let Some(of) = self.flows.get_mut(&flow) {
            of.is_owed = false;
            of.acknowledge(flow, with_others, out);
        }
    }

    /// Whether the next tick has something to do.
    pub(super) fn awaits_tick(&self) -> bool {
        !(self.owed.is_empty() && self.stalled.is_empty())
    }

    fn activate(&mut self, flow: u64) {
        if let Some(of) = self.flows.get_mut(&flow) {
            if !std::mem::replace(&mut of.is_active, true) {
                self.active.push(flow);
            }
        }
    }
}

/// The answer to frames of a flow that has ended.
fn ended(flow: u64) -> Ack {
    Ack {
        flow,
        next: FLOW_ENDED,
        limit: 0,
    }
}

//! All flows that a link receives.

use super::buffer::WriteRange;
use super::flow_numbers::FlowNumbers;
use super::frame::{Description, Frame, CONTROL_FLOW, FLOW_ENDED};
use super::granting::{settle, Granting};
use super::grants::Grant;
use super::lanes::Outgoing;
use super::limits::ReceiveConfig;
use super::limits::FLOWS_MAX;
use super::receive_flow::{ReceiveFlow, SmallOutcome};
use super::receive_message::Request;
use super::user::{violation, LinkOutput, LinkUser, ProtocolViolation, Turn};
use super::LinkHeld;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a lane does after a frame.
#[derive(Debug)]
pub enum FrameStep {
    /// Nothing. Bytes that followed the frame are not needed.
    Done,
    /// Write the chunk's bytes into this range, and report [`WriteRange::landed`].
    Chunk(WriteRange),
    /// Deliver the small message whose bytes followed the frame, and report [`super::LinkMachine::delivered`]. If it cannot be delivered
    /// now, give it back as [`Turn::Small`].
    Deliver {
        /// The flow.
        flow: u64,
        /// The message.
        sequence: u64,
        /// Bytes of the description, which precede the message's.
        description_bytes: u16,
    },
}

/// A flow that the user refused. It stays until its sender has closed it.
struct RefusedFlow {
    why: Description,
    reported_on: Option<u32>,
}

/// Where a flow that a frame names stands.
enum Standing<'a> {
    Open(&'a mut ReceiveFlow),
    /// Its sender has ended it, and its user does not know yet.
    Cut(&'a mut ReceiveFlow),
    Refused,
    Ended,
}

/// The receiving end.
pub(super) struct ReceiveSide {
    config: ReceiveConfig,
    flows: BTreeMap<u64, ReceiveFlow>,
    refused: BTreeMap<u64, RefusedFlow>,
    opened: FlowNumbers,
    pub(super) granting: Granting,
    /// Flows that have an acknowledgement due or wait for a buffer, and that are to be looked at.
    active: Vec<u64>,
    /// Flows for which the user had no buffer; it is not asked again for each frame.
    starved: Vec<u64>,
    /// Flows of which something could not be delivered.
    back_pressured: Vec<u64>,
    /// Flows whose sender is owed an acknowledgement that is not due.
    owed: Vec<u64>,
    /// Messages that arrived again.
    pub(super) duplicates: u64,
}

impl ReceiveSide {
    pub(super) fn new(config: ReceiveConfig, user: Arc<dyn LinkUser>) -> Self {
        let mut control = ReceiveFlow::new(config, 0, None);
        control.listed.active = true;
        Self {
            config,
            flows: BTreeMap::from([(CONTROL_FLOW, control)]),
            refused: BTreeMap::new(),
            opened: FlowNumbers::default(),
            granting: Granting::new(user),
            active: vec![CONTROL_FLOW],
            starved: Vec::new(),
            back_pressured: Vec::new(),
            owed: Vec::new(),
            duplicates: 0,
        }
    }

    /// The peer is another one, which has opened nothing. What arrived of the former, to be dropped without the lock.
    pub(super) fn restart(&mut self) -> Self {
        let next = Self {
            duplicates: self.duplicates,
            ..Self::new(self.config, self.granting.user())
        };
        std::mem::replace(self, next)
    }

    /// A frame for this end.
    pub(super) fn frame(
        &mut self,
        lane: u32,
        frame: &Frame,
        payload: &[u8],
        out: &mut Outgoing,
    ) -> Result<FrameStep, ProtocolViolation> {
        let mut step = FrameStep::Done;
        match *frame {
            Frame::Chunk {
                grant,
                chunk,
                bytes,
            } => {
                let range = self.granting.grants.lend(lane, grant, chunk, bytes)?;
                return Ok(FrameStep::Chunk(range));
            }
            Frame::Abandon { grant } => {
                if let Some(ended) = self.granting.grants.abandoned(grant, lane)? {
                    let flow = ended.1.flow;
                    self.grant_ended(ended);
                    self.advance(flow, out)?;
                }
            }
            Frame::Open {
                flow,
                first,
                ref description,
            } => self.opened(flow, lane, (first, description), out)?,
            Frame::Small {
                flow,
                sequence,
                charge_end,
                description_bytes,
                ..
            } => {
                let head = (sequence, charge_end, description_bytes);
                step = self.small(flow, lane, (head, payload), out)?;
            }
            Frame::Request {
                flow,
                sequence,
                charge_end,
                bytes,
                chunk_bytes,
                ref description,
            } => {
                let request = Request {
                    bytes,
                    chunk_bytes,
                    charge_end,
                    description: description.clone(),
                };
                self.requested(flow, lane, (sequence, request), out)?;
            }
            Frame::Gap {
                flow,
                first,
                next,
                charge_end,
            } => self.gap(flow, lane, (first, next, charge_end), out)?,
            Frame::Close { flow, next } => self.closed(flow, next, lane, out)?,
            _ => return Err(violation(frame.name(), "it is not for the receiving end")),
        }
        self.flush(out)?;
        Ok(step)
    }

    /// Whether something is out for delivery.
    pub(super) fn is_delivering(&self) -> bool {
        self.flows.values().any(ReceiveFlow::is_delivering)
    }

    fn small(
        &mut self,
        flow: u64,
        lane: u32,
        ((sequence, charge_end, description_bytes), payload): ((u64, u64, u16), &[u8]),
        out: &mut Outgoing,
    ) -> Result<FrameStep, ProtocolViolation> {
        let Standing::Open(of) = self.standing(flow, "Small", lane, out)? else {
            return Ok(FrameStep::Done);
        };
        match of.small(sequence, charge_end, description_bytes, payload)? {
            SmallOutcome::Deliver => {
                return Ok(FrameStep::Deliver {
                    flow,
                    sequence,
                    description_bytes,
                })
            }
            SmallOutcome::Waits => self.advance(flow, out)?,
            SmallOutcome::Duplicate => {
                self.duplicates += 1;
                self.activate(flow);
            }
        }
        Ok(FrameStep::Done)
    }

    /// Where a flow stands. If it has ended, and its sender does not know, the answer takes the lane that brought the frame.
    fn standing(
        &mut self,
        flow: u64,
        frame: &'static str,
        lane: u32,
        out: &mut Outgoing,
    ) -> Result<Standing<'_>, ProtocolViolation> {
        let standing = standing(&mut self.flows, &self.refused, &self.opened, flow, frame)?;
        if matches!(standing, Standing::Ended) {
            out.answer(lane, ended(flow));
        }
        Ok(standing)
    }

    fn opened(
        &mut self,
        flow: u64,
        lane: u32,
        (first, description): (u64, &Description),
        out: &mut Outgoing,
    ) -> Result<(), ProtocolViolation> {
        if self.opened.contains(flow) {
            if let Standing::Open(of) = self.standing(flow, "Open", lane, out)? {
                of.debt.is_due = true;
                self.activate(flow);
            }
            return Ok(());
        }
        // The control flow is one more.
        if self.flows.len() + self.refused.len() > FLOWS_MAX || !self.opened.insert(flow) {
            return Err(violation("Open", "there are too many flows"));
        }
        let opening = Turn::Opened {
            first,
            description: description.clone(),
        };
        let new = ReceiveFlow::new(self.config, first, Some(opening));
        self.flows.insert(flow, new);
        self.advance(flow, out)
    }

    fn requested(
        &mut self,
        flow: u64,
        lane: u32,
        (sequence, request): (u64, Request),
        out: &mut Outgoing,
    ) -> Result<(), ProtocolViolation> {
        let Standing::Open(of) = self.standing(flow, "Request", lane, out)? else {
            return Ok(());
        };
        let granted = of.request(sequence, &request)?;
        if let Some(grant) = granted {
            if !self.granting.requested_again(grant, request) {
                return Err(violation("Request", "the message had another size"));
            }
        }
        self.activate(flow);
        Ok(())
    }

    fn gap(
        &mut self,
        flow: u64,
        lane: u32,
        (first, next, charge_end): (u64, u64, u64),
        out: &mut Outgoing,
    ) -> Result<(), ProtocolViolation> {
        match standing(&mut self.flows, &self.refused, &self.opened, flow, "Gap")? {
            Standing::Open(of) => {
                of.gap(first, next, charge_end, |grant| self.granting.bytes(grant))?
            }
            Standing::Refused | Standing::Cut(_) => {}
            Standing::Ended => out.answer(lane, ended(flow)),
        }
        self.advance(flow, out)
    }

    fn closed(
        &mut self,
        flow: u64,
        next: u64,
        lane: u32,
        out: &mut Outgoing,
    ) -> Result<(), ProtocolViolation> {
        match standing(&mut self.flows, &self.refused, &self.opened, flow, "Close")? {
            Standing::Open(of) | Standing::Cut(of) => {
                match next {
                    FLOW_ENDED => of.cut(|grant| self.granting.bytes(grant)),
                    _ => of.close(next)?,
                }
                if !of.close_lanes.contains(&lane) {
                    of.close_lanes.push(lane);
                }
                self.advance(flow, out)?;
            }
            // Any other CLOSE left before REFUSE arrived: its sender must not take this end for a delivery.
            Standing::Refused if next == FLOW_ENDED => {
                self.refused.remove(&flow);
                out.answer(lane, ended(flow));
            }
            Standing::Refused => {}
            Standing::Ended => out.answer(lane, ended(flow)),
        }
        Ok(())
    }

    /// All chunks of a grant have landed.
    pub(super) fn landed(
        &mut self,
        number: u64,
        out: &mut Outgoing,
    ) -> Result<(), ProtocolViolation> {
        let Some(grant) = self.granting.grants.take_whole(number) else {
            return Ok(());
        };
        let flow = grant.flow;
        self.grant_ended((number, grant));
        self.advance(flow, out)?;
        self.flush(out)
    }

    fn grant_ended(&mut self, (number, grant): (u64, Grant)) {
        let flow = grant.flow;
        if let Some(of) = self.flows.get_mut(&flow) {
            settle(of, number, grant);
            self.activate(flow);
        }
    }

    /// What was out is delivered, or the user could not take it.
    pub(super) fn delivered(
        &mut self,
        flow: u64,
        outcome: Result<(), Turn>,
        out: &mut Outgoing,
    ) -> Result<(), ProtocolViolation> {
        // A flow that was refused meanwhile is not there.
        let Some(of) = self.flows.get_mut(&flow) else {
            return Ok(());
        };
        if let Err(turn) = outcome {
            of.back_pressured(turn);
            self.back_pressured.push(flow);
            return Ok(());
        }
        if of.delivered() {
            self.end(flow, out);
            return Ok(());
        }
        if !of.debt.is_due && !std::mem::replace(&mut of.listed.owed, true) {
            self.owed.push(flow);
        }
        self.activate(flow);
        self.advance(flow, out)?;
        self.flush(out)
    }

    fn end(&mut self, flow: u64, out: &mut Outgoing) {
        let lanes = self.flows.remove(&flow).into_iter();
        let lanes = lanes.flat_map(|of| of.close_lanes);
        lanes.for_each(|lane| out.answer(lane, ended(flow)));
    }

    /// The user takes nothing of a flow. False if there is no such flow, or it is the control flow.
    pub(super) fn refuse(&mut self, flow: u64, why: Description, out: &mut Outgoing) -> bool {
        let of = self.flows.get_mut(&flow).filter(|_| flow != CONTROL_FLOW);
        let Some(of) = of else {
            return false;
        };
        of.refuse(|grant| self.granting.bytes(grant));
        if of.is_cut {
            // Its sender does not wait for that.
            self.end(flow, out);
            return true;
        }
        self.flows.remove(&flow);
        let reported_on = None;
        self.refused.insert(flow, RefusedFlow { why, reported_on });
        self.report_refused(out);
        true
    }

    fn report_refused(&mut self, out: &mut Outgoing) {
        let Some(lane) = out.first() else {
            return;
        };
        for (flow, refused) in &mut self.refused {
            if refused.reported_on.is_none() {
                refused.reported_on = Some(lane);
                let why = refused.why.clone();
                out.answer(lane, Frame::Refuse { flow: *flow, why });
            }
        }
    }

    /// A lane is there, or both ends are known to have it.
    pub(super) fn lane_up(&mut self, out: &mut Outgoing) -> Result<(), ProtocolViolation> {
        self.report_refused(out);
        self.retry_requested();
        self.flush(out)
    }

    fn retry_requested(&mut self) {
        for flow in std::mem::take(&mut self.starved) {
            if let Some(of) = self.flows.get_mut(&flow) {
                of.listed.starved = false;
            }
            self.activate(flow);
        }
    }

    /// A lane ended: nothing of the peer's arrives through it any more. What it may have lost is sent again.
    pub(super) fn lane_ended(
        &mut self,
        lane: u32,
        out: &mut Outgoing,
    ) -> Result<(), ProtocolViolation> {
        for ended in self.granting.grants.lane_ended(lane) {
            let flow = ended.1.flow;
            self.grant_ended(ended);
            self.advance(flow, out)?;
        }
        for (flow, of) in &mut self.flows {
            of.lane_ended(lane);
            if of.debt.is_due && !std::mem::replace(&mut of.listed.active, true) {
                self.active.push(*flow);
            }
        }
        for refused in self.refused.values_mut() {
            refused.reported_on = refused.reported_on.filter(|on| *on != lane);
        }
        self.report_refused(out);
        self.granting.report_lost(out);
        self.flush(out)
    }

    /// The user may have buffers again, and may take what it could not.
    pub(super) fn retry(&mut self, out: &mut Outgoing) -> Result<(), ProtocolViolation> {
        self.retry_requested();
        for flow in std::mem::take(&mut self.back_pressured) {
            let turn = self.flows.get_mut(&flow).and_then(ReceiveFlow::retry);
            if let Some(turn) = turn {
                out.report(LinkOutput::Deliver { flow, turn });
            }
        }
        self.flush(out)
    }

    /// Acknowledges what waits for other frames, as such frames leave now.
    pub(super) fn pay_all(&mut self, out: &mut Outgoing) {
        while let Some(flow) = self.owed.pop() {
            self.pay(flow, true, out);
        }
    }

    /// The same for what has waited long enough.
    pub(super) fn pay_late(&mut self, out: &mut Outgoing) {
        let mut at = 0;
        while let Some(&flow) = self.owed.get(at) {
            if self
                .flows
                .get_mut(&flow)
                .is_some_and(|of| of.debt.lets_wait())
            {
                at += 1;
                continue;
            }
            self.owed.swap_remove(at);
            self.pay(flow, false, out);
        }
    }

    /// Whether the next tick does something.
    pub(super) fn awaits_tick(&self) -> bool {
        let lists = [&self.owed, &self.starved, &self.back_pressured];
        lists.iter().any(|list| !list.is_empty())
    }

    fn acknowledge(&mut self, flow: u64, with_others: bool, out: &mut Outgoing) {
        let of = self.flows.get_mut(&flow).filter(|of| of.debt.is_owed());
        if let (Some(of), Some(lane)) = (of, out.first()) {
            let frame = of.acknowledge(flow, lane, with_others);
            frame.into_iter().for_each(|frame| out.answer(lane, frame));
        }
    }

    /// Acknowledges what was owed.
    fn pay(&mut self, flow: u64, with_others: bool, out: &mut Outgoing) {
        if let Some(of) = self.flows.get_mut(&flow) {
            of.listed.owed = false;
        }
        self.acknowledge(flow, with_others, out);
    }

    /// Hands out what has its turn.
    fn advance(&mut self, flow: u64, out: &mut Outgoing) -> Result<(), ProtocolViolation> {
        let Some(of) = self.flows.get_mut(&flow) else {
            return Ok(());
        };
        if let Some(turn) = of.next_turn()? {
            out.report(LinkOutput::Deliver { flow, turn });
        }
        if of.debt.is_due {
            self.activate(flow);
        }
        Ok(())
    }

    fn activate(&mut self, flow: u64) {
        if let Some(of) = self.flows.get_mut(&flow) {
            if !std::mem::replace(&mut of.listed.active, true) {
                self.active.push(flow);
            }
        }
    }

    /// Sends what is due, and gives buffers to messages that wait for them.
    fn flush(&mut self, out: &mut Outgoing) -> Result<(), ProtocolViolation> {
        if out.is_empty() {
            return Ok(());
        }
        while let Some(flow) = self.active.pop() {
            let Some(of) = self.flows.get_mut(&flow) else {
                continue;
            };
            of.listed.active = false;
            if of.debt.is_due {
                self.acknowledge(flow, false, out);
            }
            let of = self.flows.get_mut(&flow);
            let Some(of) = of.filter(|of| !of.listed.starved) else {
                continue;
            };
            let given = self.granting.give(flow, of, out);
            of.listed.starved = given.is_starved;
            if given.is_starved {
                self.starved.push(flow);
            }
            if given.has_landed {
                self.advance(flow, out)?;
            }
        }
        Ok(())
    }

    pub(super) fn held(&self) -> LinkHeld {
        LinkHeld {
            flows: self.flows.len() - 1 + self.refused.len(),
            large: self.flows.values().map(|of| of.large).sum(),
            grants: self.granting.grants.len(),
        }
    }
}

fn ended(flow: u64) -> Frame {
    Frame::Ack {
        flow,
        next: FLOW_ENDED,
        limit: 0,
    }
}

fn standing<'a>(
    flows: &'a mut BTreeMap<u64, ReceiveFlow>,
    refused: &BTreeMap<u64, RefusedFlow>,
    opened: &FlowNumbers,
    flow: u64,
    frame: &'static str,
) -> Result<Standing<'a>, ProtocolViolation> {
    match flows.get_mut(&flow) {
        Some(of) if of.is_cut => Ok(Standing::Cut(of)),
        Some(of) => Ok(Standing::Open(of)),
        None if refused.contains_key(&flow) => Ok(Standing::Refused),
        None if opened.contains(flow) => Ok(Standing::Ended),
        None => Err(violation(frame, "its flow is not open")),
    }
}

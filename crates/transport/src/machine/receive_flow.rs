//! One flow at its receiver: its reorder buffer, its window, its acknowledgements.
//!
//! `position <= taken`. `position` is the delivered position: all messages below it are delivered or missed, and an acknowledgement
//! for them was sent or is owed. `taken` is the number after the last turn that was handed out. They differ while a message or gap is
//! Delivering or BackPressured.

use super::ack_debt::AckDebt;
use super::frame::{Ack, Gap, Request, Small};
use super::lanes::Outgoing;
use super::limits::{may_request, LinkLimits, GRANTS_MAX};
use super::receive_message::{Delivery, LandedMessage, LargeMessage, LargeState};
use super::user::Turn;
use super::values::Checked;
use crate::credits::ReceiveWindow;
use std::collections::BTreeMap;
use std::ops::Range;

/// The most small messages of a flow that wait for their turn, and the most gaps.
const REORDER_MAX: usize = 4096;

/// What became of a small message that arrived.
pub(super) enum SmallOutcome {
    /// Its turn has come: the caller delivers it.
    Deliver,
    /// It waits in the reorder buffer.
    Waits,
    Duplicate,
}

#[derive(Default)]
pub(super) struct ReceiveFlow {
    /// In the link's list `active`; in `stalled`, for want of a buffer or a lane; in `owed`.
    pub(super) is_active: bool,
    pub(super) is_starved: bool,
    pub(super) is_owed: bool,
    limits: LinkLimits,
    /// [`Turn::Opened`], until it is handed out.
    opening: Option<Turn>,
    /// The user has accepted the flow, so it may be asked for buffers.
    is_accepted: bool,
    pub(super) taken: u64,
    pub(super) position: u64,
    /// Small messages that wait for their turn; `reorder_bytes`: the sum of their bytes.
    small: BTreeMap<u64, LandedMessage>,
    reorder_bytes: u64,
    /// Large messages that have not had their turn: few, since grants limit them.
    large: BTreeMap<u64, LargeMessage>,
    /// How many grants of the flow have outlived their messages.
    pub(super) orphans: usize,
    /// By a gap's first number: the number after it, and the sum of charges before that.
    gaps: BTreeMap<u64, (u64, u64)>,
    /// The number after the flow's last message, once CLOSE has arrived.
    close_at: Option<u64>,
    /// The sender has cut the flow: messages that have not had their turn are dropped.
    pub(super) is_cut: bool,
    /// The lanes that brought CLOSE; the answer goes out on each of them. The sender repeats CLOSE only when the lane of its last copy
    /// ends. The answer on that lane arrives, or the lane ends and the sender repeats CLOSE. The order of arrival does not tell which
    /// lane that is: a lane that the sender has lost may still bring an old copy.
    pub(super) close_lanes: Vec<u32>,
    /// The turn that is out for delivery or back-pressured. `taken` is the position after it.
    turn: Option<Delivery>,
    /// The turn, if the user could not take it.
    pub(super) back_pressured: Option<Turn>,
    window: ReceiveWindow,
    pub(super) debt: AckDebt,
}

impl ReceiveFlow {
    pub(super) fn new(limits: LinkLimits, first: u64, opening: Option<Turn>) -> Self {
        let mut window = ReceiveWindow::new(limits.first_window.into());
        let is_due = opening.is_none();
        if is_due {
            window.widen(limits.more_window());
        }
        Self {
            limits,
            opening,
            is_accepted: is_due,
            taken: first,
            position: first,
            window,
            debt: AckDebt::new(is_due),
            ..Self::default()
        }
    }

    fn is_past(&self, sequence: u64) -> bool {
        sequence < self.taken || self.gap_over(sequence).is_some()
    }

    fn gap_over(&self, sequence: u64) -> Option<(u64, u64)> {
        let gaps = self.gaps.range(..=sequence).rev();
        let mut over = gaps.map(|(_, gap)| *gap);
        over.find(|(end, _)| *end > sequence)
    }

    fn check_end(&self, sequence: u64) -> Checked<()> {
        match self.close_at {
            Some(end) if sequence >= end => Err("its flow ends before it"),
            _ => Ok(()),
        }
    }

    /// A small message arrived.
    pub(super) fn small(&mut self, small: &Small, payload: &[u8]) -> Checked<SmallOutcome> {
        let (sequence, charge_end) = (small.sequence, small.charge_end);
        self.check_end(sequence)?;
        if self.is_past(sequence) {
            self.debt.is_due = true;
            return Ok(SmallOutcome::Duplicate);
        }
        if self.small.contains_key(&sequence) {
            return Ok(SmallOutcome::Duplicate);
        }
        if self.large.contains_key(&sequence) {
            return Err("the message was requested as a large one");
        }
        let bytes = payload.len() as u64;
        if sequence == self.taken && self.opening.is_none() && self.turn.is_none() {
            self.window.arrive(bytes, charge_end)?;
            self.takes(sequence + 1, Delivery::Small(bytes));
            return Ok(SmallOutcome::Deliver);
        }
        self.window.admits(bytes, charge_end)?;
        if self.reorder_bytes + bytes > self.window.open() || self.small.len() >= REORDER_MAX {
            return Err("too many arrived before their turn");
        }
        self.reorder_bytes += bytes;
        let turn = Turn::Small {
            sequence,
            bytes: payload.into(),
            description_bytes: small.description_bytes.into(),
        };
        let landed = LandedMessage {
            bytes,
            charge_end,
            turn,
        };
        self.small.insert(sequence, landed);
        Ok(SmallOutcome::Waits)
    }

    /// A large message is requested, maybe not for the first time.
    pub(super) fn request(&mut self, request: &Request) -> Checked<()> {
        let (sequence, bytes) = (request.sequence, request.bytes);
        let size = (bytes, request.chunk_bytes);
        self.check_end(sequence)?;
        if self.is_past(sequence) {
            self.debt.is_due = true;
            return Ok(());
        }
        if self.small.contains_key(&sequence) {
            return Err("the message was sent as a small one");
        }
        if !self.large.contains_key(&sequence) {
            let (count, of_all) = self.held_large();
            if !may_request(count, of_all, bytes) {
                return Err("the flow has too many");
            }
        }
        let message = self.large.entry(sequence).or_insert(LargeMessage {
            bytes,
            chunk_bytes: request.chunk_bytes,
            request: None,
            state: LargeState::Waits(None),
        });
        if (message.bytes, message.chunk_bytes) != size {
            return Err("the message had another size");
        }
        message.request = Some(request.clone());
        Ok(())
    }

    /// The count of large messages that are not delivered, and the sum of their bytes.
    pub(super) fn held_large(&self) -> (usize, u64) {
        let waiting = self.large.values().map(|message| message.bytes);
        let out = self.turn.and_then(|turn| match turn {
            Delivery::Large(bytes) => Some(bytes),
            _ => None,
        });
        let add = |(count, sum), bytes| (count + 1, sum + bytes);
        waiting.chain(out).fold((0, 0), add)
    }

    /// The oldest message that requests a grant, if the flow may have one more.
    pub(super) fn next_requested(&mut self) -> Option<&mut LargeMessage> {
        let has_room = self.orphans < GRANTS_MAX;
        let mut large = self.large.values_mut().filter(|_| self.is_accepted);
        let next = large.find(|message| message.is_requested())?;
        let has_kept = matches!(next.state, LargeState::Waits(Some(_)));
        (has_kept || has_room).then_some(next)
    }

    /// A grant of the flow ended. Returns its message, unless the grant has outlived it.
    pub(super) fn grant_ended(&mut self, sequence: u64, grant: u64) -> Option<&mut LargeMessage> {
        let message = self.large.get_mut(&sequence);
        let is_its =
            |of: &&mut LargeMessage| matches!(of.state, LargeState::Granted(its) if its == grant);
        let message = message.filter(is_its);
        if message.is_none() {
            self.orphans -= 1;
        }
        message
    }

    /// Handles GAP: the messages of its range that have not landed never will.
    pub(super) fn gap(&mut self, gap: &Gap) -> Checked<()> {
        let (first, next, charge_end) = (gap.first, gap.next, gap.charge_end);
        self.check_end(next - 1)?;
        self.debt.is_due = true;
        if next <= self.taken {
            return Ok(());
        }
        if self.gaps.len() >= REORDER_MAX {
            return Err("too many arrived before their turn");
        }
        let gap = self.gaps.entry(first).or_insert((next, charge_end));
        if gap.0 < next {
            *gap = (next, charge_end);
        }
        self.remove_unlanded(first..next);
        Ok(())
    }

    fn remove_unlanded(&mut self, range: Range<u64>) {
        self.large.retain(|sequence, message| {
            let stays = message.is_landed() || !range.contains(sequence);
            self.orphans += usize::from(!stays && message.is_granted());
            stays
        });
    }

    /// Handles CLOSE: the flow ends before the message `next`.
    pub(super) fn close(&mut self, next: u64) -> Checked<()> {
        if self.is_cut {
            return Ok(());
        }
        let last = self.small.keys().chain(self.large.keys()).max();
        let last = last.map_or(0, |last| last + 1);
        let gap = self.gaps.values().map(|(end, _)| *end).max().unwrap_or(0);
        let is_known = self.close_at.is_some_and(|end| end != next);
        if is_known || next < self.taken.max(last).max(gap) {
            return Err("the flow has later messages");
        }
        self.close_at = Some(next);
        Ok(())
    }

    /// Whether a turn is out for delivery.
    pub(super) fn is_delivering(&self) -> bool {
        self.turn.is_some() && self.back_pressured.is_none()
    }

    fn takes(&mut self, next: u64, what: Delivery) {
        self.taken = next;
        self.turn = Some(what);
    }

    /// Takes the next turn to deliver; `None` if a turn is out or back-pressured, or the next message has not landed.
    pub(super) fn next_turn(&mut self) -> Checked<Option<Turn>> {
        if self.turn.is_some() {
            return Ok(None);
        }
        if let Some(opened) = self.opening.take() {
            self.turn = Some(Delivery::Opened);
            return Ok(Some(opened));
        }
        let sequence = self.taken;
        if let Some(landed) = self.remove_landed(sequence) {
            self.take_landed(sequence + 1, &landed)?;
            return Ok(Some(landed.turn));
        }
        if let Some((end, charge_end)) = self.gap_over(sequence) {
            return self.take_gap(sequence, end, charge_end).map(Some);
        }
        if self.close_at != Some(sequence) {
            return Ok(None);
        }
        self.turn = Some(Delivery::Closed);
        Ok(Some(Turn::Closed { next: sequence }))
    }

    fn remove_landed(&mut self, sequence: u64) -> Option<LandedMessage> {
        let small = self.small.remove(&sequence);
        small.or_else(|| {
            let large = self.large.first_entry();
            let large = large.filter(|of| *of.key() == sequence && of.get().is_landed());
            match large?.remove().state {
                LargeState::Landed(landed) => Some(landed),
                _ => None,
            }
        })
    }

    fn take_landed(&mut self, next: u64, landed: &LandedMessage) -> Checked<()> {
        let (bytes, charge_end) = (landed.bytes, landed.charge_end);
        if let Turn::Small { .. } = landed.turn {
            self.reorder_bytes -= bytes;
            self.window.arrive(bytes, charge_end)?;
            self.takes(next, Delivery::Small(bytes));
            return Ok(());
        }
        self.window.give_up(charge_end)?;
        self.takes(next, Delivery::Large(bytes));
        Ok(())
    }

    /// Takes a gap from `first` on, up to `end` or to a message in between that has arrived after all.
    fn take_gap(&mut self, first: u64, end: u64, charge_end: u64) -> Checked<Turn> {
        let small = self.small.range(first..end).map(|(sequence, _)| *sequence);
        let large = self.large.range(first..end).map(|(sequence, _)| *sequence);
        let landed = small.take(1).chain(large.take(1)).min();
        let next = landed.unwrap_or(end);
        self.gaps.retain(|_, (end, _)| *end > next);
        if landed.is_none() {
            self.window.give_up(charge_end)?;
        }
        self.takes(next, Delivery::Missed);
        Ok(Turn::Missed { first, next })
    }

    /// The turn that was out is delivered. Returns whether the flow has ended.
    ///
    /// # Panics
    /// If no turn was out: a bug of the caller.
    pub(super) fn delivered(&mut self) -> bool {
        assert!(self.is_delivering(), "nothing of the flow was handed out");
        let of = self.turn.take().expect("it is delivering");
        self.position = self.taken;
        match of {
            Delivery::Small(bytes) => self.window.widen(bytes),
            Delivery::Opened => {
                self.is_accepted = true;
                self.window.widen(self.limits.more_window());
            }
            _ => {}
        }
        let granted = self.large.values().filter(|of| of.is_granted()).count();
        self.debt.add(of, granted, self.limits.window_bytes);
        of == Delivery::Closed
    }

    /// The user could not take the turn that was out.
    ///
    /// # Panics
    /// If no turn was out: a bug of the caller.
    pub(super) fn give_back(&mut self, turn: Turn) {
        assert!(self.is_delivering(), "nothing of the flow was handed out");
        self.back_pressured = Some(turn);
    }

    /// A lane ended, which may have lost the last acknowledgement. If it brought CLOSE, the sender repeats CLOSE on another lane.
    pub(super) fn lane_ended(&mut self, lane: u32) {
        self.close_lanes.retain(|on| *on != lane);
        self.debt.lane_ended();
    }

    /// Queues an ACK, if one is owed and there is a lane. `with_others`: other frames leave at the same time.
    pub(super) fn acknowledge(&mut self, flow: u64, with_others: bool, out: &mut Outgoing) {
        if let Some(lane) = out.first().filter(|_| self.debt.is_owed()) {
            let (next, limit) = (self.position, self.window.limit());
            let ack = Ack { flow, next, limit };
            if self.debt.pay((next, limit), with_others) {
                out.answer(lane, ack);
            }
        }
    }

    /// The sender has cut the flow: drops the messages that have not had their turn. A turn that is out or back-pressured is delivered
    /// before the flow's end.
    pub(super) fn cut(&mut self) {
        self.remove_unlanded(0..u64::MAX);
        self.small.clear();
        self.large.clear();
        self.gaps.clear();
        (self.is_cut, self.close_at) = (true, Some(self.taken));
    }
}

//! The receiving end of a link.
//!
//! Commits each flow's messages in their order, whatever lanes they came through, each once. A landing place
//! is given to a grant with the lanes that may write there, and is nobody else's before each of them
//! is closed or has brought the grant's end ([`Frame::Abandon`]), or the message is whole. A message whose
//! grant ended keeps the place for its next one: so the first message of a flow never waits for memory
//! that later ones have.

use crate::credits::ReceiveWindow;
use crate::cursors::{Receiver as RingReceiver, Ring, Watermark};
use crate::frame::{Flow, Frame, Lanes, Meta, LANES_MAX};
use crate::link::{lie, Action, PeerLie, Span, Target, Write};
use rgaps_verbs::MARK_MAX;
use std::collections::{BTreeMap, VecDeque};

/// Flows of a link.
pub const FLOWS_MAX: usize = 4096;
/// Messages that a flow may ask places for, beyond those granted.
const PENDING_MAX: usize = 64;
/// Messages of a flow that came before their turn.
const EARLY_MAX: usize = 4096;

/// What the receiving end may use.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverConfig {
    /// When a ring's head is returned.
    pub watermark: Watermark,
    /// Bytes of small messages that a flow may have here.
    pub window_bytes: u64,
    /// A lane that is quiet for so long gets its head.
    pub idle_ms: u64,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self {
            watermark: Watermark::default(),
            window_bytes: 1 << 20,
            idle_ms: 10,
        }
    }
}

/// Landing memory of the owner, divided among topics (see [`crate::credits::Shares`]).
pub trait Places {
    /// A place for a message of a flow, or none now.
    fn take(&mut self, flow: Flow, sequence: u64, meta: &Meta, bytes: u64) -> Option<u64>;
    /// It is free.
    fn give(&mut self, flow: Flow, place: Span);
}

#[derive(Debug)]
enum Early {
    Eager { bytes: u32 },
    Large { place: Span, meta: Meta },
}

#[derive(Debug)]
struct ReceiveFlow {
    next: u64,
    window: ReceiveWindow,
    open: bool,
    early: BTreeMap<u64, (Early, u64)>,
    gaps: BTreeMap<u64, (u64, u64)>,
    pending: BTreeMap<u64, Asked>,
    /// Messages that have a grant.
    granted: usize,
    /// Places of messages whose grant ended.
    kept: BTreeMap<u64, Span>,
    close_at: Option<u64>,
    tell: bool,
}

#[derive(Clone, Debug)]
struct Asked {
    bytes: u64,
    charge_end: u64,
    meta: Meta,
}

#[derive(Debug)]
struct Grant {
    flow: Flow,
    sequence: u64,
    asked: Asked,
    place: Span,
    listed: Lanes,
    /// Those of them that may still write there.
    open: [bool; LANES_MAX],
    /// Starts and ends of chunks that were admitted, in their order; those that touch are one.
    chunks: Vec<(u64, u64)>,
    landed: u64,
    again: bool,
}

impl Grant {
    fn position(&self, lane: u32) -> Option<usize> {
        let numbers = self.listed.as_slice();
        numbers.iter().position(|number| *number == lane)
    }

    fn may_write(&self, lane: u32) -> bool {
        self.position(lane).is_some_and(|at| self.open[at])
    }

    /// Notes a chunk; false if it lies over another.
    fn admit(&mut self, offset: u64, end: u64) -> bool {
        let at = self.chunks.partition_point(|(start, _)| *start < end);
        match at.checked_sub(1).map(|before| &mut self.chunks[before]) {
            Some((_, before_end)) if *before_end > offset => return false,
            Some((_, before_end)) if *before_end == offset => *before_end = end,
            _ => self.chunks.insert(at, (offset, end)),
        }
        true
    }
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    flow: Flow,
    next: u64,
    /// In a former life of the peer: an `Open` is no duplicate.
    before: bool,
    /// The lane that told the sender; none if it is lost.
    told: Option<u32>,
}

#[derive(Debug)]
struct ReceiveLane {
    ring: RingReceiver,
    heard_ms: u64,
    admitted: VecDeque<Admitted>,
}

/// A frame whose bytes are on their way.
#[derive(Debug)]
enum Admitted {
    Eager {
        flow: Flow,
        sequence: u64,
        charge_end: u64,
        bytes: u32,
        meta_bytes: u16,
        /// Where in the ring.
        offset: u64,
    },
    Chunk {
        grant: u64,
        bytes: u32,
    },
}

/// The receiving end.
#[derive(Debug)]
pub struct Receiver<P> {
    config: ReceiverConfig,
    places: P,
    lanes: BTreeMap<u32, ReceiveLane>,
    flows: BTreeMap<Flow, ReceiveFlow>,
    grants: BTreeMap<u64, Grant>,
    pub(crate) next_grant: u64,
    /// Flows that ended: frames of theirs may still come from lanes that the sender has lost.
    ended: VecDeque<Ended>,
    /// Some of them are to be told to the sender.
    ended_untold: bool,
    /// Flows that are to be told to the sender, or wait for places.
    active: Vec<Flow>,
    /// Its memory, for the next time.
    spare: Vec<Flow>,
    actions: VecDeque<Action>,
    /// Messages that came again and were thrown away.
    pub(crate) duplicates: u64,
}

impl<P: Places> Receiver<P> {
    /// An end that has committed these flows' messages below these sequences.
    pub fn new(config: ReceiverConfig, places: P, committed: &[(Flow, u64)]) -> Self {
        let flow = |&(flow, next)| (flow, ReceiveFlow::new(next, config.window_bytes));
        Self {
            config,
            places,
            lanes: BTreeMap::new(),
            flows: committed.iter().map(flow).collect(),
            grants: BTreeMap::new(),
            next_grant: 1,
            ended: VecDeque::new(),
            ended_untold: false,
            active: Vec::new(),
            spare: Vec::new(),
            actions: VecDeque::new(),
            duplicates: 0,
        }
    }

    /// What to do next.
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The owner's landing memory. After something was given back, [`Receiver::places_freed`].
    pub fn places(&mut self) -> &mut P {
        &mut self.places
    }

    /// A lane is there, with a ring of ours. False if there are [`LANES_MAX`] already.
    pub fn lane_opened(&mut self, lane: u32, ring: Ring, now_ms: u64) -> bool {
        if self.lanes.len() == LANES_MAX || self.lanes.contains_key(&lane) {
            return false;
        }
        let ring = RingReceiver::new(ring, self.config.watermark);
        self.lanes.insert(
            lane,
            ReceiveLane {
                ring,
                heard_ms: now_ms,
                admitted: VecDeque::new(),
            },
        );
        self.flush();
        true
    }

    /// A lane is closed, and nothing of the peer's can be written through it any more. What was told
    /// through it may be lost and is told again.
    pub fn lane_closed(&mut self, lane: u32) {
        if self.lanes.remove(&lane).is_none() {
            return;
        }
        let numbers: Vec<u64> = self.grants.keys().copied().collect();
        for number in numbers {
            self.lane_left(number, lane);
        }
        for (flow, state) in &mut self.flows {
            state.tell = state.open;
            make_active(&mut self.active, *flow);
        }
        self.ended_untold = true;
        for ended in &mut self.ended {
            ended.told = ended.told.filter(|on| *on != lane);
        }
        let told: Vec<u64> = self.grants.keys().copied().collect();
        for number in told {
            self.tell_grant(number);
        }
        self.flush();
    }

    /// The peer is another incarnation: what was not committed is forgotten. All lanes are closed.
    ///
    /// # Panics
    /// If one is open.
    pub fn restart(&mut self) {
        assert!(
            self.lanes.is_empty(),
            "the lanes of the former incarnation are closed first"
        );
        self.ended.iter_mut().for_each(|ended| ended.before = true);
        for (flow, state) in &mut self.flows {
            for (sequence, (early, _)) in std::mem::take(&mut state.early) {
                match early {
                    Early::Large { place, .. } => self.places.give(*flow, place),
                    Early::Eager { .. } => {
                        self.actions.push_back(Action::Drop {
                            flow: *flow,
                            sequence,
                        });
                    }
                }
            }
            for place in std::mem::take(&mut state.kept).into_values() {
                self.places.give(*flow, place);
            }
            state.pending.clear();
            state.gaps.clear();
            state.close_at = None;
            state.window.restart(self.config.window_bytes);
            (state.open, state.tell) = (false, false);
        }
    }

    /// The grant whose number has these low bits: no other that is open does, as there are no more than so many at a time.
    pub(crate) fn marked(&self, mark: u32) -> u64 {
        let last = self.next_grant - 1;
        let number = last & !u64::from(MARK_MAX) | u64::from(mark);
        if number <= last {
            return number;
        }
        // None is that old if this is less than nothing.
        number.wrapping_sub(u64::from(MARK_MAX) + 1)
    }

    /// A frame for this end. If bytes follow it, where they go, and [`Receiver::landed`] is to be called when
    /// they are there; lanes bring the bytes of their frames in order.
    pub fn frame(
        &mut self,
        lane: u32,
        frame: &Frame,
        now_ms: u64,
    ) -> Result<Option<Target>, PeerLie> {
        let Some(from) = self.lanes.get_mut(&lane) else {
            return Err(lie("frame", "its lane is not open"));
        };
        from.heard_ms = now_ms;
        let mut target = None;
        match *frame {
            Frame::Open { flow, first } => self.opened(flow, first)?,
            Frame::Eager {
                flow,
                sequence,
                charge_end,
                cursor,
                bytes,
                meta_bytes,
            } => {
                self.open_flow(flow, "eager")?;
                let from = self.lanes.get_mut(&lane).expect("found above");
                let slot = from.ring.admit(cursor, u64::from(bytes))?;
                from.admitted.push_back(Admitted::Eager {
                    flow,
                    sequence,
                    charge_end,
                    bytes,
                    meta_bytes,
                    offset: slot.offset,
                });
                target = Some(Target::Ring(slot.offset));
            }
            Frame::Chunk {
                grant,
                offset,
                bytes,
            } => {
                let at = self.admit_chunk(lane, grant, offset, u64::from(bytes))?;
                let from = self.lanes.get_mut(&lane).expect("found above");
                from.admitted.push_back(Admitted::Chunk { grant, bytes });
                target = Some(Target::Region(at));
            }
            Frame::Request {
                flow,
                sequence,
                charge_end,
                bytes,
                ref meta,
            } => {
                let asked = Asked {
                    bytes,
                    charge_end,
                    meta: meta.clone(),
                };
                self.asked(flow, sequence, asked)?;
            }
            Frame::Abandon { grant } => {
                if grant >= self.next_grant {
                    return Err(lie("abandon", "there was no such grant"));
                }
                self.lane_left(grant, lane);
            }
            Frame::Gap {
                flow,
                first,
                next,
                charge_end,
            } => {
                let state = self.open_flow(flow, "gap")?;
                if let Some(state) = state.filter(|state| next > state.next) {
                    if state.gaps.len() >= EARLY_MAX {
                        return Err(lie("gap", "too many came before their turn"));
                    }
                    state.gaps.insert(first, (next, charge_end));
                }
                self.advance(flow)?;
            }
            Frame::Close { flow, next } => self.closed(flow, next, lane)?,
            Frame::Stall { .. } => {
                if let Some(head) = from.ring.head_if_moved() {
                    self.control(lane, Frame::Head { head });
                }
            }
            _ => return Err(lie("frame", "it is not for the receiving end")),
        }
        self.flush();
        Ok(target)
    }

    /// The bytes of the lane's oldest frame that has some are there.
    pub fn landed(&mut self, lane: u32) -> Result<(), PeerLie> {
        let oldest = self
            .lanes
            .get_mut(&lane)
            .and_then(|from| from.admitted.pop_front());
        match oldest {
            Some(Admitted::Eager {
                flow,
                sequence,
                charge_end,
                bytes,
                meta_bytes,
                offset,
            }) => {
                self.eager_landed(flow, sequence, charge_end, bytes, |actions| {
                    let take = Action::Take {
                        flow,
                        sequence,
                        lane,
                        offset,
                        bytes,
                        meta_bytes,
                    };
                    actions.push_back(take);
                })?;
                let from = self.lanes.get_mut(&lane).expect("it had an oldest frame");
                let is_large = |admitted: &Admitted| matches!(admitted, Admitted::Chunk { .. });
                if from.admitted.iter().all(is_large) {
                    from.ring.consume();
                }
                if let Some(head) = from.ring.head_at_watermark() {
                    self.control(lane, Frame::Head { head });
                }
                self.advance(flow)?;
            }
            Some(Admitted::Chunk { grant, bytes }) => self.chunk_landed(grant, bytes.into())?,
            None => {}
        }
        self.flush();
        Ok(())
    }

    /// The bytes of an eager message that was committed are free.
    pub fn released(&mut self, flow: Flow, bytes: u32) {
        if let Some(state) = self.flows.get_mut(&flow) {
            state.window.release(u64::from(bytes));
            state.tell = state.open;
            make_active(&mut self.active, flow);
            self.flush();
        }
    }

    /// Tells the sender again where a flow stands.
    pub fn tell_again(&mut self, flow: Flow) {
        if let Some(state) = self.flows.get_mut(&flow) {
            state.tell = state.open;
            make_active(&mut self.active, flow);
        } else {
            for ended in self.ended.iter_mut().filter(|ended| ended.flow == flow) {
                ended.told = None;
                self.ended_untold = true;
            }
        }
        self.flush();
    }

    /// There may be places again.
    pub fn places_freed(&mut self) {
        self.flush();
    }

    /// Returns the heads of quiet lanes.
    pub fn tick(&mut self, now_ms: u64) {
        let idle_ms = self.config.idle_ms;
        let mut heads = Vec::new();
        for (number, lane) in &mut self.lanes {
            if now_ms.saturating_sub(lane.heard_ms) >= idle_ms {
                heads.extend(lane.ring.head_if_moved().map(|head| (*number, head)));
            }
        }
        for (lane, head) in heads {
            self.control(lane, Frame::Head { head });
        }
        self.flush();
    }

    /// Whether the next tick does something.
    pub(crate) fn awaits_tick(&self) -> bool {
        !self.active.is_empty() || self.lanes.values().any(|lane| lane.ring.head_has_moved())
    }

    /// What is committed: below which sequence of each flow.
    pub fn committed(&self) -> Vec<(Flow, u64)> {
        self.flows
            .iter()
            .map(|(flow, state)| (*flow, state.next))
            .collect()
    }

    /// Flows that are open.
    pub fn flows_open(&self) -> usize {
        self.flows.values().filter(|state| state.open).count()
    }

    /// Places that are granted, kept or hold what came early.
    pub fn places_held(&self) -> usize {
        let large = |state: &ReceiveFlow| {
            let early = state.early.values();
            early
                .filter(|(early, _)| matches!(early, Early::Large { .. }))
                .count()
        };
        let flows = self
            .flows
            .values()
            .map(|state| state.kept.len() + large(state));
        self.grants.len() + flows.sum::<usize>()
    }

    /// A flow that is open; none if it ended, so that this is a duplicate that came late.
    fn open_flow(
        &mut self,
        flow: Flow,
        frame: &'static str,
    ) -> Result<Option<&mut ReceiveFlow>, PeerLie> {
        let state = self.flows.get_mut(&flow).filter(|state| state.open);
        if state.is_none() && !self.ended.iter().any(|ended| ended.flow == flow) {
            return Err(lie(frame, "its flow is not open"));
        }
        Ok(state)
    }

    fn opened(&mut self, flow: Flow, first: u64) -> Result<(), PeerLie> {
        if let Some(at) = self.ended.iter().position(|ended| ended.flow == flow) {
            if !self.ended[at].before {
                return Ok(());
            }
            let next = self.ended.remove(at).map_or(first, |ended| ended.next);
            self.flows
                .insert(flow, ReceiveFlow::new(next, self.config.window_bytes));
        }
        if !self.flows.contains_key(&flow) {
            if self.flows.len() >= FLOWS_MAX && !self.forget_one() {
                return Err(lie("open", "there are too many flows"));
            }
            self.flows
                .insert(flow, ReceiveFlow::new(first, self.config.window_bytes));
        }
        let state = self
            .flows
            .get_mut(&flow)
            .expect("it is there or was inserted");
        if !state.open && first > state.next {
            self.actions.push_back(Action::Missed {
                flow,
                first: state.next,
                next: first,
            });
            state.next = first;
        }
        if !state.open {
            let next = state.next;
            self.actions.push_back(Action::Opened { flow, next });
        }
        (state.open, state.tell) = (true, true);
        make_active(&mut self.active, flow);
        Ok(())
    }

    /// Forgets a flow of a former life of the peer that nobody opened again.
    fn forget_one(&mut self) -> bool {
        let idle = |state: &ReceiveFlow| !state.open && state.window.held() == 0;
        let found = self.flows.iter().find(|(_, state)| idle(state));
        let Some(flow) = found.map(|(flow, _)| *flow) else {
            return false;
        };
        self.flows.remove(&flow);
        true
    }

    fn closed(&mut self, flow: Flow, next: u64, lane: u32) -> Result<(), PeerLie> {
        let end = next
            .checked_add(1)
            .ok_or(lie("close", "there is no such sequence"))?;
        match self.flows.get_mut(&flow) {
            Some(state) => {
                state.close_at = Some(next);
                self.advance(flow)
            }
            None => {
                // It ended before, and the peer did not hear of it.
                self.control(
                    lane,
                    Frame::Ack {
                        flow,
                        next: end,
                        limit: 0,
                    },
                );
                Ok(())
            }
        }
    }

    fn eager_landed(
        &mut self,
        flow: Flow,
        sequence: u64,
        charge_end: u64,
        bytes: u32,
        take: impl FnOnce(&mut VecDeque<Action>),
    ) -> Result<(), PeerLie> {
        make_active(&mut self.active, flow);
        let Some(state) = self.open_flow(flow, "eager")? else {
            self.duplicates += 1;
            return Ok(());
        };
        if sequence < state.next || state.early.contains_key(&sequence) {
            state.tell = true;
            self.duplicates += 1;
            return Ok(());
        }
        if sequence == state.next {
            // It is its turn: the usual case.
            // Acknowledged when the owner has it.
            state.window.arrive(u64::from(bytes), charge_end)?;
            state.next = sequence + 1;
            take(&mut self.actions);
            self.actions.push_back(Action::Commit {
                flow,
                sequence,
                large: None,
                eager_bytes: bytes,
            });
            return Ok(());
        }
        state.window.admits(u64::from(bytes), charge_end)?;
        if state.early.len() >= EARLY_MAX {
            return Err(lie("eager", "too many came before their turn"));
        }
        state
            .early
            .insert(sequence, (Early::Eager { bytes }, charge_end));
        take(&mut self.actions);
        Ok(())
    }

    fn admit_chunk(
        &mut self,
        lane: u32,
        grant: u64,
        offset: u64,
        bytes: u64,
    ) -> Result<u64, PeerLie> {
        let Some(grant) = self.grants.get_mut(&grant) else {
            return Err(lie("chunk", "there is no such grant"));
        };
        let end = offset
            .checked_add(bytes)
            .filter(|end| *end <= grant.place.bytes);
        let end = end.ok_or(lie("chunk", "it lies outside its message"))?;
        if !grant.may_write(lane) {
            return Err(lie("chunk", "its lane is none of the grant's"));
        }
        if !grant.admit(offset, end) {
            return Err(lie("chunk", "it lies over another"));
        }
        Ok(grant.place.offset + offset)
    }

    fn chunk_landed(&mut self, number: u64, bytes: u64) -> Result<(), PeerLie> {
        let Some(grant) = self.grants.get_mut(&number) else {
            return Ok(());
        };
        grant.landed += bytes;
        if grant.landed < grant.place.bytes {
            return Ok(());
        }
        let whole = self.end_grant(number);
        let Grant {
            flow,
            sequence,
            place,
            asked,
            ..
        } = whole;
        let state = self
            .flows
            .get_mut(&flow)
            .filter(|state| sequence >= state.next);
        match state {
            Some(state) => {
                let early = Early::Large {
                    place,
                    meta: asked.meta,
                };
                state.early.insert(sequence, (early, asked.charge_end));
                self.advance(flow)
            }
            None => {
                self.duplicates += 1;
                self.places.give(flow, place);
                Ok(())
            }
        }
    }

    fn end_grant(&mut self, number: u64) -> Grant {
        let ended = self.grants.remove(&number).expect("its caller looked");
        if let Some(state) = self.flows.get_mut(&ended.flow) {
            state.granted -= 1;
        }
        ended
    }

    /// Messages of a flow that are on their way to a place.
    pub(crate) fn granted(&self, flow: Flow) -> usize {
        self.flows.get(&flow).map_or(0, |state| state.granted)
    }

    fn asked(&mut self, flow: Flow, sequence: u64, asked: Asked) -> Result<(), PeerLie> {
        make_active(&mut self.active, flow);
        let Some(state) = self.open_flow(flow, "request")? else {
            return Ok(());
        };
        if sequence < state.next || state.early.contains_key(&sequence) {
            state.tell = true;
            self.duplicates += 1;
            return Ok(());
        }
        let of = |grant: &Grant| grant.flow == flow && grant.sequence == sequence;
        let granted = self.grants.iter_mut().find(|(_, grant)| of(grant));
        if let Some((number, grant)) = granted {
            if grant.asked.bytes != asked.bytes {
                return Err(lie("request", "the message had another size"));
            }
            grant.again = true;
            let number = *number;
            self.tell_grant(number);
            return Ok(());
        }
        let Some(state) = self.open_flow(flow, "request")? else {
            return Ok(());
        };
        if state.pending.len() >= PENDING_MAX && !state.pending.contains_key(&sequence) {
            return Err(lie("request", "too many wait"));
        }
        state.pending.insert(sequence, asked);
        Ok(())
    }

    /// Nothing comes for a grant through a lane any more.
    fn lane_left(&mut self, number: u64, lane: u32) {
        let Some(grant) = self.grants.get_mut(&number) else {
            return;
        };
        if let Some(at) = grant.position(lane) {
            grant.open[at] = false;
        }
        if grant.open.contains(&true) {
            return;
        }
        let ended = self.end_grant(number);
        let Grant {
            flow,
            sequence,
            place,
            asked,
            again,
            ..
        } = ended;
        match self
            .flows
            .get_mut(&flow)
            .filter(|state| sequence >= state.next)
        {
            Some(state) => {
                state.kept.insert(sequence, place);
                make_active(&mut self.active, flow);
                if again {
                    state.pending.insert(sequence, asked);
                }
            }
            None => self.places.give(flow, place),
        }
    }

    /// Commits what has its turn.
    fn advance(&mut self, flow: Flow) -> Result<(), PeerLie> {
        let Some(state) = self.flows.get_mut(&flow) else {
            return Ok(());
        };
        let alone = state.early.is_empty() && state.gaps.is_empty() && state.kept.is_empty();
        if alone && state.pending.is_empty() && state.close_at.is_none() {
            return Ok(());
        }
        state.tell = true;
        make_active(&mut self.active, flow);
        loop {
            let sequence = state.next;
            if let Some((early, charge_end)) = state.early.remove(&sequence) {
                let (large, eager_bytes) = match early {
                    Early::Eager { bytes } => {
                        state.window.arrive(u64::from(bytes), charge_end)?;
                        (None, bytes)
                    }
                    Early::Large { place, meta } => {
                        state.window.give_up(charge_end)?;
                        (Some((place, meta)), 0)
                    }
                };
                state.next = sequence + 1;
                self.actions.push_back(Action::Commit {
                    flow,
                    sequence,
                    large,
                    eager_bytes,
                });
                continue;
            }
            let gap = state.gaps.range(..=sequence).next_back();
            let Some((_, &(end, charge_end))) = gap.filter(|(_, (end, _))| *end > sequence) else {
                break;
            };
            // Up to the next that arrived after all.
            let arrived = state
                .early
                .range(sequence..end)
                .next()
                .map(|(early, _)| *early);
            state.next = arrived.unwrap_or(end);
            if arrived.is_none() {
                state.window.give_up(charge_end)?;
            }
            let next = state.next;
            self.actions.push_back(Action::Missed {
                flow,
                first: sequence,
                next,
            });
        }
        let next = state.next;
        state.gaps.retain(|_, (end, _)| *end > next);
        state.pending.retain(|sequence, _| *sequence >= next);
        let later = state.kept.split_off(&next);
        for place in std::mem::replace(&mut state.kept, later).into_values() {
            self.places.give(flow, place);
        }
        if state.close_at == Some(next) {
            for place in std::mem::take(&mut state.kept).into_values() {
                self.places.give(flow, place);
            }
            self.flows.remove(&flow);
            self.actions.push_back(Action::Closed { flow, next });
            if self.ended.len() == FLOWS_MAX {
                self.ended.pop_front();
            }
            self.ended.push_back(Ended {
                flow,
                next,
                before: false,
                told: None,
            });
            self.ended_untold = true;
        }
        Ok(())
    }

    fn control(&mut self, lane: u32, frame: Frame) {
        self.actions.push_back(Action::Write(Write {
            lane,
            frame,
            payload: None,
            meta: None,
            remote: None,
        }));
    }

    fn tell_grant(&mut self, number: u64) {
        let lane = self.lanes.keys().next().copied();
        if let (Some(lane), Some(grant)) = (lane, self.grants.get(&number)) {
            let Grant {
                flow,
                sequence,
                place,
                listed,
                ..
            } = *grant;
            let (offset, lanes) = (place.offset, listed);
            self.control(
                lane,
                Frame::Grant {
                    flow,
                    sequence,
                    grant: number,
                    offset,
                    lanes,
                    // Whose memory it is knows whether a peer can write there.
                    remote: None,
                },
            );
        }
    }

    /// Gives places to those that wait for them, and tells flows where they stand.
    fn flush(&mut self) {
        if self.active.is_empty() && !self.ended_untold {
            return;
        }
        let mut numbers = [0; LANES_MAX];
        for (number, known) in numbers.iter_mut().zip(self.lanes.keys()) {
            *number = *known;
        }
        let numbers = numbers.get(..self.lanes.len()).and_then(Lanes::new);
        let Some(lanes) = numbers else {
            return;
        };
        let numbers = lanes.as_slice();
        let lane = numbers[0];
        let untold = std::mem::take(&mut self.ended_untold);
        for ended in self.ended.iter_mut().filter(|_| untold) {
            if ended.told.is_none() && !ended.before {
                ended.told = Some(lane);
                let frame = Frame::Ack {
                    flow: ended.flow,
                    next: ended.next + 1,
                    limit: 0,
                };
                self.actions.push_back(Action::Write(Write {
                    lane,
                    frame,
                    payload: None,
                    meta: None,
                    remote: None,
                }));
            }
        }
        let mut granted = Vec::new();
        let mut active = std::mem::replace(&mut self.active, std::mem::take(&mut self.spare));
        for flow in &active {
            let Some(state) = self.flows.get_mut(flow) else {
                continue;
            };
            if state.tell {
                state.tell = false;
                let (next, limit) = (state.next, state.window.limit());
                let frame = Frame::Ack {
                    flow: *flow,
                    next,
                    limit,
                };
                self.actions.push_back(Action::Write(Write {
                    lane,
                    frame,
                    payload: None,
                    meta: None,
                    remote: None,
                }));
            }
            while let Some((sequence, asked)) = state.pending.pop_first() {
                let mut kept = state.kept.remove(&sequence);
                if let Some(place) = kept.take_if(|place| place.bytes != asked.bytes) {
                    self.places.give(*flow, place);
                }
                let new = || {
                    let (meta, bytes) = (&asked.meta, asked.bytes);
                    let offset = self.places.take(*flow, sequence, meta, bytes)?;
                    Some(Span {
                        offset,
                        bytes: asked.bytes,
                    })
                };
                let Some(place) = kept.or_else(new) else {
                    state.pending.insert(sequence, asked);
                    make_active(&mut self.active, *flow);
                    break;
                };
                state.granted += 1;
                let number = self.next_grant;
                self.next_grant += 1;
                self.grants.insert(
                    number,
                    Grant {
                        flow: *flow,
                        sequence,
                        asked,
                        place,
                        listed: lanes,
                        open: std::array::from_fn(|at| at < numbers.len()),
                        chunks: Vec::new(),
                        landed: 0,
                        again: false,
                    },
                );
                granted.push(number);
            }
        }
        active.clear();
        self.spare = active;
        for number in granted {
            self.tell_grant(number);
        }
    }
}

fn make_active(active: &mut Vec<Flow>, flow: Flow) {
    if !active.contains(&flow) {
        active.push(flow);
    }
}

impl ReceiveFlow {
    fn new(next: u64, window_bytes: u64) -> Self {
        Self {
            next,
            window: ReceiveWindow::new(window_bytes),
            open: false,
            early: BTreeMap::new(),
            gaps: BTreeMap::new(),
            pending: BTreeMap::new(),
            granted: 0,
            kept: BTreeMap::new(),
            close_at: None,
            tell: false,
        }
    }
}

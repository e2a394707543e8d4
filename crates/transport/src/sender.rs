//! The sending end of a link.
//!
//! Each flow (a publisher's messages on a topic) is a queue of what was not acknowledged. An entry goes back
//! to *waiting* when a lane is lost that it may have been lost with; the receiver knows duplicates by
//! their sequence. Entries are charged and asked for in their order, and asked for on the flow's own
//! lane, so that the receiver's landing places go to a flow's messages in their order.

use crate::credits::SendWindow;
use crate::cursors::{Reserved, Ring, Sender as RingSender};
use crate::entries::{Entries, Entry, Kind, State};
use crate::frame::{
    Flow, Frame, Lanes, Meta, Remote, CHUNK_BYTES_MAX, LANES_MAX, MESSAGE_BYTES_MAX,
};
use crate::link::{lie, Action, PeerLie, Span, Target, Write};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Payloads that a lane has in hand if they are small.
const WRITES_SMALL_MAX: usize = 32;
/// Closed lanes that are remembered; a peer names older ones only if it is that far behind.
const CLOSED_MAX: usize = 1024;

/// What the sending end may use.
#[derive(Clone, Copy, Debug)]
pub struct SenderConfig {
    /// Messages up to this size, description included, go eagerly, if the ring takes them.
    pub eager_bytes_max: u64,
    /// Large messages are cut into chunks of this size.
    pub chunk_bytes: u32,
    /// Payloads that a lane has in hand, however large they are,
    pub lane_writes_max: usize,
    /// and as long as they have no more bytes than this together: or small ones would wait for each other's completion.
    pub lane_bytes_max: u64,
    /// Bytes that a flow retains until they are acknowledged.
    pub retained_bytes_max: u64,
    /// Bytes that it retains while the peer has no lanes; then the oldest are given up.
    pub outage_bytes_max: u64,
    /// How long it retains them for a peer without lanes.
    pub outage_ms: u64,
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            eager_bytes_max: 16 << 10,
            chunk_bytes: 1 << 20,
            lane_writes_max: 4,
            lane_bytes_max: 1 << 20,
            retained_bytes_max: 256 << 20,
            outage_bytes_max: 1 << 30,
            outage_ms: 10_000,
        }
    }
}

/// What came of offering a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// It is retained until it is acknowledged or given up.
    Taken,
    /// Not before something is released. A reliable publisher waits.
    Full,
    /// Never: it is larger than what a flow may retain, or empty, or its sequence has passed.
    Never,
}

#[derive(Debug)]
struct SendFlow {
    reliable: bool,
    /// Bytes that it may retain, if that is less than what any flow may.
    retained_max: u64,
    next: u64,
    /// What the receiver had committed when the flow was opened, perhaps by a former life of this end.
    known: u64,
    entries: Entries,
    retained: u64,
    window: SendWindow,
    open_on: Option<u32>,
    opened: bool,
    closing: bool,
    lane: Option<u32>,
    /// It is among those that have a turn.
    runnable: bool,
}

#[derive(Debug)]
struct SendLane {
    ring: RingSender,
    /// Payloads that it has in hand: of which messages, and their bytes.
    busy: VecDeque<(Flow, u64, u64)>,
    busy_bytes: u64,
}

impl SendLane {
    fn new(ring: Ring) -> Self {
        Self {
            ring: RingSender::new(ring),
            busy: VecDeque::new(),
            busy_bytes: 0,
        }
    }

    /// Whether it takes a payload of so many bytes now.
    fn takes(&self, bytes: u64, config: &SenderConfig) -> bool {
        let is_small = self.busy_bytes + bytes <= config.lane_bytes_max;
        self.busy.len() < config.lane_writes_max || (is_small && self.busy.len() < WRITES_SMALL_MAX)
    }

    fn take(&mut self, flow: Flow, sequence: u64, bytes: u64) {
        self.busy.push_back((flow, sequence, bytes));
        self.busy_bytes += bytes;
    }

    /// The oldest is written.
    fn written(&mut self) -> Option<(Flow, u64)> {
        let (flow, sequence, bytes) = self.busy.pop_front()?;
        self.busy_bytes -= bytes;
        Some((flow, sequence))
    }
}

/// The sending end.
#[derive(Debug)]
pub struct Sender {
    config: SenderConfig,
    lanes: BTreeMap<u32, SendLane>,
    flows: BTreeMap<Flow, SendFlow>,
    /// Acknowledged, but a lane still reads the bytes.
    draining: BTreeMap<(Flow, u64), (Span, u32)>,
    actions: VecDeque<Action>,
    /// Memory for what is acknowledged at once.
    done: Vec<Entry>,
    /// Flows that may have something to send, in turn.
    runnable: VecDeque<Flow>,
    /// Flows that have something, for which lanes or windows had no room.
    starved: BTreeSet<Flow>,
    /// Lanes that are closed, and abandoned grants that lanes which are not open yet are to be told.
    closed: BTreeSet<u32>,
    owed: BTreeSet<(u32, u64)>,
    out_since_ms: Option<u64>,
    /// Messages that were on their way with a lane that is lost, and go again.
    pub(crate) redelivered: u64,
    /// How often a ring had no room.
    pub(crate) stalls: u64,
}

impl Sender {
    /// An end without lanes and flows.
    pub fn new(mut config: SenderConfig, now_ms: u64) -> Self {
        config.chunk_bytes = config.chunk_bytes.clamp(1, CHUNK_BYTES_MAX);
        config.lane_writes_max = config.lane_writes_max.max(1);
        Self {
            config,
            lanes: BTreeMap::new(),
            flows: BTreeMap::new(),
            draining: BTreeMap::new(),
            actions: VecDeque::new(),
            done: Vec::new(),
            runnable: VecDeque::new(),
            starved: BTreeSet::new(),
            closed: BTreeSet::new(),
            owed: BTreeSet::new(),
            out_since_ms: Some(now_ms),
            redelivered: 0,
            stalls: 0,
        }
    }

    /// What to do next.
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A publisher's messages are to cross, from sequence `first` on.
    pub fn open(&mut self, flow: Flow, first: u64, reliable: bool) {
        self.open_within(flow, first, reliable, u64::MAX);
    }

    /// The same for a flow that may retain no more than so many bytes.
    pub fn open_within(&mut self, flow: Flow, first: u64, reliable: bool, retained_max: u64) {
        if self.flows.contains_key(&flow) {
            return;
        }
        self.flows.insert(
            flow,
            SendFlow {
                reliable,
                retained_max,
                next: first,
                known: 0,
                entries: Entries::default(),
                retained: 0,
                window: SendWindow::default(),
                open_on: None,
                opened: false,
                closing: false,
                lane: None,
                runnable: false,
            },
        );
        self.wake(flow);
        self.pump();
    }

    /// The publisher is gone: the flow ends when all it sent is acknowledged.
    pub fn close(&mut self, flow: Flow) {
        if let Some(sending) = self.flows.get_mut(&flow).filter(|sending| !sending.closing) {
            sending.closing = true;
            let end = Entry::new(sending.next, sending.next, Kind::Close);
            sending.entries.push(end);
            self.wake(flow);
            self.pump();
        }
    }

    /// Whether a flow is still there.
    pub fn has_flow(&self, flow: Flow) -> bool {
        self.flows.contains_key(&flow)
    }

    /// A message whose bytes stay where they are until they are released.
    pub fn offer(&mut self, flow: Flow, sequence: u64, span: Span, meta: Meta) -> Offered {
        self.offer_part(flow, sequence, span, meta, u64::MAX)
    }

    /// The same for one of which `ready` bytes are there; [`Sender::more`] follows, or [`Sender::give_up`].
    pub fn offer_part(
        &mut self,
        flow: Flow,
        sequence: u64,
        span: Span,
        meta: Meta,
        ready: u64,
    ) -> Offered {
        let out = self.lanes.is_empty();
        let Some(sending) = self.flows.get_mut(&flow) else {
            return Offered::Never;
        };
        let (all, outage) = (self.config.retained_bytes_max, self.config.outage_bytes_max);
        let (all, outage) = (
            all.min(sending.retained_max),
            outage.min(sending.retained_max),
        );
        let max = if out { outage } else { all };
        let sizes = span.bytes > 0 && span.bytes <= all.min(outage).min(MESSAGE_BYTES_MAX);
        if !sizes || sequence < sending.next || sequence == u64::MAX || sending.closing {
            return Offered::Never;
        }
        if sequence < sending.known {
            sending.next = sequence + 1;
            self.actions.push_back(Action::Release {
                flow,
                sequence,
                span,
            });
            return Offered::Taken;
        }
        let holds_back = sending.reliable && !out;
        while sending.retained + span.bytes > max {
            if holds_back || !sending.give_up_oldest(flow, &mut self.actions) {
                return Offered::Full;
            }
        }
        if sequence > sending.next {
            sending.push_gap(sending.next, sequence);
        }
        let message = Kind::Message {
            span,
            meta,
            busy: 0,
        };
        sending.entries.push(Entry {
            ready,
            ..Entry::new(sequence, sequence + 1, message)
        });
        sending.retained += span.bytes;
        sending.next = sequence + 1;
        self.wake(flow);
        self.pump();
        Offered::Taken
    }

    /// So many bytes of a message are there now.
    pub fn more(&mut self, flow: Flow, sequence: u64, ready: u64) {
        let sending = self.flows.get_mut(&flow);
        if let Some(entry) = sending.and_then(|sending| sending.entry(sequence)) {
            entry.ready = entry.ready.max(ready);
            self.wake(flow);
            self.pump();
        }
    }

    /// The rest of a message of which not all bytes are there never will be: the peer learns of a gap.
    pub fn give_up(&mut self, flow: Flow, sequence: u64) {
        let Some(sending) = self.flows.get_mut(&flow) else {
            return;
        };
        let at = sending.entries.position(sequence);
        let Some(at) = at.filter(|at| sending.entries.at(*at).is_growing()) else {
            return;
        };
        let state = sending.entries.at(at).state;
        if let State::Granted { grant, .. } = state {
            let entry = sending.entries.at_mut(at);
            entry.abandoned = entry.abandoned.max(grant);
        }
        let draining = sending.give_up_at(at, flow, &mut self.actions);
        if let Some(draining) = draining {
            self.draining.insert((flow, sequence), draining);
        }
        if let State::Granted { grant, lanes, .. } = state {
            self.abandon(grant, lanes);
        }
        self.wake(flow);
        self.pump();
    }

    /// A lane is there; `ring` is the peer's for it. False if there are [`LANES_MAX`] already.
    pub fn lane_opened(&mut self, lane: u32, ring: Ring) -> bool {
        if self.lanes.len() == LANES_MAX || self.lanes.contains_key(&lane) {
            return false;
        }
        self.lanes.insert(lane, SendLane::new(ring));
        self.out_since_ms = None;
        for grant in self.forget_owed(lane) {
            self.control(lane, Frame::Abandon { grant });
        }
        self.wake_all();
        self.pump();
        true
    }

    /// A lane is closed, and nothing of ours is read for it any more.
    pub fn lane_closed(&mut self, lane: u32, now_ms: u64) {
        self.closed.insert(lane);
        if self.closed.len() > CLOSED_MAX {
            self.closed.pop_first();
        }
        self.forget_owed(lane);
        let Some(closed) = self.lanes.remove(&lane) else {
            return;
        };
        if self.lanes.is_empty() {
            self.out_since_ms = Some(now_ms);
        }
        for (flow, sequence, _) in closed.busy {
            self.not_busy(flow, sequence);
        }
        let mut abandoned = Vec::new();
        for sending in self.flows.values_mut() {
            sending.lane = sending.lane.filter(|own| *own != lane);
            if sending.open_on == Some(lane) && !sending.opened {
                sending.open_on = None;
            }
            sending.entries.change(|entry| {
                match entry.state {
                    State::Sent { lane: on } | State::Asked { lane: on } if on == lane => {
                        self.redelivered += entry.went();
                        entry.state = State::Waiting;
                    }
                    State::Granted {
                        grant, lanes, used, ..
                    } => {
                        let numbers = lanes.as_slice();
                        let at = numbers.iter().position(|number| *number == lane);
                        let lost = at.is_some_and(|at| used[at]);
                        if lost || !numbers.iter().any(|number| self.lanes.contains_key(number)) {
                            self.redelivered += entry.went();
                            entry.state = State::Waiting;
                            // A later one may have come, and been abandoned, before.
                            entry.abandoned = entry.abandoned.max(grant);
                            abandoned.push((grant, lanes));
                        }
                    }
                    _ => {}
                }
            });
        }
        for (grant, lanes) in abandoned {
            self.abandon(grant, lanes);
        }
        self.wake_all();
        self.pump();
    }

    /// A lane has written the payload of the oldest write that it had in hand.
    pub fn written(&mut self, lane: u32) {
        let lane = self.lanes.get_mut(&lane);
        let oldest = lane.and_then(SendLane::written);
        if let Some((flow, sequence)) = oldest {
            self.not_busy(flow, sequence);
            self.wake_starved();
            self.pump();
        }
    }

    /// Gives up what a peer without lanes did not get in time.
    pub fn tick(&mut self, now_ms: u64) {
        let Some(since) = self.out_since_ms else {
            return;
        };
        if now_ms.saturating_sub(since) >= self.config.outage_ms {
            for (flow, sending) in &mut self.flows {
                while sending.give_up_oldest(*flow, &mut self.actions) {}
            }
        }
    }

    /// The peer is another incarnation: it knows nothing but what it committed. All lanes are closed.
    ///
    /// # Panics
    /// If one is open.
    pub fn restart(&mut self) {
        assert!(
            self.lanes.is_empty(),
            "the lanes of the former incarnation are closed first"
        );
        // The next incarnation may give these numbers to lanes of its own.
        self.closed.clear();
        self.owed.clear();
        for sending in self.flows.values_mut() {
            (sending.opened, sending.open_on) = (false, None);
            (sending.window, sending.lane) = (SendWindow::default(), None);
            sending.entries.change(|entry| {
                self.redelivered += entry.went();
                (entry.state, entry.charge_end, entry.abandoned) = (State::Waiting, None, 0);
                entry.large = false;
            });
        }
    }

    /// A frame for this end.
    pub fn frame(&mut self, lane: u32, frame: &Frame) -> Result<(), PeerLie> {
        match *frame {
            Frame::Ack { flow, next, limit } => {
                self.acknowledged(flow, next, limit)?;
                self.wake(flow);
            }
            Frame::Grant {
                flow,
                sequence,
                grant,
                offset,
                lanes,
                remote,
            } => {
                self.granted(flow, sequence, grant, (offset, remote), lanes);
                self.wake(flow);
            }
            Frame::Head { head } => {
                if let Some(lane) = self.lanes.get_mut(&lane) {
                    lane.ring.head_returned(head)?;
                }
                self.wake_starved();
            }
            _ => return Err(lie("frame", "it is not for the sending end")),
        }
        self.pump();
        Ok(())
    }

    fn acknowledged(&mut self, flow: Flow, next: u64, limit: u64) -> Result<(), PeerLie> {
        let Some(sending) = self.flows.get_mut(&flow) else {
            return Ok(());
        };
        if sending.open_on.is_none() && !sending.opened {
            return Ok(());
        }
        // What ends the flow has the sequence after the last.
        if !sending.opened {
            sending.known = next;
        }
        let end = (sending.next + u64::from(sending.closing)).max(sending.known);
        if next > end {
            return Err(lie("ack", "it acknowledges what was not sent"));
        }
        sending.opened = true;
        sending.window.raise(limit);
        let mut done = std::mem::take(&mut self.done);
        while let Some(entry) = sending.entries.pop_below(next) {
            if let Kind::Message { span, .. } = entry.kind {
                sending.retained -= span.bytes;
            }
            done.push(entry);
        }
        for entry in done.drain(..) {
            if let State::Granted {
                grant, lanes, sent, ..
            } = entry.state
            {
                if !entry.is_sent(sent) {
                    self.abandon(grant, lanes);
                }
            }
            match entry.kind {
                Kind::Message { span, busy: 0, .. } => {
                    self.actions.push_back(Action::Release {
                        flow,
                        sequence: entry.first,
                        span,
                    });
                }
                Kind::Message { span, busy, .. } => {
                    self.draining.insert((flow, entry.first), (span, busy));
                }
                Kind::Gap => {}
                Kind::Close => {
                    self.flows.remove(&flow);
                    self.starved.remove(&flow);
                    self.ended_if_drained(flow);
                }
            }
        }
        self.done = done;
        Ok(())
    }

    fn granted(
        &mut self,
        flow: Flow,
        sequence: u64,
        grant: u64,
        (place, remote): (u64, Option<Remote>),
        lanes: Lanes,
    ) {
        let open = lanes
            .as_slice()
            .iter()
            .any(|number| self.lanes.contains_key(number));
        let entries = self.flows.get_mut(&flow).and_then(|sending| {
            let at = sending.entries.position(sequence)?;
            Some((&mut sending.entries, at))
        });
        if let Some((entries, at)) = entries {
            let entry = entries.at_mut(at);
            match entry.state {
                State::Granted { grant: current, .. } if current == grant => return,
                State::Asked { .. } if grant > entry.abandoned && open => {
                    let state = State::Granted {
                        grant,
                        place,
                        remote,
                        lanes,
                        used: [false; LANES_MAX],
                        sent: 0,
                    };
                    entries.set(at, state);
                    return;
                }
                State::Asked { .. } if grant > entry.abandoned => {
                    // Its lanes are lost already: ask again.
                    entry.abandoned = grant;
                    entries.set(at, State::Waiting);
                }
                _ => entry.abandoned = entry.abandoned.max(grant),
            }
        }
        // It came late, or twice: nobody will use it.
        self.abandon(grant, lanes);
    }

    fn abandon(&mut self, grant: u64, lanes: Lanes) {
        for lane in lanes.as_slice() {
            if self.lanes.contains_key(lane) {
                self.control(*lane, Frame::Abandon { grant });
            } else if !self.closed.contains(lane) {
                // Open at the peer, not yet here: it is told as soon as it is.
                self.owed.insert((*lane, grant));
            }
        }
    }

    fn forget_owed(&mut self, lane: u32) -> Vec<u64> {
        let owed = self.owed.range((lane, 0)..=(lane, u64::MAX));
        let grants: Vec<u64> = owed.map(|(_, grant)| *grant).collect();
        self.owed.retain(|(to, _)| *to != lane);
        grants
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

    /// The end of a flow comes behind the release of all its messages.
    fn ended_if_drained(&mut self, flow: Flow) {
        let mut drains = self.draining.range((flow, 0)..=(flow, u64::MAX));
        if drains.next().is_none() && !self.flows.contains_key(&flow) {
            self.actions.push_back(Action::Ended { flow });
        }
    }

    fn not_busy(&mut self, flow: Flow, sequence: u64) {
        if let Some((span, busy)) = self.draining.get_mut(&(flow, sequence)) {
            *busy -= 1;
            if *busy == 0 {
                let span = *span;
                self.draining.remove(&(flow, sequence));
                self.actions.push_back(Action::Release {
                    flow,
                    sequence,
                    span,
                });
                self.ended_if_drained(flow);
            }
            return;
        }
        let sending = self.flows.get_mut(&flow);
        let entry = sending.and_then(|sending| sending.entry(sequence));
        if let Some(Entry {
            kind: Kind::Message { busy, .. },
            ..
        }) = entry
        {
            *busy -= 1;
        }
    }

    /// Sends what can be sent, one step of each flow after the other.
    fn pump(&mut self) {
        if self.lanes.is_empty() {
            return;
        }
        while let Some(flow) = self.runnable.pop_front() {
            if let Some(sending) = self.flows.get_mut(&flow) {
                sending.runnable = false;
            }
            let went = self.step(flow);
            let sending = self.flows.get_mut(&flow);
            let has_work = sending.is_some_and(|sending| sending.entries.has_work());
            match (went, has_work) {
                (true, true) => self.wake(flow),
                (false, true) => {
                    self.starved.insert(flow);
                }
                (_, false) => {}
            }
        }
    }

    fn wake(&mut self, flow: Flow) {
        if let Some(sending) = self.flows.get_mut(&flow) {
            if !std::mem::replace(&mut sending.runnable, true) {
                self.runnable.push_back(flow);
            }
        }
    }

    fn wake_starved(&mut self) {
        for flow in std::mem::take(&mut self.starved) {
            self.wake(flow);
        }
    }

    fn wake_all(&mut self) {
        let flows: Vec<Flow> = self.flows.keys().copied().collect();
        flows.into_iter().for_each(|flow| self.wake(flow));
    }

    fn least_busy(&self, among: impl Fn(u32) -> bool, bytes: u64) -> Option<u32> {
        let lanes = self.lanes.iter().filter(|(number, _)| among(**number));
        let free = lanes.filter(|(_, lane)| lane.takes(bytes, &self.config));
        let (number, _) = free.min_by_key(|(_, lane)| lane.busy_bytes)?;
        Some(*number)
    }

    /// One frame of a flow, if one can go.
    fn step(&mut self, flow: Flow) -> bool {
        let Some(sending) = self.flows.get_mut(&flow) else {
            return false;
        };
        if !sending.opened {
            if sending.open_on.is_some() {
                return false;
            }
            let any = *self.lanes.keys().next().expect("pumped only with lanes");
            sending.open_on = Some(any);
            let first = sending
                .entries
                .front()
                .map_or(sending.next, |entry| entry.first);
            self.control(any, Frame::Open { flow, first });
            return true;
        }
        if sending.entries.is_empty() {
            return false;
        }
        let lane = *sending.lane.get_or_insert_with(|| {
            let least = self.lanes.iter().min_by_key(|(_, lane)| lane.busy.len());
            *least.expect("pumped only with lanes").0
        });
        let frame_max = self.lanes[&lane].ring.ring().frame_bytes_max();
        let eager_max = self.config.eager_bytes_max.min(frame_max);
        let mut lanes = self.lanes.values();
        let all_busy = lanes.all(|lane| !lane.takes(1, &self.config));
        let mut from = 0;
        loop {
            let sending = self.flows.get_mut(&flow).expect("looked up above");
            let found = sending.entries.work_from(from, all_busy);
            let Some(at) = found else {
                return false;
            };
            from = at + 1;
            let may_ask = sending.entries.may_ask(sending.entries.at(at).bytes());
            let entry = sending.entries.at_mut(at);
            let eager = match &entry.kind {
                Kind::Message { span, meta, .. } => {
                    let bytes = span.bytes + meta.as_slice().len() as u64;
                    (bytes <= eager_max && !entry.large).then_some(bytes)
                }
                _ => None,
            };
            if entry.charge_end.is_none() {
                let Some(charge_end) = sending.window.charge(eager.unwrap_or(0)) else {
                    return false;
                };
                entry.charge_end = Some(charge_end);
                entry.large = eager.is_none();
            }
            let charge_end = entry.charge_end.expect("charged above");
            let (first, next) = (entry.first, entry.next);
            match (&entry.state, &entry.kind, eager) {
                (State::Waiting, Kind::Gap, _) => {
                    sending.entries.set(at, State::Sent { lane });
                    self.control(
                        lane,
                        Frame::Gap {
                            flow,
                            first,
                            next,
                            charge_end,
                        },
                    );
                    return true;
                }
                (State::Waiting, Kind::Close, _) => {
                    sending.entries.set(at, State::Sent { lane });
                    self.control(lane, Frame::Close { flow, next });
                    return true;
                }
                // It keeps its turn.
                (State::Waiting, Kind::Message { .. }, Some(_)) if entry.is_growing() => {
                    return false
                }
                (State::Waiting, Kind::Message { .. }, Some(bytes)) => {
                    let sent = self.send_eager(flow, at, lane, bytes, charge_end);
                    if sent {
                        return true;
                    }
                }
                (State::Waiting, Kind::Message { span, meta, .. }, None) => {
                    // Later ones must not ask first.
                    if !may_ask {
                        return false;
                    }
                    let request = Frame::Request {
                        flow,
                        sequence: first,
                        charge_end,
                        bytes: span.bytes,
                        meta: meta.clone(),
                    };
                    sending.entries.set(at, State::Asked { lane });
                    self.control(lane, request);
                    return true;
                }
                (State::Granted { sent, lanes, .. }, ..)
                    if entry.has_chunk(*sent, self.config.chunk_bytes) =>
                {
                    let lanes = *lanes;
                    let among = |number: u32| lanes.as_slice().contains(&number);
                    let bytes = entry.bytes() - *sent;
                    let bytes = bytes.min(self.config.chunk_bytes.into());
                    if let Some(lane) = self.least_busy(among, bytes) {
                        self.send_chunk(flow, at, lane);
                        return true;
                    }
                }
                _ => {}
            }
        }
    }

    fn send_eager(
        &mut self,
        flow: Flow,
        at: usize,
        lane: u32,
        bytes: u64,
        charge_end: u64,
    ) -> bool {
        let sending = self.lanes.get_mut(&lane).expect("a flow's lane is open");
        if !sending.takes(bytes, &self.config) {
            return false;
        }
        let slot = match sending.ring.reserve(bytes) {
            Ok(Reserved::At(slot)) => slot,
            Ok(Reserved::Full) => {
                if sending.ring.stalled() {
                    self.stalls += 1;
                    let tail = sending.ring.tail();
                    self.control(lane, Frame::Stall { tail });
                }
                return false;
            }
            Err(_) => return false,
        };
        let of_flow = self.flows.get_mut(&flow).expect("its caller has it");
        of_flow.entries.set(at, State::Sent { lane });
        let entry = of_flow.entries.at_mut(at);
        let Kind::Message { span, meta, busy } = &mut entry.kind else {
            unreachable!("its caller looked");
        };
        *busy += 1;
        sending.take(flow, entry.first, bytes);
        let frame = Frame::Eager {
            flow,
            sequence: entry.first,
            charge_end,
            cursor: slot.cursor,
            bytes: u32::try_from(bytes).expect("a quarter of a ring has 32 bits"),
            meta_bytes: u16::try_from(meta.as_slice().len()).expect("descriptions are short"),
        };
        let payload = Some((*span, Target::Ring(slot.offset)));
        let write = Write {
            lane,
            frame,
            payload,
            meta: Some(meta.clone()),
            remote: None,
        };
        self.actions.push_back(Action::Write(write));
        true
    }

    fn send_chunk(&mut self, flow: Flow, at: usize, lane: u32) {
        let of_flow = self.flows.get_mut(&flow).expect("its caller has it");
        let entry = of_flow.entries.at_mut(at);
        let sequence = entry.first;
        let (
            Kind::Message { span, busy, .. },
            State::Granted {
                grant,
                place,
                remote,
                lanes,
                used,
                sent,
            },
        ) = (&mut entry.kind, &mut entry.state)
        else {
            unreachable!("its caller looked");
        };
        let offset = *sent;
        let bytes = (span.bytes - offset).min(u64::from(self.config.chunk_bytes));
        *sent += bytes;
        *busy += 1;
        let numbers = lanes.as_slice();
        let index = numbers
            .iter()
            .position(|number| *number == lane)
            .expect("one of the grant's");
        used[index] = true;
        let from = Span {
            offset: span.offset + offset,
            bytes,
        };
        let target = Target::Region(*place + offset);
        let bytes = u32::try_from(bytes).expect("a chunk has 32 bits");
        let frame = Frame::Chunk {
            grant: *grant,
            offset,
            bytes,
        };
        let open = self.lanes.get_mut(&lane).expect("it is open");
        open.take(flow, sequence, u64::from(bytes));
        let payload = Some((from, target));
        let remote = *remote;
        self.actions.push_back(Action::Write(Write {
            lane,
            frame,
            payload,
            meta: None,
            remote,
        }));
    }
}

impl SendFlow {
    /// A message that is not acknowledged; for what is not its state.
    fn entry(&mut self, sequence: u64) -> Option<&mut Entry> {
        let at = self.entries.position(sequence)?;
        Some(self.entries.at_mut(at))
    }

    fn push_gap(&mut self, first: u64, next: u64) {
        match self.entries.back_mut() {
            Some(Entry {
                kind: Kind::Gap,
                state: State::Waiting,
                next: end,
                charge_end,
                ..
            }) => {
                (*end, *charge_end) = (next, None);
            }
            _ => self.entries.push(Entry::new(first, next, Kind::Gap)),
        }
    }

    /// Gives up the oldest message that no lane has; neighbouring gaps become one.
    fn give_up_oldest(&mut self, flow: Flow, actions: &mut VecDeque<Action>) -> bool {
        let Some(at) = self.entries.first_waiting() else {
            return false;
        };
        self.give_up_at(at, flow, actions);
        true
    }

    /// Gives up the message at `at`. Its bytes, if lanes still read them.
    fn give_up_at(
        &mut self,
        at: usize,
        flow: Flow,
        actions: &mut VecDeque<Action>,
    ) -> Option<(Span, u32)> {
        let Entry { first, next, .. } = *self.entries.at(at);
        let Kind::Message { span, busy, .. } = self.entries.at(at).kind else {
            return None;
        };
        self.retained -= span.bytes;
        actions.push_back(Action::GaveUp { flow, first, next });
        if busy == 0 {
            actions.push_back(Action::Release {
                flow,
                sequence: first,
                span,
            });
        }
        self.entries.make_gap(at);
        (busy > 0).then_some((span, busy))
    }
}

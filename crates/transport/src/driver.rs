//! Both ends of a link, joined with the memory of its owner. No threads, no sockets, no clock: whoever runs it
//! (threads and TCP in [`crate::Link`], virtual time in the simulation) tells it what lanes bring and how late
//! it is, writes what [`Driver::batch`] has, and carries out what [`Driver::next_delivery`] says.

use crate::batch::{Batch, Bytes};
use crate::cursors::Ring;
use crate::frame::{Flow, Frame, Meta, Remote};
use crate::link::{lie, Action, PeerLie, Target};
use crate::memory::Part;
use crate::owner::{Event, Owner, Place, Room};
use crate::payload::Payload;
use crate::places::Landings;
use crate::receiver::{Receiver, ReceiverConfig};
use crate::sender::{Offered, Sender, SenderConfig};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Frames without payload that wait for a lane; a peer that does not read while it asks for more is cut off.
const CONTROL_MAX: usize = 16 << 10;
/// Payloads above this are left to the lane's own thread.
pub(crate) const BULK_BYTES: usize = 64 << 10;

/// Small messages of a flow are acknowledged together: after so many, or this part of their window, or behind
/// what is written anyway, or when the clock ticks.
const OWED_MAX: u32 = 16;
const OWED_PART: u64 = 8;
/// Large ones are, too, so many at most, while as many more of the flow are on their way.
const OWED_LARGE_MAX: u32 = 4;

/// What came of a message that was to be sent.
pub type Sent = Offered;

struct Queued {
    frame: Frame,
    meta: Option<Meta>,
    payload: Option<Bytes>,
    remote: Option<Remote>,
}

impl Queued {
    fn bytes(&self) -> usize {
        self.payload.as_ref().map_or(0, |(_, from, to)| to - from)
    }

    fn is_part_of(&self, much: Much) -> bool {
        match much {
            Much::Short => self.bytes() <= BULK_BYTES,
            Much::Posted => self.bytes() <= BULK_BYTES || self.remote.is_some(),
            Much::All => true,
        }
    }
}

/// How much of what waits somebody would write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Much {
    /// What takes no time, so that any thread may.
    Short,
    /// And what the NIC does by itself.
    Posted,
    /// All of it.
    All,
}

#[derive(Default)]
struct Out {
    /// What is for the peer's sending end overtakes messages: it is short, and its order does not matter.
    control: VecDeque<Frame>,
    writes: VecDeque<Queued>,
}

impl Out {
    fn push_control(&mut self, frame: Frame) {
        // The last word of a flow is enough.
        if let (Frame::Ack { flow, .. }, Some(Frame::Ack { flow: last, .. })) =
            (&frame, self.control.back())
        {
            if flow == last {
                self.control.pop_back();
            }
        }
        self.control.push_back(frame);
    }
}

/// Where a frame's payload goes.
pub(crate) enum Destination {
    /// A small message: to be handed to [`Driver::landed`] in one piece.
    Hand,
    /// Into a message's place (or nowhere, if it was refused).
    Chunk(crate::places::Chunk),
}

/// A message, or what else a flow's receiver learns in its turn.
pub(crate) enum Arrival {
    Opened {
        next: u64,
    },
    Eager {
        sequence: u64,
        bytes: Vec<u8>,
        meta_bytes: usize,
    },
    Placed {
        sequence: u64,
        place: Box<dyn Place>,
        meta: Meta,
        window: u32,
    },
    Missed {
        first: u64,
        next: u64,
        window: u32,
    },
    Closed {
        next: u64,
    },
}

/// What an arrival is, once it is out of the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Large,
    Closed,
    Other,
}

impl Arrival {
    fn turn(&self) -> Turn {
        match self {
            Self::Placed { window: 0, .. } => Turn::Large,
            Self::Closed { .. } => Turn::Closed,
            _ => Turn::Other,
        }
    }

    /// What cannot be acknowledged before this is delivered.
    fn sequence(&self) -> u64 {
        match self {
            Self::Eager { sequence, .. } | Self::Placed { sequence, .. } => *sequence,
            Self::Missed {
                first: sequence, ..
            } => *sequence,
            Self::Opened { next: sequence } | Self::Closed { next: sequence } => *sequence,
        }
    }
}

#[derive(Default)]
struct Arrivals {
    queue: VecDeque<Arrival>,
    /// The first is being delivered: its sequence, and what it is.
    out: Option<(u64, Turn)>,
    /// The owner could not take the first.
    waits: bool,
    /// What is here up to `Closed` has no window any more that it could go back to.
    closed: bool,
    /// Small messages that were delivered and are not acknowledged yet: how many, and their bytes.
    owed: (u32, u32),
    /// The last acknowledgement went behind what was written anyway, so the next may, too: the clock lets it wait once.
    answered: bool,
    waited: bool,
    /// What the sender was told last, and on which lane.
    told: Option<(u32, u64, u64)>,
}

impl Arrivals {
    /// Whether what is owed may wait for the next tick: once, if something is likely to be written before.
    fn lets_wait(&mut self) -> bool {
        let lets = self.answered && !self.waited;
        (self.answered, self.waited) = (lets, lets);
        lets
    }

    fn first(&self) -> Option<u64> {
        let queued = || self.queue.front().map(Arrival::sequence);
        self.out.map(|(sequence, _)| sequence).or_else(queued)
    }
}

/// What is to be done outside of the lock.
pub(crate) enum Delivery {
    Event(Event),
    /// Dropping it is the owner's code.
    Release(Arc<dyn Payload>),
    Arrival(Flow, Arrival),
}

impl Delivery {
    /// Carries it out. What is to be told to [`Driver::delivered`] then.
    pub(crate) fn perform(self, owner: &dyn Owner) -> Option<(Flow, Result<u32, Arrival>)> {
        match self {
            Self::Event(event) => owner.event(event),
            Self::Release(payload) => drop(payload),
            Self::Arrival(flow, arrival) => return Some((flow, arrive(owner, flow, arrival))),
        }
        None
    }
}

/// The bytes of the flow's window that are free then, or the message if it has to wait.
fn arrive(owner: &dyn Owner, flow: Flow, arrival: Arrival) -> Result<u32, Arrival> {
    let missed = |first: u64, next: u64| owner.event(Event::Missed { flow, first, next });
    match arrival {
        Arrival::Opened { next } => owner.event(Event::Opened { flow, next }),
        Arrival::Closed { .. } => owner.event(Event::Closed { flow }),
        Arrival::Missed {
            first,
            next,
            window,
        } => {
            missed(first, next);
            return Ok(window);
        }
        Arrival::Eager {
            sequence,
            bytes,
            meta_bytes,
        } => {
            let (meta, message) = bytes.split_at(meta_bytes);
            let window = u32::try_from(bytes.len()).expect("it came out of a ring");
            let mut place = match owner.place(flow, sequence, meta, message.len() as u64) {
                Room::Place(place) => place,
                Room::Full => {
                    return Err(Arrival::Eager {
                        sequence,
                        bytes,
                        meta_bytes,
                    })
                }
                Room::Refused => {
                    missed(sequence, sequence + 1);
                    return Ok(window);
                }
            };
            let memory = place.memory();
            if memory.len() != message.len() {
                drop(place);
                missed(sequence, sequence + 1);
                return Ok(window);
            }
            memory.copy_from_slice(message);
            return commit(sequence, place, meta, window);
        }
        Arrival::Placed {
            sequence,
            place,
            meta,
            window,
        } => {
            return commit(sequence, place, meta.as_slice(), window);
        }
    }
    Ok(0)
}

fn commit(sequence: u64, place: Box<dyn Place>, meta: &[u8], window: u32) -> Result<u32, Arrival> {
    match place.commit(sequence, meta) {
        Ok(()) => Ok(window),
        Err(place) => Err(Arrival::Placed {
            sequence,
            place,
            meta: Meta::new(meta).expect("it came in a frame, which bounds it"),
            window,
        }),
    }
}

/// Both ends.
pub(crate) struct Driver {
    sender: Sender,
    receiver: Receiver<Landings>,
    /// By where they begin in an address space of the link's own.
    staged: BTreeMap<u64, Arc<dyn Payload>>,
    next_base: u64,
    gave_up: BTreeSet<(Flow, u64)>,
    full: BTreeSet<Flow>,
    out: BTreeMap<u32, Out>,
    dirty: Vec<u32>,
    stuck: Option<u32>,
    taken: BTreeMap<(Flow, u64), (Vec<u8>, usize)>,
    /// What comes in its turn; a flow stays here until it is closed.
    arrivals: BTreeMap<Flow, Arrivals>,
    /// Flows whose owner could not take the first.
    waiting: Vec<Flow>,
    ready: VecDeque<Flow>,
    deliveries: VecDeque<Delivery>,
    /// Flows that are owed an acknowledgement.
    owed: Vec<Flow>,
    owed_bytes_max: u32,
}

impl Driver {
    pub(crate) fn new(
        sender: SenderConfig,
        receiver: ReceiverConfig,
        places: Landings,
        committed: &[(Flow, u64)],
    ) -> Self {
        let part = receiver.window_bytes / OWED_PART;
        Self {
            owed: Vec::new(),
            waiting: Vec::new(),
            owed_bytes_max: u32::try_from(part).unwrap_or(u32::MAX),
            sender: Sender::new(sender, 0),
            receiver: Receiver::new(receiver, places, committed),
            staged: BTreeMap::new(),
            next_base: 0,
            gave_up: BTreeSet::new(),
            full: BTreeSet::new(),
            out: BTreeMap::new(),
            dirty: Vec::new(),
            stuck: None,
            taken: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            ready: VecDeque::new(),
            deliveries: VecDeque::new(),
        }
    }

    pub(crate) fn open(&mut self, flow: Flow, first: u64, reliable: bool, retained_max: u64) {
        self.sender.open_within(flow, first, reliable, retained_max);
        self.act(None);
    }

    pub(crate) fn close(&mut self, flow: Flow) {
        self.sender.close(flow);
        self.act(None);
    }

    pub(crate) fn send(
        &mut self,
        flow: Flow,
        sequence: u64,
        payload: Arc<dyn Payload>,
        meta: Meta,
    ) -> Sent {
        let bytes = payload.bytes() as u64;
        let ready = payload.ready() as u64;
        let offset = self.next_base;
        let span = crate::link::Span { offset, bytes };
        self.staged.insert(offset, payload);
        self.next_base += bytes.max(1);
        let sent = self.sender.offer_part(flow, sequence, span, meta, ready);
        if sent != Sent::Taken {
            let payload = self.staged.remove(&offset);
            self.deliveries.extend(payload.map(Delivery::Release));
        }
        if sent == Sent::Full {
            self.full.insert(flow);
        }
        self.act(None);
        sent
    }

    /// More of a message is there.
    pub(crate) fn more(&mut self, flow: Flow, sequence: u64, ready: u64) {
        self.sender.more(flow, sequence, ready);
        self.act(None);
    }

    /// A message that grew never will be whole.
    pub(crate) fn give_up(&mut self, flow: Flow, sequence: u64) {
        self.sender.give_up(flow, sequence);
        self.act(None);
    }

    /// A lane is there, with the peer's ring and ours.
    pub(crate) fn lane_opened(&mut self, lane: u32, theirs: Ring, ours: Ring, now_ms: u64) -> bool {
        if self.out.contains_key(&lane) {
            return false;
        }
        self.out.insert(lane, Out::default());
        let opened =
            self.receiver.lane_opened(lane, ours, now_ms) && self.sender.lane_opened(lane, theirs);
        if !opened {
            self.receiver.lane_closed(lane);
            self.out.remove(&lane);
        }
        self.act(None);
        opened
    }

    /// A lane is closed, and nobody reads or writes for it any more.
    pub(crate) fn lane_closed(&mut self, lane: u32, now_ms: u64) {
        self.out.remove(&lane);
        self.dirty.retain(|dirty| *dirty != lane);
        for arrivals in self.arrivals.values_mut() {
            arrivals.told = arrivals.told.filter(|(on, ..)| *on != lane);
        }
        self.stuck = self.stuck.filter(|stuck| *stuck != lane);
        self.sender.lane_closed(lane, now_ms);
        self.receiver.lane_closed(lane);
        if self.out.is_empty() {
            // Other limits hold now.
            for flow in std::mem::take(&mut self.full) {
                self.deliveries
                    .push_back(Delivery::Event(Event::Room { flow }));
            }
        }
        self.act(None);
    }

    /// The peer is another incarnation. All lanes are closed.
    pub(crate) fn restart(&mut self) {
        self.sender.restart();
        self.receiver.restart();
        // Flows that come again begin anew.
        self.arrivals
            .retain(|_, arrivals| arrivals.first().is_some() || arrivals.owed.0 > 0);
        self.act(None);
        self.event(Event::PeerRestarted);
    }

    /// A frame came. If bytes follow it, where they go; then [`Driver::landed`].
    pub(crate) fn frame(
        &mut self,
        lane: u32,
        frame: &Frame,
        now_ms: u64,
    ) -> Result<Option<Destination>, PeerLie> {
        let to_sender = matches!(
            frame,
            Frame::Ack { .. } | Frame::Grant { .. } | Frame::Head { .. }
        );
        let result = if to_sender {
            self.sender.frame(lane, frame).map(|()| None)
        } else {
            self.receiver.frame(lane, frame, now_ms)
        };
        self.act(None);
        Ok(match result? {
            None => None,
            Some(Target::Ring(_)) => Some(Destination::Hand),
            Some(Target::Region(at)) => {
                let chunk = self.receiver.places().chunk(at, frame.payload_bytes());
                Some(Destination::Chunk(
                    chunk.ok_or(lie("chunk", "somebody else writes there"))?,
                ))
            }
        })
    }

    /// The peer wrote the whole message of a grant, which this mark names, and sent no frame.
    pub(crate) fn marked(
        &mut self,
        lane: u32,
        mark: u32,
        bytes: u32,
        now_ms: u64,
    ) -> Result<Option<Destination>, PeerLie> {
        let frame = Frame::Chunk {
            grant: self.receiver.marked(mark),
            offset: 0,
            bytes,
        };
        if !frame.is_sound() {
            return Err(lie("mark", "it has no bytes, or more than a chunk"));
        }
        self.frame(lane, &frame, now_ms)
    }

    /// The bytes of the lane's oldest frame that has some are there: those of a small message here, of a chunk
    /// where they belong.
    pub(crate) fn landed(&mut self, lane: u32, small: &[u8]) -> Result<(), PeerLie> {
        let result = self.receiver.landed(lane);
        self.act(Some(small));
        result
    }

    /// A lane wrote so many payloads.
    pub(crate) fn written(&mut self, lane: u32, payloads: usize) {
        for _ in 0..payloads {
            self.sender.written(lane);
        }
        self.act(None);
    }

    /// Time passes. Whatever had to wait for memory asks again.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        self.sender.tick(now_ms);
        self.receiver.tick(now_ms);
        self.act(None);
        self.pay_late();
        self.retry();
    }

    /// Whether the next tick does something soon: what has to wait for time asks again then.
    pub(crate) fn awaits_tick(&self) -> bool {
        !self.owed.is_empty() || !self.waiting.is_empty() || self.receiver.awaits_tick()
    }

    pub(crate) fn retry(&mut self) {
        if self.receiver.places().ask_again() {
            self.receiver.places_freed();
            self.act(None);
        }
        for flow in std::mem::take(&mut self.waiting) {
            if let Some(arrivals) = self.arrivals.get_mut(&flow) {
                arrivals.waits = false;
                self.ready.push_back(flow);
            }
        }
    }

    /// Still there.
    pub(crate) fn beat(&mut self, lane: u32, beat: u64) {
        if let Some(out) = self.out.get_mut(&lane) {
            if out.control.is_empty() {
                out.control.push_back(Frame::Alive { beat });
                make_dirty(&mut self.dirty, lane);
            }
        }
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.deliveries.push_back(Delivery::Event(event));
    }

    /// What is to be done without the lock, one after the other.
    pub(crate) fn next_delivery(&mut self) -> Option<Delivery> {
        if let Some(delivery) = self.deliveries.pop_front() {
            return Some(delivery);
        }
        while let Some(flow) = self.ready.pop_front() {
            let Some(arrivals) = self.arrivals.get_mut(&flow) else {
                continue;
            };
            if arrivals.out.is_some() || arrivals.waits {
                continue;
            }
            if let Some(arrival) = arrivals.queue.pop_front() {
                arrivals.out = Some((arrival.sequence(), arrival.turn()));
                return Some(Delivery::Arrival(flow, arrival));
            }
        }
        None
    }

    pub(crate) fn has_deliveries(&self) -> bool {
        !self.deliveries.is_empty() || !self.ready.is_empty()
    }

    /// What came of an arrival.
    pub(crate) fn delivered(&mut self, flow: Flow, outcome: Result<u32, Arrival>) {
        let arrivals = self.arrivals.get_mut(&flow).expect("its first was out");
        let turn = arrivals.out.take().map_or(Turn::Other, |(_, turn)| turn);
        let was_closed = turn == Turn::Closed;
        match outcome {
            Err(arrival) => {
                arrivals.queue.push_front(arrival);
                arrivals.waits = true;
                self.waiting.push(flow);
            }
            Ok(window) => {
                let window = if arrivals.closed { 0 } else { window };
                arrivals.closed &= !was_closed;
                if !arrivals.queue.is_empty() {
                    self.ready.push_back(flow);
                }
                let (count, bytes) = &mut arrivals.owed;
                if *count == 0 {
                    self.owed.push(flow);
                }
                *bytes += window;
                *count += 1;
                let is_due = match turn {
                    Turn::Large => {
                        let more = self.receiver.granted(flow);
                        *count >= OWED_LARGE_MAX || more < OWED_LARGE_MAX as usize
                    }
                    _ => window == 0 || *count >= OWED_MAX,
                };
                if is_due || *bytes >= self.owed_bytes_max {
                    self.pay(flow);
                }
                let idle = |arrivals: &mut Arrivals| arrivals.first().is_none();
                if was_closed && self.arrivals.get_mut(&flow).is_some_and(idle) {
                    self.arrivals.remove(&flow);
                }
            }
        }
    }

    /// Acknowledges what was delivered.
    fn pay(&mut self, flow: Flow) {
        let arrivals = self.arrivals.get_mut(&flow);
        let owed = arrivals.map(|arrivals| std::mem::take(&mut arrivals.owed));
        match owed {
            Some((1.., bytes)) if bytes > 0 => self.receiver.released(flow, bytes),
            Some((1.., _)) => self.receiver.tell_again(flow),
            // It was paid since.
            _ => return,
        }
        self.act(None);
    }

    /// Behind what is written.
    fn pay_all(&mut self) {
        while let Some(flow) = self.owed.pop() {
            self.pay(flow);
            if let Some(arrivals) = self.arrivals.get_mut(&flow) {
                (arrivals.answered, arrivals.waited) = (true, false);
            }
        }
    }

    /// When the clock ticks.
    fn pay_late(&mut self) {
        let mut at = 0;
        while let Some(&flow) = self.owed.get(at) {
            let arrivals = self.arrivals.get_mut(&flow);
            if arrivals.is_some_and(Arrivals::lets_wait) {
                at += 1;
                continue;
            }
            self.owed.swap_remove(at);
            self.pay(flow);
        }
    }

    /// A lane that has something to write since it was named last.
    pub(crate) fn dirty(&mut self) -> Option<u32> {
        (!self.dirty.is_empty()).then(|| self.dirty.remove(0))
    }

    /// A lane whose peer asks and does not read.
    pub(crate) fn stuck(&mut self) -> Option<u32> {
        self.stuck.take()
    }

    /// Whether something waits to be written, and whether that is part of so much.
    pub(crate) fn waiting(&self, lane: u32, much: Much) -> Option<bool> {
        let out = self.out.get(&lane)?;
        let first = out.writes.front().map(|write| write.is_part_of(much));
        if out.control.is_empty() {
            first
        } else {
            Some(true)
        }
    }

    /// Moves what is to be written next into an empty batch, if it is part of so much. Whether that left something.
    pub(crate) fn batch(&mut self, lane: u32, much: Much, batch: &mut Batch) -> bool {
        batch.clear();
        if self.waiting(lane, much).is_some() && self.out.keys().next() == Some(&lane) {
            self.pay_all();
        }
        let Some(out) = self.out.get_mut(&lane) else {
            return false;
        };
        while batch.has_room() {
            let Some(frame) = out.control.pop_front() else {
                break;
            };
            batch.push(&frame, None, None, None);
        }
        while batch.has_room() {
            let fits = |write: &Queued| write.is_part_of(much);
            if !out.writes.front().is_some_and(fits) {
                break;
            }
            let Queued {
                frame,
                meta,
                payload,
                remote,
            } = out.writes.pop_front().expect("looked at");
            batch.push(&frame, meta.as_ref(), payload, remote);
        }
        !out.control.is_empty() || !out.writes.is_empty()
    }

    /// Below which sequences the owner has everything.
    pub(crate) fn committed(&self) -> Vec<(Flow, u64)> {
        let mut all = self.receiver.committed();
        for (flow, next) in &mut all {
            let first = self.arrivals.get(flow).and_then(Arrivals::first);
            *next = first.map_or(*next, |first| first.min(*next));
        }
        all
    }

    /// Messages that went again, rings that had no room, and messages that came again.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        let sender = &self.sender;
        (sender.redelivered, sender.stalls, self.receiver.duplicates)
    }

    /// What the link holds: bytes of messages that are not released, places that are not committed.
    pub(crate) fn held(&self) -> (u64, usize) {
        let staged = self.staged.values().map(|payload| payload.bytes() as u64);
        (staged.sum(), self.receiver.places_held())
    }

    /// Carries out what the ends say.
    fn act(&mut self, small: Option<&[u8]>) {
        loop {
            if let Some(action) = self.sender.action() {
                self.act_as_sender(action);
            } else if let Some(action) = self.receiver.action() {
                self.act_as_receiver(action, small);
            } else {
                break;
            }
        }
    }

    fn act_as_sender(&mut self, action: Action) {
        match action {
            Action::Write(write) => {
                let Some(out) = self.out.get_mut(&write.lane) else {
                    return;
                };
                let payload = write.payload.map(|(span, _)| {
                    let staged = self.staged.range(..=span.offset).next_back();
                    let (base, payload) = staged.expect("it is not released");
                    let from = usize::try_from(span.offset - base).expect("it is in memory");
                    let to = from + usize::try_from(span.bytes).expect("it is in memory");
                    (Arc::clone(payload), from, to)
                });
                out.writes.push_back(Queued {
                    frame: write.frame,
                    meta: write.meta,
                    payload,
                    remote: write.remote,
                });
                if out.writes.len() > CONTROL_MAX {
                    self.stuck = Some(write.lane);
                }
                make_dirty(&mut self.dirty, write.lane);
            }
            Action::Release {
                flow,
                sequence,
                span,
            } => {
                let payload = self.staged.remove(&span.offset);
                self.deliveries.extend(payload.map(Delivery::Release));
                if !self.gave_up.remove(&(flow, sequence)) {
                    self.event(Event::Acknowledged { flow, sequence });
                }
                if self.full.remove(&flow) {
                    self.event(Event::Room { flow });
                }
            }
            Action::GaveUp { flow, first, next } => {
                self.gave_up.insert((flow, first));
                self.event(Event::GaveUp { flow, first, next });
            }
            Action::Ended { flow } => self.event(Event::Ended { flow }),
            other => unreachable!("the sending end does not say {other:?}"),
        }
    }

    fn act_as_receiver(&mut self, action: Action, small: Option<&[u8]>) {
        match action {
            Action::Write(write) => {
                let mut frame = write.frame;
                if let Frame::Ack { flow, next, limit } = &mut frame {
                    // What the owner has not taken is not acknowledged.
                    if let Some(arrivals) = self.arrivals.get_mut(flow) {
                        *next = arrivals.first().map_or(*next, |first| first.min(*next));
                        let news = (write.lane, *next, *limit);
                        let told = arrivals.told.replace(news);
                        if told.is_some_and(|(_, next, limit)| (next, limit) == (news.1, news.2)) {
                            return;
                        }
                    }
                }
                if let Frame::Grant { offset, remote, .. } = &mut frame {
                    *remote = self.receiver.places().remote(*offset);
                }
                if let Some(out) = self.out.get_mut(&write.lane) {
                    out.push_control(frame);
                    if out.control.len() > CONTROL_MAX {
                        self.stuck = Some(write.lane);
                    }
                    make_dirty(&mut self.dirty, write.lane);
                }
            }
            Action::Take {
                flow,
                sequence,
                bytes,
                meta_bytes,
                ..
            } => {
                let small = small.expect("it is told in `landed`");
                debug_assert_eq!(small.len(), bytes as usize);
                let taken = (small.to_vec(), usize::from(meta_bytes));
                self.taken.insert((flow, sequence), taken);
            }
            Action::Commit {
                flow,
                sequence,
                large,
                eager_bytes,
            } => {
                let arrival = match large {
                    None => {
                        let taken = self.taken.remove(&(flow, sequence));
                        let (bytes, meta_bytes) = taken.expect("it was taken");
                        debug_assert_eq!(bytes.len(), eager_bytes as usize);
                        Arrival::Eager {
                            sequence,
                            bytes,
                            meta_bytes,
                        }
                    }
                    Some((span, meta)) => match self.receiver.places().committed(span) {
                        Some(place) => Arrival::Placed {
                            sequence,
                            place,
                            meta,
                            window: 0,
                        },
                        None => Arrival::Missed {
                            first: sequence,
                            next: sequence + 1,
                            window: 0,
                        },
                    },
                };
                self.arrived(flow, arrival);
            }
            Action::Missed { flow, first, next } => {
                self.arrived(
                    flow,
                    Arrival::Missed {
                        first,
                        next,
                        window: 0,
                    },
                );
            }
            Action::Drop { flow, sequence } => {
                self.taken.remove(&(flow, sequence));
            }
            Action::Opened { flow, next } => self.arrived(flow, Arrival::Opened { next }),
            Action::Closed { flow, next } => self.arrived(flow, Arrival::Closed { next }),
            other => unreachable!("the receiving end does not say {other:?}"),
        }
    }

    fn arrived(&mut self, flow: Flow, arrival: Arrival) {
        let arrivals = self.arrivals.entry(flow).or_default();
        arrivals.closed |= matches!(arrival, Arrival::Closed { .. });
        arrivals.queue.push_back(arrival);
        if arrivals.queue.len() == 1 && arrivals.out.is_none() && !arrivals.waits {
            self.ready.push_back(flow);
        }
    }
}

fn make_dirty(dirty: &mut Vec<u32>, lane: u32) {
    if !dirty.contains(&lane) {
        dirty.push(lane);
    }
}

/// Writes what followed a chunk's frame and was read with it.
pub(crate) fn fill(part: &mut Option<Part>, from: usize, bytes: &[u8]) {
    if let Some(part) = part {
        part.as_mut_slice()[from..from + bytes.len()].copy_from_slice(bytes);
    }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;

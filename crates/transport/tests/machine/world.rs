//! The simulated world: two hosts, one link with messages in both directions, and seeded faults.
use crate::content::content;
use crate::host::{describe, name, remote_of, SimPayload, SimUser, ARENA_AT};
use rgaps_testkit::Random;
use rgaps_transport::machine::frame::{self, Decoded, Description, Frame, Small, FLOW_ENDED};
use rgaps_transport::machine::{
    FlowEvent, FrameStep, LinkLimits, LinkMachine, LinkOutput, QueuedFrame, Turn, WriteLimit,
    WriteRange,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub lanes: bool,
    pub crashes: bool,
    pub cancels: bool,
    pub cards: bool,
    pub refusals: bool,
    /// An end may notice late that a lane is lost, and still read what the lane brought. Flows end and begin all the time.
    pub delays: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub small: u64,
    pub large: u64,
    pub missed: u64,
    pub again: u64,
    pub lanes_lost: u64,
    pub crashes: u64,
    pub grown: u64,
    pub cancelled: u64,
    pub back_pressured: u64,
    pub from_chunk: u64,
    pub refused: u64,
    pub cut: u64,
    pub direct: u64,
    pub late: u64,
    /// Frames that arrive on a lane that their sender has lost; `delayed_after_end`: those of a flow that has ended at its sender.
    pub delayed: u64,
    pub delayed_after_end: u64,
    pub steps: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        let mut pairs = [
            (&mut self.small, other.small),
            (&mut self.large, other.large),
            (&mut self.missed, other.missed),
            (&mut self.again, other.again),
            (&mut self.lanes_lost, other.lanes_lost),
            (&mut self.crashes, other.crashes),
            (&mut self.grown, other.grown),
            (&mut self.cancelled, other.cancelled),
            (&mut self.back_pressured, other.back_pressured),
            (&mut self.from_chunk, other.from_chunk),
            (&mut self.refused, other.refused),
            (&mut self.cut, other.cut),
            (&mut self.direct, other.direct),
            (&mut self.late, other.late),
            (&mut self.delayed, other.delayed),
            (&mut self.delayed_after_end, other.delayed_after_end),
            (&mut self.steps, other.steps),
        ];
        for (sum, more) in &mut pairs {
            **sum += *more;
        }
    }
}

/// The most working lanes; and the most together with lost lanes that have not ended.
const LANES: usize = 3;
const LANES_WITH_LOST: usize = 7;
/// The most turns by which an end delays reading, and noticing that a lane is lost.
const DELAY_MAX: u64 = 60;
/// The first `FAULTY` steps have faults; the run has to end within `STEPS_MAX`.
const FAULTY: u64 = 4000;
const STEPS_MAX: u64 = 100_000;
/// A run with delays is so many times longer.
const DELAYED_RUN: u64 = 4;
const ARENA_BYTES: usize = 4000;
const SMALL_MAX: u64 = 100;

#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Opening,
    Open,
    Closed,
}

struct Item {
    frame: Vec<u8>,
    payload: Vec<u8>,
    /// The address in the peer's arena to which the card writes the payload, if it does.
    address: Option<u64>,
}

/// One connection. A queue keeps its order; the delay is random. Arrays are indexed by the host that sends, or whose end it is.
struct Lane {
    number: u32,
    is_rdma: bool,
    is_broken: bool,
    /// An end reads, and notices that the lane is lost, once in so many of its turns.
    delay: [u64; 2],
    ends: [End; 2],
    in_hand: [VecDeque<QueuedFrame>; 2],
    wire: [VecDeque<Item>; 2],
    reading: [Option<(WriteRange, Vec<u8>, bool)>; 2],
    /// Of a broken RDMA lane: the card may still write bytes, but notifies nobody.
    is_mute: [bool; 2],
}

struct Publisher {
    host: usize,
    sizes: Vec<u64>,
    offered: u64,
    /// The number after the last message that its flow took.
    flow_next: u64,
    /// The acknowledged position.
    confirmed: u64,
    cancelled: BTreeSet<u64>,
    growing: BTreeMap<u64, (Arc<SimPayload>, u64)>,
    payloads: Vec<Weak<SimPayload>>,
    flow: Option<u64>,
    is_closed: bool,
    is_done: bool,
    /// Its receiver refuses its flows.
    is_refused: bool,
    /// Its flow was cut.
    is_cut: bool,
}

/// The most unacknowledged bytes of a publisher.
const RETAINED_MAX: u64 = 2500;

impl Publisher {
    fn retained_bytes(&self) -> u64 {
        let open = self.confirmed..self.offered;
        let open = open.filter(|sequence| !self.cancelled.contains(sequence));
        open.map(|sequence| self.sizes[sequence as usize]).sum()
    }
}

/// Checks that a host's sending end keeps to the limits and grants that it got.
#[derive(Default)]
struct Observer {
    limits: BTreeMap<u64, u64>,
    requested: BTreeMap<u64, BTreeMap<u64, u64>>,
}

struct Host {
    machine: LinkMachine,
    limits: LinkLimits,
    user: Arc<SimUser>,
    outputs: VecDeque<LinkOutput>,
    small: VecDeque<(u64, u64, u16, Vec<u8>)>,
    observer: Observer,
}

pub struct World {
    random: Random,
    faults: Faults,
    hosts: [Host; 2],
    publishers: Vec<Publisher>,
    lanes: Vec<Lane>,
    next_lane: u32,
    crash: Option<usize>,
    lives: u64,
    counts: Counts,
    is_faulty: bool,
}

fn host(random: &mut Random, faults: Faults) -> Host {
    let limits = LinkLimits {
        small_bytes_max: SMALL_MAX as u32,
        chunk_bytes: 40 + random.below(100) as u32,
        first_window: 128 + random.below(200) as u32,
        window_bytes: 400 + random.below(400),
        payloads_max: 1 + random.below(3) as usize,
        payload_bytes_max: random.below(3) * 500,
    };
    let user = Arc::new(SimUser::new(ARENA_BYTES, faults.cards));
    Host {
        machine: LinkMachine::new(limits, user.clone(), Arc::new(remote_of)),
        limits,
        user,
        outputs: VecDeque::new(),
        small: VecDeque::new(),
        observer: Observer::default(),
    }
}

impl World {
    pub fn new(seed: u64, faults: Faults) -> Self {
        let mut random = Random::new(seed.wrapping_mul(0x1234_5678_9abc_def1));
        let hosts = [host(&mut random, faults), host(&mut random, faults)];
        let size = |random: &mut Random| match random.below(6) {
            0 | 1 => 101 + random.below(400),
            2 => 101 + random.below(1500),
            _ => 1 + random.below(80),
        };
        let times = if faults.delays { DELAYED_RUN } else { 1 };
        let publisher = |random: &mut Random, host| Publisher {
            host,
            sizes: (0..times * (20 + random.below(30)))
                .map(|_| size(random))
                .collect(),
            offered: 0,
            flow_next: 0,
            confirmed: 0,
            cancelled: BTreeSet::new(),
            growing: BTreeMap::new(),
            payloads: Vec::new(),
            flow: None,
            is_closed: false,
            is_done: false,
            is_refused: false,
            is_cut: false,
        };
        let count = 2 + random.below(4);
        let publishers: Vec<_> = (0..count)
            .map(|at| publisher(&mut random, at as usize % 2))
            .collect();
        let mut world = Self {
            random,
            faults,
            hosts,
            publishers,
            lanes: Vec::new(),
            next_lane: 1,
            crash: None,
            lives: 0,
            counts: Counts::default(),
            is_faulty: true,
        };
        world.open_flows();
        world
    }

    pub fn run(mut self) -> Counts {
        let times = if self.faults.delays { DELAYED_RUN } else { 1 };
        for step in 0..STEPS_MAX * times {
            self.counts.steps += 1;
            self.is_faulty = step < FAULTY * times;
            self.step();
            self.settle();
            if !self.is_faulty && step % 64 == 0 && self.is_done() {
                self.check_end();
                return self.counts;
            }
        }
        panic!("stalled: {}", self.describe());
    }

    fn open_flows(&mut self) {
        for id in 0..self.publishers.len() {
            self.open_flow(id);
        }
    }

    fn open_flow(&mut self, id: usize) {
        let publisher = &mut self.publishers[id];
        publisher.growing.clear();
        if publisher.is_done {
            return;
        }
        let machine = &mut self.hosts[publisher.host].machine;
        publisher.flow = machine.open(publisher.confirmed, description_of(id));
        assert!(publisher.flow.is_some());
        publisher.offered = publisher.confirmed;
        publisher.flow_next = publisher.confirmed;
        (publisher.is_closed, publisher.is_cut) = (false, false);
    }

    fn step(&mut self) {
        let at = self.random.below(self.publishers.len() as u64) as usize;
        let host = self.random.below(2) as usize;
        match self.random.below(44) {
            0 | 1 => self.publish(at),
            2 | 3 => self.grow(at),
            4 if self.faults.cancels && self.is_faulty && self.random.one_in(4) => self.cancel(at),
            5 => self.hosts[host].machine.tick(),
            6 => self.hosts[host].machine.buffer_free(),
            7 if self.faults.lanes && self.is_faulty && self.random.one_in(5) => self.break_lane(),
            7 | 8 => self.new_lane(),
            9 if self.faults.crashes && self.is_faulty && self.random.one_in(20) => {
                self.crash.get_or_insert(host);
                self.lanes.iter_mut().for_each(|lane| lane.is_broken = true);
            }
            10..=12 => self.carry_out(host),
            14 if self.faults.refusals && self.is_faulty && self.random.one_in(30) => {
                self.refuse(host, at);
            }
            15 if self.faults.refusals && self.is_faulty && self.random.one_in(10) => self.cut(at),
            13 => {
                let refuses = self.random.below(3) as usize;
                self.hosts[host]
                    .user
                    .refuses
                    .store(refuses, Ordering::Relaxed);
                let one_in = self.random.below(3) * 2;
                let mut decisions = self.hosts[host].user.decisions.lock().unwrap();
                decisions.full_one_in = if self.is_faulty { one_in } else { 0 };
            }
            _ if !self.lanes.is_empty() => {
                let lane = self.random.below(self.lanes.len() as u64) as usize;
                self.lane_step(lane, host);
            }
            _ => {}
        }
    }

    /// Does what follows at once from a step.
    fn settle(&mut self) {
        for host in &mut self.hosts {
            while let Some(output) = host.machine.output() {
                host.outputs.push_back(output);
            }
        }
        self.lanes.retain(|lane| lane.ends != [End::Closed; 2]);
        if self.crash.is_some() && self.lanes.is_empty() {
            self.restart();
        }
    }

    fn publish(&mut self, id: usize) {
        let publisher = &mut self.publishers[id];
        let machine = &mut self.hosts[publisher.host].machine;
        let Some(flow) = publisher.flow.filter(|_| !publisher.is_closed) else {
            return;
        };
        while publisher.cancelled.contains(&publisher.offered) {
            publisher.offered += 1;
        }
        let sequence = publisher.offered;
        let next = publisher.sizes.get(sequence as usize);
        let ends = self.faults.delays && publisher.growing.is_empty() && self.random.one_in(4);
        let Some(&bytes) = next.filter(|_| !ends) else {
            if publisher.growing.is_empty() {
                machine.close(flow);
                publisher.is_closed = true;
            }
            return;
        };
        let grows = self.random.one_in(4);
        let ready = if grows {
            self.random.below(bytes)
        } else {
            bytes
        };
        let payload = SimPayload::new(id as u64, sequence, bytes, ready);
        let description = Description::new(&describe(sequence)).unwrap();
        let weak = Arc::downgrade(&payload);
        if publisher.retained_bytes() + bytes > RETAINED_MAX {
            return;
        }
        if machine.send(flow, sequence, payload.clone(), description) {
            publisher.payloads.push(weak);
            publisher.offered += 1;
            publisher.flow_next = publisher.offered;
            if ready < bytes {
                publisher.growing.insert(sequence, (payload, ready));
            }
        } else {
            assert!(publisher.is_refused, "{sequence} of {bytes} bytes");
        }
    }

    fn grow(&mut self, id: usize) {
        let publisher = &mut self.publishers[id];
        let (Some((&sequence, (payload, ready))), Some(flow)) =
            (publisher.growing.iter_mut().next(), publisher.flow)
        else {
            return;
        };
        let bytes = publisher.sizes[sequence as usize];
        *ready = (*ready + 1 + self.random.below(bytes)).min(bytes);
        payload.grow(*ready);
        let now = *ready;
        if now == bytes {
            self.counts.grown += 1;
            publisher.growing.remove(&sequence);
        }
        self.hosts[publisher.host]
            .machine
            .ready(flow, sequence, now);
    }

    fn cancel(&mut self, id: usize) {
        let publisher = &mut self.publishers[id];
        let open = publisher.offered.saturating_sub(publisher.confirmed);
        let (Some(flow), 1..) = (publisher.flow, open) else {
            return;
        };
        let sequence = publisher.confirmed + self.random.below(open);
        let payload = self.hosts[publisher.host].machine.cancel(flow, sequence);
        if payload.is_some() {
            self.counts.cancelled += 1;
            publisher.cancelled.insert(sequence);
            publisher.growing.remove(&sequence);
        }
    }

    /// A host refuses a publisher's flow, for good.
    fn refuse(&mut self, host: usize, id: usize) {
        let publisher = &mut self.publishers[id];
        if publisher.host == host || publisher.is_done {
            return;
        }
        let decisions = self.hosts[host].user.decisions.lock().unwrap();
        let mut flows = decisions.publishers.iter().rev();
        let flow = flows.find(|(_, of)| **of == id as u64);
        let flow = flow.map(|(flow, _)| *flow);
        drop(decisions);
        let why = Description::new(b"not wanted").unwrap();
        if let Some(flow) = flow {
            if self.hosts[host].machine.refuse(flow, why) {
                publisher.is_refused = true;
                self.counts.refused += 1;
            }
        }
    }

    /// A publisher cuts its flow; another flow begins where the receiver ended that one.
    fn cut(&mut self, id: usize) {
        let publisher = &mut self.publishers[id];
        if let Some(flow) = publisher.flow {
            drop(self.hosts[publisher.host].machine.cut(flow));
            publisher.growing.clear();
            (publisher.is_closed, publisher.is_cut) = (true, true);
            self.counts.cut += 1;
        }
    }

    fn break_lane(&mut self) {
        if !self.lanes.is_empty() {
            let at = self.random.below(self.lanes.len() as u64) as usize;
            let lane = &mut self.lanes[at];
            if std::mem::replace(&mut lane.is_broken, true) {
                return;
            }
            self.counts.lanes_lost += 1;
            self.lanes[at].delay = [self.delay(), self.delay()];
        }
    }

    fn delay(&mut self) -> u64 {
        match self.faults.delays && self.random.one_in(2) {
            true => 1 + self.random.below(DELAY_MAX),
            false => 1,
        }
    }

    fn new_lane(&mut self) {
        let working = self.lanes.iter().filter(|lane| !lane.is_broken);
        let has_room = match self.faults.delays {
            true => working.count() < LANES && self.lanes.len() < LANES_WITH_LOST,
            false => self.lanes.len() < LANES,
        };
        if has_room && self.crash.is_none() {
            let delay = [self.delay(), self.delay()];
            self.lanes.push(Lane {
                number: self.next_lane,
                is_rdma: self.faults.cards && self.random.one_in(2),
                is_broken: false,
                delay,
                ends: [End::Opening; 2],
                in_hand: Default::default(),
                wire: Default::default(),
                reading: Default::default(),
                is_mute: [false; 2],
            });
            self.next_lane += 1 + self.random.below(1 << 20) as u32;
        }
    }

    /// Does something at one end of a lane.
    fn lane_step(&mut self, at: usize, host: usize) {
        let lane = &mut self.lanes[at];
        let is_late = lane.delay[host] > 1 && (self.is_faulty || lane.is_broken);
        let is_late = is_late && !self.random.one_in(lane.delay[host]);
        // An end that notices late that a lane is lost mostly reads all that the lane brought.
        let has_rest = lane.delay[host] > 1 && !lane.wire[1 - host].is_empty();
        let reads_rest = has_rest && !self.random.one_in(10);
        match (lane.ends[host], self.random.below(7)) {
            (_, 0 | 5..) if is_late => {}
            (End::Opening, 0..=2) if !lane.is_broken => {
                lane.ends[host] = End::Open;
                let window = self.hosts[1 - host].limits.first_window;
                assert!(self.hosts[host].machine.lane_up(lane.number, window));
            }
            (End::Opening | End::Open, 0) if lane.is_broken && !reads_rest => {
                self.end_lane(at, host);
            }
            (End::Open, 1 | 2) => self.take(at, host),
            (End::Open, 3 | 4) => self.write(at, host),
            (End::Open, 5..) => self.arrive(at, host),
            _ => {}
        }
    }

    fn end_lane(&mut self, at: usize, host: usize) {
        let lane = &mut self.lanes[at];
        lane.ends[host] = End::Closed;
        lane.in_hand[host].clear();
        lane.reading[host] = None;
        lane.wire[1 - host].clear();
        // Both the reading and the writing thread may report it.
        for _ in 0..=self.random.below(2) {
            self.hosts[host].machine.lane_ended(lane.number);
        }
    }

    /// A lane takes its next frame.
    fn take(&mut self, at: usize, host: usize) {
        let lane = &mut self.lanes[at];
        let limit = match self.random.below(3) {
            0 => WriteLimit::Short,
            1 => WriteLimit::Posted,
            _ => WriteLimit::All,
        };
        let Host {
            machine,
            observer,
            limits,
            ..
        } = &mut self.hosts[host];
        if let Some(queued) = machine.next(lane.number, limit) {
            let small_max = u64::from(limits.small_bytes_max);
            observer.sends(&queued.frame, small_max);
            if let Frame::Grant(frame::Grant { from_chunk, .. }) = queued.frame {
                self.counts.from_chunk += u64::from(from_chunk > 0);
            }
            lane.in_hand[host].push_back(queued);
        }
    }

    /// The lane reads the oldest frame's payload, not earlier, and sends the frame.
    fn write(&mut self, at: usize, host: usize) {
        let lane = &mut self.lanes[at];
        let Some(queued) = lane.in_hand[host].pop_front() else {
            return;
        };
        let mut item = Item {
            frame: Vec::new(),
            payload: Vec::new(),
            address: None,
        };
        queued.frame.encode(&mut item.frame);
        let description = queued.description.iter();
        item.payload
            .extend(description.flat_map(|of| of.as_slice()));
        if let Some((payload, from, to)) = &queued.payload {
            item.payload.extend_from_slice(payload.slice(*from, *to));
            if let Some(remote) = queued.remote.filter(|_| lane.is_rdma) {
                let (address, key) = remote.at(*from as u64, 1).unwrap();
                assert_eq!(key, 2);
                item.address = Some(address);
            }
            drop(queued);
            self.hosts[host].machine.written(lane.number, 1);
        }
        if lane.ends[1 - host] != End::Closed {
            lane.wire[host].push_back(item);
        }
    }

    /// The next bytes or the next frame arrive at a host.
    fn arrive(&mut self, at: usize, host: usize) {
        let lane = &mut self.lanes[at];
        let number = lane.number;
        if let Some((mut range, bytes, directly)) = lane.reading[host].take() {
            let length = range.as_mut_slice().len();
            assert_eq!(length, bytes.len());
            if !directly {
                range.as_mut_slice().copy_from_slice(&bytes);
            }
            let landed = range.landed(directly);
            if let Some(grant) = landed {
                self.hosts[host].machine.landed(grant);
            }
            return;
        }
        let Some(item) = lane.wire[1 - host].pop_front() else {
            return;
        };
        if let Some(address) = item.address {
            let mut arena = self.hosts[host].user.arena.lock().unwrap();
            let start = (address - ARENA_AT) as usize;
            arena.bytes[start..start + item.payload.len()].copy_from_slice(&item.payload);
            self.counts.direct += 1;
            lane.is_mute[host] |= lane.is_broken && self.random.one_in(2);
        }
        if lane.is_mute[host] {
            self.counts.late += 1;
            return;
        }
        let Ok(Decoded::Frame(frame, used)) = Frame::decode(&item.frame) else {
            panic!("a frame does not decode");
        };
        assert_eq!(used, item.frame.len());
        let directly = item.address.is_some();
        if std::env::var_os("TRACE").is_some() {
            eprintln!("to {host} on {number} (end {:?}): {frame:?}", lane.ends);
        }
        if self.lanes[at].ends[1 - host] == End::Closed {
            self.counts.delayed += 1;
            let has_ended = |flow| flow > 0 && self.hosts[1 - host].machine.sent(flow).is_none();
            self.counts.delayed_after_end += u64::from(flow_of(&frame).is_some_and(has_ended));
        }
        self.hosts[host].observer.hears(&frame);
        let small = match frame {
            Frame::Small(_) => &item.payload[..],
            _ => &[],
        };
        let step = self.hosts[host].machine.frame(number, &frame, small);
        match step.unwrap_or_else(|violation| panic!("an honest peer is blamed: {violation}")) {
            FrameStep::Done => {}
            FrameStep::Chunk(range) => {
                self.lanes[at].reading[host] = Some((range, item.payload, directly));
            }
            FrameStep::Deliver(Small {
                flow,
                sequence,
                description_bytes,
                ..
            }) => {
                let small = (flow, sequence, description_bytes, item.payload);
                self.hosts[host].small.push_back(small);
            }
        }
    }

    /// Runs the user's code for one output.
    fn carry_out(&mut self, host: usize) {
        if self.random.one_in(2) {
            if let Some((flow, sequence, length, bytes)) = self.hosts[host].small.pop_front() {
                let turn = Turn::Small {
                    sequence,
                    bytes: bytes.into(),
                    description_bytes: length.into(),
                };
                let outcome = self.deliver(host, flow, turn);
                self.hosts[host].machine.delivered(flow, outcome);
            }
            return;
        }
        if let Some(output) = self.hosts[host].outputs.pop_front() {
            self.carry_out_output(host, output);
        }
    }

    fn carry_out_output(&mut self, host: usize, output: LinkOutput) {
        match output {
            LinkOutput::Deliver { flow, turn } => {
                let outcome = self.deliver(host, flow, turn);
                self.hosts[host].machine.delivered(flow, outcome);
            }
            LinkOutput::Flow(FlowEvent::Acknowledged { flow, sequence, .. }) => {
                let (id, publisher) = self.publisher_of(host, flow);
                publisher.confirmed = publisher.confirmed.max(sequence + 1);
                publisher.growing.remove(&sequence);
                let position = self.position(1 - host, id);
                assert!(sequence < position, "acknowledged, not delivered");
            }
            LinkOutput::Flow(FlowEvent::Ended { flow }) => {
                let (id, _) = self.publisher_of(host, flow);
                let position = self.position(1 - host, id);
                let (_, publisher) = self.publisher_of(host, flow);
                let (ended_at, offered) = match publisher.is_cut {
                    true => (position, position),
                    false => (publisher.flow_next, publisher.offered),
                };
                publisher.confirmed = ended_at;
                let is_last = offered >= publisher.sizes.len() as u64;
                (publisher.flow, publisher.is_done) = (None, is_last || publisher.is_refused);
                assert!(self.hosts[host].machine.sent(flow).is_none());
                self.open_flow(id as usize);
            }
            LinkOutput::Flow(FlowEvent::Accepted { .. }) => {}
            LinkOutput::Flow(FlowEvent::Refused { flow, why, .. }) => {
                let (_, publisher) = self.publisher_of(host, flow);
                assert!(publisher.is_refused && why.as_slice() == b"not wanted");
                publisher.growing.clear();
                publisher.is_closed = true;
            }
            LinkOutput::Violation(what) => panic!("an honest peer is blamed: {what}"),
            LinkOutput::Stuck { lane } => panic!("lane {lane} is stuck"),
        }
    }

    fn publisher_of(&mut self, host: usize, flow: u64) -> (u64, &mut Publisher) {
        let mut all = self.publishers.iter_mut().enumerate();
        let found = all.find(|(_, of)| of.host == host && of.flow == Some(flow));
        let (id, publisher) = found.expect("a flow that was opened");
        (id as u64, publisher)
    }

    fn position(&self, host: usize, id: u64) -> u64 {
        let decisions = self.hosts[host].user.decisions.lock().unwrap();
        decisions.positions.get(&id).copied().unwrap_or(0)
    }

    /// Delivers a turn. At random the user cannot take it.
    fn deliver(&mut self, host: usize, flow: u64, turn: Turn) -> Result<(), Turn> {
        let cannot = self.random.one_in(5) && !matches!(turn, Turn::Large { .. });
        if cannot {
            self.counts.back_pressured += 1;
            return Err(turn);
        }
        if let Turn::Opened { description, first } = turn {
            let id = u64::from_le_bytes(description.as_slice().try_into().unwrap());
            assert!(first <= self.position(host, id));
            let mut decisions = self.hosts[host].user.decisions.lock().unwrap();
            assert!(decisions.publishers.insert(flow, id).is_none(), "twice");
            drop(decisions);
            if self.publishers[id as usize].is_refused {
                let why = Description::new(b"not wanted").unwrap();
                self.hosts[host].machine.refuse(flow, why);
            }
            return Ok(());
        }
        let decisions = self.hosts[host].user.decisions.lock().unwrap();
        let id = decisions.publishers[&flow];
        drop(decisions);
        let (sequence, bytes) = match turn {
            Turn::Small {
                sequence,
                bytes,
                description_bytes,
            } => {
                assert_eq!(bytes[..description_bytes], describe(sequence));
                self.counts.small += 1;
                (sequence, bytes[description_bytes..].to_vec())
            }
            Turn::Large {
                sequence,
                description,
                buffer,
            } => {
                if let Err(buffer) = buffer.deliver(sequence, description.as_slice()) {
                    self.counts.back_pressured += 1;
                    return Err(Turn::Large {
                        sequence,
                        description,
                        buffer,
                    });
                }
                self.counts.large += 1;
                let delivered = self.hosts[host].user.delivered.lock().unwrap().take();
                (sequence, delivered.expect("it was delivered just now"))
            }
            Turn::Missed { first, next } => {
                self.missed(host, id, first, next);
                return Ok(());
            }
            Turn::Closed { next } => {
                assert!(next <= self.position(host, id), "closed before its end");
                return Ok(());
            }
            Turn::Opened { .. } => unreachable!("it was looked at"),
        };
        let position = self.position(host, id);
        let expected = content(
            id,
            0,
            sequence,
            self.publishers[id as usize].sizes[sequence as usize],
        );
        assert_eq!(bytes, expected, "{id} {sequence} is damaged");
        if sequence < position {
            assert!(self.lives > 0, "{id} {sequence} came twice");
            self.counts.again += 1;
            return Ok(());
        }
        assert_eq!(sequence, position, "{id} out of order");
        self.set_position(host, id, sequence + 1);
        Ok(())
    }

    fn missed(&mut self, host: usize, id: u64, first: u64, next: u64) {
        let position = self.position(host, id);
        assert!(
            first <= position && first < next,
            "a gap that is not where the flow is"
        );
        for sequence in first..next {
            let of = &self.publishers[id as usize];
            assert!(of.cancelled.contains(&sequence), "{sequence} was lost");
            self.counts.missed += 1;
        }
        self.set_position(host, id, position.max(next));
    }

    fn set_position(&mut self, host: usize, id: u64, to: u64) {
        let mut decisions = self.hosts[host].user.decisions.lock().unwrap();
        decisions.positions.insert(id, to);
    }

    /// The crashed host makes a new machine; the other host's machine restarts.
    fn restart(&mut self) {
        let Some(crashed) = self.crash.take() else {
            return;
        };
        self.counts.crashes += 1;
        self.lives += 1;
        self.next_lane = 1;
        let other = 1 - crashed;
        // Deliveries from the crashed life are dropped; its acknowledgements count.
        let is_sent = |output: &LinkOutput| !matches!(output, LinkOutput::Deliver { .. });
        self.hosts[other].outputs.retain(is_sent);
        drop(self.hosts[other].machine.restart());
        while let Some(output) = self.hosts[other].machine.output() {
            self.hosts[other].outputs.push_back(output);
        }
        let host = &mut self.hosts[crashed];
        host.machine = LinkMachine::new(host.limits, host.user.clone(), Arc::new(remote_of));
        host.outputs.clear();
        for host in &mut self.hosts {
            host.user.decisions.lock().unwrap().publishers.clear();
            host.observer = Observer::default();
            host.small.clear();
        }
        while let Some(output) = self.hosts[other].outputs.pop_front() {
            self.carry_out_output(other, output);
        }
        for id in 0..self.publishers.len() {
            let publisher = &self.publishers[id];
            match publisher.flow.filter(|_| publisher.host == other) {
                Some(flow) => {
                    let machine = &mut self.hosts[other].machine;
                    machine.reopen(flow, description_of(id));
                }
                None if publisher.host == crashed => self.open_flow(id),
                None => {}
            }
        }
    }

    fn is_done(&self) -> bool {
        let is_quiet = |host: &Host| {
            let held = host.machine.held();
            host.outputs.is_empty() && (held.flows, held.large, held.grants) == (0, 0, 0)
        };
        // A lost lane holds bytes until it ends.
        self.crash.is_none()
            && self.lanes.iter().all(|lane| !lane.is_broken)
            && self.publishers.iter().all(|publisher| publisher.is_done)
            && self.hosts.iter().all(is_quiet)
    }

    fn check_end(&mut self) {
        for (id, publisher) in self.publishers.iter().enumerate() {
            let position = self.position(1 - publisher.host, id as u64);
            let rest = position..publisher.sizes.len() as u64;
            let mut rest = rest.filter(|sequence| !publisher.cancelled.contains(sequence));
            let is_complete = rest.next().is_none() || publisher.is_refused;
            assert!(is_complete, "publisher {id} is not complete");
            let mut payloads = publisher.payloads.iter();
            assert!(payloads.all(|of| of.strong_count() == 0), "bytes are held");
        }
        for host in &mut self.hosts {
            assert!(host.user.arena.lock().unwrap().is_free(), "memory is held");
        }
    }

    fn describe(&mut self) -> String {
        let mut all = Vec::new();
        for (id, of) in self.publishers.iter().enumerate() {
            all.push(format!(
                "publisher {id}: offered {} confirmed {} of {}, growing {:?}, closed {}, done {}, delivered {}",
                of.offered,
                of.confirmed,
                of.sizes.len(),
                of.growing.keys(),
                of.is_closed,
                of.is_done,
                self.position(1 - of.host, id as u64),
            ));
        }
        for host in &mut self.hosts {
            all.push(format!(
                "{:?}, arena free {}",
                host.machine.held(),
                host.user.arena.lock().unwrap().is_free()
            ));
            for output in &host.outputs {
                if let LinkOutput::Deliver { flow, turn } = output {
                    all.push(format!("flow {flow}: {}", name(turn)));
                }
            }
        }
        for lane in &self.lanes {
            all.push(format!(
                "lane {} {:?} broken {}",
                lane.number, lane.ends, lane.is_broken
            ));
        }
        all.join("\n")
    }
}

/// The description of a publisher's flow.
fn description_of(id: usize) -> Description {
    Description::new(&(id as u64).to_le_bytes()).unwrap()
}

/// The flow of a frame that a sending end queues.
fn flow_of(frame: &Frame) -> Option<u64> {
    match *frame {
        Frame::Open(frame::Open { flow, .. })
        | Frame::Small(frame::Small { flow, .. })
        | Frame::Request(frame::Request { flow, .. })
        | Frame::Gap(frame::Gap { flow, .. })
        | Frame::Close(frame::Close { flow, .. }) => Some(flow),
        _ => None,
    }
}

impl Observer {
    /// Checks a frame that the sending end queues against its limits.
    fn sends(&mut self, frame: &Frame, small_max: u64) {
        match *frame {
            Frame::Small(frame::Small {
                flow,
                charge_end,
                bytes,
                ..
            }) => {
                assert!(u64::from(bytes) <= small_max);
                // Without an acknowledgement, the first window is at most 328.
                let limit = self.limits.get(&flow).copied().unwrap_or(328);
                assert!(charge_end <= limit.max(328), "{charge_end} above {limit}");
            }
            Frame::Request(frame::Request {
                flow,
                sequence,
                bytes,
                ..
            }) => {
                let all = self.requested.entry(flow).or_default();
                all.insert(sequence, bytes);
                let sum: u64 = all.values().sum();
                assert!(all.len() <= 4 || (all.len() <= 64 && sum <= 4 << 20));
            }
            Frame::Gap(frame::Gap {
                flow, first, next, ..
            }) => {
                let all = self.requested.entry(flow).or_default();
                all.retain(|sequence, _| *sequence < first || *sequence >= next);
            }
            _ => {}
        }
    }

    fn hears(&mut self, frame: &Frame) {
        if let Frame::Ack(frame::Ack { flow, next, limit }) = *frame {
            let known = self.limits.entry(flow).or_default();
            *known = limit.max(*known);
            let all = self.requested.entry(flow).or_default();
            match next {
                FLOW_ENDED => all.clear(),
                _ => all.retain(|sequence, _| *sequence >= next),
            }
        }
    }
}

//! Two or three hosts, a link for each direction in which messages go, and what happens to them.
use super::content::content;
use super::host::{Landing, Memory};
use rgaps_testkit::Random;
use rgaps_transport::cursors::{Ring, Watermark};
use rgaps_transport::link::{Action, Span, Target, Write};
use rgaps_transport::{Flow, Frame, Meta, Offered, Receiver, ReceiverConfig, Sender, SenderConfig};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub lanes: bool,
    pub crashes: bool,
    pub best_effort: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub committed_eager: u64,
    pub committed_large: u64,
    pub missed: u64,
    pub lanes_lost: u64,
    pub crashes: u64,
    /// Messages that were offered before all of them was there, and those of which the rest never came.
    pub grown: u64,
    pub broke_off: u64,
    pub steps: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.committed_eager += other.committed_eager;
        self.committed_large += other.committed_large;
        self.missed += other.missed;
        self.lanes_lost += other.lanes_lost;
        self.crashes += other.crashes;
        self.grown += other.grown;
        self.broke_off += other.broke_off;
        self.steps += other.steps;
    }
}

const RING: u64 = 512;
const LANES: usize = 3;
/// Steps with faults, and steps after which a run without new faults has to be at its end.
const FAULTY: u64 = 400;
const STEPS_MAX: u64 = 60_000;

/// One connection. What is in a queue arrives in its order; when is chance.
struct Lane {
    number: u32,
    ring: Vec<u8>,
    in_hand: VecDeque<Write>,
    there: VecDeque<(Frame, Vec<u8>, Option<Target>)>,
    landing: Option<(Target, Vec<u8>)>,
    back: VecDeque<Frame>,
    broken: bool,
    at_sender: Side,
    at_receiver: Side,
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Opening,
    Open,
    Closed,
}

struct Publisher {
    flow: Flow,
    reliable: bool,
    sizes: Vec<u64>,
    offered: u64,
    /// Not released, so a new incarnation of the daemon offers them again.
    staged: BTreeMap<u64, Span>,
    released: BTreeSet<u64>,
    gave_up: BTreeSet<u64>,
    /// Offered, and so many bytes of it are there.
    growing: BTreeMap<u64, u64>,
    closed: bool,
}

#[derive(Default)]
struct Subscriber {
    next: u64,
    taken: BTreeMap<u64, Vec<u8>>,
    committed: BTreeSet<u64>,
    missed: BTreeSet<u64>,
    held: Vec<(u64, Option<Span>, u32, u64)>,
}

impl Subscriber {
    /// A receiver that never heard of a flow begins where the sender opens it: behind what that gave up.
    fn begins_at(&mut self, first: u64, publisher: &Publisher) {
        if self.committed.is_empty() && self.missed.is_empty() {
            while self.next < first && publisher.gave_up.contains(&self.next) {
                self.next += 1;
            }
        }
    }
}

struct Link {
    sender: Sender,
    receiver: Receiver<Landing>,
    receiver_config: ReceiverConfig,
    sender_config: SenderConfig,
    landing: Landing,
    staging: Memory,
    lanes: Vec<Lane>,
    next_lane: u32,
    publishers: Vec<Publisher>,
    subscribers: BTreeMap<Flow, Subscriber>,
    receiver_life: u64,
    /// A crash waits until all lanes are closed at both ends.
    crash: Option<bool>,
}

pub struct World {
    random: Random,
    faults: Faults,
    links: Vec<Link>,
    memories: Vec<Rc<RefCell<Memory>>>,
    now: u64,
    counts: Counts,
}

impl World {
    pub fn new(seed: u64, faults: Faults) -> Self {
        let mut random = Random::new(seed.wrapping_mul(0x1234_5678_9abc_def1));
        let hosts = 2 + random.below(2) as usize;
        let memory = || Rc::new(RefCell::new(Memory::new(1800)));
        let memories: Vec<_> = (0..hosts).map(|_| memory()).collect();
        let mut links = Vec::new();
        for memory in &memories {
            for _from in 1..hosts {
                links.push(Link::new(
                    &mut random,
                    memory.clone(),
                    faults,
                    links.len() as u64,
                ));
            }
        }
        let counts = Counts::default();
        Self {
            random,
            faults,
            links,
            memories,
            now: 0,
            counts,
        }
    }

    pub fn run(mut self) -> Counts {
        for step in 0..STEPS_MAX {
            self.counts.steps += 1;
            self.now += self.random.below(3);
            let faulty = step < FAULTY * self.links.len() as u64;
            let at = self.random.below(self.links.len() as u64) as usize;
            let before = self.counts.missed;
            self.links[at].step(
                &mut self.random,
                self.faults,
                faulty,
                self.now,
                &mut self.counts,
            );
            assert!(
                self.faults.best_effort || self.counts.missed == before,
                "a message was lost"
            );
            if !faulty && step % 64 == 0 && self.links.iter().all(Link::is_done) {
                for memory in &self.memories {
                    assert!(memory.borrow().is_free(), "landing memory was not returned");
                }
                self.links.iter().for_each(Link::check_end);
                return self.counts;
            }
        }
        let stuck: Vec<String> = self
            .links
            .iter()
            .filter(|link| !link.is_done())
            .map(Link::tell)
            .collect();
        panic!(
            "{} of {} links stalled:\n{}",
            stuck.len(),
            self.links.len(),
            stuck.join("\n")
        );
    }
}

impl Link {
    fn new(random: &mut Random, memory: Rc<RefCell<Memory>>, faults: Faults, id: u64) -> Self {
        let watermarks = [
            Watermark::Zero,
            Watermark::Eighth,
            Watermark::Quarter,
            Watermark::Half,
        ];
        let receiver_config = ReceiverConfig {
            watermark: watermarks[random.below(4) as usize],
            window_bytes: 128 + random.below(400),
            idle_ms: 5,
        };
        let sender_config = SenderConfig {
            eager_bytes_max: 100,
            chunk_bytes: 64 + random.below(100) as u32,
            lane_writes_max: 1 + random.below(3) as usize,
            lane_bytes_max: random.below(3) * 1000,
            retained_bytes_max: 1200,
            outage_bytes_max: if faults.best_effort { 1000 } else { u64::MAX },
            outage_ms: if faults.best_effort { 200 } else { u64::MAX },
        };
        let publisher = |random: &mut Random, incarnation: u64| Publisher {
            flow: Flow {
                topic: id,
                incarnation,
            },
            reliable: !faults.best_effort,
            sizes: (0..5 + random.below(20))
                .map(|_| {
                    if random.one_in(3) {
                        101 + random.below(300)
                    } else {
                        1 + random.below(90)
                    }
                })
                .collect(),
            offered: 0,
            staged: BTreeMap::new(),
            released: BTreeSet::new(),
            gave_up: BTreeSet::new(),
            growing: BTreeMap::new(),
            closed: false,
        };
        let publishers: Vec<_> = (0..1 + random.below(3))
            .map(|n| publisher(random, n))
            .collect();
        let subscribers = publishers
            .iter()
            .map(|p| (p.flow, Subscriber::default()))
            .collect();
        let landing = Landing::new(memory);
        let mut link = Self {
            sender: Sender::new(sender_config, 0),
            receiver: Receiver::new(receiver_config, landing.clone(), &[]),
            receiver_config,
            sender_config,
            landing,
            staging: Memory::new(3000),
            lanes: Vec::new(),
            next_lane: 1,
            publishers,
            subscribers,
            receiver_life: 0,
            crash: None,
        };
        link.open_flows();
        link
    }

    fn open_flows(&mut self) {
        for publisher in &self.publishers {
            let first = (0..).find(|sequence| !publisher.released.contains(sequence));
            self.sender
                .open(publisher.flow, first.unwrap(), publisher.reliable);
        }
    }

    fn step(
        &mut self,
        random: &mut Random,
        faults: Faults,
        faulty: bool,
        now: u64,
        counts: &mut Counts,
    ) {
        match random.below(18) {
            0 | 1 => self.publish(random),
            6 | 7 => self.grow(random, faults, counts),
            2 => self.let_go(random),
            3 => {
                self.sender.tick(now);
                self.receiver.tick(now);
            }
            4 if faulty && faults.lanes && random.one_in(6) => self.break_lane(random, counts),
            4 => self.new_lane(random),
            5 if faulty && faults.crashes && random.one_in(40) => {
                self.lanes.iter_mut().for_each(|lane| lane.broken = true);
                self.crash.get_or_insert(random.one_in(2));
            }
            _ if !self.lanes.is_empty() => {
                let at = random.below(self.lanes.len() as u64) as usize;
                self.lane_step(random, at, now);
            }
            _ => {}
        }
        self.lanes
            .retain(|lane| lane.at_sender != Side::Closed || lane.at_receiver != Side::Closed);
        self.crash_now(now, counts);
        self.act(counts);
    }

    fn publish(&mut self, random: &mut Random) {
        let at = random.below(self.publishers.len() as u64) as usize;
        let publisher = &mut self.publishers[at];
        let Flow { topic, incarnation } = publisher.flow;
        let sequence = publisher.offered;
        let Some(bytes) = publisher.sizes.get(sequence as usize).copied() else {
            if !publisher.closed {
                publisher.closed = true;
                self.sender.close(publisher.flow);
            }
            return;
        };
        // After a crash: what was released is not offered again.
        if publisher.released.contains(&sequence) {
            publisher.offered += 1;
            return;
        }
        let Some(offset) = self.staging.take(bytes) else {
            return;
        };
        let span = Span { offset, bytes };
        let payload = content(topic, incarnation, sequence, bytes);
        let ready = match random.one_in(2) {
            true => random.below(bytes + 1),
            false => bytes,
        };
        let staged = self.staging.slice(span);
        staged.fill(0xee);
        staged[..ready as usize].copy_from_slice(&payload[..ready as usize]);
        let meta = Meta::new(&sequence.to_le_bytes()).unwrap();
        let offered = self
            .sender
            .offer_part(publisher.flow, sequence, span, meta, ready);
        match offered {
            Offered::Taken => {
                publisher.staged.insert(sequence, span);
                if ready < bytes {
                    publisher.growing.insert(sequence, ready);
                }
                publisher.offered += 1;
            }
            Offered::Full => self.staging.give(span),
            Offered::Never => panic!("{sequence} of {bytes} bytes was refused for ever"),
        }
    }

    /// More of a message is there, or it never will be whole.
    fn grow(&mut self, random: &mut Random, faults: Faults, counts: &mut Counts) {
        let at = random.below(self.publishers.len() as u64) as usize;
        let publisher = &mut self.publishers[at];
        let flow = publisher.flow;
        let count = publisher.growing.len() as u64;
        if count == 0 {
            return;
        }
        let nth = random.below(count) as usize;
        let (&sequence, &before) = publisher.growing.iter().nth(nth).unwrap();
        if faults.best_effort && random.one_in(6) {
            publisher.growing.remove(&sequence);
            self.sender.give_up(flow, sequence);
            counts.broke_off += 1;
            return;
        }
        let span = publisher.staged[&sequence];
        let ready = (before + 1 + random.below(150)).min(span.bytes);
        let payload = content(flow.topic, flow.incarnation, sequence, span.bytes);
        let part = before as usize..ready as usize;
        self.staging.slice(span)[part.clone()].copy_from_slice(&payload[part]);
        if ready == span.bytes {
            publisher.growing.remove(&sequence);
            counts.grown += 1;
        } else {
            publisher.growing.insert(sequence, ready);
        }
        self.sender.more(flow, sequence, ready);
    }

    fn let_go(&mut self, random: &mut Random) {
        for (flow, subscriber) in &mut self.subscribers {
            if subscriber.held.is_empty() {
                continue;
            }
            let at = random.below(subscriber.held.len() as u64) as usize;
            let (sequence, place, eager_bytes, life) = subscriber.held.swap_remove(at);
            if let Some(span) = place {
                let expected = content(flow.topic, flow.incarnation, sequence, span.bytes);
                let mut memory = self.landing.memory.borrow_mut();
                assert_eq!(
                    memory.slice(span),
                    expected,
                    "{flow:?} {sequence} changed while it was held"
                );
                memory.give(span);
            } else if life == self.receiver_life {
                self.receiver.released(*flow, eager_bytes);
            }
        }
        self.receiver.places_freed();
    }

    fn new_lane(&mut self, random: &mut Random) {
        if self.lanes.len() < LANES && self.crash.is_none() {
            self.lanes.push(Lane {
                number: self.next_lane,
                ring: vec![0; RING as usize],
                in_hand: VecDeque::new(),
                there: VecDeque::new(),
                landing: None,
                back: VecDeque::new(),
                broken: false,
                at_sender: Side::Opening,
                at_receiver: Side::Opening,
            });
            // Lanes that strangers opened and lost have had the numbers between.
            self.next_lane += 1 + random.below(1 << 20) as u32;
        }
    }

    fn break_lane(&mut self, random: &mut Random, counts: &mut Counts) {
        if !self.lanes.is_empty() {
            let at = random.below(self.lanes.len() as u64) as usize;
            counts.lanes_lost += u64::from(!self.lanes[at].broken);
            self.lanes[at].broken = true;
        }
    }

    /// Something happens on a lane.
    fn lane_step(&mut self, random: &mut Random, at: usize, now: u64) {
        let lane = &mut self.lanes[at];
        let number = lane.number;
        let ring = Ring::new(RING).unwrap();
        match random.below(6) {
            0 if lane.at_sender == Side::Opening && !lane.broken => {
                lane.at_sender = Side::Open;
                assert!(self.sender.lane_opened(number, ring));
            }
            0 if lane.at_receiver == Side::Opening && !lane.broken => {
                lane.at_receiver = Side::Open;
                assert!(self.receiver.lane_opened(number, ring, now));
            }
            0 if lane.broken && lane.at_sender != Side::Closed => {
                lane.at_sender = Side::Closed;
                lane.in_hand.clear();
                self.sender.lane_closed(number, now);
            }
            1 if lane.broken && lane.at_receiver != Side::Closed && random.one_in(3) => {
                lane.at_receiver = Side::Closed;
                lane.there.clear();
                lane.landing = None;
                self.receiver.lane_closed(number);
            }
            2 => self.write(at),
            3 | 4 if lane.at_receiver == Side::Open => self.arrive(at, now),
            5 if lane.at_sender == Side::Open && !lane.broken => {
                if let Some(frame) = lane.back.pop_front() {
                    self.sender.frame(number, &frame).unwrap();
                }
            }
            _ => {}
        }
    }

    /// The lane reads the oldest write's bytes, only now, and sends them.
    fn write(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        let Some(write) = lane.in_hand.pop_front() else {
            return;
        };
        let mut bytes = Vec::new();
        let mut target = None;
        if let Some((span, to)) = write.payload {
            bytes.extend(write.meta.iter().flat_map(|meta| meta.as_slice()));
            bytes.extend(&*self.staging.slice(span));
            assert!(
                !bytes.iter().all(|byte| *byte == 0xdd) || bytes.len() < 4,
                "released while read"
            );
            target = Some(to);
            self.sender.written(lane.number);
        }
        lane.there.push_back((write.frame, bytes, target));
    }

    /// The next bytes or the next frame of the lane arrive. Without a notification on a broken one.
    fn arrive(&mut self, at: usize, now: u64) {
        let lane = &mut self.lanes[at];
        if let Some((target, bytes)) = lane.landing.take() {
            put(&mut lane.ring, &self.landing, target, &bytes);
            if !lane.broken {
                self.receiver.landed(lane.number).unwrap();
            }
            return;
        }
        let Some((frame, bytes, sent_to)) = lane.there.pop_front() else {
            return;
        };
        if lane.broken {
            if let Some(target) = sent_to {
                put(&mut lane.ring, &self.landing, target, &bytes);
            }
            return;
        }
        let target = self.receiver.frame(lane.number, &frame, now).unwrap();
        assert_eq!(target, sent_to, "both ends agree where bytes go");
        lane.landing = target.map(|target| (target, bytes));
    }

    fn crash_now(&mut self, now: u64, counts: &mut Counts) {
        let Some(of_receiver) = self.crash.filter(|_| self.lanes.is_empty()) else {
            return;
        };
        self.crash = None;
        // Another life of the end that accepts numbers lanes from the start.
        self.next_lane = 1;
        counts.crashes += 1;
        if of_receiver {
            self.receiver_life += 1;
            self.landing.crashed();
            let committed: Vec<_> = self
                .subscribers
                .iter()
                .map(|(flow, s)| (*flow, s.next))
                .collect();
            self.receiver = Receiver::new(self.receiver_config, self.landing.clone(), &committed);
            self.subscribers
                .values_mut()
                .for_each(|subscriber| subscriber.taken.clear());
            self.sender.restart();
        } else {
            // Actions of the sender that nobody carried out are part of what is lost.
            self.sender = Sender::new(self.sender_config, now);
            for publisher in &mut self.publishers {
                for span in std::mem::take(&mut publisher.staged).into_values() {
                    self.staging.give(span);
                }
                (publisher.offered, publisher.closed) = (0, false);
                publisher.growing.clear();
            }
            self.receiver.restart();
            self.open_flows();
        }
    }

    fn act(&mut self, counts: &mut Counts) {
        while let Some(action) = self.sender.action() {
            match action {
                Action::Write(write) => {
                    let lane = self.lanes.iter_mut().find(|lane| lane.number == write.lane);
                    if let Some(lane) = lane.filter(|lane| lane.at_sender == Side::Open) {
                        lane.in_hand.push_back(write);
                    }
                }
                Action::Release {
                    flow,
                    sequence,
                    span,
                } => {
                    let publisher = self.publishers.iter_mut().find(|p| p.flow == flow).unwrap();
                    assert_eq!(
                        publisher.staged.remove(&sequence),
                        Some(span),
                        "released twice"
                    );
                    assert!(publisher.released.insert(sequence));
                    publisher.growing.remove(&sequence);
                    self.staging.give(span);
                    let subscriber = &self.subscribers[&flow];
                    let there = subscriber.committed.contains(&sequence);
                    assert!(
                        there || publisher.gave_up.contains(&sequence),
                        "released, not committed"
                    );
                }
                Action::GaveUp { flow, first, next } => {
                    let publisher = self.publishers.iter_mut().find(|p| p.flow == flow).unwrap();
                    publisher.gave_up.extend(first..next);
                }
                Action::Ended { flow } => assert!(!self.sender.has_flow(flow)),
                other => panic!("the sender said {other:?}"),
            }
        }
        while let Some(action) = self.receiver.action() {
            self.receive(action, counts);
        }
    }

    fn receive(&mut self, action: Action, counts: &mut Counts) {
        match action {
            Action::Write(write) => {
                let lane = self.lanes.iter_mut().find(|lane| lane.number == write.lane);
                lane.expect("a lane that is open")
                    .back
                    .push_back(write.frame);
            }
            Action::Take {
                flow,
                sequence,
                lane,
                offset,
                bytes,
                meta_bytes,
            } => {
                let lane = self
                    .lanes
                    .iter()
                    .find(|other| other.number == lane)
                    .unwrap();
                let (start, meta) = (offset as usize, usize::from(meta_bytes));
                let all = &lane.ring[start..start + bytes as usize];
                assert_eq!(all[..meta], sequence.to_le_bytes());
                let taken = &mut self.subscribers.get_mut(&flow).unwrap().taken;
                assert!(
                    taken.insert(sequence, all[meta..].to_vec()).is_none(),
                    "taken twice"
                );
            }
            Action::Commit {
                flow,
                sequence,
                large,
                eager_bytes,
            } => {
                let subscriber = self.subscribers.get_mut(&flow).unwrap();
                let publisher = self.publishers.iter().find(|p| p.flow == flow).unwrap();
                subscriber.begins_at(sequence, publisher);
                assert_eq!(sequence, subscriber.next, "{flow:?} out of order or twice");
                subscriber.next += 1;
                assert!(subscriber.committed.insert(sequence));
                let bytes = publisher.sizes[sequence as usize];
                let expected = content(flow.topic, flow.incarnation, sequence, bytes);
                match large {
                    Some((place, ref meta)) => {
                        counts.committed_large += 1;
                        assert_eq!(meta.as_slice(), sequence.to_le_bytes());
                        self.landing.committed(place);
                        let mut memory = self.landing.memory.borrow_mut();
                        assert_eq!(
                            memory.slice(place),
                            expected,
                            "{flow:?} {sequence} is damaged"
                        );
                    }
                    None => {
                        counts.committed_eager += 1;
                        assert_eq!(subscriber.taken.remove(&sequence), Some(expected));
                    }
                }
                let place = large.map(|(place, _)| place);
                subscriber
                    .held
                    .push((sequence, place, eager_bytes, self.receiver_life));
            }
            Action::Drop { flow, sequence } => {
                let subscriber = self.subscribers.get_mut(&flow).unwrap();
                assert!(
                    subscriber.taken.remove(&sequence).is_some(),
                    "dropped, not taken"
                );
            }
            Action::Missed { flow, first, next } => {
                let subscriber = self.subscribers.get_mut(&flow).unwrap();
                let publisher = self.publishers.iter().find(|p| p.flow == flow).unwrap();
                subscriber.begins_at(first, publisher);
                assert_eq!(
                    first, subscriber.next,
                    "a gap that is not where the flow is"
                );
                for sequence in first..next {
                    counts.missed += 1;
                    assert!(
                        publisher.gave_up.contains(&sequence),
                        "{sequence} was not given up"
                    );
                    assert!(subscriber.missed.insert(sequence));
                }
                subscriber.next = next;
            }
            Action::Opened { .. } | Action::Closed { .. } => {}
            other => panic!("the receiver said {other:?}"),
        }
    }

    fn is_done(&self) -> bool {
        let flows = self
            .publishers
            .iter()
            .all(|p| p.closed && !self.sender.has_flow(p.flow));
        let held = self
            .subscribers
            .values()
            .all(|subscriber| subscriber.held.is_empty());
        // The end of a grant of a message that broke off may come behind the end of its flow.
        let places = self.receiver.places_held() == 0;
        flows && held && places && self.crash.is_none()
    }

    fn check_end(&self) {
        for publisher in &self.publishers {
            let all = 0..publisher.sizes.len() as u64;
            let subscriber = &self.subscribers[&publisher.flow];
            for sequence in all {
                let (got, missed) = (
                    subscriber.committed.contains(&sequence),
                    subscriber.missed.contains(&sequence),
                );
                let before = !got && !missed && publisher.gave_up.contains(&sequence);
                assert!(
                    got != missed || before,
                    "{:?} {sequence}: got {got}, missed {missed}",
                    publisher.flow
                );
            }
            assert!(subscriber.taken.is_empty(), "taken and not committed");
        }
        assert!(self.staging.is_free(), "staging was not returned");
        assert_eq!(self.receiver.places_held(), 0, "places were not returned");
        assert_eq!(self.receiver.flows_open(), 0, "flows are left");
    }

    fn tell(&self) -> String {
        let lanes = self.lanes.len();
        let at = self
            .publishers
            .iter()
            .map(|p| (p.offered, p.released.len(), p.sizes.len()));
        let at: Vec<_> = at.collect();
        format!(
            "{lanes} lanes, (offered, released, all) {at:?}\n{:?}\n{:?}",
            self.sender, self.receiver
        )
    }
}

fn put(ring: &mut [u8], landing: &Landing, target: Target, bytes: &[u8]) {
    let length = bytes.len() as u64;
    match target {
        Target::Ring(offset) => ring[offset as usize..][..bytes.len()].copy_from_slice(bytes),
        Target::Region(offset) => {
            let span = Span {
                offset,
                bytes: length,
            };
            landing
                .memory
                .borrow_mut()
                .slice(span)
                .copy_from_slice(bytes);
        }
    }
}

//! Two drivers with lanes in memory and virtual time: the bytes that they would write and read, cut at any of
//! them; ends that notice at different times; an owner that is full, cannot commit, and hears late.
//! `SEEDS=n` runs more, `SEED=n` one.
use super::*;
use crate::batch::BATCH_SLICES;
use crate::frame::{Decoded, FRAME_BYTES_MAX};
use crate::owner::{Place, Room};
use std::io::IoSlice;
use std::sync::Mutex;

const RING: u64 = 8 << 10;
const LANES: usize = 3;
const STEPS_MAX: u64 = 2_000_000;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

fn content(flow: Flow, sequence: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random(flow.topic << 40 ^ flow.incarnation << 20 ^ sequence);
    (0..bytes).map(|_| random.below(256) as u8).collect()
}

#[derive(Default)]
struct Seen {
    committed: BTreeMap<Flow, Vec<u64>>,
    acknowledged: BTreeMap<Flow, u64>,
    closed: BTreeSet<Flow>,
    ended: BTreeSet<Flow>,
    in_use: usize,
    moods: u64,
}

#[derive(Clone, Default)]
struct Ears(Arc<Mutex<Seen>>);

struct Memory {
    bytes: Vec<u8>,
    flow: Flow,
    ears: Ears,
}

impl Ears {
    /// Whether the owner is in the mood; the same for the same seed.
    fn mood(&self) -> bool {
        let mut seen = self.0.lock().unwrap();
        seen.moods += 1;
        let moods = seen.moods;
        Random(moods).below(4) > 0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.ears.0.lock().unwrap().in_use -= 1;
    }
}

impl Place for Memory {
    fn memory(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn commit(self: Box<Self>, sequence: u64, meta: &[u8]) -> Result<(), Box<dyn Place>> {
        if !self.ears.mood() {
            return Err(self);
        }
        assert_eq!(meta, sequence.to_le_bytes());
        let expected = content(self.flow, sequence, self.bytes.len());
        assert!(
            self.bytes == expected,
            "{:?} {sequence} is damaged",
            self.flow
        );
        let mut seen = self.ears.0.lock().unwrap();
        let all = seen.committed.entry(self.flow).or_default();
        assert_eq!(all.len() as u64, sequence, "out of order or twice");
        all.push(sequence);
        Ok(())
    }
}

impl Owner for Ears {
    fn place(&self, flow: Flow, _sequence: u64, _meta: &[u8], bytes: u64) -> Room {
        if !self.mood() {
            return Room::Full;
        }
        self.0.lock().unwrap().in_use += 1;
        let bytes = vec![0xdd; bytes as usize];
        Room::Place(Box::new(Memory {
            bytes,
            flow,
            ears: self.clone(),
        }))
    }

    fn event(&self, event: Event) {
        let mut seen = self.0.lock().unwrap();
        match event {
            Event::Acknowledged { flow, .. } => *seen.acknowledged.entry(flow).or_default() += 1,
            // A peer that begins anew before it heard of the end opens the flow again, and ends it.
            Event::Opened { flow, .. } => {
                seen.closed.remove(&flow);
            }
            Event::Closed { flow } => assert!(seen.closed.insert(flow), "closed twice"),
            Event::Ended { flow } => assert!(seen.ended.insert(flow), "ended twice"),
            Event::Missed { .. } | Event::GaveUp { .. } => panic!("{event:?} on a reliable flow"),
            _ => {}
        }
    }
}

/// One direction of a lane.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    batch: Batch,
    small: Vec<u8>,
    /// A payload that is being read: where it goes, and how much of it is there.
    landing: Option<(Destination, usize, usize)>,
}

struct Lane {
    number: u32,
    /// To the end with this index.
    to: [Pipe; 2],
    open: [bool; 2],
    closed: [bool; 2],
    cut: bool,
}

struct World {
    random: Random,
    ends: [Driver; 2],
    ears: [Ears; 2],
    lanes: Vec<Lane>,
    next_lane: u32,
    cuts: u64,
    restarts: u64,
    restarting: bool,
    now: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let ears = [Ears::default(), Ears::default()];
        let end = |at: usize| {
            let sender = SenderConfig {
                eager_bytes_max: 1000,
                chunk_bytes: 700,
                retained_bytes_max: 30_000,
                ..SenderConfig::default()
            };
            let receiver = ReceiverConfig {
                window_bytes: 4000,
                ..ReceiverConfig::default()
            };
            let owner = Arc::new(ears[at].clone());
            let places = Landings::new(owner, Arc::default());
            Driver::new(sender, receiver, places, &[])
        };
        Self {
            random: Random(seed),
            ends: [end(0), end(1)],
            ears: ears.clone(),
            lanes: Vec::new(),
            next_lane: 1,
            cuts: 0,
            restarts: 0,
            restarting: false,
            now: 0,
        }
    }

    /// A step of a lane at one end.
    fn lane_step(&mut self, at: usize, end: usize) {
        let (lane, driver) = (&mut self.lanes[at], &mut self.ends[end]);
        let ring = Ring::new(RING).unwrap();
        if !lane.open[end] {
            // An end that never opened it has nothing to close.
            match lane.cut {
                true => lane.closed[end] = true,
                false => {
                    lane.open[end] = true;
                    assert!(driver.lane_opened(lane.number, ring, ring, self.now));
                }
            }
        } else if lane.cut && !lane.closed[end] && self.random.one_in(4) {
            lane.closed[end] = true;
            lane.to[end].landing = None;
            driver.lane_closed(lane.number, self.now);
        } else if !lane.closed[end] {
            match self.random.one_in(2) {
                true => write(driver, lane, end, &mut self.random),
                false => read(driver, lane, end, &mut self.random, self.now),
            }
        }
    }

    fn deliver(&mut self, end: usize) {
        if let Some(delivery) = self.ends[end].next_delivery() {
            if let Some((flow, outcome)) = delivery.perform(&self.ears[end]) {
                self.ends[end].delivered(flow, outcome);
            }
        }
    }

    fn step(&mut self, faults: bool) {
        self.now += self.random.below(2);
        let end = self.random.below(2) as usize;
        match self.random.below(16) {
            0 if self.random.one_in(4) => self.ends[end].tick(self.now),
            1 if self.lanes.len() < LANES && !self.restarting => {
                let number = self.next_lane;
                // Lanes that strangers opened and lost have had the numbers between.
                self.next_lane += 1 + self.random.below(1 << 20) as u32;
                let to = [Pipe::default(), Pipe::default()];
                self.lanes.push(Lane {
                    number,
                    to,
                    open: [false; 2],
                    closed: [false; 2],
                    cut: false,
                });
            }
            2 if faults && !self.lanes.is_empty() && self.random.one_in(60) => {
                let at = self.random.below(self.lanes.len() as u64) as usize;
                self.cuts += u64::from(!self.lanes[at].cut);
                self.lanes[at].cut = true;
            }
            3 if faults && self.random.one_in(2000) => {
                // Another key: all lanes end, and then both ends begin anew.
                self.restarting = true;
                self.lanes.iter_mut().for_each(|lane| lane.cut = true);
            }
            3 if self.restarting && self.lanes.is_empty() => {
                self.restarting = false;
                self.restarts += 1;
                if self.random.one_in(2) {
                    // The end that numbers lanes was restarted.
                    self.next_lane = 1;
                }
                self.ends.iter_mut().for_each(Driver::restart);
            }
            4..=6 => self.deliver(end),
            _ if !self.lanes.is_empty() => {
                let at = self.random.below(self.lanes.len() as u64) as usize;
                self.lane_step(at, end);
                self.lanes.retain(|lane| lane.closed != [true; 2]);
            }
            _ => {}
        }
    }

    fn run(mut self) -> (u64, u64) {
        let count = 40;
        let flows: Vec<Flow> = (0..3)
            .map(|topic| Flow {
                topic,
                incarnation: 1 + topic % 2,
            })
            .collect();
        let mut sent = [[0; 3]; 2];
        for end in &mut self.ends {
            flows
                .iter()
                .for_each(|flow| end.open(*flow, 0, true, u64::MAX));
        }
        let sizes = [1, 60, 900, 1100, 5000];
        for steps in 0.. {
            assert!(steps < STEPS_MAX, "stalled: {:?}", self.tell());
            let (end, of) = (self.random.below(2) as usize, self.random.below(3) as usize);
            let (flow, sequence) = (flows[of], sent[end][of]);
            if sequence < count && self.random.one_in(8) {
                let bytes = sizes[self.random.below(5) as usize];
                let payload = Arc::new(content(flow, sequence, bytes));
                let meta = Meta::new(&sequence.to_le_bytes()).unwrap();
                match self.ends[end].send(flow, sequence, payload, meta) {
                    Sent::Taken => sent[end][of] += 1,
                    Sent::Full => {}
                    Sent::Never => panic!("{sequence} was refused"),
                }
                if sent[end][of] == count {
                    self.ends[end].close(flow);
                }
            }
            self.step(steps < STEPS_MAX / 4);
            let done = |ears: &Ears| {
                let seen = ears.0.lock().unwrap();
                seen.closed.len() == 3 && seen.ended.len() == 3
            };
            if !self.restarting && self.ears.iter().all(done) {
                break;
            }
        }
        for (ears, driver) in self.ears.iter().zip(&self.ends) {
            let seen = ears.0.lock().unwrap();
            for flow in &flows {
                assert_eq!(seen.committed[flow].len() as u64, count);
                assert_eq!(seen.acknowledged[flow], count);
            }
            assert_eq!(seen.in_use, 0, "memory was not given back");
            assert_eq!(driver.held(), (0, 0));
            assert!(
                driver.taken.is_empty() && driver.arrivals.is_empty() && driver.gave_up.is_empty()
            );
        }
        (self.cuts, self.restarts)
    }

    fn tell(&self) -> String {
        let ears = self.ears.iter().map(|ears| {
            let seen = ears.0.lock().unwrap();
            let committed: Vec<usize> = seen.committed.values().map(Vec::len).collect();
            format!(
                "committed {committed:?}, closed {}, ended {}",
                seen.closed.len(),
                seen.ended.len()
            )
        });
        let ears: Vec<String> = ears.collect();
        format!(
            "{} lanes, {ears:?}, {:?}",
            self.lanes.len(),
            self.ends.iter().map(Driver::held).collect::<Vec<_>>()
        )
    }
}

/// Some bytes of a batch, as a socket would take them.
fn write(driver: &mut Driver, lane: &mut Lane, end: usize, random: &mut Random) {
    let pipe = &mut lane.to[1 - end];
    if pipe.batch.is_empty() {
        let payloads = pipe.batch.payloads();
        driver.written(lane.number, payloads);
        let much = match random.one_in(3) {
            true => Much::Short,
            false => Much::All,
        };
        driver.batch(lane.number, much, &mut pipe.batch);
    }
    let mut slices = [IoSlice::new(&[]); BATCH_SLICES];
    let count = pipe.batch.slices(&mut slices);
    let all: Vec<u8> = slices[..count]
        .iter()
        .flat_map(|slice| slice.iter().copied())
        .collect();
    let some = all.len().min(1 + random.below(3000) as usize);
    pipe.batch.wrote(some);
    // Behind the cut nothing arrives.
    if !lane.cut {
        pipe.bytes.extend(&all[..some]);
    }
}

/// What the lane's reading thread does, with as many bytes as there are.
fn read(driver: &mut Driver, lane: &mut Lane, end: usize, random: &mut Random, now: u64) {
    let pipe = &mut lane.to[end];
    if let Some((destination, done, all)) = &mut pipe.landing {
        let some = pipe
            .bytes
            .len()
            .min(*all - *done)
            .min(1 + random.below(2000) as usize);
        let bytes: Vec<u8> = pipe.bytes.drain(..some).collect();
        match destination {
            Destination::Hand => pipe.small.extend(&bytes),
            Destination::Chunk(chunk) => fill(&mut chunk.part, *done, &bytes),
        }
        *done += some;
        if done == all {
            pipe.landing = None;
            driver.landed(lane.number, &pipe.small).unwrap();
            pipe.small.clear();
        }
        return;
    }
    let head: Vec<u8> = pipe.bytes.iter().take(FRAME_BYTES_MAX).copied().collect();
    if let Decoded::Frame(frame, used) = Frame::decode(&head).unwrap() {
        pipe.bytes.drain(..used);
        let destination = driver.frame(lane.number, &frame, now).unwrap();
        let all = frame.payload_bytes() as usize;
        pipe.landing = destination.map(|destination| (destination, 0, all));
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

#[test]
fn bytes_that_are_cut_anywhere_lose_and_duplicate_nothing() {
    let one = number("SEED");
    let seeds = one.map_or(0..number("SEEDS").unwrap_or(25), |seed| seed..seed + 1);
    let (mut cuts, mut restarts) = (0, 0);
    for seed in seeds {
        match std::panic::catch_unwind(|| World::new(seed).run()) {
            Ok((cut, restarted)) => (cuts, restarts) = (cuts + cut, restarts + restarted),
            Err(panic) => {
                eprintln!(
                    "again: SEED={seed} cargo test -p rgaps-transport --lib bytes_that_are_cut"
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{cuts} lanes were cut, {restarts} restarts");
    assert!(
        one.is_some() || cuts > 0 && restarts > 0,
        "what is to be tested happened"
    );
}

#[test]
fn the_clock_lets_an_acknowledgement_wait_once_where_the_last_went_with_something() {
    let mut arrivals = Arrivals::default();
    assert!(!arrivals.lets_wait(), "nobody answers");
    arrivals.answered = true;
    assert!(arrivals.lets_wait());
    assert!(!arrivals.lets_wait(), "nothing was written since");
    assert!(!arrivals.lets_wait(), "so nothing is expected");
}

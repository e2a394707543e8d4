//! Peers that break the protocol: the machine names each violation, and no frame of a peer makes it panic or write outside a grant.
use crate::wire::{limits, Pair, CHUNK};
use rgaps_testkit::Random;
use rgaps_transport::machine::frame::{self, Decoded, Description, Frame, Lanes, FLOW_ENDED};
use rgaps_transport::machine::{
    BufferReply, FlowReceiver, FrameStep, LinkMachine, LinkOutput, ReceiveBuffer, Turn, WriteLimit,
    WriteRange,
};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::Arc;

const CANARY: usize = 64;

/// A user that gives buffers, and counts their bytes.
#[derive(Default)]
struct Victim {
    held: Arc<AtomicI64>,
    asked: AtomicI64,
}

struct Guarded {
    memory: Vec<u8>,
    held: Arc<AtomicI64>,
}

impl ReceiveBuffer for Guarded {
    fn memory(&mut self) -> &mut [u8] {
        let end = self.memory.len() - CANARY;
        &mut self.memory[CANARY..end]
    }

    fn deliver(
        self: Box<Self>,
        _sequence: u64,
        _description: &[u8],
    ) -> Result<(), Box<dyn ReceiveBuffer>> {
        Ok(())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let end = self.memory.len() - CANARY;
        let mut around = self.memory[..CANARY].iter().chain(&self.memory[end..]);
        assert!(around.all(|byte| *byte == 0xdd), "written outside a grant");
        self.held
            .fetch_sub((end - CANARY) as i64, Ordering::Relaxed);
    }
}

impl FlowReceiver for Victim {
    fn buffer(&self, _flow: u64, _sequence: u64, _description: &[u8], bytes: u64) -> BufferReply {
        match self.asked.fetch_add(1, Ordering::Relaxed) % 7 {
            3 => return BufferReply::Full,
            5 | 6 => return BufferReply::Refused,
            _ => {}
        }
        if bytes > 1 << 20 {
            return BufferReply::Refused;
        }
        self.held.fetch_add(bytes as i64, Ordering::Relaxed);
        let memory = vec![0xdd; bytes as usize + 2 * CANARY];
        let held = self.held.clone();
        BufferReply::Buffer(Box::new(Guarded { memory, held }))
    }
}

/// A machine that reads any frame.
struct Target {
    machine: LinkMachine,
    user: Arc<Victim>,
    ranges: Vec<WriteRange>,
    turns: Vec<(u64, Option<Turn>)>,
    is_over: bool,
}

impl Target {
    fn new() -> Self {
        let user = Arc::new(Victim::default());
        let mut machine = LinkMachine::new(limits(), user.clone(), Arc::new(|_, _| None));
        for lane in [1, 2] {
            assert!(machine.lane_up(lane, 64 << 10));
        }
        Self {
            machine,
            user,
            ranges: Vec::new(),
            turns: Vec::new(),
            is_over: false,
        }
    }

    /// Reads a frame, and does what follows in a random order.
    fn read(&mut self, random: &mut Random, lane: u32, frame: &Frame) {
        let bytes = usize::try_from(frame.payload_bytes()).unwrap();
        if self.is_over || bytes > 1 << 16 {
            return;
        }
        let payload = match frame {
            Frame::Small(_) => vec![7; bytes],
            _ => Vec::new(),
        };
        match self.machine.frame(lane, frame, &payload) {
            Ok(FrameStep::Done) => {}
            Ok(FrameStep::Chunk(mut range)) => {
                assert_eq!(range.as_mut_slice().len(), bytes);
                range.as_mut_slice().fill(9);
                self.ranges.push(range);
            }
            Ok(FrameStep::Deliver(frame::Small { flow, .. })) => self.turns.push((flow, None)),
            Err(violation) => {
                assert!(!violation.to_string().is_empty());
                self.is_over = true;
            }
        }
        self.carry_out(random);
        let held = self.machine.held();
        assert!(held.large <= 64 * (held.flows + 1), "{held:?}");
    }

    fn carry_out(&mut self, random: &mut Random) {
        if !self.ranges.is_empty() && !random.one_in(3) {
            let at = random.below(self.ranges.len() as u64) as usize;
            let landed = self.ranges.swap_remove(at).landed(random.one_in(2));
            if let Some(grant) = landed {
                self.machine.landed(grant);
            }
        }
        while let Some(output) = self.machine.output() {
            match output {
                LinkOutput::Deliver { flow, turn } => self.turns.push((flow, Some(turn))),
                LinkOutput::Violation(_) => self.is_over = true,
                LinkOutput::Flow(_) | LinkOutput::Stuck { .. } => {}
            }
        }
        if !self.turns.is_empty() && !random.one_in(3) {
            let at = random.below(self.turns.len() as u64) as usize;
            match self.turns.swap_remove(at) {
                (flow, Some(turn)) if random.one_in(4) => self.machine.delivered(flow, Err(turn)),
                (flow, _) => self.machine.delivered(flow, Ok(())),
            }
        }
        match random.below(40) {
            0 => self.machine.tick(),
            1 => self.machine.buffer_free(),
            2 => {
                self.machine
                    .refuse(1 + random.below(4), Description::default());
            }
            3 => {
                let lane = 1 + random.below(2) as u32;
                self.machine.lane_ended(lane);
                assert!(self.machine.lane_up(lane, 64 << 10));
            }
            _ => {}
        }
    }

    /// Takes all frames that it writes, and reports their payloads as written.
    fn write(&mut self, lane: u32) -> Vec<Frame> {
        let mut all = Vec::new();
        while let Some(queued) = self.machine.next(lane, WriteLimit::All) {
            if queued.payload.is_some() {
                self.machine.written(lane, 1);
            }
            all.push(queued.frame);
        }
        all
    }

    fn end(self) {
        let Self {
            machine,
            user,
            ranges,
            turns,
            ..
        } = self;
        drop((machine, turns));
        drop(ranges);
        assert_eq!(user.held.load(Ordering::Relaxed), 0, "a buffer is held");
    }
}

fn description(random: &mut Random) -> Description {
    Description::new(&vec![1; random.below(20) as usize]).unwrap()
}

/// A random frame, with numbers that are likely to be in use.
fn any_frame(random: &mut Random) -> Frame {
    let flow = random.below(5);
    let sequence = random.below(8);
    let charge_end = random.below(3000);
    let grant = random.below(8);
    match random.below(16) {
        0 | 1 => Frame::Open(frame::Open {
            flow: 1 + random.below(4),
            first: random.below(3),
            description: description(random),
        }),
        2..=4 => Frame::Small(frame::Small {
            flow,
            sequence,
            charge_end,
            bytes: 1 + random.below(300) as u32,
            description_bytes: random.below(2) as u16,
        }),
        5 | 6 => Frame::Request(frame::Request {
            flow,
            sequence,
            charge_end,
            bytes: 1 + random.below(5000),
            chunk_bytes: 1 + random.below(2000) as u32,
            description: description(random),
        }),
        7..=9 => Frame::Chunk(frame::Chunk {
            grant,
            chunk: random.below(6) as u32,
            bytes: 1 + random.below(2000) as u32,
        }),
        10 => Frame::Abandon(frame::Abandon { grant }),
        11 => Frame::Gap(frame::Gap {
            flow,
            first: sequence,
            next: sequence + 1 + random.below(3),
            charge_end,
        }),
        12 => Frame::Close(frame::Close {
            flow: 1 + random.below(4),
            next: random.below(9),
        }),
        13 => Frame::Ack(frame::Ack {
            flow,
            next: if random.one_in(5) {
                FLOW_ENDED
            } else {
                sequence
            },
            limit: random.below(1 << 20),
        }),
        14 => Frame::Grant(frame::Grant {
            flow,
            sequence,
            grant,
            from_chunk: random.below(3) as u32,
            lanes: Lanes::new(&[1, 2]).unwrap(),
            remote: None,
        }),
        _ => Frame::Refuse(frame::Refuse {
            flow: 1 + random.below(4),
            why: Description::default(),
        }),
    }
}

fn seeds() -> std::ops::Range<u64> {
    0..crate::number("SEEDS").unwrap_or(400)
}

/// Gives a target flows with messages in flight.
fn with_flows(target: &mut Target, random: &mut Random) {
    for publisher in 0_u64..2 {
        let flow = target
            .machine
            .open(0, Description::new(&publisher.to_le_bytes()).unwrap())
            .unwrap();
        for sequence in 0..6 {
            let bytes = 1 + random.below(3 * CHUNK) as usize;
            let payload = Arc::new(vec![3u8; bytes]);
            target
                .machine
                .send(flow, sequence, payload, Description::default());
        }
        if publisher == 1 {
            target.machine.close(flow);
        }
    }
}

#[test]
fn whatever_frames_arrive_nothing_panics_and_nothing_outside_a_grant_is_written() {
    let mut violations = 0;
    for seed in seeds() {
        let mut random = Random::new(seed ^ 0x5eed);
        let mut target = Target::new();
        with_flows(&mut target, &mut random);
        for _ in 0..200 {
            let frame = any_frame(&mut random);
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            // What the decoder refuses never reaches the machine.
            if let Ok(Decoded::Frame(frame, _)) = Frame::decode(&bytes) {
                let lane = 1 + random.below(2) as u32;
                target.read(&mut random, lane, &frame);
                target.write(lane);
            }
        }
        violations += u64::from(target.is_over);
        target.end();
    }
    assert!(violations > 0);
}

/// An honest exchange in which some frames are changed, dropped, repeated or swapped.
#[test]
fn whatever_is_changed_in_an_honest_exchange_nothing_panics() {
    let (mut violations, mut delivered) = (0, 0);
    for seed in seeds() {
        let mut random = Random::new(seed ^ 0xbad);
        let mut targets = [Target::new(), Target::new()];
        for target in &mut targets {
            with_flows(target, &mut random);
        }
        for _ in 0..30 {
            for from in 0..2 {
                let lane = 1 + random.below(2) as u32;
                let mut frames = targets[from].write(lane);
                if frames.len() > 1 && random.one_in(12) {
                    let at = random.below(frames.len() as u64 - 1) as usize;
                    frames.swap(at, at + 1);
                }
                for frame in frames {
                    let changed = changed(&mut random, frame);
                    for frame in changed.iter() {
                        targets[1 - from].read(&mut random, lane, frame);
                    }
                    delivered += changed.len();
                }
            }
        }
        for target in targets {
            violations += u64::from(target.is_over);
            target.end();
        }
    }
    assert!(violations > 0 && delivered > 0);
}

/// The frames that arrive instead of this one.
fn changed(random: &mut Random, frame: Frame) -> Vec<Frame> {
    if !random.one_in(40) {
        return vec![frame];
    }
    match random.below(4) {
        0 => Vec::new(),
        1 => vec![frame.clone(), frame],
        2 => vec![frame, any_frame(random)],
        _ => {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            let at = 8 + random.below((bytes.len() - 8).max(1) as u64) as usize;
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
            match Frame::decode(&bytes) {
                Ok(Decoded::Frame(frame, _)) => vec![frame],
                _ => Vec::new(),
            }
        }
    }
}

/// The violation that the second end finds in these frames, or `nothing`.
fn blamed(pair: &mut Pair, frames: &[Frame]) -> String {
    for frame in frames {
        let bytes = match frame {
            Frame::Small(frame::Small { bytes, .. }) => vec![0; *bytes as usize],
            _ => Vec::new(),
        };
        if let Err(violation) = pair.ends[1].machine.frame(1, frame, &bytes) {
            return violation.to_string();
        }
    }
    "nothing".into()
}

fn open(flow: u64) -> Frame {
    Frame::Open(frame::Open {
        flow,
        first: 0,
        description: Description::new(&7u64.to_le_bytes()).unwrap(),
    })
}

fn small(flow: u64, sequence: u64, bytes: u32, charge_end: u64) -> Frame {
    Frame::Small(frame::Small {
        flow,
        sequence,
        charge_end,
        bytes,
        description_bytes: 0,
    })
}

fn request(flow: u64, sequence: u64, bytes: u64) -> Frame {
    request_in(flow, sequence, bytes, 1000)
}

fn request_in(flow: u64, sequence: u64, bytes: u64, chunk_bytes: u32) -> Frame {
    Frame::Request(frame::Request {
        flow,
        sequence,
        charge_end: 0,
        bytes,
        chunk_bytes,
        description: Description::new(&crate::host::describe(sequence)).unwrap(),
    })
}

fn gap(flow: u64, first: u64, next: u64) -> Frame {
    Frame::Gap(frame::Gap {
        flow,
        first,
        next,
        charge_end: 0,
    })
}

fn chunk(chunk: u32, bytes: u32) -> Frame {
    Frame::Chunk(frame::Chunk {
        grant: 1,
        chunk,
        bytes,
    })
}

#[test]
fn a_receiver_names_what_a_sender_does_wrong() {
    let cases: Vec<(&str, Vec<Frame>)> = vec![
        (
            "Small is not valid here: its flow is not open",
            vec![small(1, 0, 5, 5)],
        ),
        (
            "Request is not valid here: its flow is not open",
            vec![request(3, 0, 500)],
        ),
        (
            "Small is not valid here: it charges more than its window",
            vec![open(1), small(1, 0, 10, 2_000_000)],
        ),
        (
            "the message had another size",
            vec![open(1), request(1, 0, 500), request(1, 0, 600)],
        ),
        (
            "it arrived before",
            vec![open(1), request(1, 0, 2500), chunk(0, 1000), chunk(0, 1000)],
        ),
        (
            "it has another length",
            vec![open(1), request(1, 0, 2500), chunk(2, 1000)],
        ),
        (
            "it lies outside its message",
            vec![open(1), request(1, 0, 2500), chunk(3, 1000)],
        ),
        ("there is no such grant", vec![open(1), chunk(0, 1000)]),
        (
            "there was no such grant",
            vec![Frame::Abandon(frame::Abandon { grant: 1 })],
        ),
        (
            "had another size",
            vec![open(1), request(1, 0, 2500), request_in(1, 0, 2500, 900)],
        ),
        (
            "was requested as a large one",
            vec![open(1), request(1, 1, 2500), small(1, 1, 5, 5)],
        ),
        (
            "was sent as a small one",
            vec![open(1), small(1, 1, 5, 5), request(1, 1, 2500)],
        ),
        (
            "the flow has too many",
            [open(1)]
                .into_iter()
                .chain((0..5).map(|at| request(1, at, 3 << 20)))
                .collect(),
        ),
        (
            "the flow has too many",
            [open(1)]
                .into_iter()
                .chain((0..65).map(|at| request(1, at, 500)))
                .collect(),
        ),
        (
            "its flow ends before it",
            vec![
                open(1),
                Frame::Close(frame::Close { flow: 1, next: 1 }),
                small(1, 1, 5, 5),
            ],
        ),
        (
            "its flow ends before it",
            vec![
                open(1),
                Frame::Close(frame::Close { flow: 1, next: 1 }),
                gap(1, 1, 2),
            ],
        ),
        (
            "has later messages",
            vec![
                open(1),
                small(1, 4, 5, 5),
                Frame::Close(frame::Close { flow: 1, next: 4 }),
            ],
        ),
        (
            "has later messages",
            vec![
                open(1),
                Frame::Close(frame::Close { flow: 1, next: 4 }),
                Frame::Close(frame::Close { flow: 1, next: 5 }),
            ],
        ),
        (
            "it is not for the receiving end",
            vec![Frame::Reset(frame::Reset {
                why: Description::default(),
            })],
        ),
        (
            "too many arrived before their turn",
            [open(1)]
                .into_iter()
                .chain((1..5000).map(|at| gap(1, at * 2, at * 2 + 1)))
                .collect(),
        ),
        // Each message alone is within the window, but all together are not.
        (
            "too many arrived before their turn",
            [open(1)]
                .into_iter()
                .chain((1..500).map(|at| small(1, at, 200, 64 << 10)))
                .collect(),
        ),
        ("there are too many flows", (1..5000).map(open).collect()),
        (
            "there are too many flows",
            (1..5000).map(|at| open(2 * at)).collect(),
        ),
    ];
    for (expected, frames) in cases {
        let mut pair = Pair::new(&[1]);
        let is_slow = expected.starts_with("too many arrived");
        pair.ends[1].is_slow = is_slow;
        let mut text = String::new();
        for frame in frames {
            text = blamed(&mut pair, &[frame]);
            if text != "nothing" {
                break;
            }
            pair.ends[1].carry_out();
        }
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn a_chunk_is_taken_only_from_a_lane_of_its_grant() {
    let mut pair = Pair::new(&[1]);
    assert_eq!(blamed(&mut pair, &[open(1)]), "nothing");
    pair.ends[1].carry_out();
    assert_eq!(blamed(&mut pair, &[request(1, 0, 2500)]), "nothing");
    pair.lane_up(2);
    let late = pair.ends[1].machine.frame(2, &chunk(0, 1000), &[]);
    let text = late.unwrap_err().to_string();
    assert!(text.contains("its lane is none of the grant's"), "{text}");
    // Nor from a lane of the grant that has brought ABANDON.
    assert_eq!(blamed(&mut pair, &[request(1, 1, 2500)]), "nothing");
    assert_eq!(
        blamed(&mut pair, &[Frame::Abandon(frame::Abandon { grant: 1 })]),
        "nothing"
    );
    assert!(blamed(&mut pair, &[chunk(0, 1000)]).contains("there is no such grant"));
    let closed = pair.ends[1]
        .machine
        .frame(9, &Frame::Alive(frame::Alive {}), &[]);
    assert!(closed
        .unwrap_err()
        .to_string()
        .contains("its lane is not open"));
}

#[test]
fn a_sender_names_what_a_receiver_does_wrong() {
    let ack = |flow, next| {
        Frame::Ack(frame::Ack {
            flow,
            next,
            limit: 0,
        })
    };
    let grant = |sequence, from_chunk| {
        Frame::Grant(frame::Grant {
            flow: 1,
            sequence,
            grant: 1,
            from_chunk,
            lanes: Lanes::new(&[1]).unwrap(),
            remote: None,
        })
    };
    let refuse = Frame::Refuse(frame::Refuse {
        flow: 2,
        why: Description::default(),
    });
    let cases = [
        ("there was no such flow", ack(2, 0)),
        ("there was no such flow", refuse),
        ("it acknowledges more than was sent", ack(1, 3)),
        ("its flow is not closed", ack(1, FLOW_ENDED)),
        ("the message was not requested", grant(2, 0)),
        ("the message has no such chunk", grant(1, 3)),
    ];
    for (expected, frame) in cases {
        let mut pair = Pair::new(&[1]);
        let flow = pair.ends[1].open(7, 0);
        pair.ends[1].send(flow, 7, 0, 50);
        pair.ends[1].send(flow, 7, 1, 2500);
        let text = blamed(&mut pair, &[frame]);
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

/// A peer that causes answers and reads none loses its lane, and does not fill memory.
#[test]
fn a_peer_that_does_not_read_the_answers_is_reported() {
    let mut pair = Pair::new(&[1]);
    for flow in [1, 2] {
        let frames = [open(flow), Frame::Close(frame::Close { flow, next: 0 })];
        for frame in frames {
            assert_eq!(blamed(&mut pair, &[frame]), "nothing");
            pair.ends[1].carry_out();
        }
    }
    for at in 0..40_000 {
        let flow = 1 + at % 2;
        assert_eq!(
            blamed(&mut pair, &[Frame::Close(frame::Close { flow, next: 0 })]),
            "nothing"
        );
    }
    pair.ends[1].carry_out();
    assert_eq!(pair.ends[1].take_reported(), ["lane 1 stuck"]);
    assert_eq!(pair.ends[1].write(1).len(), 16 << 10);
}

/// Regression: the flow counted the message's bytes wrong when it gave the message up.
#[test]
fn another_size_is_found_out_before_there_is_a_buffer_too() {
    let mut pair = Pair::new(&[1]);
    let frames = [
        open(1),
        request(1, 0, 500),
        request(1, 0, 600),
        gap(1, 0, 1),
    ];
    let text = blamed(&mut pair, &frames);
    assert!(text.contains("the message had another size"), "{text}");
}

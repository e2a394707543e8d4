//! What is fuzzed: bytes in, and nothing but panics if something is wrong. Used by `fuzz/` (libFuzzer) and by
//! `tests/fuzz.rs` (seeded, everywhere).
use rgaps_connection::Security;
use rgaps_transport::machine::frame::{
    self, Decoded, Description, Frame, Lanes, Remote, FLOW_ENDED, FRAME_BYTES_MAX,
};
use rgaps_transport::machine::{
    BufferReply, FlowEvent, FrameStep, LinkLimits, LinkMachine, LinkOutput, ReceiveBuffer, Turn,
    WriteLimit, WriteRange,
};
use rgaps_transport::{
    Endpoint, EndpointConfig, FlowId, FlowReceiver, LaneKey, Link, LinkConfig, LinkUser, Payload,
    Peer,
};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A stream of frames: whatever decodes is what its own bytes are, and nothing panics.
pub fn frames(mut data: &[u8]) {
    while !data.is_empty() {
        match Frame::decode(data) {
            Ok(Decoded::Frame(frame, used)) => {
                let mut bytes = Vec::new();
                let length = frame.encode(&mut bytes);
                assert_eq!(bytes[..length], data[..used], "two ways to write {frame:?}");
                let payload = usize::try_from(frame.payload_bytes()).unwrap();
                data = data.get(used + payload..).unwrap_or_default();
            }
            Ok(Decoded::Short(need)) => {
                assert!(need > data.len() && need <= FRAME_BYTES_MAX);
                return;
            }
            Err(_) => data = &data[1..],
        }
    }
}

struct Nobody;

impl LinkUser for Nobody {}

impl FlowReceiver for Nobody {
    fn buffer(&self, _: FlowId, _: u64, _: &[u8], bytes: u64) -> BufferReply {
        match bytes > 1 << 20 {
            true => BufferReply::Refused,
            false => BufferReply::Buffer(Box::new(Bytes(vec![0; bytes as usize]))),
        }
    }
}

struct Bytes(Vec<u8>);

impl ReceiveBuffer for Bytes {
    fn memory(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn deliver(self: Box<Self>, _: u64, _: &[u8]) -> Result<(), Box<dyn ReceiveBuffer>> {
        Ok(())
    }
}

/// A handshake, and what may follow it: the listener answers or closes in time, and stays.
pub fn hello(data: &[u8]) {
    static LISTENER: OnceLock<(Endpoint, Link)> = OnceLock::new();
    let (endpoint, link) = LISTENER.get_or_init(|| {
        let endpoint = Endpoint::new(EndpointConfig {
            incarnation: 2,
            realm: 7,
            listen: Some(([127, 0, 0, 1], 0).into()),
            security: Security::Loopback,
            rdma: None,
        });
        let endpoint = endpoint.unwrap();
        let peer = Peer {
            incarnation: 0,
            key: LaneKey([0; 32]),
            dial: vec![],
        };
        let link = endpoint
            .link(
                "fuzz",
                LinkConfig::default(),
                peer,
                (Arc::new(Nobody), Arc::new(Nobody)),
            )
            .unwrap();
        (endpoint, link)
    });
    let mut tcp = TcpStream::connect(endpoint.local_addr().unwrap()).unwrap();
    tcp.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // It may be closed before it has all.
    let _ = tcp.write_all(data);
    let _ = tcp.shutdown(std::net::Shutdown::Write);
    let mut bytes = [0; 4096];
    loop {
        match tcp.read(&mut bytes) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            // This process was stopped and goes on.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => panic!("the listener neither answers nor closes: {error}"),
        }
    }
    // No thread of it panicked with the lock.
    link.status();
}

/// Small numbers out of bytes, so that what is made fits often enough to get somewhere.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(u64::from(*first))
    }

    /// Mostly small, sometimes at a limit.
    fn number(&mut self) -> Option<u64> {
        Some(match self.next()? {
            small @ 0..=199 => small % 8,
            wide @ 200..=239 => wide * 97,
            240..=244 => u64::MAX,
            245..=249 => 1 << 40,
            _ => self.next()? << 8 | self.next()?,
        })
    }

    /// Control, or one of a few flows.
    fn flow(&mut self) -> Option<u64> {
        Some(self.next()? % 4)
    }
}

const LANES: u32 = 4;
const WINDOW: u32 = 2048;
const CANARY: usize = 32;
const CANARY_BYTE: u8 = 0xdd;

/// Receive buffers whose surroundings are looked at, and their bytes.
#[derive(Default)]
struct Buffers(Arc<AtomicI64>);

struct Guarded {
    memory: Vec<u8>,
    held: Arc<AtomicI64>,
}

impl FlowReceiver for Buffers {
    fn buffer(&self, _: u64, sequence: u64, _: &[u8], bytes: u64) -> BufferReply {
        match sequence % 5 {
            2 if self.0.load(Ordering::Relaxed) > 0 => return BufferReply::Full,
            3 | 4 => return BufferReply::Refused,
            _ => {}
        }
        if bytes > 1 << 16 {
            return BufferReply::Refused;
        }
        self.0.fetch_add(1, Ordering::Relaxed);
        let memory = vec![CANARY_BYTE; bytes as usize + 2 * CANARY];
        let held = self.0.clone();
        BufferReply::Buffer(Box::new(Guarded { memory, held }))
    }
}

impl ReceiveBuffer for Guarded {
    fn memory(&mut self) -> &mut [u8] {
        let end = self.memory.len() - CANARY;
        &mut self.memory[CANARY..end]
    }

    fn deliver(self: Box<Self>, _: u64, _: &[u8]) -> Result<(), Box<dyn ReceiveBuffer>> {
        Ok(())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let end = self.memory.len() - CANARY;
        let mut around = self.memory[..CANARY].iter().chain(&self.memory[end..]);
        assert!(
            around.all(|byte| *byte == CANARY_BYTE),
            "written outside a grant"
        );
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A machine, and what it has promised.
struct End {
    machine: LinkMachine,
    lanes: [bool; LANES as usize],
    ranges: Vec<WriteRange>,
    turns: Vec<(u64, Option<Turn>)>,
    /// Of each flow that arrives: below it all was handed out.
    handed_out: BTreeMap<u64, u64>,
    /// Messages that were sent and are not acknowledged, cancelled or dropped.
    retained: BTreeMap<(u64, u64), Arc<dyn Payload>>,
    is_over: bool,
}

impl End {
    fn hand_out(&mut self, flow: u64, first: u64, next: u64) {
        let position = self.handed_out.entry(flow).or_default();
        assert!(
            first >= *position && next > first,
            "{first}..{next} of flow {flow} is handed out twice"
        );
        *position = next;
    }

    fn frame(&mut self, lane: u32, frame: &Frame) {
        let bytes = frame.payload_bytes();
        if bytes > 1 << 16 {
            return;
        }
        let payload = match frame {
            Frame::Small(_) => vec![7; bytes as usize],
            _ => Vec::new(),
        };
        match self.machine.frame(lane, frame, &payload) {
            Ok(FrameStep::Done) => {}
            Ok(FrameStep::Chunk(mut range)) => {
                assert_eq!(range.as_mut_slice().len() as u64, bytes);
                range.as_mut_slice().fill(9);
                self.ranges.push(range);
            }
            Ok(FrameStep::Deliver(frame::Small { flow, sequence, .. })) => {
                self.hand_out(flow, sequence, sequence + 1);
                self.turns.push((flow, None));
            }
            Err(_) => self.is_over = true,
        }
    }

    /// Does what the machine says.
    fn carry_out(&mut self) {
        while let Some(output) = self.machine.output() {
            match output {
                LinkOutput::Deliver { flow, turn } => {
                    match &turn {
                        Turn::Opened { first, .. } => {
                            assert!(self.handed_out.insert(flow, *first).is_none());
                        }
                        Turn::Small { sequence, .. } | Turn::Large { sequence, .. } => {
                            self.hand_out(flow, *sequence, sequence + 1);
                        }
                        Turn::Missed { first, next } => self.hand_out(flow, *first, *next),
                        Turn::Closed { .. } => {}
                    }
                    self.turns.push((flow, Some(turn)));
                }
                LinkOutput::Flow(FlowEvent::Acknowledged { flow, sequence, .. }) => {
                    let retained = self.retained.remove(&(flow, sequence));
                    assert!(
                        retained.is_some(),
                        "{flow} {sequence} is acknowledged twice"
                    );
                }
                LinkOutput::Flow(FlowEvent::Refused { flow, dropped, .. }) => {
                    for (sequence, _) in dropped {
                        assert!(self.retained.remove(&(flow, sequence)).is_some());
                    }
                }
                LinkOutput::Flow(FlowEvent::Ended { flow }) => {
                    assert!(self.machine.sent(flow).is_none())
                }
                LinkOutput::Violation(_) => self.is_over = true,
                LinkOutput::Flow(FlowEvent::Accepted { .. }) | LinkOutput::Stuck { .. } => {}
            }
        }
    }
}

/// Frames that a peer may send at any time, to both ends of a link: bytes are written only where a grant is, numbers are handed out
/// once and ascend, each message is acknowledged at most once, and all memory comes back.
pub fn ends(data: &[u8]) {
    let numbers = &mut Numbers(data);
    let buffers = Arc::new(Buffers::default());
    let held = buffers.0.clone();
    let limits = LinkLimits {
        small_bytes_max: 512,
        chunk_bytes: 1024,
        first_window: WINDOW,
        window_bytes: 4096,
        ..LinkLimits::default()
    };
    let mut end = End {
        machine: LinkMachine::new(
            limits,
            buffers,
            Arc::new(|address, _| Remote::new(address, &[1])),
        ),
        lanes: [false; LANES as usize],
        ranges: Vec::new(),
        turns: Vec::new(),
        handed_out: BTreeMap::from([(0, 0)]),
        retained: BTreeMap::new(),
        is_over: false,
    };
    while !end.is_over && step(&mut end, numbers).is_some() {
        end.carry_out();
    }
    let End {
        machine,
        ranges,
        turns,
        retained,
        ..
    } = end;
    // Ranges may outlive the machine, and a message its buffer's turn.
    drop((machine, turns));
    drop(ranges);
    assert_eq!(held.load(Ordering::Relaxed), 0, "a buffer is held");
    for ((flow, sequence), payload) in retained {
        let clones = Arc::strong_count(&payload);
        assert_eq!(
            clones, 1,
            "{flow} {sequence} is read after the machine's end"
        );
    }
}

/// One thing that happens. `None`: there are no bytes left.
fn step(end: &mut End, numbers: &mut Numbers<'_>) -> Option<()> {
    let (op, lane) = (numbers.next()? % 22, numbers.next()? as u32 % LANES);
    let machine = &mut end.machine;
    match op {
        0 | 1 => match std::mem::replace(&mut end.lanes[lane as usize], op == 0) {
            false if op == 0 => assert!(machine.lane_up(lane, WINDOW)),
            true if op == 1 => machine.lane_ended(lane),
            _ => {}
        },
        2 => machine.tick(),
        3 => {
            let first = numbers.next()? % 4;
            machine.open(first, Description::default());
        }
        4 => {
            let (flow, sequence) = (numbers.flow()?, numbers.number()?);
            let bytes = numbers.number()? as usize % 20_000;
            let payload: Arc<dyn Payload> = Arc::new(vec![1; bytes]);
            let clone = payload.clone();
            if machine.send(flow, sequence, clone, Description::default()) {
                let before = end.retained.insert((flow, sequence), payload);
                assert!(before.is_none(), "{sequence} is taken twice");
            }
        }
        5 => {
            while let Some(queued) = machine.next(lane, WriteLimit::All) {
                if queued.payload.is_some() {
                    machine.written(lane, 1);
                }
            }
        }
        6 => machine.close(numbers.flow()?),
        7 => {
            let (flow, sequence) = (numbers.flow()?, numbers.number()?);
            if machine.cancel(flow, sequence).is_some() {
                let cancelled = end.retained.remove(&(flow, sequence));
                assert!(cancelled.is_some(), "{sequence} was not retained");
            }
        }
        8 => {
            let flow = numbers.flow()?;
            machine.refuse(flow, Description::default());
            // What was out may be delivered still; nothing follows.
        }
        9 => {
            if !end.ranges.is_empty() {
                let at = numbers.next()? as usize % end.ranges.len();
                let landed = end.ranges.swap_remove(at).landed(lane == 0);
                if let Some(grant) = landed {
                    machine.landed(grant);
                }
            }
        }
        10 => {
            if !end.turns.is_empty() {
                let at = numbers.next()? as usize % end.turns.len();
                match end.turns.swap_remove(at) {
                    (flow, Some(turn)) if lane == 0 => {
                        // It is handed out again.
                        let first = match &turn {
                            Turn::Opened { .. } => {
                                end.handed_out.remove(&flow);
                                None
                            }
                            Turn::Small { sequence, .. } | Turn::Large { sequence, .. } => {
                                Some(*sequence)
                            }
                            Turn::Missed { first, .. } => Some(*first),
                            Turn::Closed { .. } => None,
                        };
                        if let Some(first) = first {
                            end.handed_out.insert(flow, first);
                        }
                        machine.delivered(flow, Err(turn));
                    }
                    (flow, _) => machine.delivered(flow, Ok(())),
                }
            }
        }
        11 => {
            let mark = (numbers.next()? as u32, 0xff);
            let chunk = machine.marked(mark, 1 + numbers.number()? as u32 % 2000);
            end.frame(lane, &chunk);
        }
        op => {
            let frame = frame(op, numbers)?;
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            // What the decoder refuses never reaches the machine.
            if Frame::decode(&bytes).is_ok() && end.lanes[lane as usize] {
                end.frame(lane, &frame);
            }
        }
    }
    Some(())
}

fn frame(op: u64, numbers: &mut Numbers<'_>) -> Option<Frame> {
    let flow = numbers.flow()?;
    let (a, b) = (numbers.number()?, numbers.number()?);
    Some(match op {
        12 => Frame::Open(frame::Open {
            flow,
            first: a,
            description: Description::default(),
        }),
        13 => {
            let bytes = b as u32 % 2000;
            Frame::Small(frame::Small {
                flow,
                sequence: a,
                charge_end: numbers.number()?.saturating_add(bytes.into()),
                bytes,
                description_bytes: numbers.next()? as u16 % 3,
            })
        }
        14 => Frame::Request(frame::Request {
            flow,
            sequence: a,
            charge_end: numbers.number()? % 4,
            bytes: b % 40_000,
            chunk_bytes: 1 + numbers.number()? as u32 % 20_000,
            description: Description::default(),
        }),
        15 => Frame::Chunk(frame::Chunk {
            grant: a,
            chunk: b as u32 % 64,
            bytes: numbers.number()? as u32 % 50_000,
        }),
        16 => Frame::Ack(frame::Ack {
            flow,
            next: if a == 7 { FLOW_ENDED } else { a },
            limit: b,
        }),
        17 => Frame::Grant(frame::Grant {
            flow,
            sequence: a,
            grant: b,
            from_chunk: numbers.number()? as u32 % 64,
            lanes: Lanes::new(&[0, 1, 2, 3][..1 + numbers.next()? as usize % 4])?,
            remote: Remote::new(numbers.number()?, &[1, 2][..numbers.next()? as usize % 3]),
        }),
        18 => Frame::Abandon(frame::Abandon { grant: a }),
        19 => Frame::Gap(frame::Gap {
            flow,
            first: a,
            next: b,
            charge_end: numbers.number()?,
        }),
        20 => Frame::Close(frame::Close {
            flow,
            next: if b == 7 { FLOW_ENDED } else { b },
        }),
        _ => Frame::Refuse(frame::Refuse {
            flow,
            why: Description::default(),
        }),
    })
}

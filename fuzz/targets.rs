//! What is fuzzed: bytes in, and nothing but panics if something is wrong. Used by `fuzz/` (libFuzzer) and by
//! `tests/fuzz.rs` (seeded, everywhere).
use rgaps_transport::cursors::{Ring, Watermark};
use rgaps_transport::frame::{Decoded, Lanes, Remote, FRAME_BYTES_MAX};
use rgaps_transport::link::{Action, Span, Target};
use rgaps_transport::{
    Endpoint, EndpointConfig, Flow, Frame, LaneKey, Link, LinkConfig, Meta, Offered, Owner, Peer,
    Place, Places, Receiver, ReceiverConfig, Room, Security, Sender, SenderConfig,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
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

impl Owner for Nobody {
    fn place(&self, _flow: Flow, _sequence: u64, _meta: &[u8], bytes: u64) -> Room {
        if bytes > 1 << 20 {
            return Room::Refused;
        }
        Room::Place(Box::new(Bytes(vec![0; bytes as usize])))
    }
    fn event(&self, _event: rgaps_transport::Event) {}
}

struct Bytes(Vec<u8>);

impl Place for Bytes {
    fn memory(&mut self) -> &mut [u8] {
        &mut self.0
    }
    fn commit(self: Box<Self>, _sequence: u64, _meta: &[u8]) -> Result<(), Box<dyn Place>> {
        Ok(())
    }
}

/// The first words, and what may follow them: the listener answers or closes in time, and stays.
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
            .link("fuzz", LinkConfig::default(), peer, Arc::new(Nobody))
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

    fn flow(&mut self) -> Option<Flow> {
        let (topic, incarnation) = (self.next()? % 2, 1);
        Some(Flow { topic, incarnation })
    }
}

const RING: u64 = 4096;
const REGION: u64 = 1 << 16;

/// A region that knows who has what.
#[derive(Default)]
struct Region(BTreeMap<u64, u64>);

impl Places for Region {
    fn take(&mut self, _flow: Flow, _sequence: u64, _meta: &Meta, bytes: u64) -> Option<u64> {
        let mut at = 0;
        for (start, length) in &self.0 {
            if start - at >= bytes {
                break;
            }
            at = start + length;
        }
        (at + bytes <= REGION).then(|| {
            self.0.insert(at, bytes);
            at
        })
    }

    fn give(&mut self, _flow: Flow, place: Span) {
        assert_eq!(
            self.0.remove(&place.offset),
            Some(place.bytes),
            "given back twice"
        );
    }
}

/// Frames that a peer may say at any time, to both ends of a link: what is written lies in places that are
/// given out, sequences are committed once and in order, and all memory comes back.
pub fn ends(data: &[u8]) {
    let numbers = &mut Numbers(data);
    let config = ReceiverConfig {
        watermark: Watermark::Eighth,
        window_bytes: 4096,
        idle_ms: 10,
    };
    let mut receiver = Receiver::new(config, Region::default(), &[]);
    let ring = Ring::new(RING).unwrap();
    let config = SenderConfig {
        eager_bytes_max: 512,
        chunk_bytes: 1024,
        ..SenderConfig::default()
    };
    let mut sender = Sender::new(config, 0);
    let mut lanes = BTreeSet::new();
    let mut next: BTreeMap<Flow, u64> = BTreeMap::new();
    let mut offered: BTreeMap<u64, u64> = BTreeMap::new();
    let mut now = 0;
    let mut base = 0;
    // What a lie ends.
    let mut lied = false;
    while let Some(op) = numbers.next().filter(|_| !lied) {
        now += 1;
        let Some(lane) = numbers.next().map(|lane| lane as u32 % 4) else {
            break;
        };
        let made = match op % 18 {
            0 => {
                if lanes.insert(lane) {
                    assert!(
                        receiver.lane_opened(lane, ring, now) && sender.lane_opened(lane, ring)
                    );
                }
                None
            }
            1 => {
                lanes.remove(&lane);
                receiver.lane_closed(lane);
                sender.lane_closed(lane, now);
                None
            }
            2 => {
                receiver.tick(now * 10);
                sender.tick(now * 10);
                receiver.places_freed();
                None
            }
            3 => {
                let Some(flow) = numbers.flow() else { break };
                sender.open(flow, 0, op % 2 == 0);
                None
            }
            4 => {
                let (Some(flow), Some(sequence), Some(bytes)) =
                    (numbers.flow(), numbers.number(), numbers.number())
                else {
                    break;
                };
                let bytes = bytes % 20_000;
                let span = Span {
                    offset: base,
                    bytes,
                };
                if sender.offer(flow, sequence, span, Meta::default()) == Offered::Taken {
                    offered.insert(base, bytes);
                }
                base += bytes.max(1);
                None
            }
            5 => {
                sender.written(lane);
                None
            }
            6 => {
                let Some(flow) = numbers.flow() else { break };
                sender.close(flow);
                None
            }
            op => match frame(op, numbers) {
                Some(frame) => Some(frame),
                None => break,
            },
        };
        if let Some(frame) = made.filter(|_| lanes.contains(&lane)) {
            let to_sender = matches!(
                frame,
                Frame::Ack { .. } | Frame::Grant { .. } | Frame::Head { .. }
            );
            let mut bytes = Vec::new();
            let length = frame.encode(&mut bytes);
            // What the decoder does not let through reaches nobody.
            if Frame::decode(&bytes[..length]).is_err() {
                continue;
            }
            if to_sender {
                lied |= sender.frame(lane, &frame).is_err();
            } else {
                match receiver.frame(lane, &frame, now) {
                    Err(_) => lied = true,
                    Ok(None) => assert_eq!(frame.payload_bytes(), 0, "bytes that go nowhere"),
                    Ok(Some(target)) => {
                        let bytes = frame.payload_bytes();
                        match target {
                            Target::Ring(at) => assert!(at + bytes <= RING),
                            Target::Region(at) => {
                                let place = receiver.places().0.range(..=at).next_back();
                                let inside = place
                                    .is_some_and(|(start, length)| at + bytes <= start + length);
                                assert!(inside, "{frame:?} goes where there is no place");
                            }
                        }
                        lied |= receiver.landed(lane).is_err();
                    }
                }
            }
        }
        while let Some(action) = sender.action() {
            if let Action::Release { span, .. } = action {
                assert_eq!(
                    offered.remove(&span.offset),
                    Some(span.bytes),
                    "released twice"
                );
            }
        }
        while let Some(action) = receiver.action() {
            match action {
                Action::Commit {
                    flow,
                    sequence,
                    large,
                    eager_bytes,
                } => {
                    let at = next.entry(flow).or_default();
                    assert!(sequence >= *at, "{flow:?} {sequence} is committed twice");
                    *at = sequence + 1;
                    match large {
                        Some((place, _)) => receiver.places().give(flow, place),
                        None => receiver.released(flow, eager_bytes),
                    }
                }
                Action::Missed {
                    flow,
                    first,
                    next: end,
                } => {
                    let at = next.entry(flow).or_default();
                    assert!(
                        first >= *at && end > first,
                        "{flow:?} {first}..{end} is told twice"
                    );
                    *at = end;
                }
                _ => {}
            }
        }
    }
    for lane in lanes {
        receiver.lane_closed(lane);
        sender.lane_closed(lane, now);
    }
    receiver.restart();
    assert_eq!(receiver.places_held(), 0);
    assert!(receiver.places().0.is_empty(), "places were not given back");
}

fn frame(op: u64, numbers: &mut Numbers<'_>) -> Option<Frame> {
    let flow = numbers.flow()?;
    let (a, b) = (numbers.number()?, numbers.number()?);
    Some(match op {
        7 | 8 => Frame::Open { flow, first: a },
        9 => {
            let (bytes, cursor) = (b as u32 % 2000, numbers.number()?.wrapping_mul(64));
            let charge_end = numbers.number()?.saturating_add(bytes.into());
            Frame::Eager {
                flow,
                sequence: a,
                charge_end,
                cursor,
                bytes,
                meta_bytes: 0,
            }
        }
        10 => {
            let bytes = b % 40_000;
            Frame::Request {
                flow,
                sequence: a,
                charge_end: numbers.number()? % 4,
                bytes,
                meta: Meta::default(),
            }
        }
        11 => Frame::Chunk {
            grant: a,
            offset: b,
            bytes: numbers.number()? as u32 % 50_000,
        },
        12 => Frame::Ack {
            flow,
            next: a,
            limit: b,
        },
        13 => Frame::Grant {
            flow,
            sequence: a,
            grant: b,
            offset: numbers.number()?,
            lanes: Lanes::new(&[0, 1, 2, 3][..1 + numbers.next()? as usize % 4])?,
            remote: Remote::new(numbers.number()?, &[1, 2][..numbers.next()? as usize % 3]),
        },
        14 => Frame::Head { head: a },
        15 => Frame::Abandon { grant: a },
        16 => Frame::Gap {
            flow,
            first: a,
            next: b,
            charge_end: numbers.number()?,
        },
        _ if a % 2 == 0 => Frame::Close { flow, next: b },
        _ => Frame::Stall { tail: a },
    })
}

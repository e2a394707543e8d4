//! Protocol violations over RDMA, and where a peer's card can write at which time.
#[allow(dead_code, reason = "every test program uses a part of it")]
mod lanes {
    pub mod hosts;
    pub mod raw;
    pub mod rdma;
}
use lanes::hosts::*;
use lanes::raw::{hello, reset, Raw};
use lanes::rdma::{Fabric, Pool};
use rgaps_transport::machine::frame::{self, Decoded, Description, Frame, Lanes, RdmaMode, Remote};
use rgaps_transport::{Endpoint, LinkConfig};
use rgaps_verbs::in_process::Faults;
use rgaps_verbs::{
    Access, Allocation, Arrived, Channel, ChannelAddress, ChannelConfig, Direct, Memory, Region,
    MARK_MAX,
};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

const FLOW: Flow = Flow {
    topic: 1,
    incarnation: 11,
};
const STREAM: u8 = 0;
const DIRECT: u8 = 1;

/// The number of the flow.
const NUMBER: u64 = 1;

fn open() -> Frame {
    Frame::Open(frame::Open {
        flow: NUMBER,
        first: 0,
        description: FLOW.description(),
    })
}

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    let length = frame.encode(&mut bytes);
    bytes[..length].to_vec()
}

fn hello_rdma() -> Frame {
    let mut frame = hello();
    if let Frame::Hello(frame::Hello { rdma, .. }) = &mut frame {
        *rdma = RdmaMode::Prefer;
    }
    frame
}

/// A peer with one RDMA lane, whose records a test writes by hand.
struct Peer {
    tcp: Raw,
    channel: Arc<Channel>,
    heard: VecDeque<Frame>,
}

impl Peer {
    fn new(fabric: &Fabric, b: &Endpoint) -> Self {
        let mut tcp = Raw::new(b.local_addr().unwrap());
        tcp.say(&hello_rdma());
        assert!(matches!(tcp.hear(), Some(Frame::Hello(_))));
        let channel = Channel::new(&fabric.device("raw"), fabric.channel).unwrap();
        let address = Description::new(&channel.address().encode()).unwrap();
        tcp.say(&Frame::RdmaAddress(frame::RdmaAddress { rail: 0, address }));
        let Some(Frame::RdmaAddress(frame::RdmaAddress { address, .. })) = tcp.hear() else {
            panic!("no channel");
        };
        let address = ChannelAddress::decode(address.as_slice()).unwrap();
        channel.connect(&address).unwrap();
        tcp.say(&Frame::RdmaReady(frame::RdmaReady { step: 1 }));
        assert_eq!(
            tcp.hear(),
            Some(Frame::RdmaReady(frame::RdmaReady { step: 1 }))
        );
        let mut peer = Self {
            tcp,
            channel: Arc::new(channel),
            heard: VecDeque::new(),
        };
        peer.record(&[STREAM]);
        peer.serve(|records| records > 0);
        peer.tcp
            .say(&Frame::RdmaReady(frame::RdmaReady { step: 2 }));
        assert_eq!(
            peer.tcp.hear(),
            Some(Frame::RdmaReady(frame::RdmaReady { step: 2 }))
        );
        peer
    }

    fn record(&self, record: &[u8]) {
        let sent = self.channel.send(&[IoSlice::new(record)], None).unwrap();
        assert!(sent.is_some(), "no credit");
    }

    fn say(&self, frame: &Frame) {
        let mut record = vec![STREAM];
        record.extend(encoded(frame));
        self.record(&record);
    }

    /// Writes so many bytes into a granted receive buffer, and announces them by a mark.
    fn mark(&self, place: &Remote, bytes: u64, mark: u32) {
        let memory = Allocation::new(bytes as usize);
        let region = Region::new(self.channel.device(), memory, Access::LocalRead).unwrap();
        // Lane 1 is on the second rail.
        let (address, key) = place.at(0, 1).unwrap();
        let direct = Direct {
            region,
            offset: 0,
            bytes,
            address,
            key,
        };
        let mut batch = self.channel.batch().unwrap();
        assert!(batch.push_marked(&direct, mark).unwrap().is_some());
        batch.post().unwrap();
    }

    fn serve(&mut self, enough: impl Fn(usize) -> bool) {
        let until = Instant::now() + LIMIT;
        let mut records = 0;
        while !enough(records) {
            assert!(Instant::now() < until, "waited {LIMIT:?} for a record");
            let heard = &mut self.heard;
            let mut each = |arrived: Arrived<'_>| {
                records += 1;
                let record = match arrived {
                    Arrived::Frame(record) => record,
                    Arrived::Written { mark, bytes } => {
                        heard.push_back(Frame::Chunk(frame::Chunk {
                            grant: mark.into(),
                            chunk: 0,
                            bytes,
                        }));
                        return Ok(());
                    }
                };
                let mut bytes = &record[1..];
                while !bytes.is_empty() {
                    let Ok(Decoded::Frame(frame, used)) = Frame::decode(bytes) else {
                        panic!("a record that is no frame");
                    };
                    heard.push_back(frame);
                    // No payload follows: all payloads of these tests are written directly.
                    bytes = &bytes[used..];
                }
                Ok(())
            };
            let limit = Duration::from_millis(50);
            self.channel.serve(&mut each, limit).unwrap();
        }
    }

    fn hear<T>(&mut self, wanted: impl Fn(&Frame) -> Option<T>) -> T {
        loop {
            while let Some(frame) = self.heard.pop_front() {
                if let Some(found) = wanted(&frame) {
                    return found;
                }
            }
            self.serve(|records| records > 0);
        }
    }

    fn open(&mut self) {
        self.say(&open());
        self.hear(|frame| matches!(frame, Frame::Ack(_)).then_some(()));
    }

    /// Requests a receive buffer. Returns the grant and its address.
    fn granted(&mut self, bytes: u64) -> (u64, Option<Remote>) {
        self.say(&Frame::Request(frame::Request {
            flow: NUMBER,
            sequence: 0,
            charge_end: 0,
            bytes,
            chunk_bytes: 1 << 20,
            description: Description::default(),
        }));
        self.hear(|frame| match frame {
            Frame::Grant(frame::Grant { grant, remote, .. }) => Some((*grant, *remote)),
            _ => None,
        })
    }
}

fn victim(fabric: &Fabric, host: &Arc<Host>, b: &Endpoint) -> Link {
    assert_eq!(fabric.rails, 2);
    link(b, LinkConfig::default(), peer(1, &[]), host)
}

/// Checks that a peer is disconnected for what `lie` does. The peer has the first grant, for 100,000 bytes that its card may write.
fn is_disconnected(what: &str, lie: impl Fn(&Peer, &Remote)) {
    let fabric = Fabric::new(Faults::default());
    let b = fabric.endpoint(2);
    let at_b = fabric.host(&b);
    let to_a = victim(&fabric, &at_b, &b);
    let mut peer = Peer::new(&fabric, &b);
    peer.open();
    let (grant, remote) = peer.granted(100_000);
    assert_eq!(grant, 1, "{what}");
    lie(&peer, &remote.expect("a place that it may write"));
    let heard = peer.tcp.until_end();
    assert!(matches!(heard[..], [Frame::Reset(_)]), "{what}: {heard:?}");
    assert_eq!(to_a.violations(), 1, "{what}");
    to_a.wait_lanes(0);
    within_limit("the link's end", move || drop((to_a, b)));
    at_b.gives_back();
}

#[test]
fn records_that_no_peer_sends_cut_it_off() {
    let chunk = |grant, bytes| {
        Frame::Chunk(frame::Chunk {
            grant,
            chunk: 0,
            bytes,
        })
    };
    let small = Frame::Small(frame::Small {
        flow: NUMBER,
        sequence: 0,
        charge_end: 100,
        bytes: 100,
        description_bytes: 0,
    });
    let with = |kind: u8, parts: &[Vec<u8>]| {
        let mut record = vec![kind];
        parts.iter().for_each(|part| record.extend(part));
        record
    };
    let alive = encoded(&Frame::Alive(frame::Alive {}));
    // The peer has grant 1.
    let lies: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("no kind", vec![vec![2, 1, 2]]),
        ("nothing at all", vec![vec![]]),
        ("a cut head", vec![with(STREAM, &[alive[..7].to_vec()])]),
        ("no frame", vec![with(STREAM, &[vec![0xff; 40]])]),
        ("direct: nothing", vec![vec![DIRECT]]),
        (
            "direct: a small message",
            vec![with(DIRECT, &[encoded(&small)])],
        ),
        (
            "direct: no payload",
            vec![with(DIRECT, std::slice::from_ref(&alive))],
        ),
        (
            "direct: more than a frame",
            vec![with(DIRECT, &[encoded(&chunk(1, 100_000)), alive.clone()])],
        ),
        (
            "direct: outside",
            vec![with(DIRECT, &[encoded(&chunk(1, 100_001))])],
        ),
        (
            "direct: no such grant",
            vec![with(DIRECT, &[encoded(&chunk(9, 10))])],
        ),
        (
            "direct within a payload",
            vec![
                with(STREAM, &[encoded(&chunk(1, 100_000)), vec![1; 10]]),
                with(DIRECT, &[encoded(&chunk(1, 100_000))]),
            ],
        ),
    ];
    for (what, records) in &lies {
        is_disconnected(what, |peer, _| {
            records.iter().for_each(|record| peer.record(record));
        });
    }
}

#[test]
fn marks_that_name_nothing_cut_it_off() {
    // The peer has grant 1, for 100,000 bytes.
    type Lie = (&'static str, fn(&Peer, &Remote));
    let lies: [Lie; 5] = [
        ("no grant yet", |peer, place| peer.mark(place, 100_000, 2)),
        ("none so old", |peer, place| {
            peer.mark(place, 100_000, MARK_MAX)
        }),
        ("more bytes than the message", |peer, place| {
            peer.mark(place, 100_001, 1)
        }),
        ("fewer bytes than the message", |peer, place| {
            peer.mark(place, 1000, 1);
        }),
        ("within a payload", |peer, place| {
            let chunk = Frame::Chunk(frame::Chunk {
                grant: 1,
                chunk: 0,
                bytes: 100_000,
            });
            let mut record = vec![STREAM];
            record.extend(encoded(&chunk));
            record.extend([1; 10]);
            peer.record(&record);
            peer.mark(place, 100_000, 1);
        }),
    ];
    for (what, lie) in lies {
        is_disconnected(what, lie);
    }
}

#[test]
fn a_chunk_is_not_direct_where_nobody_told_the_peer_its_place() {
    let fabric = Fabric::new(Faults::default());
    let b = fabric.endpoint(2);
    // This user's memory is not registered.
    let at_b = Host::new();
    let to_a = victim(&fabric, &at_b, &b);
    let mut peer = Peer::new(&fabric, &b);
    peer.open();
    let (grant, remote) = peer.granted(100_000);
    assert_eq!(remote, None);
    let mut record = vec![DIRECT];
    record.extend(encoded(&Frame::Chunk(frame::Chunk {
        grant,
        chunk: 0,
        bytes: 100_000,
    })));
    peer.record(&record);
    peer.tcp.until_end();
    assert_eq!(to_a.violations(), 1);
    within_limit("the link's end", move || drop((to_a, b)));
}

#[test]
fn what_is_no_agreement_leaves_a_tcp_lane_or_none() {
    let fabric = Fabric::new(Faults::default());
    let b = fabric.endpoint(2);
    let at_b = fabric.host(&b);
    let to_a = victim(&fabric, &at_b, &b);
    let address = Description::new(&[7; 80]).unwrap();
    let why = Description::new("no memory\u{7}".as_bytes()).unwrap();
    let left = [
        (
            Frame::RdmaAddress(frame::RdmaAddress { rail: 0, address }),
            "another version",
        ),
        (
            Frame::RdmaRefused(frame::RdmaRefused { why: why.clone() }),
            "the peer: no memory\\u{7}",
        ),
    ];
    for (lane, (word, expected)) in left.iter().enumerate() {
        let mut tcp = Raw::new(b.local_addr().unwrap());
        tcp.say(&hello_rdma());
        assert!(matches!(tcp.hear(), Some(Frame::Hello(_))));
        tcp.say(word);
        let heard = [tcp.hear(), tcp.hear()];
        assert!(matches!(heard[0], Some(Frame::RdmaAddress(_))), "{heard:?}");
        if lane == 0 {
            assert!(matches!(heard[1], Some(Frame::RdmaRefused(_))), "{heard:?}");
            tcp.say(&Frame::RdmaRefused(frame::RdmaRefused { why: why.clone() }));
        }
        to_a.wait_lanes(1);
        let lane = to_a.status().lanes.remove(0);
        assert!(lane.channel.is_none());
        assert!(
            lane.why_not.as_ref().unwrap().contains(expected),
            "{lane:?}"
        );
        drop(tcp);
        to_a.wait_lanes(0);
    }
    // A ring that is too small for a frame's head.
    let mut tcp = Raw::new(b.local_addr().unwrap());
    tcp.say(&hello_rdma());
    let small = ChannelConfig {
        ring_bytes: 2048,
        ..fabric.channel
    };
    let channel = Channel::new(&fabric.device("raw"), small).unwrap();
    let address = Description::new(&channel.address().encode()).unwrap();
    tcp.say(&Frame::RdmaAddress(frame::RdmaAddress { rail: 0, address }));
    tcp.say(&Frame::RdmaReady(frame::RdmaReady { step: 1 }));
    let heard = [tcp.hear(), tcp.hear(), tcp.hear()];
    let refused = matches!(&heard[2], Some(Frame::RdmaRefused(frame::RdmaRefused { why })) if String::from_utf8_lossy(why.as_slice()).contains("too small"));
    assert!(refused, "{heard:?}");
    // The lane is a TCP lane then, until the peer closes it.
    to_a.wait_lanes(1);
    drop(tcp);
    to_a.wait_lanes(0);
    for word in [
        reset("it leaves"),
        Frame::RdmaReady(frame::RdmaReady { step: 1 }),
    ] {
        let mut tcp = Raw::new(b.local_addr().unwrap());
        tcp.say(&hello_rdma());
        tcp.say(&word);
        assert_eq!(tcp.until_end().len(), 2, "a hello and a channel");
    }
    assert!(to_a.status().lanes.is_empty());
    within_limit("the link's end", move || drop((to_a, b)));
}

#[test]
fn a_host_without_rdma_says_so_and_takes_the_lane_as_tcp() {
    let b = endpoint(2);
    let at_b = Host::new();
    let to_a = link(&b, LinkConfig::default(), peer(1, &[]), &at_b);
    let mut tcp = Raw::new(b.local_addr().unwrap());
    tcp.say(&hello_rdma());
    let answer = tcp.hear();
    let no = matches!(
        answer,
        Some(Frame::Hello(frame::Hello {
            rdma: RdmaMode::No,
            ..
        }))
    );
    assert!(no, "{answer:?}");
    tcp.say(&open());
    while !matches!(tcp.hear().expect("an answer"), Frame::Ack(_)) {}
    // A peer that requires RDMA is refused.
    let mut tcp = Raw::new(b.local_addr().unwrap());
    let mut required = hello_rdma();
    if let Frame::Hello(frame::Hello { rdma, .. }) = &mut required {
        *rdma = RdmaMode::Require;
    }
    tcp.say(&required);
    let refused = reset("RDMA: expected no RDMA, not RDMA and nothing else");
    assert_eq!(tcp.until_end(), [refused]);
    within_limit("the link's end", move || drop((to_a, b)));
}

/// As the receiving end, grants the next request of `b` with this address.
fn grant(peer: &mut Peer, lane: u32, remote: Option<Remote>) {
    let sequence = peer.hear(|frame| match frame {
        Frame::Request(frame::Request { sequence, .. }) => Some(*sequence),
        _ => None,
    });
    peer.say(&Frame::Grant(frame::Grant {
        flow: NUMBER,
        sequence,
        grant: 1 + u64::from(lane),
        from_chunk: 0,
        lanes: Lanes::new(&[lane]).unwrap(),
        remote,
    }));
}

#[test]
fn a_grant_that_lies_ends_the_lane_with_the_status_and_loses_nothing() {
    let fabric = Fabric::new(Faults::default());
    let b = fabric.endpoint(2);
    let at_b = fabric.host(&b);
    let to_a = victim(&fabric, &at_b, &b);
    to_a.open(FLOW, 0);
    send(&to_a, &at_b, FLOW, 0, 100_000);
    let mut peer = Peer::new(&fabric, &b);
    let device = Arc::clone(peer.channel.device());
    let place = Allocation::new(100_000);
    let region = Region::new(&device, place.clone(), Access::RemoteWrite).unwrap();
    let key = region.remote_key().unwrap();
    peer.hear(|frame| matches!(frame, Frame::Open(_)).then_some(()));
    peer.say(&Frame::Ack(frame::Ack {
        flow: NUMBER,
        next: 0,
        limit: 1 << 20,
    }));
    // One byte beyond the region that the key is for.
    grant(&mut peer, 1, Remote::new(region.address() + 1, &[key]));
    at_b.has("the lane's end", |event| {
        matches!(event, Event::Link(LinkEvent::Down { .. }))
    });
    let why = to_a.status().error.unwrap();
    assert!(why.contains("REM_ACCESS"), "{why}");
    assert_eq!(to_a.violations(), 0);
    // A correct grant over another lane.
    let mut peer = Peer::new(&fabric, &b);
    let device = Arc::clone(peer.channel.device());
    let region = Region::new(&device, place.clone(), Access::RemoteWrite).unwrap();
    let remote = Remote::new(region.address(), &[region.remote_key().unwrap()]);
    grant(&mut peer, 2, remote);
    let (chunk, bytes) = peer.hear(|frame| match frame {
        Frame::Chunk(frame::Chunk { chunk, bytes, .. }) => Some((*chunk, *bytes)),
        _ => None,
    });
    assert_eq!((chunk, bytes), (0, 100_000));
    let mut landed = vec![0; 100_000];
    place.read(0, &mut landed);
    assert!(landed == content(FLOW, 0, 100_000), "it is damaged");
    peer.say(&Frame::Ack(frame::Ack {
        flow: NUMBER,
        next: 1,
        limit: 1 << 20,
    }));
    at_b.wait("its acknowledgement", |seen| seen.acknowledged(FLOW) == [0]);
    within_limit("the link's end", move || drop((to_a, b, peer)));
}

#[test]
fn when_a_lane_has_ended_the_peer_writes_nowhere_any_more() {
    let fabric = Fabric::new(Faults::default());
    let b = fabric.endpoint(2);
    let pool = Arc::new(Pool::new(&b));
    let at_b = Host::with(Arc::clone(&pool) as Arc<dyn Arena>);
    let to_a = victim(&fabric, &at_b, &b);
    let mut peer = Peer::new(&fabric, &b);
    peer.open();
    let (_, remote) = peer.granted(1000);
    // Lane 1 is on the second rail.
    let (address, key) = remote.unwrap().at(0, 1).unwrap();
    let junk = Allocation::new(1000);
    junk.write(0, &[0x55; 1000]);
    let region = Region::new(peer.channel.device(), junk, Access::LocalRead).unwrap();
    let write = move |channel: &Channel, memory: &Allocation| {
        let direct = Direct {
            region: Arc::clone(&region),
            offset: 0,
            bytes: 1000,
            address,
            key,
        };
        let alive = encoded(&Frame::Alive(frame::Alive {}));
        let record = [IoSlice::new(&[STREAM]), IoSlice::new(&alive)];
        // Fails if the channel has ended already.
        let _ = channel.send(&record, Some(&direct));
        let mut place = [0; 1000];
        memory.read((address - memory.start() as u64) as usize, &mut place);
        place == [0x55; 1000]
    };
    // While the lane is open, the peer can write. The test then clears the bytes.
    assert!(write(&peer.channel, &pool.memory));
    let at = (address - pool.memory.start() as u64) as usize;
    pool.memory.write(at, &[0; 1000]);
    let (told, heard) = std::sync::mpsc::channel();
    let channel = Arc::clone(&peer.channel);
    *at_b.at_down.lock().unwrap() = Some(Box::new(move || {
        let _ = told.send(write(&channel, &pool.memory));
    }));
    // The victim ends the lane, and at the lane's end the peer, which does not know of it, writes again.
    peer.tcp.say(&reset("it leaves"));
    let reached = heard.recv_timeout(LIMIT).expect("the lane's end");
    assert!(
        !reached,
        "the link may give the place to somebody else, and the peer writes there"
    );
    within_limit("the link's end", move || drop((to_a, b)));
    at_b.gives_back();
}

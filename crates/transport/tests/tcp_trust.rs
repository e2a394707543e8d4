//! Which peers get a lane, and what happens to a peer that violates the protocol.
#![forbid(unsafe_code)]
#[allow(dead_code, reason = "every test program uses a part of it")]
mod lanes {
    pub mod certificates;
    pub mod hosts;
    pub mod raw;
}
use lanes::certificates::Authority;
use lanes::hosts::*;
use lanes::raw::{hello, reset, Raw};
use rgaps_connection::{Security, Tls, TlsFiles};
use rgaps_transport::machine::frame::{self, Description, Frame, Hello, Lanes, WIRE_VERSION};
use rgaps_transport::{Endpoint, EndpointConfig, LaneKey, LaneKind, LinkConfig};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

const FLOW: Flow = Flow {
    topic: 1,
    incarnation: 11,
};

// Encrypted lanes.

fn encrypted(incarnation: u64, files: &TlsFiles) -> Endpoint {
    Endpoint::new(EndpointConfig {
        incarnation,
        realm: 7,
        listen: Some("127.0.0.1:0".parse().unwrap()),
        security: Security::Tls(Tls::new(files).unwrap()),
        rdma: None,
    })
    .unwrap()
}

fn named(endpoint: &Endpoint, name: &str, to: u64, dial: &[SocketAddr], host: &Arc<Host>) -> Link {
    lanes::hosts::named(endpoint, name, LinkConfig::default(), peer(to, dial), host)
}

#[test]
fn encrypted_lanes_carry_everything_both_ways() {
    let authority = Authority::new();
    let (a, b) = (
        encrypted(1, &authority.files("a")),
        encrypted(2, &authority.files("b")),
    );
    let (at_a, at_b) = (Host::new(), Host::new());
    let to_b = named(&a, "b", 2, &[b.local_addr().unwrap()], &at_a);
    let to_a = named(&b, "a", 1, &[], &at_b);
    to_b.open(FLOW, 0);
    to_a.open(FLOW, 0);
    let sizes = [1, 1000, 16_000, 300_000, 3_000_001];
    for sequence in 0..30 {
        send(&to_b, &at_a, FLOW, sequence, sizes[sequence as usize % 5]);
        send(&to_a, &at_b, FLOW, sequence, sizes[sequence as usize % 5]);
    }
    let all: Vec<u64> = (0..30).collect();
    for host in [&at_a, &at_b] {
        host.wait("all", |seen| seen.acknowledged(FLOW).len() == 30);
        host.wait("all of the peer", |seen| {
            seen.committed.get(&FLOW).is_some_and(|all| all.len() == 30)
        });
        assert_eq!(host.seen.lock().unwrap().committed[&FLOW], all);
    }
    to_b.wait_lanes(4);
    let lanes = to_b.status().lanes;
    assert!(lanes.iter().all(|lane| lane.kind == LaneKind::Tls));
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
}

/// Checks that one end refuses the other, and that the sender keeps its message.
fn no_lane(a: &Endpoint, b: &Endpoint, b_calls_it: &str) -> (Arc<Host>, Link) {
    let (at_a, at_b) = (Host::new(), Host::new());
    let to_b = named(a, "b", 2, &[b.local_addr().unwrap()], &at_a);
    let to_a = named(b, b_calls_it, 1, &[], &at_b);
    to_b.open(FLOW, 0);
    send(&to_b, &at_a, FLOW, 0, 100);
    until("refusals", || b.refused() >= 2);
    assert_eq!(to_a.status().counts.lanes_opened, 0);
    // The listening end gets refusals, if the name was known, and no other event.
    let events = at_b.seen.lock().unwrap().events.clone();
    let refused = |event: &Event| matches!(event, Event::Link(LinkEvent::LaneRefused { .. }));
    assert!(events.iter().all(refused), "{events:?}");
    within_limit("its end", move || drop(to_a));
    (at_a, to_b)
}

#[test]
fn a_stranger_gets_no_lane() {
    let (ours, others) = (Authority::new(), Authority::new());
    // The dialling end's certificate is of another CA.
    let mut files = others.files("a");
    files.roots = ours.files("a").roots;
    let (a, b) = (encrypted(1, &files), encrypted(2, &ours.files("b")));
    let (_, link) = no_lane(&a, &b, "a");
    drop(link);
    // It is of our CA, for another name.
    let (a, b) = (
        encrypted(1, &ours.files("c")),
        encrypted(2, &ours.files("b")),
    );
    let (at_a, link) = no_lane(&a, &b, "a");
    at_a.has(
        "the reason",
        |event| matches!(event, Event::Link(LinkEvent::LaneRefused { why }) if why.contains("key: ")),
    );
    drop(link);
    // The listening end's certificate is for another name.
    let (a, b) = (
        encrypted(1, &ours.files("a")),
        encrypted(2, &ours.files("c")),
    );
    let (_, link) = no_lane(&a, &b, "a");
    until("the reason", || {
        let error = link.status().error;
        error.is_some_and(|why| why.contains("certificate"))
    });
    drop(link);
    // The dialling end does not encrypt.
    let (a, b) = (endpoint(1), encrypted(2, &ours.files("b")));
    drop(no_lane(&a, &b, "a"));
}

#[test]
fn strangers_with_wrong_certificates_disturb_no_lane_of_a_peer() {
    const REFUSALS: u64 = 20;
    let (ours, others) = (Authority::new(), Authority::new());
    let (a, b) = (
        encrypted(1, &ours.files("a")),
        encrypted(2, &ours.files("b")),
    );
    let (at_a, at_b) = (Host::new(), Host::new());
    let address = b.local_addr().unwrap();
    let to_b = named(&a, "b", 2, &[address], &at_a);
    let to_a = named(&b, "a", 1, &[], &at_b);
    let lanes = LinkConfig::default().lanes;
    to_b.wait_lanes(lanes);
    to_a.wait_lanes(lanes);
    to_b.open(FLOW, 0);
    // One stranger is of another CA, the other of ours with another name. Both know the link's key, and try again and again.
    let mut files = others.files("a");
    files.roots = ours.files("a").roots;
    let strangers = [encrypted(3, &files), encrypted(4, &ours.files("c"))].map(|stranger| {
        let host = Host::new();
        let link = named(&stranger, "b", 2, &[address], &host);
        (link, stranger, host)
    });
    let mut sequence = 0;
    let until = Instant::now() + LIMIT;
    let names = |who: &str| {
        at_b.count(|event| matches!(event, Event::Link(LinkEvent::LaneRefused { why }) if why.contains(who)))
    };
    while b.refused() < REFUSALS || names("certificate") == 0 {
        assert!(
            Instant::now() < until,
            "waited {LIMIT:?} for refusals: {} {:?}",
            b.refused(),
            at_b.seen.lock().unwrap().events
        );
        send(&to_b, &at_a, FLOW, sequence, 10_000);
        sequence += 1;
        at_b.wait("a message", |seen| {
            let committed = seen.committed.get(&FLOW);
            committed.is_some_and(|all| all.len() as u64 == sequence)
        });
    }
    // `deliver` compared the bytes of each message. No lane was lost, and no stranger got one.
    let all: Vec<u64> = (0..sequence).collect();
    assert_eq!(at_b.seen.lock().unwrap().committed[&FLOW], all);
    for link in [&to_b, &to_a] {
        let counts = link.status().counts;
        let lanes = lanes as u64;
        assert_eq!((counts.lanes_opened, counts.lanes_ended), (lanes, 0));
    }
    assert_eq!(
        at_a.count(|event| matches!(event, Event::Link(LinkEvent::Down { .. }))),
        0
    );
    within_limit("the links' end", move || {
        drop((strangers, to_b, to_a, a, b))
    });
}

#[test]
fn files_that_are_none_are_named() {
    let files = Authority::new().files("a");
    for (what, wrong) in [
        (
            "roots",
            TlsFiles {
                roots: vec![],
                ..files.clone()
            },
        ),
        (
            "chain",
            TlsFiles {
                chain: b"-----".to_vec(),
                ..files.clone()
            },
        ),
        (
            "key",
            TlsFiles {
                key: files.chain.clone(),
                ..files.clone()
            },
        ),
    ] {
        let error = Tls::new(&wrong).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

// The handshake.

#[test]
fn first_words_that_do_not_fit_are_refused_with_what_both_have() {
    let b = endpoint(2);
    let at_b = Host::new();
    let to_a = link(&b, LinkConfig::default(), peer(1, &[]), &at_b);
    let address = b.local_addr().unwrap();
    let with = |change: fn(&mut u64, &mut u64, &mut u64, &mut LaneKey)| {
        let mut frame = hello();
        if let Frame::Hello(Hello {
            node,
            realm,
            to,
            key,
            ..
        }) = &mut frame
        {
            change(node, realm, to, key);
        }
        frame
    };
    let wrong = [
        (
            with(|_, realm, _, _| *realm = 8),
            "realm: expected 0x7, not 0x8",
        ),
        (
            with(|_, _, to, _| *to = 3),
            "incarnation: expected 0x2, not 0x3",
        ),
        (
            with(|node, _, _, _| *node = 9),
            "incarnation: expected 0x1, not 0x9",
        ),
        (
            with(|_, _, _, key| key.0[31] ^= 1),
            "key: expected a link's, not an unknown one",
        ),
    ];
    let count = wrong.len() as u64;
    for (frame, why) in wrong {
        let mut raw = Raw::new(address);
        raw.say(&frame);
        assert_eq!(raw.until_end(), [reset(why)]);
    }
    // A HELLO of another version; all versions have the same header.
    let mut raw = Raw::new(address);
    let mut bytes = Vec::new();
    let length = hello().encode(&mut bytes);
    bytes[1] = WIRE_VERSION + 1;
    raw.0.write_all(&bytes[..length]).unwrap();
    let (ours, later) = (WIRE_VERSION, WIRE_VERSION + 1);
    let why = format!("version: expected {ours}, not {later}");
    assert_eq!(raw.until_end(), [reset(&why)]);
    // A frame that is no HELLO, and no frame at all.
    let mut raw = Raw::new(address);
    raw.say(&reset("no hello"));
    assert_eq!(raw.until_end(), []);
    assert_eq!(Raw::new(address).until_end(), []);
    let mut first = Raw::new(address);
    first.say(&hello());
    assert!(matches!(
        first.hear(),
        Some(Frame::Hello(frame::Hello {
            node: 2,
            to: 1,
            lane: 1,
            ..
        }))
    ));
    until("all to be refused", || b.refused() == count + 3);
    to_a.wait_lanes(1);
    let counts = to_a.status().counts;
    assert_eq!((counts.lanes_opened, counts.disconnected), (1, 0));
    drop(first);
    within_limit("the links' end", move || drop((to_a, b)));
}

#[test]
fn a_dialler_names_both_versions() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for tcp in listener.incoming().flatten() {
            // The answer of a later version.
            let mut raw = Raw(tcp);
            raw.0.set_read_timeout(Some(LIMIT)).unwrap();
            raw.hear();
            let mut bytes = Vec::new();
            let length = reset("another version").encode(&mut bytes);
            bytes[1] = 9;
            let _ = raw.0.write_all(&bytes[..length]);
        }
    });
    let a = endpoint(1);
    let at_a = Host::new();
    let to_b = link(&a, LinkConfig::default(), peer(2, &[address]), &at_a);
    at_a.has("a refusal", |event| {
        let ours = format!("this host version {WIRE_VERSION}");
        matches!(event, Event::Link(LinkEvent::LaneRefused { why }) if why.contains("version 9") && why.contains(&ours))
    });
    within_limit("the link's end", move || drop((to_b, a)));
}

#[test]
fn seventy_idle_connections_do_not_keep_lanes_down() {
    let authority = Authority::new();
    let tls = ["a", "b"].map(|name| authority.files(name));
    for (a, b) in [
        (endpoint(1), endpoint(2)),
        (encrypted(1, &tls[0]), encrypted(2, &tls[1])),
    ] {
        let address = b.local_addr().unwrap();
        let (at_a, at_b) = (Host::new(), Host::new());
        let to_a = named(&b, "a", 1, &[], &at_b);
        let idle: Vec<Raw> = (0..70).map(|_| Raw::new(address)).collect();
        let to_b = named(&a, "b", 2, &[address], &at_a);
        let lanes = LinkConfig::default().lanes;
        to_b.wait_lanes(lanes);
        // No attempt failed: the idle connections made room.
        assert_eq!(to_b.status().error, None);
        drop(idle);
        within_limit("the links' end", move || drop((to_b, to_a, a, b)));
    }
}

// Protocol violations.

/// The first liar's flow.
const NUMBER: u64 = 1;

fn open(flow: u64) -> Frame {
    Frame::Open(frame::Open {
        flow,
        first: 0,
        description: FLOW.description(),
    })
}

fn request(flow: u64, bytes: u64) -> Frame {
    Frame::Request(frame::Request {
        flow,
        sequence: 0,
        charge_end: 0,
        bytes,
        chunk_bytes: 50_000,
        description: Description::default(),
    })
}

/// A peer with one lane and one accepted flow, and the lane's number. The link's machine remembers the numbers of flows, so each liar needs
/// a number of its own.
fn liar(b: &Endpoint, flow: u64) -> (Raw, u32) {
    let until = Instant::now() + LIMIT;
    loop {
        let mut raw = Raw::new(b.local_addr().unwrap());
        raw.say(&hello());
        match raw.hear() {
            Some(Frame::Hello(frame::Hello { lane, .. })) => {
                raw.say(&open(flow));
                let opened = |frame: Frame| matches!(frame, Frame::Ack(frame::Ack { flow: of, .. }) if of == flow);
                while !opened(raw.hear().expect("an acknowledgement of the flow")) {}
                return (raw, lane);
            }
            // The penalty for the last violation is not over.
            _ => assert!(Instant::now() < until, "waited {LIMIT:?} for a lane"),
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn a_peer_that_violates_the_protocol_is_disconnected_and_counted() {
    let b = endpoint(2);
    let at_b = Host::new();
    let to_a = link(&b, LinkConfig::default(), peer(1, &[]), &at_b);
    type Lie = (&'static str, fn(u64) -> Vec<Frame>);
    fn small(flow: u64, bytes: u32, charge_end: u64) -> Frame {
        Frame::Small(frame::Small {
            flow,
            sequence: 0,
            charge_end,
            bytes,
            description_bytes: 0,
        })
    }
    let lies: [Lie; 9] = [
        ("a small message larger than the first window", |flow| {
            vec![small(flow, 300_000, 300_000)]
        }),
        ("beyond its window", |flow| vec![small(flow, 10, 1 << 40)]),
        ("a chunk without a grant", |_| {
            vec![Frame::Chunk(frame::Chunk {
                grant: 5,
                chunk: 0,
                bytes: 10,
            })]
        }),
        ("an abandoned grant that was none", |_| {
            vec![Frame::Abandon(frame::Abandon { grant: 77 })]
        }),
        ("a flow that is not open", |_| vec![request(99, 10)]),
        ("an acknowledgement of what was not sent", |_| {
            vec![Frame::Ack(frame::Ack {
                flow: 1,
                next: 1,
                limit: 1,
            })]
        }),
        ("a hello in the middle", |_| vec![hello()]),
        ("a message of another size", |flow| {
            vec![request(flow, 100_000), request(flow, 200_000)]
        }),
        ("a flow that ends twice", |flow| {
            let close = |next| Frame::Close(frame::Close { flow, next });
            vec![close(7), close(8)]
        }),
    ];
    for (at, (what, frames)) in lies.iter().enumerate() {
        let count = at as u64 + 1;
        let (mut raw, _) = liar(&b, NUMBER + at as u64);
        frames(NUMBER + at as u64)
            .iter()
            .for_each(|frame| raw.say(frame));
        // Bytes for the frames that a payload follows.
        let _ = raw.0.write_all(&[0; 400_000]);
        let _ = raw.0.shutdown(std::net::Shutdown::Write);
        raw.until_end();
        until(what, || to_a.violations() == count);
    }
    // Bytes that are no frame.
    let (mut raw, _) = liar(&b, 50);
    raw.0.write_all(&[0xff; 64]).unwrap();
    raw.until_end();
    assert_eq!(to_a.violations(), lies.len() as u64 + 1);
    assert!(at_b.seen.lock().unwrap().committed.is_empty());
    within_limit("the link's end", move || drop((to_a, b)));
    at_b.gives_back();
}

#[test]
fn a_chunk_over_another_or_outside_its_message_is_a_violation() {
    let b = endpoint(2);
    let at_b = Host::new();
    let to_a = link(&b, LinkConfig::default(), peer(1, &[]), &at_b);
    // Chunks have 50,000 bytes, the message 120,000.
    let wrong = [(0, 50_000), (1, 50_001), (1, 49_999), (2, 50_000), (3, 1)];
    for (at, (chunk, bytes)) in wrong.into_iter().enumerate() {
        let before = to_a.violations();
        let flow = NUMBER + at as u64;
        let (mut raw, lane) = liar(&b, flow);
        raw.say(&request(flow, 120_000));
        let grant = loop {
            if let Frame::Grant(frame::Grant { grant, lanes, .. }) = raw.hear().expect("a grant") {
                assert_eq!(Some(lanes), Lanes::new(&[lane]));
                break grant;
            }
        };
        raw.say(&Frame::Chunk(frame::Chunk {
            grant,
            chunk: 0,
            bytes: 50_000,
        }));
        raw.0.write_all(&[1; 50_000]).unwrap();
        raw.say(&Frame::Chunk(frame::Chunk {
            grant,
            chunk,
            bytes,
        }));
        let _ = raw.0.write_all(&[2; 60_000]);
        let _ = raw.0.shutdown(std::net::Shutdown::Write);
        raw.until_end();
        assert_eq!(to_a.violations(), before + 1, "{chunk} {bytes}");
    }
    within_limit("the link's end", move || drop((to_a, b)));
    at_b.gives_back();
}

#[test]
fn a_port_that_is_taken_is_named_with_what_to_do() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let error = Endpoint::new(EndpointConfig {
        incarnation: 1,
        realm: 7,
        listen: Some(address),
        security: Security::Loopback,
        rdma: None,
    })
    .map(drop)
    .unwrap_err()
    .to_string();
    for part in [
        &address.to_string(),
        "another program has this port",
        "links.listen = ",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

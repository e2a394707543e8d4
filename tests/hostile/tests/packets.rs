//! Packets that are none, requests out of order, lies about members, floods.

use rgaps_hostile::daemon;
use rgaps_hostile::honest::{Expect, Pair};
use rgaps_hostile::liar::{hello, join, publisher, subscriber, Joined, Liar, OVERSIZE};
use rgaps_layout::{Domain, GpuUuid, GRANULE_BYTES, LAYOUT_VERSION};
use rgaps_session::{
    Demand, History, Member, Offer, Range, RefusalCode, Request, Role, Side, KERNEL_FDS_MAX,
    PROTOCOL_VERSION,
};
use rgaps_testkit::{seed, Random};
use rgaps_testkit::{until, Daemon};
use std::os::fd::{AsFd, BorrowedFd};

/// Honest members of a topic that nobody lies about.
fn bystanders(daemon: &Daemon, seed: u64) -> Pair {
    let pair = Pair::start(&daemon.config(), "honest", Expect::Perfection, seed);
    pair.goes_on(20);
    pair
}

fn finish(daemon: &mut Daemon, pair: Pair) {
    pair.goes_on(20);
    let (published, received, errors) = pair.end();
    assert_eq!((received, errors), (published, 0));
    daemon.assert_well();
}

#[test]
fn bytes_that_are_no_packet_end_only_their_own_session() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut daemon = daemon::start();
    let pair = bystanders(&daemon, seed);
    let valid = a_join_as_bytes();
    for _ in 0..300 {
        let liar = match random.below(3) {
            0 => Liar::connect(&daemon.socket()),
            _ => Liar::welcomed(&daemon.socket()),
        };
        for _ in 0..random.below(5) {
            let bytes = match random.below(3) {
                0 => random_bytes(&mut random, 200),
                1 => mutated(&valid, &mut random),
                _ => {
                    let most = OVERSIZE as u64 * 2;
                    random_bytes(&mut random, most)
                }
            };
            let null = std::fs::File::open("/dev/null").expect("/dev/null");
            let fds = vec![null.as_fd(); random.below(4) as usize * 80];
            if !liar.send_bytes(&bytes, &fds) {
                break;
            }
        }
    }
    finish(&mut daemon, pair);
    let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.id())).expect("/proc");
    assert!(open.count() < 60, "descriptors of liars stay open");
}

/// A valid packet to be mutated: what a join looks like on the wire.
fn a_join_as_bytes() -> Vec<u8> {
    let (here, there) = rgaps_session::SessionSocket::pair().expect("a pair");
    let packet = rgaps_session::ClientPacket {
        id: 7,
        request: join("honest", publisher()),
    };
    here.send(&packet, &[]).expect("sent");
    let mut bytes = vec![0u8; 4096];
    let (read, _) = rustix::net::recv(&there, &mut bytes[..], rustix::net::RecvFlags::empty())
        .expect("received");
    bytes.truncate(read);
    bytes
}

fn random_bytes(random: &mut Random, most: u64) -> Vec<u8> {
    let length = random.below(most) as usize;
    (0..length).map(|_| random.next_u64() as u8).collect()
}

fn mutated(valid: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = valid.to_vec();
    for _ in 0..1 + random.below(4) {
        match random.below(3) {
            0 => {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next_u64() as u8;
            }
            1 => bytes.truncate(1 + random.below(bytes.len() as u64) as usize),
            _ => bytes.push(random.next_u64() as u8),
        }
    }
    bytes
}

#[test]
fn what_is_out_of_order_or_too_much_is_cut_off() {
    let mut daemon = daemon::start();
    let pair = bystanders(&daemon, 1);
    let null = std::fs::File::open("/dev/null").expect("/dev/null");

    let mut early = Liar::connect(&daemon.socket());
    assert!(
        early.ask(Request::Status).is_err(),
        "a request before hello"
    );
    let mut twice = Liar::welcomed(&daemon.socket());
    assert!(twice.ask(hello()).is_err(), "a second hello");
    let mut laden = Liar::welcomed(&daemon.socket());
    let unasked = laden.ask_with(Request::Status, &[null.as_fd()]);
    assert!(unasked.is_err(), "descriptors that nobody wants");

    let flood = Liar::welcomed(&daemon.socket());
    let fds: Vec<BorrowedFd<'_>> = vec![null.as_fd(); KERNEL_FDS_MAX];
    assert!(flood.send_bytes(&[0, 0], &fds) && flood.is_cut_off());
    let long = Liar::welcomed(&daemon.socket());
    assert!(long.send_bytes(&vec![0; OVERSIZE], &[]) && long.is_cut_off());
    let empty = Liar::welcomed(&daemon.socket());
    assert!(empty.send_bytes(&[], &[]) && empty.is_cut_off());

    for (protocol, layout, realm) in [
        (PROTOCOL_VERSION + 1, LAYOUT_VERSION, "default"),
        (PROTOCOL_VERSION, 0, "default"),
        (u32::MAX, u32::MAX, "default"),
        (PROTOCOL_VERSION, LAYOUT_VERSION, "elsewhere"),
    ] {
        let mut liar = Liar::connect(&daemon.socket());
        let request = Request::Hello {
            protocol,
            layout,
            realm: realm.into(),
            name: "liar".into(),
        };
        let refusal = liar
            .ask(request)
            .expect("an answer")
            .expect_err("a refusal");
        assert_eq!(refusal.code, RefusalCode::VersionMismatch, "{refusal}");
    }
    finish(&mut daemon, pair);
}

/// Everybody's members, as a client finds them in the registry that it may read.
fn members_of_others(honest: &Joined, random: &mut Random) -> Vec<Member> {
    let mut members = Vec::new();
    for side in [Side::Publisher, Side::Subscriber] {
        for slot in 0..4 {
            members.push(Member {
                side,
                slot,
                topic: random.below(3) as u32,
                ..honest.member
            });
        }
    }
    members
}

#[test]
fn lies_about_members_and_memory_are_refused() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut daemon = daemon::start();
    let pair = bystanders(&daemon, seed);
    let mut liar = Liar::welcomed(&daemon.socket());
    let own = liar
        .join("own", publisher())
        .expect("not cut off")
        .expect("a seat");
    let leased = liar.ask(Request::Lease {
        publisher: own.member,
        pool: 0,
        bytes: 8 << 20,
    });
    leased.expect("not cut off").expect("a lease");
    let mut others = members_of_others(&own, &mut random);
    others.extend(true_members(&daemon));
    for _ in 0..2_000 {
        let member = match random.below(4) {
            0 => own.member,
            1 => Member {
                zone: u128::from(random.nasty()),
                topic: random.nasty() as u32,
                side: Side::Publisher,
                slot: random.nasty() as u32,
                incarnation: random.nasty(),
            },
            _ => others[random.below(others.len() as u64) as usize],
        };
        let request = lie(member, &mut random);
        let leaves = matches!(&request, Request::Leave(member) if *member == own.member);
        if leaves {
            continue;
        }
        let is_others = match &request {
            Request::Leave(of)
            | Request::Claim { member: of, .. }
            | Request::Path { member: of, .. } => *of != own.member,
            Request::Lease { publisher, .. } | Request::Return { publisher, .. } => {
                *publisher != own.member
            }
            _ => false,
        };
        let answer = liar
            .ask(request.clone())
            .expect("lies alone cut nobody off");
        assert!(!is_others || answer.is_err(), "{request:?} was granted");
    }
    finish(&mut daemon, pair);
}

/// The honest members as they really are, which any member of the zone can read.
fn true_members(daemon: &Daemon) -> Vec<Member> {
    let scribbler = rgaps_hostile::scribble::Scribbler::join(&daemon.socket(), "spying");
    scribbler.members()
}

fn lie(member: Member, random: &mut Random) -> Request {
    let zone = match random.below(3) {
        0 => u128::from(random.nasty()),
        _ => member.zone,
    };
    let mut ranges = Vec::new();
    for _ in 0..random.below(4) {
        let granule = match random.below(2) {
            0 => GRANULE_BYTES,
            _ => 1,
        };
        ranges.push(Range {
            offset: random.nasty().wrapping_mul(granule),
            bytes: random.nasty().wrapping_mul(granule),
        });
    }
    match random.below(17) {
        0 => Request::Leave(member),
        1 => Request::Lease {
            publisher: member,
            pool: odd_pool(random),
            bytes: (64 << 20) + random.nasty() / 2,
        },
        2 | 3 => Request::Return {
            publisher: member,
            pool: odd_pool(random),
            ranges,
        },
        4 => Request::Claim {
            member,
            pool: odd_pool(random),
            ranges,
        },
        5 => Request::HandBack {
            zone,
            client_index: random.nasty() as u32,
            client_id: random.nasty(),
        },
        6 => Request::HandBackSegments {
            zone,
            pool: random.nasty() as u32,
            from: random.nasty() as u32,
        },
        7 => Request::HandedBack {
            zone,
            doorbells: (0..random.below(6))
                .map(|_| random.nasty() as u32)
                .collect(),
            timelines: (0..random.below(6))
                .map(|_| random.nasty() as u32)
                .collect(),
        },
        8 => Request::ReturnDoorbell {
            zone,
            doorbell: random.below(40) as u32,
        },
        12 => Request::TakeTimeline { zone },
        13 => Request::ReturnTimeline {
            zone,
            timeline: random.below(40) as u32,
        },
        14 => Request::GpuLost { zone },
        15 => Request::Pin {
            zone,
            pool: odd_pool(random),
        },
        16 => Request::Path {
            member,
            path: String::from_utf8_lossy(&random_bytes(random, 300)).into_owned(),
        },
        9 => Request::Segments {
            zone,
            pool: random.nasty() as u32,
            from: random.nasty() as u32,
            writable: random.percent(50),
        },
        10 => Request::Join {
            topic: String::from_utf8_lossy(&random_bytes(random, 300)).into_owned(),
            type_name: "x".repeat(random.below(300) as usize),
            domain: random
                .percent(20)
                .then(|| Domain::Cuda(GpuUuid([random.next_u64() as u8; 16]))),
            role: absurd_role(random),
            require: None,
            arrives_over: None,
        },
        _ => Request::Topics {
            from: random.nasty() as u32,
        },
    }
}

/// The zone's only pool, or one that is not there.
fn odd_pool(random: &mut Random) -> u32 {
    match random.below(2) {
        0 => 0,
        _ => random.nasty() as u32,
    }
}

fn absurd_role(random: &mut Random) -> Role {
    if random.percent(50) {
        return Role::Subscriber(Demand {
            reliable: random.percent(50),
            transient_local: random.percent(50),
            depth: random.nasty() as u32,
        });
    }
    Role::Publisher(Offer {
        history: match random.below(2) {
            0 => History::KeepLast(random.nasty() as u32),
            _ => History::KeepAll {
                messages: random.nasty() as u32,
                bytes: random.nasty(),
            },
        },
        reliable: random.percent(50),
        transient_local: random.percent(50),
        loans: random.nasty() as u32,
    })
}

#[test]
fn thousands_of_joins_end_at_a_limit_and_go_with_their_session() {
    let mut daemon = daemon::start_with(&[("RGAPS_LIMITS__TOPICS", "3000")]);
    let pair = bystanders(&daemon, 1);
    let mut liar = Liar::welcomed(&daemon.socket());
    let mut members = Vec::new();
    let refusal = loop {
        let topic = format!("flood/{}", members.len() / 2);
        let role = match members.len() % 2 {
            0 => subscriber(true),
            _ => publisher(),
        };
        match liar.join(&topic, role).expect("not cut off") {
            Ok(joined) => members.push(joined.member),
            Err(refusal) => break refusal,
        }
        assert!(members.len() < 10_000, "there is no limit");
    };
    assert_eq!(refusal.code, RefusalCode::LimitReached, "{refusal}");
    assert!(members.len() > 2_000);
    pair.goes_on(10);
    for member in members {
        liar.ask(Request::Leave(member))
            .expect("not cut off")
            .expect("left");
    }
    let node = daemon.node("looks");
    until("the topics to go", || {
        node.topics().expect("topics").len() == 1
    });
    finish(&mut daemon, pair);
}

#[test]
fn a_lying_session_that_ends_leaves_nothing_behind() {
    let mut daemon = daemon::start();
    let pair = bystanders(&daemon, 1);
    let node = daemon.node("looks");
    for _ in 0..20 {
        let mut liar = Liar::welcomed(&daemon.socket());
        let roles = [publisher(), subscriber(true)];
        let members = roles.map(|role| {
            let joined = liar.join("short", role).expect("not cut off");
            joined.expect("a seat").member
        });
        let info = node.topic("short").expect("the topic");
        assert_eq!((info.publishers.len(), info.subscribers.len()), (1, 1));
        // The process goes on, so what the session has would stay until it leaves in order.
        for member in members {
            let left = liar.ask(Request::Leave(member)).expect("not cut off");
            left.expect("left");
        }
        drop(liar);
        until("the topic to go", || node.topic("short").is_err());
    }
    finish(&mut daemon, pair);
}

//! Misbehaving clients: in requests, and in the shared memory that they can write.

mod support;

use rgaps_engine::Verdict;
use rgaps_layout::{DYNAMIC_OFFSET, GRANULE_BYTES, LAYOUT_VERSION, MAX_DEPTH, MAX_SUBSCRIBERS};
use rgaps_session::{
    ByteSize, Config, Demand, History, Member, Offer, Range, RefusalCode, Request, Role, Side,
    PROTOCOL_VERSION,
};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{Message, Start, Storage};
use std::time::Duration;
use support::*;

fn cut_off(world: &mut World, sim: &Sim, request: Request, fds: usize) -> bool {
    let fds = (0..fds)
        .map(|_| std::fs::File::open("/dev/null").unwrap().into())
        .collect();
    matches!(world.verdict(sim, request, fds), Verdict::CutOff(_))
}

/// Pseudo-random numbers from a seed (xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number that is often small, often huge, and often near a limit.
    fn odd(&mut self) -> u64 {
        match self.roll() % 6 {
            0 => self.roll(),
            1 => self.roll() % 100,
            2 => u64::MAX - self.roll() % 3,
            3 => 1 << (self.roll() % 64),
            4 => GRANULE_BYTES * (self.roll() % 100),
            _ => 0,
        }
    }
}

#[test]
fn the_protocol_has_an_order() {
    let mut world = World::new();
    let a = world.client("a");
    let hello = |protocol, layout, realm: &str, name: &str| Request::Hello {
        protocol,
        layout,
        realm: realm.into(),
        name: name.into(),
    };
    let good = hello(PROTOCOL_VERSION, LAYOUT_VERSION, "default", "x");
    assert!(cut_off(&mut world, &a, good.clone(), 0), "a second hello");
    assert!(
        cut_off(&mut world, &a, Request::Status, 1),
        "descriptors for a question"
    );
    let id = world.connect_as(0, true);
    let silent = Sim {
        id,
        name: "s".into(),
        uid: 0,
        holds: Default::default(),
        segments: vec![],
        timelines: vec![],
    };
    assert!(cut_off(&mut world, &silent, Request::Status, 0));
    for (bad, code) in [
        (
            hello(PROTOCOL_VERSION + 1, LAYOUT_VERSION, "default", "x"),
            RefusalCode::VersionMismatch,
        ),
        (
            hello(PROTOCOL_VERSION, 0, "default", "x"),
            RefusalCode::VersionMismatch,
        ),
        (
            hello(PROTOCOL_VERSION, LAYOUT_VERSION, &"r".repeat(50_000), "x"),
            RefusalCode::VersionMismatch,
        ),
        (
            hello(PROTOCOL_VERSION, LAYOUT_VERSION, "default", &"n".repeat(64)),
            RefusalCode::BadRequest,
        ),
        (
            hello(PROTOCOL_VERSION, LAYOUT_VERSION, "default", "a\nb"),
            RefusalCode::BadRequest,
        ),
    ] {
        match world.verdict(&silent, bad, vec![]) {
            Verdict::Answer {
                result, last: true, ..
            } => {
                let refusal = result.unwrap_err();
                assert_eq!(refusal.code, code);
                assert!(refusal.message.len() < 1000, "does not echo at length");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(world.engine.overdue(world.now), []);
    world.pass(Duration::from_secs(6));
    assert_eq!(world.engine.overdue(world.now), [silent.id]);
}

#[test]
fn nobody_acts_for_another() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let mine = world.join(&mut a, "t", volatile());
    let other = world.join(&mut b, "t", volatile());
    let subscriber = world.join(&mut b, "t", best_effort());
    let range = world.lease(&a, &mine, 2);
    for member in [
        mine.member,
        Member {
            incarnation: other.member.incarnation ^ 1,
            ..other.member
        },
        Member {
            topic: 9999,
            ..other.member
        },
        Member {
            topic: u32::MAX,
            ..other.member
        },
        Member {
            slot: 15,
            ..other.member
        },
        Member {
            slot: u32::MAX,
            ..other.member
        },
        Member {
            side: Side::Subscriber,
            ..other.member
        },
        Member {
            zone: 5,
            ..other.member
        },
    ] {
        assert_eq!(
            world.refused(&b, Request::Leave(member)),
            RefusalCode::NotFound,
            "{member:?}"
        );
        for request in [
            Request::Lease {
                publisher: member,
                pool: 0,
                bytes: 1,
            },
            Request::Return {
                publisher: member,
                pool: 0,
                ranges: vec![range],
            },
        ] {
            let code = world.refused(&b, request);
            let subscriber = member.side == Side::Subscriber && member.zone != 5;
            let expected = if subscriber {
                RefusalCode::BadRequest
            } else {
                RefusalCode::NotFound
            };
            assert_eq!(code, expected, "{member:?}");
        }
    }
    // The subscriber's slot number is also that of `a`'s publisher.
    assert_eq!(subscriber.member.slot, mine.member.slot);
    for request in [
        Request::Lease {
            publisher: subscriber.member,
            pool: 0,
            bytes: 1,
        },
        Request::Return {
            publisher: subscriber.member,
            pool: 0,
            ranges: vec![range],
        },
    ] {
        assert_eq!(world.refused(&b, request), RefusalCode::BadRequest);
    }
    world.leave(&b, &other);
    assert_eq!(
        world.refused(&b, Request::Leave(other.member)),
        RefusalCode::NotFound,
        "twice"
    );
    let stop_as = world.client_as("stranger", 4321);
    for request in [Request::Stop, Request::Stay] {
        assert_eq!(world.refused(&stop_as, request), RefusalCode::NotPermitted);
    }
    assert!(!world.engine.is_stopping());
    assert_eq!(world.leased_granules(&a), 2);
}

#[test]
fn ranges_are_those_that_were_leased() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let (mine, other) = (
        world.join(&mut a, "t", volatile()),
        world.join(&mut b, "t", volatile()),
    );
    let range = world.lease(&a, &mine, 2);
    let foreign = world.lease(&b, &other, 2);
    let g = GRANULE_BYTES;
    for (offset, bytes) in [
        (foreign.offset, g),
        (range.offset, 3 * g),
        (range.offset + 1, g),
        (range.offset, g + 1),
        (range.offset, 0),
        (100 * g, g),
        (u64::MAX - g + 1, g),
        (g * (u64::MAX / g), g),
        (0, u64::MAX / g * g),
    ] {
        let ranges = vec![range, Range { offset, bytes }];
        let request = Request::Return {
            publisher: mine.member,
            pool: 0,
            ranges,
        };
        assert_eq!(
            world.refused(&a, request),
            RefusalCode::BadRequest,
            "{offset} {bytes}"
        );
    }
    assert_eq!(world.leased_granules(&a), 4, "all or nothing");
    let flood = Request::Return {
        publisher: mine.member,
        pool: 0,
        ranges: vec![range; 257],
    };
    assert_eq!(world.refused(&a, flood), RefusalCode::BadRequest);
    // A range that a request names twice is returned once.
    world
        .ask(
            &a,
            Request::Return {
                publisher: mine.member,
                pool: 0,
                ranges: vec![range, range],
            },
        )
        .unwrap();
    assert_eq!(world.leased_granules(&a), 2);
}

#[test]
fn names_and_numbers_have_limits() {
    let mut world = World::new();
    let a = world.client("a");
    for topic in [
        "",
        "/a",
        "a//b",
        "a\0",
        &"x".repeat(256),
        &"x".repeat(60_000),
        "../a",
    ] {
        assert_eq!(
            world.refused(&a, wish(topic, best_effort())),
            RefusalCode::BadRequest
        );
        assert_eq!(
            world.refused(
                &a,
                Request::Topic {
                    topic: topic.into()
                }
            ),
            RefusalCode::BadRequest
        );
    }
    for type_name in ["x".repeat(128), "a\0b".into()] {
        let request = Request::Join {
            topic: "t".into(),
            type_name,
            domain: None,
            role: volatile(),
            require: None,
            arrives_over: None,
        };
        assert_eq!(world.refused(&a, request), RefusalCode::BadRequest);
    }
    let offers = [
        Offer {
            loans: u32::MAX,
            ..offer(1, true, true)
        },
        Offer {
            loans: 0,
            ..offer(1, true, true)
        },
        offer(0, true, true),
        offer(MAX_DEPTH + 1, true, true),
        offer(u32::MAX, true, true),
        Offer {
            history: History::KeepAll {
                messages: 0,
                bytes: 1,
            },
            ..offer(1, true, true)
        },
        Offer {
            history: History::KeepAll {
                messages: 1,
                bytes: 0,
            },
            ..offer(1, true, true)
        },
    ];
    for bad in offers {
        world.refused(&a, wish("t", Role::Publisher(bad)));
    }
    let demand = Demand {
        reliable: false,
        transient_local: false,
        depth: u32::MAX,
    };
    world.refused(&a, wish("t", Role::Subscriber(demand)));
    assert!(world.topics(&a).is_empty());
    for from in [1, u32::MAX] {
        world.ask(&a, Request::Topics { from }).unwrap();
        world.ask(&a, Request::Clients { from }).unwrap();
    }
}

#[test]
fn doorbells_belong_to_someone() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let mine = world.join(&mut a, "t", best_effort());
    world.join(&mut b, "t", best_effort());
    let zone = mine.member.zone;
    let rgaps_session::Answer::Doorbell { doorbell } =
        world.ask(&a, Request::TakeDoorbell { zone }).unwrap()
    else {
        panic!()
    };
    let give = |doorbell| Request::ReturnDoorbell { zone, doorbell };
    assert_eq!(world.refused(&b, give(doorbell)), RefusalCode::BadRequest);
    for wrong in [0, mine.doorbell, 65_535, 65_536, u32::MAX] {
        assert_eq!(
            world.refused(&a, give(wrong)),
            RefusalCode::BadRequest,
            "{wrong}"
        );
    }
    world.ask(&a, give(doorbell)).unwrap();
    assert_eq!(world.refused(&a, give(doorbell)), RefusalCode::BadRequest);
    let mut taken = 0;
    while world.ask(&a, Request::TakeDoorbell { zone }).is_ok() {
        taken += 1;
        assert!(taken < 5000, "there is a limit");
    }
    world.ask(&b, Request::TakeDoorbell { zone }).unwrap();
}

#[test]
fn segments_are_for_those_in_the_zone() {
    let mut world = World::new();
    let mut a = world.client("a");
    let seat = world.join(&mut a, "t", volatile());
    world.lease(&a, &seat, 1);
    let zone = seat.member.zone;
    let segments = |pool, from| Request::Segments {
        zone,
        pool,
        from,
        writable: true,
    };
    assert_eq!(world.refused(&a, segments(1, 0)), RefusalCode::NotPermitted);
    for from in [1, 1000, u32::MAX] {
        let (answer, fds) = world.ask_with(&a, segments(0, from), vec![]).unwrap();
        assert_eq!(answer, rgaps_session::Answer::Segments { bytes: vec![] });
        assert!(fds.is_empty());
    }
    world.leave(&a, &seat);
    world.join(&mut a, "t", best_effort());
    assert_eq!(world.refused(&a, segments(0, 0)), RefusalCode::NotPermitted);
}

#[test]
fn what_subscribers_get_can_only_be_read() {
    use std::os::fd::AsRawFd;
    let mut world = World::new();
    let mut a = world.client("a");
    let publisher = world.join(&mut a, "t", volatile());
    world.lease(&a, &publisher, 1);
    let zone = publisher.member.zone;
    let request = Request::Segments {
        zone,
        pool: 0,
        from: 0,
        writable: false,
    };
    let (_, fds) = world.ask_with(&a, request, vec![]).unwrap();
    for fd in [&fds[0], &a.holds[&zone].registry] {
        assert!(rustix::io::write(fd, b"x").is_err(), "not writable");
        let mode = rustix::fs::fstat(fd).unwrap().st_mode & 0o777;
        assert_eq!(
            mode,
            0o600,
            "others cannot open /proc/self/fd/{} again",
            fd.as_raw_fd()
        );
    }
}

#[test]
fn a_slot_with_a_scribbled_head_is_not_used_again() {
    for head in [u64::MAX, 1 << 62, 0] {
        let mut world = World::new();
        let (mut a, mut b) = (world.client("a"), world.client("b"));
        world.join(&mut b, "t", best_effort());
        for slot in 0..2 {
            let seat = world.join(&mut a, "t", volatile());
            let mut writer = world.writer(&a, &seat);
            for _ in 0..3 {
                let loan = writer.loan(0, 64).unwrap();
                writer
                    .publish(loan, &Message::default(), &mut |_| {})
                    .unwrap();
            }
            let topic = world.topic(&a, &seat);
            assert_eq!(seat.member.slot, 0);
            assert_eq!(seat.ring.start, 3 * slot);
            for subscriber in 0..MAX_SUBSCRIBERS {
                topic
                    .subscriber(subscriber)
                    .cursor(0)
                    .store(3 * (slot + 1), Ordering::Release);
            }
            world.leave(&a, &seat);
            let epoch = topic.membership_epoch().load(Ordering::Acquire);
            topic
                .subscriber(0)
                .seen_epoch()
                .store(epoch, Ordering::Release);
        }
        let seat = world.join(&mut a, "t", best_effort());
        world
            .topic(&a, &seat)
            .publisher(0)
            .head()
            .store(head, Ordering::Release);
        let next = world.join(&mut a, "t", volatile());
        assert_eq!((next.member.slot, next.ring.start), (1, 0), "{head}");
    }
}

#[test]
fn an_arbitrary_control_segment_harms_nobody_but_its_writers() {
    for seed in 1..=10 {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
        let mut config = Config::default();
        config.limits.lease_per_publisher = Some(ByteSize(8 * GRANULE_BYTES));
        let mut world = World::with(config);
        let mut sims: Vec<Sim> = (0..4).map(|n| world.client(&format!("c{n}"))).collect();
        let mut seats: Vec<(usize, Seat)> = Vec::new();
        for step in 0..150 {
            let who = dice.roll() as usize % sims.len();
            let roles = [volatile(), lasting(), best_effort(), reliable()];
            match dice.roll() % 8 {
                0..=2 => {
                    let topic = ["a", "b"][dice.roll() as usize % 2];
                    let role = roles[dice.roll() as usize % 4];
                    if let Ok(seat) = world.try_join(&mut sims[who], wish(topic, role)) {
                        let _ = world.ask(
                            &sims[who],
                            Request::Lease {
                                publisher: seat.member,
                                pool: 0,
                                bytes: dice.odd(),
                            },
                        );
                        seats.push((who, seat));
                    }
                }
                3 if !seats.is_empty() => {
                    let (who, seat) = seats.remove(dice.roll() as usize % seats.len());
                    world.leave(&sims[who], &seat);
                }
                4 if !seats.is_empty() => {
                    let (who, seat) = &seats[dice.roll() as usize % seats.len()];
                    let (offset, bytes) = (dice.odd(), dice.odd());
                    let ranges = vec![Range { offset, bytes }];
                    let _ = world.ask(
                        &sims[*who],
                        Request::Return {
                            publisher: seat.member,
                            pool: 0,
                            ranges,
                        },
                    );
                }
                5 => {
                    let fresh = world.client(&format!("d{step}"));
                    let dead = std::mem::replace(&mut sims[who], fresh);
                    seats.retain(|(of, _)| *of != who);
                    world.kill(dead);
                }
                _ => {
                    if let Some(hold) = sims[who].holds.values().next() {
                        let words = hold.words();
                        for _ in 0..2000 {
                            // Topics are in the first pages, rings and block tables behind them.
                            let reach = [40 << 10, 3 << 20][dice.roll() as usize % 2];
                            let at = DYNAMIC_OFFSET + dice.roll() % reach / 8 * 8;
                            words.u64(at).store(dice.odd(), Ordering::Relaxed);
                        }
                        for at in (0..4096).step_by(8) {
                            words.u64(at).store(dice.odd(), Ordering::Relaxed);
                        }
                    }
                }
            }
            world.pass(Duration::from_millis(30));
            let asker = &sims[0];
            world.topics(asker);
            for topic in ["a", "b"] {
                let _ = world.ask(
                    asker,
                    Request::Topic {
                        topic: topic.into(),
                    },
                );
            }
        }
        let watcher = world.client("w");
        for sim in sims {
            world.kill(sim);
        }
        world.pass(Duration::from_secs(5));
        // The misbehaving clients' rings may stay as history until somebody needs the room.
        let mut fresh = world.client("fresh");
        let seat = world.join(&mut fresh, "honest", volatile());
        for _ in 0..8 {
            world.lease(&fresh, &seat, 1);
        }
        let mut writer = world.writer(&fresh, &seat);
        let reader_seat = world.join(&mut fresh, "honest", best_effort());
        let mut reader = world.reader(&fresh, &reader_seat, false, Start::Live);
        let loan = writer.loan(0, 64).unwrap();
        writer
            .publish(
                loan,
                &Message {
                    tag: 5,
                    ..Message::default()
                },
                &mut |_| {},
            )
            .unwrap();
        assert_eq!(
            reader
                .poll()
                .expect("honest clients are served")
                .message
                .tag,
            5,
            "seed {seed}"
        );
        world.status(&watcher);
    }
}

#[test]
fn arbitrary_requests_are_answered() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let seat = world.join(&mut a, "t", volatile());
    world.join(&mut b, "t", best_effort());
    world
        .try_join(&mut b, wish_in("t", best_effort(), gpu(1)))
        .unwrap();
    world.lease(&a, &seat, 3);
    world.lease_in(&a, &seat, 1, 3).unwrap();
    let mut dice = Dice(42);
    for _ in 0..3000 {
        let zone = if dice.roll() % 4 == 0 {
            u128::from(dice.odd())
        } else {
            seat.member.zone
        };
        let number = dice.odd() as u32;
        let member = Member {
            zone,
            topic: [0, number][dice.roll() as usize % 2],
            side: [Side::Publisher, Side::Subscriber][dice.roll() as usize % 2],
            slot: [0, 1, number][dice.roll() as usize % 3],
            incarnation: dice.odd(),
        };
        let ranges: Vec<Range> = (0..dice.roll() % 4)
            .map(|_| Range {
                offset: dice.odd(),
                bytes: dice.odd(),
            })
            .collect();
        let request = match dice.roll() % 17 {
            0 => Request::Leave(member),
            1 => Request::Lease {
                publisher: member,
                pool: [0, 1, number][dice.roll() as usize % 3],
                bytes: dice.odd(),
            },
            2 => Request::Return {
                publisher: member,
                pool: [0, 1, number][dice.roll() as usize % 3],
                ranges,
            },
            3 => Request::Segments {
                zone,
                pool: number,
                from: dice.odd() as u32,
                writable: false,
            },
            4 => Request::Pool { zone, pool: number },
            5 => Request::ReturnDoorbell {
                zone,
                doorbell: number,
            },
            6 => Request::HandBack {
                zone,
                client_index: number,
                client_id: dice.odd(),
            },
            7 => Request::HandBackSegments {
                zone,
                pool: number,
                from: dice.odd() as u32,
            },
            8 => Request::Claim {
                member,
                pool: [0, 1, number][dice.roll() as usize % 3],
                ranges,
            },
            9 => Request::HandedBack {
                zone,
                doorbells: vec![number; 3],
                timelines: vec![number; 3],
            },
            10 => Request::Topics { from: number },
            11 => Request::TakeTimeline { zone },
            12 => Request::ReturnTimeline {
                zone,
                timeline: number,
            },
            13 => Request::GpuLost { zone },
            14 => Request::Pin { zone, pool: number },
            15 => Request::Path {
                member,
                path: "?".repeat(dice.roll() as usize % 400),
            },
            _ => Request::Clients { from: number },
        };
        let fds = match request {
            Request::HandBack { .. } | Request::HandBackSegments { .. } => dice.roll() as usize % 4,
            _ => 0,
        };
        let fds = (0..fds)
            .map(|_| std::fs::File::open("/dev/null").unwrap().into())
            .collect();
        let _ = world.ask_with(&b, request, fds);
    }
    assert_eq!(world.leased_granules(&a), 6, "nothing of a's was touched");
    assert_eq!(world.info(&a, "t").publishers.len(), 1);
}

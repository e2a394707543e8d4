//! Joining and leaving, and which descriptors the daemon sends when.

mod support;

use rgaps_layout::{Domain, GRANULE_BYTES, MAX_PUBLISHERS, MAX_SUBSCRIBERS};
use rgaps_session::{
    AccessRule, Answer, Config, History, Notice, Offer, Principal, RefusalCode, Request, Role,
};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{Message, Start};
use support::*;

#[test]
fn either_side_comes_first() {
    for subscriber_first in [true, false] {
        let mut world = World::new();
        let (mut a, mut b) = (world.client("a"), world.client("b"));
        let (publisher, subscriber) = if subscriber_first {
            let subscriber = world.join(&mut b, "t", reliable());
            assert_eq!(subscriber.pool, None, "nobody has named a domain");
            (world.join(&mut a, "t", volatile()), subscriber)
        } else {
            (
                world.join(&mut a, "t", volatile()),
                world.join(&mut b, "t", reliable()),
            )
        };
        let mut reader = world.reader(&b, &subscriber, true, Start::Live);
        let mut writer = world.writer(&a, &publisher);
        let loan = writer.loan(0, 64).unwrap();
        writer
            .publish(
                loan,
                &Message {
                    bytes: 5,
                    tag: 77,
                    ..Message::default()
                },
                &mut |_| {},
            )
            .unwrap();
        let taken = reader.poll().expect("the message");
        assert_eq!((taken.message.tag, taken.message.bytes), (77, 5));
        taken.held.release();
        let rows = world.topics(&a);
        assert_eq!(
            (rows[0].publishers, rows[0].subscribers, rows[0].messages),
            (1, 1, 1)
        );
    }
}

#[test]
fn the_first_publishers_domain_sticks() {
    let mut world = World::new();
    let mut a = world.client("a");
    let join = |domain| wish_in("t", best_effort(), domain);
    assert_eq!(
        world.refused(&a, join(Some(gpu(GPUS + 1)))),
        RefusalCode::DomainUnavailable
    );
    let reads = world.try_join(&mut a, join(Some(gpu(2)))).unwrap();
    assert_eq!(reads.pool, None, "where subscribers read does not matter");
    assert_eq!(world.topics(&a)[0].domain, None);
    let publish = |domain| wish_in("t", volatile(), domain);
    world.try_join(&mut a, publish(Some(gpu(1)))).unwrap();
    for other in [Domain::Host, gpu(2)] {
        assert_eq!(
            world.refused(&a, publish(Some(other))),
            RefusalCode::DomainMismatch
        );
    }
    world.try_join(&mut a, publish(None)).unwrap();
    assert_eq!(world.topics(&a)[0].domain, Some(gpu(1)));
}

#[test]
fn a_refused_join_leaves_nothing() {
    let mut world = World::new();
    let mut a = world.client("a");
    let absent = wish_in("gone", volatile(), gpu(GPUS + 1));
    assert_eq!(world.refused(&a, absent), RefusalCode::DomainUnavailable);
    assert!(world.topics(&a).is_empty());
    // The grant comes with the first join that succeeds.
    let seat = world.join(&mut a, "t", volatile());
    assert!(a.holds.contains_key(&seat.member.zone));
    world.leave(&a, &seat);
    assert!(world.topics(&a).is_empty());
}

#[test]
fn topics_have_their_limits_of_members() {
    let mut world = World::new();
    let mut a = world.client("a");
    let first = world.join(&mut a, "t", best_effort());
    for _ in 1..MAX_SUBSCRIBERS {
        world.join(&mut a, "t", best_effort());
    }
    assert_eq!(
        world.refused(&a, wish("t", best_effort())),
        RefusalCode::LimitReached
    );
    world.leave(&a, &first);
    let again = world.join(&mut a, "t", best_effort());
    assert_eq!(again.member.slot, first.member.slot);
    assert_ne!(again.member.incarnation, first.member.incarnation);
    for _ in 0..MAX_PUBLISHERS {
        world.join(&mut a, "p", volatile());
    }
    assert_eq!(
        world.refused(&a, wish("p", volatile())),
        RefusalCode::LimitReached
    );
    let info = world.info(&a, "p");
    assert_eq!(
        (info.publishers.len(), info.publishers[3].pid),
        (16, std::process::id())
    );
}

#[test]
fn zones_and_clients_have_their_limits() {
    let mut config = Config::default();
    (config.limits.topics, config.limits.clients) = (3, 2);
    let mut world = World::with(config);
    let (mut a, mut b, c) = (world.client("a"), world.client("b"), world.client("c"));
    for topic in ["1", "2", "3"] {
        world.join(&mut a, topic, best_effort());
    }
    assert_eq!(
        world.refused(&a, wish("4", best_effort())),
        RefusalCode::LimitReached
    );
    world.join(&mut b, "1", best_effort());
    assert_eq!(
        world.refused(&c, wish("1", best_effort())),
        RefusalCode::LimitReached
    );
    assert!(world
        .status(&a)
        .warnings
        .iter()
        .any(|warning| warning.contains("limits.topics")));
    world.kill(b);
    let mut c = c;
    world.join(&mut c, "1", best_effort());
}

#[test]
fn access_rules_keep_topics_and_memory_apart() {
    let rule = AccessRule {
        name: "secret".into(),
        topics: vec!["secret/**".into()],
        users: vec![Principal::Id(1000)],
        publish_users: vec![Principal::Id(2000)],
        ..AccessRule::default()
    };
    let mut world = World::with(Config {
        access: vec![rule],
        ..Config::default()
    });
    let (mut reader, mut writer) = (world.client_as("r", 1000), world.client_as("w", 2000));
    let stranger = world.client_as("x", 3000);
    let open = world.join(&mut writer, "open", volatile());
    let secret = world.join(&mut writer, "secret/a", volatile());
    assert_ne!(open.member.zone, secret.member.zone);
    world.join(&mut reader, "secret/a", best_effort());
    for (who, role) in [
        (&stranger, best_effort()),
        (&stranger, volatile()),
        (&reader, volatile()),
    ] {
        assert_eq!(
            world.refused(who, wish("secret/a", role)),
            RefusalCode::NotPermitted
        );
    }
    // Users without access do not see the topic.
    assert_eq!(world.topics(&stranger).len(), 1);
    assert_eq!(world.pools(&stranger).len(), 1);
    assert_eq!(
        world.refused(
            &stranger,
            Request::Topic {
                topic: "secret/a".into()
            }
        ),
        RefusalCode::NotFound
    );
    assert_eq!(world.topics(&reader).len(), 2);
    let zone = secret.member.zone;
    for request in [
        Request::Segments {
            zone,
            pool: 0,
            from: 0,
            writable: false,
        },
        Request::Pool { zone, pool: 0 },
        Request::TakeDoorbell { zone },
        Request::Leave(secret.member),
    ] {
        assert_eq!(world.refused(&stranger, request), RefusalCode::NotFound);
    }
}

#[test]
fn leases_grow_the_pool_and_come_back() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let pa = world.join(&mut a, "t", volatile());
    let pb = world.join(&mut b, "t", volatile());
    world.fetch_segments(&mut b, &pb, true);
    let first = world.lease(&a, &pa, 3);
    assert_eq!((first.offset, first.bytes), (0, 3 * GRANULE_BYTES));
    let notices = world.engine.take_notices();
    assert_eq!(notices.len(), 1, "b uses the pool, a does not yet");
    let (
        id,
        Notice::PoolGrown {
            from: 0,
            bytes,
            writable: true,
            ..
        },
        fds,
    ) = &notices[0]
    else {
        panic!("{notices:?}");
    };
    assert_eq!((*id, bytes.len(), fds.len()), (b.id, 1, 1));
    // A lease may cross the border of two segments, and be larger than a segment.
    let larger = SEGMENT_GRANULES + 2;
    let second = world.lease(&b, &pb, larger);
    assert_eq!(
        (second.offset, second.bytes),
        (3 * GRANULE_BYTES, larger * GRANULE_BYTES)
    );
    let full = Request::Lease {
        publisher: pa.member,
        pool: 0,
        bytes: (POOL_GRANULES - larger - 2) * GRANULE_BYTES,
    };
    assert_eq!(world.refused(&a, full), RefusalCode::PoolFull);
    for bytes in [u64::MAX, POOL_GRANULES * GRANULE_BYTES + 1] {
        let huge = Request::Lease {
            publisher: pa.member,
            pool: 0,
            bytes,
        };
        assert_eq!(world.refused(&a, huge), RefusalCode::PoolFull);
    }
    let rest = world.lease(&a, &pa, POOL_GRANULES - larger - 3);
    assert_eq!(world.leased_granules(&a), POOL_GRANULES);
    world
        .ask(
            &b,
            Request::Return {
                publisher: pb.member,
                pool: 0,
                ranges: vec![second],
            },
        )
        .unwrap();
    assert_eq!(
        world.lease(&a, &pa, 1).offset,
        second.offset,
        "the lowest that fits"
    );
    world
        .ask(
            &a,
            Request::Return {
                publisher: pa.member,
                pool: 0,
                ranges: vec![rest, first],
            },
        )
        .unwrap();
    assert_eq!(world.leased_granules(&a), 1);
    world.leave(&a, &pa);
    assert_eq!(
        world.leased_granules(&a),
        0,
        "leases go with their publisher"
    );
    assert_eq!(world.info(&b, "t").publishers.len(), 1);
}

#[test]
fn a_publisher_has_no_more_than_its_limit() {
    let mut config = Config::default();
    config.limits.lease_per_publisher = Some(rgaps_session::ByteSize(3 * GRANULE_BYTES));
    let mut world = World::with(config);
    let mut a = world.client("a");
    let seat = world.join(&mut a, "t", volatile());
    world.lease(&a, &seat, 2);
    let more = Request::Lease {
        publisher: seat.member,
        pool: 0,
        bytes: 2 * GRANULE_BYTES,
    };
    assert_eq!(world.refused(&a, more), RefusalCode::LimitReached);
    world.lease(&a, &seat, 1);
}

#[test]
fn what_is_returned_must_be_free() {
    let mut world = World::new();
    let mut a = world.client("a");
    let seat = world.join(&mut a, "t", volatile());
    let range = world.lease(&a, &seat, 2);
    let mut writer = world.writer(&a, &seat);
    let loan = writer.loan(range.offset + GRANULE_BYTES, 256).unwrap();
    let give = |offset, bytes| Request::Return {
        publisher: seat.member,
        pool: 0,
        ranges: vec![rgaps_session::Range { offset, bytes }],
    };
    assert_eq!(
        world.refused(&a, give(0, 2 * GRANULE_BYTES)),
        RefusalCode::BadRequest
    );
    world.ask(&a, give(0, GRANULE_BYTES)).unwrap();
    writer.abandon(loan, rgaps_topic::Point::NONE, &mut |_| {});
    world.ask(&a, give(GRANULE_BYTES, GRANULE_BYTES)).unwrap();
    assert_eq!(world.leased_granules(&a), 0);
}

#[test]
fn membership_is_announced() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let publisher = world.join(&mut a, "t", volatile());
    let topic = world.topic(&a, &publisher);
    let epoch = topic.membership_epoch().load(Ordering::Acquire);
    let bell = rgaps_topic::Sleeper::new(topic.storage(), publisher.doorbell).unwrap();
    let subscriber = world.join(&mut b, "t", reliable());
    assert_ne!(topic.membership_epoch().load(Ordering::Acquire), epoch);
    let (word, rings) = bell.word();
    assert_ne!(
        word.load(Ordering::Acquire),
        rings,
        "the publisher's doorbell was rung"
    );
    let bit = 1 << subscriber.member.slot;
    assert_eq!(topic.subscribers().load(Ordering::Acquire), bit);
    assert_eq!(topic.reliable().load(Ordering::Acquire), bit);
    assert_eq!(
        topic.publishers().load(Ordering::Acquire),
        1 << publisher.member.slot
    );
    world.leave(&b, &subscriber);
    assert_eq!(topic.subscribers().load(Ordering::Acquire), 0);
    assert_eq!(topic.reliable().load(Ordering::Acquire), 0);
}

#[test]
fn what_was_offered_is_listed() {
    let mut world = World::new();
    let mut a = world.client("a");
    let offer = Offer {
        history: History::KeepAll {
            messages: 100,
            bytes: 1 << 30,
        },
        reliable: true,
        transient_local: false,
        loans: 7,
    };
    let seat = world.join(&mut a, "t", Role::Publisher(offer));
    assert!(seat.ring.ring_capacity > 100 && seat.ring.depth == 100);
    assert_eq!(world.info(&a, "t").publishers[0].offer, offer);
    let clients = world.ask(&a, Request::Clients { from: 0 }).unwrap();
    let Answer::Clients(rows) = clients else {
        panic!("{clients:?}")
    };
    assert_eq!(
        (rows.len(), rows[0].publishers, rows[0].name.as_str()),
        (1, 1, "a")
    );
}

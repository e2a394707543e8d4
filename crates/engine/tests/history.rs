//! The history that publishers leave: in which order it is read, what replaces it, and how long it stays.

mod support;

use rgaps_session::{
    AccessRule, Answer, Config, History, KeptHistory, Offer, Principal, Refusal, RefusalCode,
    Request, Role,
};
use rgaps_topic::{Message, Shared, Start, Writer};
use std::time::Duration;
use support::*;

const LATER: Duration = Duration::from_secs(2);

/// Publishes a message. Tests tell messages apart by their times.
fn publish(writer: &mut Writer<Shared>, offset: u64, ns: u64) {
    let loan = writer.loan(offset, 256).unwrap();
    let message = Message {
        offset,
        bytes: 256,
        tag: ns,
        publish_ns: ns,
        ..Message::default()
    };
    writer.publish(loan, &message, &mut |_| {}).unwrap();
}

fn keeps(depth: u32) -> Role {
    Role::Publisher(offer(depth, true, true))
}

/// Joins a publisher, publishes messages of these times, and leaves.
fn publish_and_leave(world: &mut World, sim: &mut Sim, topic: &str, role: Role, times: &[u64]) {
    let publisher = world.join(sim, topic, role);
    let mut writer = world.writer(sim, &publisher);
    times.iter().for_each(|ns| publish(&mut writer, 0, *ns));
    drop(writer);
    world.leave(sim, &publisher);
}

/// The messages that a late joiner gets which wants the newest `n`.
fn read_late(world: &mut World, sim: &mut Sim, topic: &str, n: u64) -> Vec<u64> {
    let subscriber = world.join(sim, topic, late());
    let mut reader = world.reader(sim, &subscriber, false, Start::Kept(n));
    let read = std::iter::from_fn(|| {
        let taken = reader.poll()?;
        taken.held.release();
        Some(taken.message.tag)
    })
    .collect();
    drop(reader);
    world.leave(sim, &subscriber);
    read
}

fn forget(world: &mut World, sim: &Sim, topic: &str) -> Result<(u32, u64), Refusal> {
    let request = Request::Forget {
        topic: topic.into(),
    };
    match world.ask(sim, request)? {
        Answer::Forgotten(forgotten) => Ok((forgotten.publishers, forgotten.messages)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_latest_is_that_of_the_publisher_that_came_last() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    publish_and_leave(&mut world, &mut a, "t", lasting(), &[1]);
    publish_and_leave(&mut world, &mut a, "t", lasting(), &[2]);
    assert_eq!(read_late(&mut world, &mut b, "t", 1), [2]);
    assert_eq!(read_late(&mut world, &mut b, "t", 9), [1, 2]);
    // A present publisher's messages count, too.
    let there = world.join(&mut a, "t", lasting());
    publish(&mut world.writer(&a, &there), 0, 3);
    assert_eq!(read_late(&mut world, &mut b, "t", 1), [3]);
    publish_and_leave(&mut world, &mut a, "t", lasting(), &[4]);
    assert_eq!(read_late(&mut world, &mut b, "t", 1), [4]);
    assert_eq!(read_late(&mut world, &mut b, "t", 9), [1, 2, 3, 4]);
}

#[test]
fn twenty_restarts_leave_no_more_than_one_publisher_would_have_kept() {
    for (depth, expected) in [(1, 20..=20), (3, 18..=20), (8, 13..=20), (16, 13..=20)] {
        let mut world = World::new();
        let (mut a, mut b) = (world.client("a"), world.client("b"));
        for ns in 1..=20 {
            publish_and_leave(&mut world, &mut a, "t", keeps(depth), &[ns]);
        }
        let read = read_late(&mut world, &mut b, "t", u64::MAX);
        assert_eq!(read, expected.collect::<Vec<_>>(), "depth {depth}");
        assert_eq!(read_late(&mut world, &mut b, "t", 1), [20]);
        assert!(world.topics(&b)[0].orphans <= 8, "half of the slots");
    }
}

#[test]
fn what_a_living_publisher_publishes_replaces_what_its_predecessor_left() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    publish_and_leave(&mut world, &mut a, "t", keeps(3), &[1, 2, 3]);
    // A volatile publisher keeps nothing for late joiners, so it replaces nothing.
    let fleeting = world.join(&mut b, "t", volatile());
    let mut writer = world.writer(&b, &fleeting);
    (10..20).for_each(|ns| publish(&mut writer, 0, ns));
    world.leave(&b, &fleeting);
    let successor = world.join(&mut a, "t", keeps(8));
    let mut writer = world.writer(&a, &successor);
    for (ns, left) in [(20, 3), (21, 2), (22, 1), (23, 0)] {
        world.pass(LATER);
        let orphans = world.info(&b, "t");
        let orphan = orphans.publishers.iter().find(|p| p.orphan);
        assert_eq!(orphan.map_or(0, |p| p.head - p.tail), left, "{ns}");
        publish(&mut writer, 0, ns);
    }
    assert_eq!(
        read_late(&mut world, &mut b, "t", u64::MAX),
        [20, 21, 22, 23]
    );
}

#[test]
fn what_a_reliable_subscriber_has_still_to_read_is_not_replaced() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let subscriber = world.join(&mut b, "t", reliable());
    let mut reader = world.reader(&b, &subscriber, true, Start::Live);
    for ns in 1..=12 {
        publish_and_leave(&mut world, &mut a, "t", keeps(1), &[ns]);
    }
    world.pass(LATER);
    assert_eq!(forget(&mut world, &a, "t"), Ok((12, 12)));
    let mut read: Vec<u64> = Vec::new();
    while let Some(taken) = reader.poll() {
        assert_eq!(taken.missed, 0);
        read.push(taken.message.tag);
        taken.held.release();
    }
    read.sort_unstable();
    assert_eq!(read, (1..=12).collect::<Vec<_>>());
    world.pass(LATER);
    assert_eq!(world.topics(&a)[0].orphans, 0, "it has read all of it");
}

#[test]
fn history_outlives_its_publisher_until_room_is_needed() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    for ns in [1, 2] {
        let publisher = world.join(&mut a, "latched", lasting());
        let range = world.lease(&a, &publisher, 1);
        publish(&mut world.writer(&a, &publisher), range.offset, ns);
        world.leave(&a, &publisher);
    }
    world.pass(LATER);
    assert_eq!(world.topics(&b)[0].orphans, 2);
    // A late joiner reads the history, and a held message stays.
    let subscriber = world.join(&mut b, "latched", late());
    let mut reader = world.reader(&b, &subscriber, false, Start::Kept(10));
    let first = reader.poll().unwrap();
    let second = reader.poll().unwrap();
    assert_eq!((first.message.tag, second.message.tag), (1, 2));
    second.held.release();
    // Somebody needs the memory: the history is evicted, the held message stays.
    let greedy = world.join(&mut a, "greedy", volatile());
    world.lease(&a, &greedy, POOL_GRANULES - 1);
    let topics = world.topics(&b);
    let latched = topics.iter().find(|row| row.name == "latched").unwrap();
    assert_eq!(latched.orphans, 1);
    let one = Request::Lease {
        publisher: greedy.member,
        pool: 0,
        bytes: 1,
    };
    assert_eq!(world.refused(&a, one.clone()), RefusalCode::PoolFull);
    first.held.release();
    world.ask(&a, one).unwrap();
    drop(reader);
    world.kill(b);
    assert!(world.topics(&a).iter().all(|row| row.name == "greedy"));
}

#[test]
fn the_oldest_orphan_makes_room_for_a_publisher() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    // Eight living publishers and eight orphans take all slots.
    for _ in 0..8 {
        world.join(&mut b, "t", volatile());
    }
    for ns in 1..=8 {
        publish_and_leave(&mut world, &mut a, "t", keeps(16), &[ns]);
    }
    assert_eq!(world.topics(&a)[0].orphans, 8);
    let publisher = world.join(&mut a, "t", lasting());
    assert_eq!(world.topics(&a)[0].orphans, 7);
    assert_eq!(
        (publisher.member.slot, publisher.ring.start),
        (8, 1),
        "in the slot of the oldest, whose sequence numbers go on"
    );
    let subscriber = world.join(&mut a, "u", late());
    world.leave(&a, &subscriber);
    for row in world.info(&a, "t").publishers.iter().filter(|p| p.orphan) {
        assert!(row.slot > 8, "the oldest went");
    }
}

#[test]
fn a_restarted_daemon_knows_which_history_is_the_oldest() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    // The order of slots differs from the order of publishing.
    let first = world.join(&mut a, "t", keeps(16));
    let second = world.join(&mut a, "t", keeps(16));
    let third = world.join(&mut a, "t", keeps(16));
    for (ns, seat) in [(1, &third), (2, &first), (3, &second)] {
        publish(&mut world.writer(&a, seat), 0, ns);
    }
    for seat in [first, second, third] {
        world.leave(&a, &seat);
    }
    let zone = world.join(&mut b, "other", volatile()).member.zone;
    world.restart();
    world.hand_back_all(&mut b, zone, &[]);
    world.pass(LATER);
    for n in 3..=8 {
        publish_and_leave(&mut world, &mut b, "t", keeps(16), &[n * 10]);
    }
    let read = read_late(&mut world, &mut b, "t", u64::MAX);
    assert_eq!(read, [2, 3, 30, 40, 50, 60, 70, 80]);
}

#[test]
fn a_forgotten_topic_has_no_history_and_no_type() {
    let mut world = World::new();
    let (mut a, b) = (world.client("a"), world.client("b"));
    assert_eq!(
        forget(&mut world, &a, "t").unwrap_err().code,
        RefusalCode::NotFound
    );
    assert_eq!(
        forget(&mut world, &a, "not//a name").unwrap_err().code,
        RefusalCode::BadRequest
    );
    let typed = |type_name: &str| Request::Join {
        topic: "t".into(),
        type_name: type_name.into(),
        domain: None,
        role: lasting(),
        require: None,
        arrives_over: None,
    };
    let publisher = world.try_join(&mut a, typed("old")).unwrap();
    let mut writer = world.writer(&a, &publisher);
    (1..=3).for_each(|ns| publish(&mut writer, 0, ns));
    assert_eq!(forget(&mut world, &b, "t"), Ok((0, 0)), "it is there");
    drop(writer);
    world.leave(&a, &publisher);
    assert_eq!(world.info(&b, "t").row.type_name, "old");
    assert_eq!(forget(&mut world, &b, "t"), Ok((1, 3)));
    assert!(world.topics(&b).is_empty(), "with its type");
    assert_eq!(
        forget(&mut world, &b, "t").unwrap_err().code,
        RefusalCode::NotFound
    );
    world.try_join(&mut a, typed("new")).unwrap();
}

#[test]
fn who_may_not_publish_may_not_forget() {
    let owner = rustix::process::geteuid().as_raw();
    let rule = AccessRule {
        name: "locked".into(),
        topics: vec!["locked/**".into()],
        users: vec![Principal::Id(owner), Principal::Id(4242)],
        publish_users: vec![Principal::Id(owner)],
        ..AccessRule::default()
    };
    let mut world = World::with(Config {
        access: vec![rule],
        ..Config::default()
    });
    let mut a = world.client("a");
    publish_and_leave(&mut world, &mut a, "locked/map", lasting(), &[1]);
    let reader = world.client_as("reader", 4242);
    let refusal = forget(&mut world, &reader, "locked/map").unwrap_err();
    assert_eq!(refusal.code, RefusalCode::NotPermitted);
    assert!(refusal.message.contains("locked/map"), "{refusal}");
    assert_eq!(forget(&mut world, &a, "locked/map"), Ok((1, 1)));
}

#[test]
fn kept_history_keeps_the_daemon() {
    let hour = Duration::from_secs(3600);
    let mut world = World::new();
    let mut a = world.client("a");
    publish_and_leave(&mut world, &mut a, "t", lasting(), &[1, 2]);
    publish_and_leave(&mut world, &mut a, "empty", lasting(), &[]);
    let kept = KeptHistory {
        topics: 1,
        messages: 2,
        names: vec!["t".into()],
    };
    assert_eq!(world.status(&a).kept, kept);
    world.pass(hour);
    assert!(!world.engine.is_idle(world.now), "a is still there");
    world.kill(a);
    world.pass(hour);
    assert!(!world.engine.is_idle(world.now), "the history is");
    let mut b = world.client("b");
    assert_eq!(read_late(&mut world, &mut b, "t", 1), [2]);
    assert_eq!(forget(&mut world, &b, "t"), Ok((1, 2)));
    assert_eq!(world.status(&b).kept, KeptHistory::default());
    world.kill(b);
    world.pass(Duration::from_secs(59));
    assert!(!world.engine.is_idle(world.now));
    world.pass(Duration::from_secs(1));
    assert!(world.engine.is_idle(world.now), "nothing is left");
}

#[test]
fn volatile_messages_that_nobody_reads_keep_no_daemon() {
    let mut world = World::new();
    let mut a = world.client("a");
    publish_and_leave(&mut world, &mut a, "t", volatile(), &[1]);
    world.kill(a);
    world.pass(Duration::from_secs(60));
    assert!(world.engine.is_idle(world.now));
}

#[test]
fn a_log_that_is_kept_whole_is_replaced_by_as_many_messages() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let log = Role::Publisher(Offer {
        history: History::KeepAll {
            messages: 4,
            bytes: 1 << 20,
        },
        ..offer(1, true, true)
    });
    publish_and_leave(&mut world, &mut a, "t", log, &[1, 2, 3, 4]);
    publish_and_leave(&mut world, &mut a, "t", log, &[5, 6]);
    assert_eq!(read_late(&mut world, &mut b, "t", u64::MAX), [3, 4, 5, 6]);
}

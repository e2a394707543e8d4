//! Clients that die or leave: what ends, and what stays for the others.

mod support;

use rgaps_layout::GRANULE_BYTES;
use rgaps_session::{RefusalCode, Request, Role};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{Message, Shared, Start, Writer};
use std::time::Duration;
use support::*;

const SOON: Duration = Duration::from_millis(100);
const LATER: Duration = Duration::from_secs(2);

fn publish(writer: &mut Writer<Shared>, offset: u64, tag: u64) {
    let loan = writer.loan(offset, 256).unwrap();
    let message = Message {
        offset,
        bytes: 256,
        tag,
        ..Message::default()
    };
    writer.publish(loan, &message, &mut |_| {}).unwrap();
}

#[test]
fn a_dead_subscriber_gives_back_what_it_held() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let publisher = world.join(&mut a, "t", Role::Publisher(offer(1, true, false)));
    let subscriber = world.join(&mut b, "t", reliable());
    let mut reader = world.reader(&b, &subscriber, true, Start::Live);
    let mut writer = world.writer(&a, &publisher);
    publish(&mut writer, 0, 1);
    let taken = reader.poll().unwrap();
    publish(&mut writer, 256, 2);
    assert!(!writer.has_room(256), "the subscriber has still to read it");
    let mut freed = Vec::new();
    writer.collect_returned(&mut |block| freed.push(block));
    assert!(freed.is_empty());
    std::mem::forget(taken);
    drop(reader);
    world.kill(b);
    let status = world.status(&a);
    assert_eq!((status.clients_reaped, status.blocks_reclaimed), (1, 1));
    assert!(writer.has_room(256), "nobody holds it back any more");
    writer.collect_returned(&mut |block| freed.push(block));
    assert_eq!(
        freed.len(),
        1,
        "once, although both the bitmap and the sweep tell of it"
    );
    assert_eq!(world.info(&a, "t").subscribers.len(), 0);
}

#[test]
fn what_a_dead_volatile_publisher_said_is_still_read() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let publisher = world.join(&mut a, "t", volatile());
    let subscriber = world.join(&mut b, "t", best_effort());
    let mut reader = world.reader(&b, &subscriber, false, Start::Live);
    let range = world.lease(&a, &publisher, 3);
    let mut writer = world.writer(&a, &publisher);
    publish(&mut writer, range.offset, 1);
    publish(&mut writer, range.offset + GRANULE_BYTES, 2);
    let _loan = writer.loan(range.offset + 2 * GRANULE_BYTES, 256).unwrap();
    drop(writer);
    world.kill(a);
    assert_eq!(world.status(&b).blocks_reclaimed, 1, "the loan");
    assert_eq!(
        world.leased_granules(&b),
        2,
        "of the loan's granule nothing is left"
    );
    assert!(world.info(&b, "t").publishers[0].orphan);
    world.pass(LATER);
    let first = reader.poll().unwrap();
    assert_eq!(first.message.tag, 1);
    world.pass(LATER);
    let second = reader.poll().unwrap();
    assert_eq!(second.message.tag, 2);
    world.pass(LATER);
    assert_eq!(world.leased_granules(&b), 2, "both are held");
    second.held.release();
    world.pass(LATER);
    assert_eq!(world.leased_granules(&b), 1);
    first.held.release();
    world.pass(LATER);
    assert_eq!(world.leased_granules(&b), 0);
    assert!(world.info(&b, "t").publishers.is_empty());
}

#[test]
fn a_volatile_publisher_that_nobody_reads_is_gone_at_once() {
    let mut world = World::new();
    let (mut a, b) = (world.client("a"), world.client("b"));
    let publisher = world.join(&mut a, "t", volatile());
    let range = world.lease(&a, &publisher, 1);
    publish(&mut world.writer(&a, &publisher), range.offset, 1);
    world.leave(&a, &publisher);
    assert!(world.topics(&b).is_empty());
    assert_eq!(world.leased_granules(&b), 0);
}

#[test]
fn a_reliable_reader_gets_all_of_it_before_room_is_made() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let subscriber = world.join(&mut b, "t", reliable());
    let mut reader = world.reader(&b, &subscriber, true, Start::Live);
    let publisher = world.join(&mut a, "t", lasting());
    let range = world.lease(&a, &publisher, 1);
    publish(&mut world.writer(&a, &publisher), range.offset, 9);
    world.leave(&a, &publisher);
    let greedy = world.join(&mut a, "greedy", volatile());
    let all = rgaps_session::Request::Lease {
        publisher: greedy.member,
        pool: 0,
        bytes: POOL_GRANULES * GRANULE_BYTES,
    };
    assert_eq!(world.refused(&a, all.clone()), RefusalCode::PoolFull);
    reader.poll().unwrap().held.release();
    world.ask(&a, all).unwrap();
}

#[test]
fn a_region_is_not_used_again_while_a_subscriber_may_look_there() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let subscriber = world.join(&mut b, "t", best_effort());
    let mut reader = world.reader(&b, &subscriber, false, Start::Live);
    let first = world.join(&mut a, "t", volatile());
    assert!(reader.poll().is_none(), "the reader knows the region");
    world.leave(&a, &first);
    let second = world.join(&mut a, "t", volatile());
    assert_eq!(second.member.slot, first.member.slot);
    assert_ne!(second.ring.region_offset, first.ring.region_offset);
    world.leave(&a, &second);
    world.pass(LATER);
    assert!(reader.poll().is_none(), "now it has looked away");
    world.pass(LATER);
    let third = world.join(&mut a, "t", volatile());
    assert_eq!(third.ring.region_offset, first.ring.region_offset);
}

#[test]
fn a_closed_session_is_not_a_dead_process() {
    let mut world = World::new();
    let (mut a, mut b, watcher) = (world.client("a"), world.client("b"), world.client("w"));
    world.join(&mut a, "t", volatile());
    world.engine.hang_up(a.id, false);
    assert!(world.engine.is_detached(a.id));
    assert_eq!(world.topics(&watcher)[0].publishers, 1);
    assert!(world.status(&watcher).warnings[0].contains("detached"));
    world.engine.process_ended(a.id);
    assert!(world.topics(&watcher).is_empty());
    // A client that has left all its topics leaves nothing to clean up.
    let seat = world.join(&mut b, "t", volatile());
    world.leave(&b, &seat);
    world.engine.hang_up(b.id, false);
    assert!(!world.engine.is_detached(b.id));
    assert_eq!(world.status(&watcher).clients_reaped, 1);
    // If the daemon cannot watch the process, the end of the socket counts as its end.
    let id = world.connect_as(0, false);
    let mut c = Sim {
        id,
        name: "c".into(),
        uid: 0,
        holds: Default::default(),
        segments: vec![],
        timelines: vec![],
    };
    world.hello(&c);
    world.join(&mut c, "t", volatile());
    world.engine.hang_up(c.id, false);
    assert!(world.topics(&watcher).is_empty());
}

#[test]
fn a_client_may_return_before_the_end_of_its_last_session_is_seen() {
    let mut world = World::new();
    let (mut a, watcher) = (world.client("a"), world.client("w"));
    let seat = world.join(&mut a, "t", volatile());
    let last = a.id;
    // A client of another user is refused, although it knows the `client_id`.
    let mut other = world.client_as("other", 4321);
    std::mem::swap(&mut other.holds, &mut a.holds);
    world.hand_back(&other, seat.member.zone).unwrap_err();
    std::mem::swap(&mut other.holds, &mut a.holds);
    world.hand_back_all(&mut a, seat.member.zone, &[(seat.member, vec![])]);
    world.engine.hang_up(last, false);
    assert!(!world.engine.is_detached(last));
    assert_eq!(world.topics(&watcher)[0].publishers, 1);
    world.leave(&a, &seat);
    assert!(world.topics(&watcher).is_empty());
    assert_eq!(world.status(&watcher).clients_reaped, 0);
}

#[test]
fn a_publisher_that_waits_is_woken_by_a_death() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let publisher = world.join(&mut a, "t", Role::Publisher(offer(1, true, false)));
    let subscriber = world.join(&mut b, "t", reliable());
    let reader = world.reader(&b, &subscriber, true, Start::Live);
    let mut writer = world.writer(&a, &publisher);
    publish(&mut writer, 0, 1);
    assert!(!writer.has_room(256));
    writer.announce_blocked();
    let topic = world.topic(&a, &publisher);
    let bell = rgaps_topic::Sleeper::new(topic.storage(), publisher.doorbell).unwrap();
    drop(reader);
    world.kill(b);
    let (word, rings) = bell.word();
    assert_ne!(word.load(Ordering::Acquire), rings);
    assert!(writer.has_room(256));
}

#[test]
fn everything_comes_back() {
    let mut world = World::new();
    let watcher = world.client("w");
    for round in 0..20 {
        let mut sims: Vec<Sim> = (0..6)
            .map(|n| world.client(&format!("{round}.{n}")))
            .collect();
        for (n, sim) in sims.iter_mut().enumerate() {
            for topic in ["x", "y", "z"] {
                let role = [volatile(), reliable(), best_effort()][(n + round) % 3];
                let seat = world.join(sim, topic, role);
                if let Role::Publisher(_) = role {
                    let range = world.lease(sim, &seat, 1 + n as u64 % 3);
                    let mut writer = world.writer(sim, &seat);
                    for tag in 0..7 {
                        publish(&mut writer, range.offset, tag);
                    }
                }
            }
        }
        let order = if round % 2 == 0 {
            sims
        } else {
            sims.into_iter().rev().collect()
        };
        for sim in order {
            world.kill(sim);
            world.pass(SOON);
        }
        world.pass(LATER);
        assert!(world.topics(&watcher).is_empty(), "round {round}");
        assert_eq!(world.leased_granules(&watcher), 0, "round {round}");
    }
}

#[test]
fn gaps_between_messages_that_a_dead_publisher_left_unread_count_after_its_ring_is_gone() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("links"), world.client("b"));
    let publisher = world.join(&mut a, "t", lasting());
    let subscriber = world.join(&mut b, "t", best_effort());
    let mut reader = world.reader(&b, &subscriber, false, Start::Live);
    let mut writer = world.writer(&a, &publisher);
    for (tag, missed_so_far) in [(0, 0), (7, 6), (8, 6)] {
        let loan = writer.loan(256 * tag, 256).unwrap();
        let message = Message {
            offset: 256 * tag,
            bytes: 256,
            tag,
            missed_so_far,
            ..Message::default()
        };
        writer.publish(loan, &message, &mut |_| {}).unwrap();
    }
    let first = reader.poll().unwrap();
    assert_eq!((first.message.tag, first.missed), (0, 0));
    first.held.release();
    drop(writer);
    world.kill(a);
    let forget = Request::Forget {
        topic: "t".to_owned(),
    };
    world.ask(&b, forget).unwrap();
    world.pass(LATER);
    assert!(
        world.info(&b, "t").publishers.is_empty(),
        "its ring is gone"
    );
    assert!(reader.poll().is_none());
    assert_eq!(
        reader.missed(),
        6,
        "the two messages themselves count with the next publisher's first one"
    );
}

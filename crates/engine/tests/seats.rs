//! Seats of the links, which outlive the links' process and the daemon.
mod support;

use rgaps_session::{Demand, Role, LINKS_CLIENT};
use rgaps_topic::{Message, Reader, Shared, Start, Writer};
use std::time::Duration;
use support::*;

/// How many messages the publisher keeps.
const DEPTH: u64 = 4;
/// Longer than the daemon keeps an empty seat.
const FOR_GOOD: Duration = Duration::from_secs(31);

fn of_links() -> Role {
    Role::Observer(Demand {
        reliable: true,
        transient_local: false,
        depth: 0,
    })
}

struct Topic {
    world: World,
    a: Sim,
    publisher: Seat,
    writer: Writer<Shared>,
    offset: u64,
    published: u64,
}

impl Topic {
    fn new() -> Topic {
        let mut world = World::new();
        let mut a = world.client("a");
        let publisher = world.join(&mut a, "t", volatile());
        let offset = world.lease(&a, &publisher, 3).offset;
        world.fetch_segments(&mut a, &publisher, true);
        let writer = world.writer(&a, &publisher);
        Topic {
            world,
            a,
            publisher,
            writer,
            offset,
            published: 0,
        }
    }

    /// Publishes until a subscriber back-pressures the publisher. Returns how many messages it published.
    fn fill(&mut self) -> u64 {
        let before = self.published;
        while self.writer.has_room(256) && self.published - before < 3 * DEPTH {
            self.writer.collect_returned(&mut |_| {});
            let at = self.offset + self.published % 16 * 256;
            let loan = self.writer.loan(at, 256).unwrap();
            let message = Message {
                offset: at,
                bytes: 256,
                tag: self.published,
                ..Message::default()
            };
            self.writer.publish(loan, &message, &mut |_| {}).unwrap();
            self.published += 1;
        }
        self.published - before
    }

    /// Starts links that subscribe to the topic. Returns them and their subscriber.
    fn links(&mut self) -> (Sim, Seat) {
        let mut links = self.world.client(LINKS_CLIENT);
        let seat = self.world.join(&mut links, "t", of_links());
        (links, seat)
    }
}

/// Reads and releases all messages. Returns their tags.
fn read(reader: &mut Reader<Shared>) -> Vec<u64> {
    let taken = std::iter::from_fn(|| reader.poll());
    let tags = taken.map(|taken| {
        assert_eq!(taken.missed, 0);
        taken.held.release();
        taken.message.tag
    });
    tags.collect()
}

#[test]
fn a_seat_holds_publishers_back_until_the_next_links_take_it() {
    let mut topic = Topic::new();
    let (links, seat) = topic.links();
    let mut reader = topic.world.reader(&links, &seat, true, Start::Live);
    assert_eq!(topic.fill(), DEPTH);
    // The links have sent one message, and are sending one.
    reader.poll().unwrap().held.release();
    let held = reader.poll().unwrap();
    topic.world.kill(links);
    assert_eq!(topic.fill(), 2);
    topic.world.pass(Duration::from_secs(10));
    assert_eq!(topic.fill(), 0, "nobody sits there");

    let (links, next) = topic.links();
    assert_eq!(next.member.slot, seat.member.slot);
    assert_ne!(next.member.incarnation, seat.member.incarnation);
    let mut reader = topic.world.reader(&links, &next, true, Start::Live);
    // The next links miss no message that was published meanwhile. They also receive again the message that the former links were sending.
    assert_eq!(read(&mut reader), [2, 3, 4, 5]);
    drop(held);
    assert_eq!(topic.fill(), DEPTH);
    assert_eq!(read(&mut reader), [6, 7, 8, 9]);
    topic.world.leave(&links, &next);
    assert_eq!(topic.fill(), 3 * DEPTH);
}

#[test]
fn what_is_read_again_lets_no_cursor_go_back() {
    let mut topic = Topic::new();
    let (links, seat) = topic.links();
    let mut reader = topic.world.reader(&links, &seat, true, Start::Live);
    topic.fill();
    read(&mut reader);
    topic.world.kill(links);
    let (links, next) = topic.links();
    let view = topic.world.topic(&links, &next);
    let cursor = || {
        let slot = view.subscriber(next.member.slot as usize);
        let cursor = slot.cursor(topic.publisher.member.slot as usize);
        cursor.load(rgaps_sync::atomic::Ordering::Acquire)
    };
    let before = cursor();
    let mut reader = topic.world.reader(&links, &next, true, Start::Live);
    for tag in 0..DEPTH {
        assert_eq!(cursor(), before);
        let taken = reader.poll().unwrap();
        assert_eq!(taken.message.tag, tag);
        taken.held.release();
    }
    assert_eq!(cursor(), before);
}

#[test]
fn a_seat_that_nobody_takes_is_taken_away() {
    let mut topic = Topic::new();
    let (links, seat) = topic.links();
    topic.world.reader(&links, &seat, true, Start::Live);
    topic.world.kill(links);
    assert_eq!(topic.fill(), DEPTH);
    topic.world.pass(FOR_GOOD);
    assert_eq!(topic.fill(), 3 * DEPTH);
    assert!(topic.world.info(&topic.a, "t").subscribers.is_empty());
}

#[test]
fn a_seat_outlives_the_daemon() {
    for waits in [Duration::ZERO, Duration::from_secs(3)] {
        let mut topic = Topic::new();
        let (links, seat) = topic.links();
        topic.world.reader(&links, &seat, true, Start::Live);
        assert_eq!(topic.fill(), DEPTH);
        // The links end with the killed daemon.
        topic.world.restart();
        drop(links);
        let zone = topic.publisher.member.zone;
        let all = [(topic.publisher.member, vec![])];
        topic.world.hand_back_all(&mut topic.a, zone, &all);
        topic.world.pass(waits);
        assert_eq!(topic.fill(), 0, "nobody sits there");
        let (links, next) = topic.links();
        assert_eq!(next.member.slot, seat.member.slot);
        let mut reader = topic.world.reader(&links, &next, true, Start::Live);
        assert_eq!(read(&mut reader), [0, 1, 2, 3]);
        assert_eq!(topic.fill(), DEPTH);
        // After the time for empty seats, nothing back-pressures the publisher.
        topic.world.pass(FOR_GOOD);
        assert_eq!(topic.fill(), 0);
        assert_eq!(read(&mut reader), [4, 5, 6, 7]);
    }
}

#[test]
fn others_have_no_seats() {
    let mut topic = Topic::new();
    let mut other = topic.world.client("other");
    let seat = topic.world.join(&mut other, "t", reliable());
    topic.world.reader(&other, &seat, true, Start::Live);
    topic.world.kill(other);
    assert_eq!(topic.fill(), 3 * DEPTH);
}

#[test]
fn best_effort_links_take_the_seat_away() {
    let mut topic = Topic::new();
    let (links, seat) = topic.links();
    topic.world.reader(&links, &seat, true, Start::Live);
    topic.world.kill(links);
    assert_eq!(topic.fill(), DEPTH);
    let mut next = topic.world.client(LINKS_CLIENT);
    topic.world.join(&mut next, "t", best_effort());
    assert_eq!(topic.fill(), 3 * DEPTH);
}

#[test]
fn a_seat_is_taken_away_where_nobody_else_is_in_the_topic() {
    let mut topic = Topic::new();
    let (links, _) = topic.links();
    topic.world.kill(links);
    let Topic {
        mut world,
        a,
        publisher,
        ..
    } = topic;
    world.leave(&a, &publisher);
    let mut next = world.client(LINKS_CLIENT);
    world.join(&mut next, "t", best_effort());
    assert_eq!(world.info(&a, "t").subscribers.len(), 1);
}

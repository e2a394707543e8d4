//! Messages that wait for GPU work, when their publisher leaves or dies.

mod support;

use rgaps_layout::{GRANULE_BYTES, MAX_TIMELINES};
use rgaps_session::{Request, Role};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{progress, timeline, Message, Point, Progress, Reader, Shared, Start, Writer};
use std::time::Duration;
use support::*;

const LATER: Duration = Duration::from_secs(3);

fn publish(writer: &mut Writer<Shared>, offset: u64, tag: u64, point: Point) {
    let loan = writer.loan(offset, 256).unwrap();
    let message = Message {
        offset,
        bytes: 256,
        tag,
        point,
        ..Message::default()
    };
    writer.publish(loan, &message, &mut |_| {}).unwrap();
}

/// The point `count` in the present tenure of a timeline.
fn queue(words: &Shared, index: u32, count: u64) -> Point {
    let view = timeline(words, index).unwrap();
    let tenure = view.value().load(Ordering::Acquire) >> 32;
    Point {
        timeline: index,
        value: tenure << 32 | count,
    }
}

/// Reaches a point, as the owner's GPU work does.
fn reach(words: &Shared, point: Point) {
    let view = timeline(words, point.timeline).unwrap();
    view.value().store(point.value, Ordering::Release);
}

/// Reads and releases all messages. Returns tag and progress of each.
fn read(words: &Shared, reader: &mut Reader<Shared>) -> Vec<(u64, Progress)> {
    let taken = std::iter::from_fn(|| reader.poll()).map(|taken| {
        let found = (taken.message.tag, progress(words, taken.message.point));
        taken.held.release();
        found
    });
    taken.collect()
}

use Progress::{Aborted, Pending, Reached};

#[test]
fn a_dead_publishers_messages_say_what_became_of_them() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let publisher = world.join(&mut a, "t", lasting());
    let subscriber = world.join(&mut b, "t", best_effort());
    let zone = publisher.member.zone;
    let words = b.holds[&zone].words();
    let index = world.take_timeline(&a, zone);
    let mut reader = world.reader(&b, &subscriber, false, Start::Live);
    let mut writer = world.writer(&a, &publisher);
    let range = world.lease(&a, &publisher, 1);
    let points = [1, 2, 3].map(|count| queue(&words, index, count));
    publish(&mut writer, range.offset, 0, Point::NONE);
    for (tag, point) in (1..).zip(points) {
        publish(&mut writer, range.offset + 256 * tag, tag, point);
    }
    reach(&words, points[1]);
    let held = reader.poll().unwrap();
    let second = reader.poll().unwrap();
    let third = reader.poll().unwrap();
    assert_eq!(progress(&words, points[2]), Pending);
    drop(writer);
    world.kill(a);
    // The subscriber holds three messages, and has the last one still to receive.
    let found = [held, second, third].map(|taken| {
        let found = progress(&words, taken.message.point);
        taken.held.release();
        found
    });
    assert_eq!(found, [Reached; 3]);
    assert_eq!(read(&words, &mut reader), [(3, Aborted)]);
    // A later owner of the timeline reaches a higher count, and then loses its GPU context.
    let comes_round = (0..MAX_TIMELINES).any(|_| {
        let timeline = world.take_timeline(&b, zone);
        if timeline != index {
            let request = Request::ReturnTimeline { zone, timeline };
            world.ask(&b, request).unwrap();
        }
        timeline == index
    });
    assert!(comes_round);
    reach(&words, queue(&words, index, 9));
    world.ask(&b, Request::GpuLost { zone }).unwrap();
    let late = world.join(&mut b, "t", late());
    let mut reader = world.reader(&b, &late, false, Start::Kept(9));
    let verdicts = [(0, Reached), (1, Reached), (2, Reached), (3, Aborted)];
    assert_eq!(read(&words, &mut reader), verdicts);
}

#[test]
fn blocks_of_a_dead_publishers_work_come_back() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let publisher = world.join(&mut a, "t", Role::Publisher(offer(1, true, true)));
    let subscriber = world.join(&mut b, "t", best_effort());
    let zone = publisher.member.zone;
    let words = b.holds[&zone].words();
    let index = world.take_timeline(&a, zone);
    let range = world.lease(&a, &publisher, 4);
    let mut writer = world.writer(&a, &publisher);
    let at = |n| range.offset + n * GRANULE_BYTES;
    // A message that is evicted while its work is queued, a dropped loan, and a message in the ring.
    publish(&mut writer, at(0), 0, queue(&words, index, 1));
    let loan = writer.loan(at(1), 256).unwrap();
    writer.abandon(loan, queue(&words, index, 2), &mut |_| {});
    publish(&mut writer, at(2), 2, queue(&words, index, 3));
    let loan = writer.loan(at(3), 256).unwrap();
    assert_eq!(loan.block(), 3, "none of them is free");
    drop(writer);
    world.pass(LATER);
    assert_eq!(world.leased_granules(&b), 4);
    world.kill(a);
    world.pass(LATER);
    assert_eq!(world.leased_granules(&b), 1, "the message that is kept");
    let mut reader = world.reader(&b, &subscriber, false, Start::Kept(9));
    assert_eq!(read(&words, &mut reader), [(2, Aborted)]);
}

#[test]
fn a_publisher_that_left_waits_for_its_living_process() {
    let thens = ["reaches", "dies", "returns", "loses"];
    for (then, restarts) in thens
        .into_iter()
        .flat_map(|then| [(then, false), (then, true)])
    {
        let mut world = World::new();
        let (mut a, mut b) = (world.client("a"), world.client("b"));
        let publisher = world.join(&mut a, "t", lasting());
        let zone = publisher.member.zone;
        let stays = world.join(&mut b, "u", best_effort());
        let words = b.holds[&zone].words();
        let index = world.take_timeline(&a, zone);
        let mut writer = world.writer(&a, &publisher);
        let points = [1, 2].map(|count| queue(&words, index, count));
        publish(&mut writer, 0, 1, points[0]);
        publish(&mut writer, 256, 2, points[1]);
        reach(&words, points[0]);
        world.leave(&a, &publisher);
        if restarts {
            world.restart();
            a.timelines = vec![index];
            world.hand_back_all(&mut a, zone, &[]);
            world.hand_back_all(&mut b, zone, &[(stays.member, vec![])]);
        }
        world.pass(LATER);
        let peek = |world: &mut World, b: &mut Sim| {
            let seat = world.join(b, "t", late());
            let mut reader = world.reader(b, &seat, false, Start::Kept(9));
            let found: Vec<Progress> = read(&words, &mut reader).iter().map(|r| r.1).collect();
            world.leave(b, &seat);
            found
        };
        assert_eq!(peek(&mut world, &mut b), [Reached, Pending], "{then}");
        let second = match then {
            "reaches" => {
                reach(&words, points[1]);
                world.pass(LATER);
                Reached
            }
            "dies" => {
                world.kill(a);
                Aborted
            }
            "returns" => {
                let request = Request::ReturnTimeline {
                    zone,
                    timeline: index,
                };
                world.ask(&a, request).unwrap();
                Aborted
            }
            _ => {
                world.ask(&a, Request::GpuLost { zone }).unwrap();
                Aborted
            }
        };
        // Whatever happens to the timeline afterwards changes nothing.
        for (reached, value) in [(9, 1 << 32), (0, 1 << 32), (77 << 32, 78 << 32)] {
            let view = timeline(&words, index).unwrap();
            view.reached().store(reached, Ordering::Release);
            view.value().store(value, Ordering::Release);
            let found = peek(&mut world, &mut b);
            assert_eq!(found, [Reached, second], "{then} {restarts}");
        }
    }
}

#[test]
fn messages_of_a_living_publisher_outlive_its_timelines() {
    for lost in [false, true] {
        let mut world = World::new();
        let (mut a, mut b) = (world.client("a"), world.client("b"));
        let publisher = world.join(&mut a, "t", lasting());
        let subscriber = world.join(&mut b, "t", late());
        let zone = publisher.member.zone;
        let words = b.holds[&zone].words();
        let [one, other] = [(); 2].map(|()| world.take_timeline(&a, zone));
        let mut writer = world.writer(&a, &publisher);
        let (passed, queued) = (queue(&words, one, 1), queue(&words, other, 1));
        publish(&mut writer, 0, 1, passed);
        publish(&mut writer, 256, 2, queued);
        reach(&words, passed);
        let request = match lost {
            true => Request::GpuLost { zone },
            false => Request::ReturnTimeline {
                zone,
                timeline: one,
            },
        };
        world.ask(&a, request).unwrap();
        let view = timeline(&words, one).unwrap();
        view.reached().store(0, Ordering::Release);
        view.value().store(77 << 32, Ordering::Release);
        let mut reader = world.reader(&b, &subscriber, false, Start::Kept(9));
        let second = [Pending, Aborted][usize::from(lost)];
        assert_eq!(read(&words, &mut reader), [(1, Reached), (2, second)]);
        // The publisher goes on.
        publish(&mut writer, 512, 3, Point::NONE);
        assert_eq!(read(&words, &mut reader), [(3, Reached)]);
    }
}

#[test]
fn who_dies_with_the_daemon_holds_nobody_up() {
    // `b` lives, but does not return for a while.
    let mut world = World::new();
    let (mut a, mut b, mut c) = (world.client("a"), world.client("b"), world.client("c"));
    let publisher = world.join(&mut a, "t", lasting());
    let living = world.join(&mut c, "t", lasting());
    let subscriber = world.join(&mut b, "t", late());
    let zone = publisher.member.zone;
    let words = b.holds[&zone].words();
    let [first, second, idle] = [(); 3].map(|()| world.take_timeline(&a, zone));
    let of_c = world.take_timeline(&c, zone);
    let mut writer = world.writer(&a, &publisher);
    let points = [
        queue(&words, first, 1),
        queue(&words, first, 2),
        queue(&words, second, 1),
        // A false point: the timeline belongs to `c`, which has returned by then.
        queue(&words, of_c, 1),
    ];
    for (tag, point) in (0..).zip(points) {
        publish(&mut writer, 256 * tag, tag, point);
    }
    reach(&words, points[0]);
    let queued = queue(&words, of_c, 5);
    publish(&mut world.writer(&c, &living), 0, 10, queued);
    drop(writer);
    world.restart();
    c.timelines = vec![of_c];
    world.hand_back_all(&mut c, zone, &[(living.member, vec![])]);
    assert_eq!(progress(&words, points[1]), Pending);
    drop(a);
    world.pass(LATER);
    assert_eq!(
        points.map(|p| progress(&words, p)),
        [Reached, Aborted, Aborted, Pending]
    );
    let tenure = |index| {
        timeline(&words, index)
            .unwrap()
            .value()
            .load(Ordering::Acquire)
            >> 32
    };
    assert_eq!(
        [idle, of_c].map(tenure),
        [0, 0],
        "b may have the one, c has the other"
    );
    world.hand_back_all(&mut b, zone, &[(subscriber.member, vec![])]);
    assert_eq!([idle, of_c].map(tenure), [1, 0]);
    let mut reader = world.reader(&b, &subscriber, false, Start::Kept(9));
    let mut found = read(&words, &mut reader);
    found.sort_by_key(|(tag, _)| *tag);
    let expected = [Reached, Aborted, Aborted, Pending, Pending];
    assert_eq!(found.iter().map(|f| f.1).collect::<Vec<_>>(), expected);
    world.kill(c);
    assert_eq!(progress(&words, queued), Aborted);
}

#[test]
fn a_successor_comes_to_the_same_verdicts() {
    // As if the daemon had been killed after `done` steps of cleaning up after a publisher: the next daemon finds the words that these
    // steps wrote.
    for done in 0..4 {
        let mut world = World::new();
        let (mut a, mut b) = (world.client("a"), world.client("b"));
        let publisher = world.join(&mut a, "t", lasting());
        let subscriber = world.join(&mut b, "t", late());
        let zone = publisher.member.zone;
        let words = b.holds[&zone].words();
        let index = world.take_timeline(&a, zone);
        let mut writer = world.writer(&a, &publisher);
        let points = [1, 2].map(|count| queue(&words, index, count));
        publish(&mut writer, 0, 1, points[0]);
        publish(&mut writer, 256, 2, points[1]);
        reach(&words, points[0]);
        drop(writer);
        let view = timeline(&words, index).unwrap();
        let value = view.value().load(Ordering::Acquire);
        if done > 0 {
            view.reached().store(value, Ordering::Release);
        }
        if done > 1 {
            let next = ((value >> 32) + 1) << 32;
            view.value().store(next, Ordering::Release);
        }
        if done > 2 {
            // One more daemon starts and is killed in between.
            world.restart();
            world.hand_back_all(&mut b, zone, &[(subscriber.member, vec![])]);
        }
        world.restart();
        drop(a);
        world.hand_back_all(&mut b, zone, &[(subscriber.member, vec![])]);
        world.pass(LATER);
        let mut reader = world.reader(&b, &subscriber, false, Start::Kept(9));
        let found = read(&words, &mut reader);
        assert_eq!(found, [(1, Reached), (2, Aborted)], "{done} steps");
        // A subscriber that holds the messages does not read the descriptor again, only the timeline.
        assert_eq!(points.map(|p| progress(&words, p)), [Reached, Aborted]);
    }
}

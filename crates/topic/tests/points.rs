//! The outcomes of points that the daemon writes into descriptors.
#![cfg(not(loom))]

mod fixture;

use fixture::Fixture;
use rgaps_layout::{PublisherRegion, POINT_ABORTED, POINT_NONE};
use rgaps_topic::{
    abandon, bytes_there, progress, queued_points, ring_range, settle_points, timeline, Message,
    Point, Progress, Start,
};
use std::sync::atomic::Ordering::SeqCst;

const SMALL: PublisherRegion = PublisherRegion {
    ring_capacity: 8,
    block_capacity: 64,
};
const ABORTED: Point = Point {
    timeline: 0,
    value: POINT_ABORTED,
};

fn point(tenure: u64, count: u64) -> Point {
    Point {
        timeline: 5,
        value: tenure << 32 | count,
    }
}

/// A publisher whose ring holds messages with these points.
fn published(points: &[Point]) -> (Fixture, rgaps_topic::Writer<rgaps_topic::Shared>) {
    let fixture = Fixture::with_geometry(SMALL);
    let mut writer = fixture.writer(0, 7);
    for point in points {
        let loan = writer.loan(0, 256).unwrap();
        let message = Message {
            point: *point,
            ..Message::default()
        };
        writer.publish(loan, &message, &mut |_| {}).unwrap();
    }
    (fixture, writer)
}

fn set(fixture: &Fixture, value: u64, reached: u64) {
    let view = timeline(&fixture.shared, 5).unwrap();
    view.reached().store(reached, SeqCst);
    view.value().store(value, SeqCst);
}

fn settle(fixture: &Fixture, owned: bool) -> u64 {
    let (slot, region) = (fixture.topic.publisher(0), fixture.region(0));
    let range = ring_range(&slot, &region);
    settle_points(&region, fixture.incarnation(0), range, |_| owned)
}

#[test]
fn a_verdict_is_what_the_point_has_come_to() {
    let word = |tenure: u64, count: u64| tenure << 32 | count;
    // The timeline's value and reached point, whether it has an owner, and the outcome of the point (2, 3). None: pending.
    let cases = [
        (word(2, 2), word(1, 9), true, None),
        (word(2, 2), word(1, 9), false, Some(POINT_ABORTED)),
        (word(2, 3), word(1, 9), true, Some(POINT_NONE)),
        (word(2, 4), word(1, 9), false, Some(POINT_NONE)),
        (word(3, 0), word(2, 2), true, Some(POINT_ABORTED)),
        (word(3, 0), word(2, 3), true, Some(POINT_NONE)),
        (word(3, 7), word(2, 3), true, Some(POINT_NONE)),
        (word(3, 7), word(2, 2), true, Some(POINT_ABORTED)),
        // Tenure 3 passed meanwhile: no point of it was reached, or some were.
        (word(4, 0), word(2, 3), false, Some(POINT_NONE)),
        (word(4, 0), word(3, 9), true, Some(POINT_ABORTED)),
        // A lie: the point belongs to a tenure that has not begun.
        (word(1, 9), word(0, 1), true, Some(POINT_ABORTED)),
    ];
    for (value, reached, owned, verdict) in cases {
        let (fixture, _writer) = published(&[point(2, 3)]);
        set(&fixture, value, reached);
        let before = progress(&fixture.shared, point(2, 3));
        assert_eq!(settle(&fixture, owned), u64::from(verdict.is_none()));
        let found = fixture.descriptor(0, 0).point().load(SeqCst);
        assert_eq!(
            found,
            verdict.unwrap_or(word(2, 3)),
            "{value:#x} {reached:#x} {owned}"
        );
        // The reader learns the same from the descriptor as it would have from the timeline.
        let mut reader = fixture.reader(0, false, Start::Kept(9));
        let taken = reader.poll().unwrap();
        let after = progress(&fixture.shared, taken.message.point);
        match verdict {
            Some(POINT_NONE) => assert_eq!([before, after], [Progress::Reached; 2]),
            Some(_) => assert!(before != Progress::Reached && after == Progress::Aborted),
            None => assert_eq!((before, after), (Progress::Pending, Progress::Pending)),
        }
        taken.held.release();
        // The outcome stays, whoever owns the timeline next. A pending point is aborted.
        set(&fixture, word(9, 1), word(8, 1));
        settle(&fixture, false);
        let found = fixture.descriptor(0, 0).point().load(SeqCst);
        assert_eq!(found, verdict.unwrap_or(POINT_ABORTED));
    }
}

#[test]
fn each_message_has_its_own_verdict() {
    let elsewhere = |timeline| Point { timeline, value: 1 };
    let points = [
        point(0, 1),
        Point::NONE,
        point(0, 2),
        point(0, 3),
        elsewhere(0),
        elsewhere(u32::MAX),
    ];
    let (fixture, mut writer) = published(&points);
    set(&fixture, 2, 0);
    assert_eq!(settle(&fixture, true), 1);
    let find = |sequence| fixture.descriptor(0, sequence).point().load(SeqCst);
    let none = POINT_NONE;
    let gone = POINT_ABORTED;
    assert_eq!([0, 2, 3, 4, 5].map(find), [none, none, 3, gone, gone]);
    // The publisher goes round the ring. Settling leaves its new, pending points.
    for count in 4..8 {
        let loan = writer.loan(0, 256).unwrap();
        let message = Message {
            point: point(0, count),
            ..Message::default()
        };
        writer.publish(loan, &message, &mut |_| {}).unwrap();
    }
    assert_eq!(settle(&fixture, true), 5);
    assert_eq!([8, 9].map(find), [6, 7]);
    // The publisher dies with its work, so all pending points are aborted.
    abandon(
        &fixture.topic.publisher(0),
        &fixture.region(0),
        fixture.incarnation(0),
        0,
    );
    assert_eq!(settle(&fixture, false), 0);
    assert_eq!([3, 6, 7, 8, 9].map(find), [gone; 5]);
    let region = fixture.region(0);
    let all = 0..10;
    assert_eq!(
        queued_points(&region, fixture.incarnation(0), all).count(),
        0
    );
}

#[test]
fn only_what_the_publisher_announced_is_looked_at() {
    let (fixture, writer) = published(&[point(0, 1), point(0, 2)]);
    drop(writer);
    let (slot, region) = (fixture.topic.publisher(0), fixture.region(0));
    let other = fixture.incarnation(0) + 1;
    assert_eq!(queued_points(&region, other, 0..8).count(), 0);
    // The publisher died after it had announced its message and before it advanced `head`.
    slot.head().store(1, SeqCst);
    assert_eq!(settle(&fixture, true), 2);
    for (head, tail) in [
        (u64::MAX, 0),
        (0, u64::MAX),
        (u64::MAX, u64::MAX),
        (1 << 61, 7),
    ] {
        slot.head().store(head, SeqCst);
        slot.tail().store(tail, SeqCst);
        let range = ring_range(&slot, &region);
        assert!(range.end - range.start <= 8, "{range:?}");
        settle(&fixture, false);
    }
    assert_eq!(progress(&fixture.shared, ABORTED), Progress::Aborted);
}

#[test]
fn parts_of_a_copy_are_there_one_after_the_other_and_an_entry_may_lie() {
    let (fixture, _writer) = published(&[]);
    let word = |tenure: u64, count: u64| tenure << 32 | count;
    // 10 bytes in parts of 4: at 5, 6 and 7.
    let there = |parts, known| bytes_there(&fixture.shared, point(2, 7), parts, known);
    for (count, bytes) in [(0, 0), (4, 0), (5, 4), (6, 8), (7, 10), (9, 10)] {
        set(&fixture, word(2, count), 0);
        assert_eq!(there((10, 4), 0), Ok(bytes), "at {count}");
        assert_eq!(there((10, 4), 4), Ok(bytes.max(4)), "known, at {count}");
        // A copy in one part, in more parts than allowed, or in more than the timeline has counted, is there only as a whole.
        let whole = if count >= 7 { 10 } else { 0 };
        for part_bytes in [0, 10, 11, u64::MAX] {
            assert_eq!(there((10, part_bytes), 0), Ok(whole));
        }
        assert_eq!(there((1000, 4), 0).unwrap() == 1000, count >= 7);
        assert_eq!(there((33, 1), 0).unwrap() == 33, count >= 7);
        assert_eq!(there((8, 1), 0).unwrap() == 8, count >= 7);
    }
    // The tenure has ended after the last part, and then before it.
    set(&fixture, word(3, 0), word(2, 7));
    assert_eq!(there((10, 4), 0), Ok(10));
    set(&fixture, word(3, 0), word(2, 6));
    assert_eq!(there((10, 4), 8), Err(Progress::Aborted));
    let none = bytes_there(&fixture.shared, Point::NONE, (10, 4), 0);
    assert_eq!(none, Ok(10));
    assert!(bytes_there(&fixture.shared, ABORTED, (10, 4), 0).is_err());
}

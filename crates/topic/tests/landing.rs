//! History that arrives from another host after subscribers have joined. It *lands* until the links call `end_history`.
#![cfg(not(loom))]

mod fixture;

use fixture::Fixture;
use proptest::prelude::*;
use rgaps_layout::{PublisherRegion, HISTORY_LANDING, PUBLISHER_ORPHAN};
use rgaps_topic::{Message, Reader, Shared, Start, Writer};
use std::sync::atomic::Ordering::SeqCst;

const DEPTH: u32 = 7;
const GEOMETRY: PublisherRegion = PublisherRegion {
    ring_capacity: 8,
    block_capacity: 64,
};

fn fixture() -> Fixture {
    Fixture::with_geometry(GEOMETRY)
}

/// Publishes a message whose tag and publish time are `ns`.
fn publish(writer: &mut Writer<Shared>, ns: u64) {
    writer.collect_returned(&mut |_| ());
    let loan = writer.loan(0, 1).unwrap();
    let message = Message {
        tag: ns,
        publish_ns: ns,
        ..Message::default()
    };
    writer.publish(loan, &message, &mut |_| ()).unwrap();
}

fn publish_all(writer: &mut Writer<Shared>, times: impl IntoIterator<Item = u64>) {
    times.into_iter().for_each(|ns| publish(writer, ns));
}

fn read(reader: &mut Reader<Shared>) -> Vec<u64> {
    std::iter::from_fn(|| {
        let ready = reader.is_ready();
        let taken = reader.poll();
        assert_eq!(ready, taken.is_some());
        let taken = taken?;
        taken.held.release();
        Some(taken.message.tag)
    })
    .collect()
}

#[test]
fn who_joins_before_the_history_lands_gets_the_newest_of_it_and_then_what_is_live() {
    for (n, expected) in [(1, 5..8), (3, 3..8), (u64::MAX, 1..8), (0, 6..8)] {
        for reliable in [false, true] {
            let fixture = fixture();
            let mut reader = fixture.reader(0, reliable, Start::Kept(n));
            let mut writer = fixture.landing_writer(2, DEPTH);
            for ns in 1..=5 {
                publish(&mut writer, ns);
                assert_eq!(read(&mut reader), [], "not all of the history is there");
            }
            writer.end_history();
            publish_all(&mut writer, 6..8);
            assert_eq!(read(&mut reader), expected.clone().collect::<Vec<_>>());
            assert_eq!(reader.missed(), 0);
        }
    }
}

#[test]
fn who_joins_while_the_history_lands_gets_the_newest_of_it_too() {
    for (n, expected) in [(1, 5..8), (3, 3..8), (u64::MAX, 1..8)] {
        let fixture = fixture();
        let mut writer = fixture.landing_writer(2, DEPTH);
        publish_all(&mut writer, 1..3);
        let mut reader = fixture.reader(0, true, Start::Kept(n));
        assert_eq!(read(&mut reader), []);
        publish_all(&mut writer, 3..6);
        writer.end_history();
        publish_all(&mut writer, 6..8);
        assert_eq!(read(&mut reader), expected.clone().collect::<Vec<_>>());
        // A subscriber that joins after the history has landed finds it complete.
        let mut later = fixture.reader(1, true, Start::Kept(n));
        let begin = 8 - n.min(7);
        assert_eq!(read(&mut later), (begin..8).collect::<Vec<_>>());
    }
}

#[test]
fn history_that_has_landed_before_the_first_look_is_history_still() {
    for (start, expected) in [(Start::Kept(1), 5..7), (Start::Live, 6..7)] {
        let fixture = fixture();
        let mut reader = fixture.reader(0, true, start);
        let mut writer = fixture.landing_writer(2, DEPTH);
        publish_all(&mut writer, 1..6);
        writer.end_history();
        publish(&mut writer, 6);
        assert_eq!(read(&mut reader), expected.collect::<Vec<_>>());
    }
}

#[test]
fn the_histories_of_two_publishers_are_merged_when_both_have_landed() {
    let fixture = fixture();
    let mut reader = fixture.reader(0, true, Start::Kept(3));
    let mut first = fixture.landing_writer(1, DEPTH);
    publish_all(&mut first, [10, 30, 50]);
    first.end_history();
    // The reader learns of the second publisher only when the first one's history has landed.
    let mut second = fixture.landing_writer(0, DEPTH);
    assert_eq!(read(&mut reader), []);
    publish_all(&mut first, [60]);
    publish_all(&mut second, [20, 40]);
    assert_eq!(read(&mut reader), []);
    second.end_history();
    publish_all(&mut second, [70]);
    let read = read(&mut reader);
    assert_eq!(read[..3], [30, 40, 50]);
    let mut live = read[3..].to_vec();
    live.sort_unstable();
    assert_eq!(live, [60, 70]);
}

#[test]
fn a_subscriber_that_wants_no_history_passes_it_over_and_waits_for_no_other_publisher() {
    let fixture = fixture();
    let mut local = fixture.writer(0, DEPTH);
    publish(&mut local, 1);
    let mut readers = [false, true].map(|reliable| {
        let index = u32::from(reliable);
        fixture.reader(index, reliable, Start::Live)
    });
    let mut writer = fixture.landing_writer(2, DEPTH);
    publish_all(&mut writer, 10..13);
    publish(&mut local, 2);
    for reader in &mut readers {
        assert_eq!(read(reader), [2]);
    }
    publish_all(&mut writer, 13..15);
    writer.end_history();
    for reader in &mut readers {
        assert_eq!(read(reader), []);
    }
    publish_all(&mut writer, 15..17);
    for reader in &mut readers {
        assert_eq!((read(reader), reader.missed()), (vec![15, 16], 0));
    }
}

#[test]
fn history_that_nobody_asks_for_until_late_is_passed_over_by_live_subscribers_still() {
    let fixture = fixture();
    let mut reader = fixture.reader(0, true, Start::Live);
    let mut writer = fixture.landing_writer(2, DEPTH);
    reader.set_history_stall(0);
    assert_eq!(read(&mut reader), []);
    publish_all(&mut writer, 1..4);
    assert_eq!(read(&mut reader), []);
    writer.end_history();
    publish(&mut writer, 4);
    assert_eq!(read(&mut reader), [4]);
}

#[test]
fn a_local_publisher_without_history_goes_on_while_other_history_lands() {
    let fixture = fixture();
    let mut writer = fixture.landing_writer(2, DEPTH);
    let mut before = fixture.writer(3, DEPTH);
    publish_all(&mut before, [3]);
    let mut reader = fixture.reader(0, true, Start::Kept(2));
    let mut local = fixture.writer(0, DEPTH);
    publish_all(&mut writer, [1, 2]);
    publish(&mut local, 100);
    assert_eq!(read(&mut reader), [100]);
    // The history of `before` waits to be merged, and its live messages come after that.
    publish(&mut before, 101);
    assert_eq!(read(&mut reader), []);
    publish_all(&mut writer, [4]);
    writer.end_history();
    assert_eq!(read(&mut reader), [3, 4, 101]);
}

#[test]
fn history_that_lands_later_counts_with_what_was_given_before() {
    for (n, first, then) in [
        (1, vec![30], vec![35]),
        (3, vec![10, 20, 30], vec![25, 35]),
        (5, vec![10, 20, 30], vec![15, 25, 35]),
        (u64::MAX, vec![10, 20, 30], vec![5, 15, 25, 35]),
    ] {
        let fixture = fixture();
        let mut local = fixture.writer(1, 3);
        publish_all(&mut local, [10, 20, 30]);
        let mut reader = fixture.reader(0, false, Start::Kept(n));
        assert_eq!(read(&mut reader), first);
        // The history that the reader received leaves the ring.
        publish_all(&mut local, [100, 101, 102]);
        assert_eq!(read(&mut reader), [100, 101, 102]);
        let mut writer = fixture.landing_writer(2, DEPTH);
        publish_all(&mut writer, [5, 15, 25, 35]);
        writer.end_history();
        publish(&mut writer, 103);
        assert_eq!(read(&mut reader), [then, vec![103]].concat(), "{n}");
    }
}

#[test]
fn an_old_latest_value_of_another_host_does_not_follow_a_newer_one() {
    let fixture = fixture();
    publish(&mut fixture.writer(1, DEPTH), 9);
    let mut reader = fixture.reader(0, true, Start::Kept(1));
    assert_eq!(read(&mut reader), [9]);
    let mut writer = fixture.landing_writer(2, DEPTH);
    publish_all(&mut writer, 1..6);
    writer.end_history();
    assert_eq!((read(&mut reader), reader.missed()), (vec![], 0));
}

#[test]
fn a_publisher_that_ends_while_its_history_lands_leaves_what_has_landed() {
    for start in [Start::Kept(2), Start::Live] {
        let fixture = fixture();
        let mut reader = fixture.reader(0, true, start);
        let mut writer = fixture.landing_writer(2, DEPTH);
        publish_all(&mut writer, 1..4);
        assert_eq!(read(&mut reader), []);
        let slot = fixture.topic.publisher(2);
        slot.state().store(PUBLISHER_ORPHAN, SeqCst);
        fixture.bump_epoch();
        let expected = if start == Start::Live {
            vec![]
        } else {
            vec![2, 3]
        };
        assert_eq!(read(&mut reader), expected);
        // A subscriber that joins later reads it like any other orphan.
        let mut later = fixture.reader(1, true, Start::Kept(2));
        assert_eq!(read(&mut later), [2, 3]);
    }
}

#[test]
fn a_publisher_that_is_gone_while_its_history_lands_keeps_nobody_waiting() {
    let fixture = fixture();
    publish(&mut fixture.writer(0, DEPTH), 7);
    let mut writer = fixture.landing_writer(2, DEPTH);
    publish(&mut writer, 8);
    let mut reader = fixture.reader(0, true, Start::Kept(1));
    assert_eq!(read(&mut reader), []);
    fixture.topic.publishers().fetch_and(!(1 << 2), SeqCst);
    fixture.bump_epoch();
    assert_eq!(read(&mut reader), [7]);
}

#[test]
fn history_that_comes_to_a_standstill_is_waited_for_no_longer() {
    let fixture = fixture();
    let mut writer = fixture.landing_writer(2, DEPTH);
    let mut reader = fixture.reader(0, true, Start::Kept(2));
    publish_all(&mut writer, 1..4);
    assert_eq!(read(&mut reader), []);
    reader.set_history_stall(0);
    assert_eq!(read(&mut reader), [2, 3]);
    // This reader treats the rest as live messages.
    publish_all(&mut writer, 4..6);
    writer.end_history();
    publish(&mut writer, 6);
    assert_eq!(read(&mut reader), [4, 5, 6]);
}

#[test]
fn a_publisher_that_lies_about_its_history_keeps_that_of_others_from_nobody() {
    for end in [1, 1 << 40, u64::MAX - 1, HISTORY_LANDING] {
        let fixture = fixture();
        let mut local = fixture.writer(1, DEPTH);
        publish_all(&mut local, [1, 2]);
        let mut liar = fixture.landing_writer(2, DEPTH);
        let mut late = fixture.reader(0, true, Start::Kept(2));
        let mut live = fixture.reader(1, true, Start::Live);
        publish_all(&mut liar, [3, 4]);
        let word = fixture.topic.publisher(2);
        word.history_end().store(end, SeqCst);
        late.set_history_stall(0);
        live.set_history_stall(0);
        let honest = |tags: Vec<u64>| tags.into_iter().filter(|tag| ![3, 4].contains(tag));
        assert!(honest(read(&mut late)).all(|tag| [1, 2].contains(&tag)));
        publish(&mut local, 5);
        for reader in [&mut late, &mut live] {
            assert_eq!(honest(read(reader)).next_back(), Some(5), "{end}");
        }
    }
}

#[test]
fn a_queue_of_one_does_not_count_history_that_it_did_not_ask_for_as_missed() {
    let fixture = fixture();
    fixture.topic.subscriber(0).depth().store(1, SeqCst);
    let mut reader = fixture.reader(0, true, Start::Kept(1));
    let mut writer = fixture.landing_writer(2, DEPTH);
    publish_all(&mut writer, 1..6);
    assert_eq!(read(&mut reader), []);
    writer.end_history();
    assert_eq!((read(&mut reader), reader.missed()), (vec![5], 0));
    publish_all(&mut writer, 6..8);
    assert_eq!((read(&mut reader), reader.missed()), (vec![7], 1));
}

#[test]
fn links_take_history_as_it_lands() {
    for start in [Start::Live, Start::Kept(u64::MAX)] {
        let fixture = fixture();
        fixture.admit(0, start);
        let mut reader = Reader::of_links(fixture.topic.clone(), 0, true, start).unwrap();
        let mut writer = fixture.landing_writer(2, DEPTH);
        publish_all(&mut writer, 1..3);
        assert_eq!(read(&mut reader), [1, 2]);
        writer.end_history();
        publish(&mut writer, 3);
        assert_eq!(read(&mut reader), [3]);
        assert_eq!(reader.histories(), [(fixture.incarnation(2), 3)]);
    }
}

#[test]
fn what_a_former_subscriber_of_the_seat_had_not_taken_is_no_history() {
    let fixture = fixture();
    let mut writer = fixture.writer(0, DEPTH);
    publish_all(&mut writer, 1..6);
    fixture.admit(0, Start::Live);
    let slot = fixture.topic.subscriber(0);
    slot.resumes().store(1, SeqCst);
    slot.cursor(0).store(3, SeqCst);
    let mut reader =
        Reader::of_links(fixture.topic.clone(), 0, true, Start::Kept(u64::MAX)).unwrap();
    assert_eq!(reader.histories(), [(fixture.incarnation(0), 3)]);
    assert_eq!(read(&mut reader), [1, 2, 3, 4, 5]);
    assert_eq!(reader.histories(), [(fixture.incarnation(0), 5)]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// Several histories land in random order, and the reader polls at random times.
    #[test]
    fn the_newest_n_of_all_histories_that_land_together_come_once_and_in_order(
        counts in prop::collection::vec(0u64..=7, 1..6),
        steps in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..80),
        n in prop_oneof![0u64..12, Just(u64::MAX)],
        reliable: bool,
    ) {
        let fixture = fixture();
        let mut reader = fixture.reader(0, reliable, Start::Kept(n));
        let publishers = counts.len() as u64;
        let mut writers: Vec<_> = (0..counts.len() as u32)
            .map(|index| fixture.landing_writer(index, DEPTH))
            .collect();
        let mut published = vec![0; counts.len()];
        let mut got = Vec::new();
        // Message k of publisher p has the time k * publishers + p, so the histories interleave.
        let step = |at: usize, writers: &mut Vec<Writer<Shared>>, published: &mut Vec<u64>| {
            if published[at] < counts[at] {
                publish(&mut writers[at], published[at] * publishers + at as u64);
                published[at] += 1;
            } else {
                writers[at].end_history();
            }
        };
        for (index, looks) in steps {
            step(index.index(counts.len()), &mut writers, &mut published);
            if looks {
                got.extend(read(&mut reader));
            }
        }
        for (at, count) in counts.iter().enumerate() {
            for _ in 0..=*count {
                step(at, &mut writers, &mut published);
            }
        }
        got.extend(read(&mut reader));
        let all = (0..counts.len())
            .flat_map(|at| (0..counts[at]).map(move |k| k * publishers + at as u64));
        let mut all: Vec<u64> = all.collect();
        all.sort_unstable();
        let expected = all.split_off(all.len().saturating_sub(n.min(100) as usize));
        prop_assert_eq!(got, expected);
        prop_assert_eq!(reader.missed(), 0);
    }
}

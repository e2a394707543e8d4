//! A publisher that drops slow reliable readers: it stops waiting for them until they have caught up.
#![cfg(not(loom))]

mod fixture;

use fixture::Fixture;
use proptest::prelude::*;
use rgaps_topic::{Message, Reader, Shared, Start, Writer};
use std::sync::atomic::Ordering::SeqCst;

fn publish(writer: &mut Writer<Shared>, tag: u64) {
    writer.collect_returned(&mut |_| ());
    let loan = writer.loan(0, 256).unwrap();
    let message = Message {
        bytes: 1,
        tag,
        ..Message::default()
    };
    writer.publish(loan, &message, &mut |_| ()).unwrap();
}

/// Receives the next message. Returns its number, and how many messages were missed before it.
fn read(reader: &mut Reader<Shared>) -> Option<(u64, u64)> {
    let taken = reader.poll()?;
    let said = (taken.message.tag, taken.missed);
    taken.held.release();
    Some(said)
}

#[test]
fn a_slow_reader_that_is_dropped_learns_what_it_missed_and_is_waited_for_when_it_has_caught_up() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(0, 4);
    let mut slow = fixture.reader(0, true, Start::Live);
    let mut quick = fixture.reader(1, true, Start::Live);
    let shown = fixture.topic.publisher(0);
    for tag in 0..4 {
        publish(&mut writer, tag);
        assert_eq!(read(&mut quick), Some((tag, 0)));
    }
    assert!(!writer.has_room(1));
    assert_eq!(writer.held_back_by(1), 1);
    writer.drop_slow(1);
    assert_eq!(
        (shown.dropped().load(SeqCst), shown.drops().load(SeqCst)),
        (1, 1)
    );
    for tag in 4..10 {
        assert!(writer.has_room(1), "{tag}");
        publish(&mut writer, tag);
        assert_eq!(read(&mut quick), Some((tag, 0)));
    }
    // The slow reader has read some messages, but not all: the publisher still does not wait for it.
    assert_eq!(read(&mut slow), Some((6, 6)));
    assert!(writer.has_room(1));
    for tag in 7..10 {
        assert_eq!(read(&mut slow), Some((tag, 0)));
    }
    for tag in 10..14 {
        assert!(writer.has_room(1), "{tag}");
        publish(&mut writer, tag);
        assert_eq!(read(&mut quick), Some((tag, 0)));
    }
    assert_eq!(
        (shown.dropped().load(SeqCst), shown.drops().load(SeqCst)),
        (0, 1)
    );
    assert!(!writer.has_room(1), "it is reliable again");
    assert_eq!((slow.missed(), quick.missed()), (6, 0));
}

#[test]
fn another_reader_in_the_slot_of_one_that_was_dropped_is_waited_for() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(0, 4);
    let gone = fixture.reader(0, true, Start::Live);
    (0..4).for_each(|tag| publish(&mut writer, tag));
    assert!(!writer.has_room(1));
    writer.drop_slow(1);
    assert!(writer.has_room(1));
    drop(gone);
    let mut next = fixture.reader(0, true, Start::Live);
    fixture.topic.subscriber(0).incarnation().store(2, SeqCst);
    for tag in 4..8 {
        assert!(writer.has_room(1), "{tag}");
        publish(&mut writer, tag);
    }
    assert!(!writer.has_room(1));
    assert_eq!(read(&mut next), Some((4, 0)));
    assert!(writer.has_room(1));
}

#[test]
fn a_publisher_that_dropped_its_only_reliable_reader_waits_for_it_again() {
    // A publisher that waits for nobody caches that nothing holds it back. The cache must end when the reader has caught up.
    let fixture = Fixture::new(2, 4);
    let mut writer = fixture.writer(0, 2);
    let mut reader = fixture.reader(0, true, Start::Live);
    (0..2).for_each(|tag| publish(&mut writer, tag));
    assert!(!writer.has_room(1));
    writer.drop_slow(1);
    assert!(writer.has_room(1));
    while read(&mut reader).is_some() {}
    for tag in 2..4 {
        assert!(writer.has_room(1));
        publish(&mut writer, tag);
    }
    assert!(!writer.has_room(1));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// A reader misses messages only while it is dropped, and counts each missed message once.
    #[test]
    fn readers_lose_only_what_they_are_told(
        keeps in 1u32..8,
        steps in prop::collection::vec((0usize..3, 1u64..12), 1..80),
    ) {
        let fixture = Fixture::new(8, 4);
        let mut writer = fixture.writer(0, keeps);
        let mut readers = [0, 1].map(|slot| fixture.reader(slot, true, Start::Live));
        let mut expected = [0u64; 2];
        // Whether the publisher has dropped the reader since it last had read everything.
        let mut was_dropped = [false; 2];
        let mut head = 0;
        for (who, count) in steps {
            for _ in 0..count {
                if who == 2 {
                    if !writer.has_room(1) {
                        let slow = writer.held_back_by(1);
                        writer.drop_slow(1);
                        for (slot, was) in was_dropped.iter_mut().enumerate() {
                            *was |= slow >> slot & 1 != 0;
                        }
                        prop_assert!(writer.has_room(1));
                    }
                    publish(&mut writer, head);
                    head += 1;
                } else if let Some((tag, missed)) = read(&mut readers[who]) {
                    prop_assert_eq!(tag, expected[who] + missed);
                    prop_assert!(missed == 0 || was_dropped[who]);
                    expected[who] = tag + 1;
                } else {
                    prop_assert_eq!(expected[who], head);
                }
                if who < 2 && expected[who] == head {
                    was_dropped[who] = false;
                }
            }
        }
    }
}

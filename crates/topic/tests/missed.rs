//! Each subscriber counts exactly the messages that never reached this host, whichever messages it skips itself.
#![cfg(not(loom))]

mod fixture;

use fixture::Fixture;
use proptest::prelude::*;
use rgaps_topic::{evict_through, Message, Reader, Shared, Start, Writer};
use std::sync::atomic::Ordering::SeqCst;

/// A publisher of another host, as the links publish it here. A message's tag is its number on that host.
struct Crossing {
    writer: Writer<Shared>,
    next: u64,
    missed: u64,
}

impl Crossing {
    fn new(fixture: &Fixture, index: u32, keeps: u32) -> Crossing {
        Crossing {
            writer: fixture.writer(index, keeps),
            next: 0,
            missed: 0,
        }
    }

    /// Publishes one message. The `gap` messages before it never arrived.
    fn arrives_after(&mut self, gap: u64) {
        self.next += gap;
        self.missed += gap;
        self.publish(self.missed);
    }

    fn publish(&mut self, missed_so_far: u64) {
        self.writer.collect_returned(&mut |_| ());
        let loan = self.writer.loan(0, 256).unwrap();
        let message = Message {
            bytes: 1,
            publish_ns: self.next,
            tag: self.next,
            missed_so_far,
            ..Message::default()
        };
        self.writer.publish(loan, &message, &mut |_| ()).unwrap();
        self.next += 1;
    }
}

/// Receives the next message. Returns its number, and how many messages were missed before it.
fn read(reader: &mut Reader<Shared>) -> Option<(u64, u64)> {
    let taken = reader.poll()?;
    let said = (taken.message.tag, taken.missed);
    taken.held.release();
    Some(said)
}

fn with_depth(fixture: &Fixture, depth: u32, start: Start) -> Reader<Shared> {
    fixture.topic.subscriber(0).depth().store(depth, SeqCst);
    fixture.reader(0, false, start)
}

#[test]
fn a_reader_that_skips_the_message_after_the_gap_counts_the_gap() {
    // The reader skips messages because the publisher overran it, or because of its own depth.
    for (keeps, depth) in [(2, 0), (16, 2)] {
        let fixture = Fixture::new(16, 4);
        let mut reader = with_depth(&fixture, depth, Start::Live);
        let mut publisher = Crossing::new(&fixture, 0, keeps);
        publisher.arrives_after(0);
        assert_eq!(read(&mut reader), Some((0, 0)));
        for gap in [7, 0, 5, 0, 0, 0] {
            publisher.arrives_after(gap);
        }
        assert_eq!(read(&mut reader), Some((17, 16)), "keeps {keeps}");
        assert_eq!(read(&mut reader), Some((18, 0)));
        assert_eq!((read(&mut reader), reader.missed()), (None, 16));
    }
}

#[test]
fn a_reader_that_skips_the_first_message_of_a_publisher_counts_the_gap_before_it() {
    let fixture = Fixture::new(16, 4);
    let mut reader = fixture.reader(0, false, Start::Live);
    // The links have restarted, and continue the remote publisher with a new local one.
    let mut publisher = Crossing::new(&fixture, 3, 2);
    for gap in [50, 0, 0] {
        publisher.arrives_after(gap);
    }
    assert_eq!(read(&mut reader), Some((51, 51)));
}

#[test]
fn a_reader_that_joins_counts_the_gaps_from_there_on() {
    let fixture = Fixture::new(16, 4);
    let mut publisher = Crossing::new(&fixture, 0, 2);
    for gap in [3, 0, 9] {
        publisher.arrives_after(gap);
    }
    let mut reader = fixture.reader(0, false, Start::Live);
    for gap in [4, 0, 1, 0] {
        publisher.arrives_after(gap);
    }
    // The reader joined behind message 14.
    assert_eq!(read(&mut reader), Some((22, 7)));
    assert_eq!(read(&mut reader), Some((23, 0)));
    assert_eq!(reader.missed(), 7);
}

#[test]
fn a_late_joiner_counts_the_gaps_in_the_history_that_it_reads_and_no_older_ones() {
    for (wants, history) in [
        (u64::MAX, vec![(14, 0), (17, 2), (18, 0)]),
        (2, vec![(17, 2), (18, 0)]),
    ] {
        let fixture = Fixture::new(4, 4);
        let mut publisher = Crossing::new(&fixture, 0, 3);
        for gap in [1, 0, 9, 0, 0, 2, 0] {
            publisher.arrives_after(gap);
        }
        let mut reader = fixture.reader(0, false, Start::Kept(wants));
        for message in history {
            assert_eq!(read(&mut reader), Some(message));
        }
        publisher.arrives_after(1);
        assert_eq!(read(&mut reader), Some((20, 1)));
    }
}

#[test]
fn history_that_is_pushed_out_before_a_late_joiner_reads_it_is_no_loss_nor_are_its_gaps() {
    let fixture = Fixture::new(3, 4);
    let mut publisher = Crossing::new(&fixture, 0, 3);
    for gap in [0, 5, 0] {
        publisher.arrives_after(gap);
    }
    let mut reader = fixture.reader(0, true, Start::Kept(u64::MAX));
    // The publisher does not count the reader as reliable, as if it had not seen it yet.
    fixture.topic.reliable().store(0, SeqCst);
    publisher.arrives_after(0);
    publisher.arrives_after(2);
    assert_eq!(read(&mut reader), Some((7, 0)));
    assert_eq!(read(&mut reader), Some((8, 0)));
    assert_eq!(read(&mut reader), Some((11, 2)));
    assert_eq!(reader.missed(), 2);
}

#[test]
fn gaps_between_messages_that_a_publisher_leaves_unread_are_counted() {
    // The sequence number at which a successor in the slot starts: directly behind the first publisher, or behind another
    // that the reader never saw. None: no successor.
    for successor in [None, Some(4), Some(7)] {
        let fixture = Fixture::new(16, 4);
        let mut reader = fixture.reader(0, false, Start::Live);
        let mut publisher = Crossing::new(&fixture, 0, 16);
        publisher.arrives_after(0);
        assert_eq!(read(&mut reader), Some((0, 0)));
        for gap in [6, 0, 8] {
            publisher.arrives_after(gap);
        }
        leaves(&fixture, 1..4);
        if let Some(start) = successor {
            let words = fixture.topic.publisher(0);
            // The successor has the slot, and has published five messages.
            words
                .region_offset()
                .store(fixture.region_offset(1), SeqCst);
            words.start().store(start, SeqCst);
            words.head().store(start + 5, SeqCst);
            words.incarnation().store(fixture.incarnation(1), SeqCst);
            fixture.topic.publishers().store(1, SeqCst);
            fixture.bump_epoch();
        }
        assert_eq!(read(&mut reader), None);
        // The reader counts the unread messages themselves with the successor.
        let messages = successor.map_or(0, |start| start - 1);
        assert_eq!(reader.missed(), 14 + messages);
    }
}

/// Publisher 0 leaves, and the daemon evicts the messages that its ring still has.
fn leaves(fixture: &Fixture, messages: std::ops::Range<u64>) {
    let (words, region) = (fixture.topic.publisher(0), fixture.region(0));
    evict_through(&words, &region, fixture.incarnation(0), messages);
    fixture.topic.publishers().fetch_and(!1, SeqCst);
    words.incarnation().store(0, SeqCst);
    fixture.bump_epoch();
}

#[test]
fn gaps_before_messages_that_a_depth_passes_over_are_counted_at_once() {
    let fixture = Fixture::new(16, 4);
    let mut reader = with_depth(&fixture, 2, Start::Live);
    let mut first = Crossing::new(&fixture, 0, 16);
    let mut second = Crossing::new(&fixture, 1, 16);
    first.arrives_after(0);
    assert_eq!(read(&mut reader), Some((0, 0)));
    first.arrives_after(6);
    // The second publisher's messages are newer.
    second.next = 100;
    for _ in 0..2 {
        second.publish(0);
    }
    assert_eq!(read(&mut reader), Some((100, 0)));
    assert_eq!(reader.missed(), 7, "message 7, and six before it");
    leaves(&fixture, 1..2);
    assert_eq!(read(&mut reader), Some((101, 0)));
    assert_eq!(reader.missed(), 7);
}

#[test]
fn a_publisher_whose_sum_falls_or_is_too_high_changes_the_count_of_its_own_readers_only() {
    let fixture = Fixture::new(16, 4);
    let mut reader = fixture.reader(0, false, Start::Live);
    let mut liar = Crossing::new(&fixture, 0, 16);
    for sum in [9, 4, 6] {
        liar.publish(sum);
    }
    let told: Vec<_> = std::iter::from_fn(|| read(&mut reader)).collect();
    assert_eq!(told, [(0, 9), (1, 0), (2, 2)]);
    for sum in [u64::MAX, 0, u64::MAX, 1] {
        liar.publish(sum);
    }
    assert_eq!(std::iter::from_fn(|| read(&mut reader)).count(), 4);
    assert_eq!(reader.missed(), u64::MAX, "which does not run over");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn messages_and_what_is_missed_add_up_to_what_was_published_elsewhere(
        keeps in 1u32..12,
        depth in 0u32..8,
        joins_at in 0usize..12,
        steps in prop::collection::vec((prop::bool::ANY, 0u64..6), 1..120),
    ) {
        let fixture = Fixture::new(16, 4);
        let mut publisher = Crossing::new(&fixture, 0, keeps);
        let mut reader = None;
        let mut next = 0;
        for (step, (reads, number)) in steps.into_iter().enumerate() {
            if step == joins_at {
                next = publisher.next;
                reader = Some(with_depth(&fixture, depth, Start::Live));
            }
            match &mut reader {
                Some(reader) if reads => for _ in 0..number {
                    let Some((tag, missed)) = read(reader) else { break };
                    prop_assert_eq!(tag, next + missed);
                    next = tag + 1;
                },
                _ => publisher.arrives_after(number.saturating_sub(2)),
            }
        }
        let Some(mut reader) = reader else { return Ok(()) };
        while let Some((tag, missed)) = read(&mut reader) {
            prop_assert_eq!(tag, next + missed);
            next = tag + 1;
        }
        prop_assert_eq!(next, publisher.next);
    }
    #[test]
    fn messages_and_what_is_missed_add_up_however_far_a_depth_passes_over_publishers_that_leave(
        depth in 0u32..6,
        steps in prop::collection::vec((0u8..3, 0u64..6), 1..120),
    ) {
        let fixture = Fixture::new(16, 4);
        let mut reader = with_depth(&fixture, depth, Start::Live);
        let mut publishers = [0, 1].map(|index| Crossing::new(&fixture, index, 12));
        let (mut now, mut received) = (0, 0);
        prop_assert_eq!(read(&mut reader), None, "it learns of both");
        for (kind, number) in steps {
            match publishers.get_mut(usize::from(kind)) {
                Some(publisher) => {
                    // Publish times increase over both publishers.
                    let gap = number.saturating_sub(2);
                    publisher.missed += gap;
                    now += 1;
                    publisher.next = now;
                    publisher.publish(publisher.missed);
                }
                None => for _ in 0..number {
                    received += u64::from(read(&mut reader).is_some());
                },
            }
        }
        let head = fixture.topic.publisher(0).head().load(SeqCst);
        let tail = fixture.topic.publisher(0).tail().load(SeqCst);
        // `unread` messages were neither read nor skipped. The reader would count them with the first message of a successor.
        let unread = head - fixture.topic.subscriber(0).cursor(0).load(SeqCst).min(head);
        leaves(&fixture, tail..head);
        // The other publisher's next message reports the gaps before those messages that the depth skipped.
        publishers[1].next = now + 1;
        let missed = publishers[1].missed;
        publishers[1].publish(missed);
        while read(&mut reader).is_some() {
            received += 1;
        }
        let published = head + fixture.topic.publisher(1).head().load(SeqCst);
        let gaps: u64 = publishers.iter().map(|publisher| publisher.missed).sum();
        prop_assert_eq!(received + reader.missed() + unread, published + gaps);
    }
}

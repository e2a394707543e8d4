//! Histories that are limited in messages and in bytes, against a plain model.
#![cfg(not(loom))]

mod fixture;

use fixture::Fixture;
use proptest::prelude::*;
use rgaps_layout::{PublisherRegion, MAX_DEPTH};
use rgaps_topic::{Message, Start};
use std::collections::VecDeque;

/// The model of a history of at most `depth` messages and `max_bytes` bytes.
struct Model {
    depth: usize,
    max_bytes: u64,
    /// Sequence number and bytes of the messages that are kept.
    kept: VecDeque<(u64, u64)>,
    next: u64,
}

impl Model {
    /// How many messages leave the history when one of `bytes` bytes is published.
    fn pushed_out(&self, bytes: u64) -> usize {
        let mut total: u64 = self.kept.iter().map(|(_, bytes)| bytes).sum::<u64>() + bytes;
        let mut out = 0;
        while out < self.kept.len()
            && (self.kept.len() - out + 1 > self.depth || total > self.max_bytes)
        {
            total -= self.kept[out].1;
            out += 1;
        }
        out
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn has_room_says_what_publishing_will_push_out(
        depth in 1u32..12,
        max_bytes in 1u64..400,
        steps in prop::collection::vec((0u64..150, 0u32..3), 1..80),
    ) {
        let fixture = Fixture::with_geometry(PublisherRegion { ring_capacity: 16, block_capacity: 64 });
        let mut writer = fixture.writer_limited(0, depth, max_bytes);
        let mut reader = fixture.reader(0, true, Start::Live);
        let mut model = Model { depth: depth as usize, max_bytes, kept: VecDeque::new(), next: 0 };
        let mut read = 0;
        for (bytes, reads) in steps {
            for _ in 0..reads {
                if let Some(taken) = reader.poll() {
                    prop_assert_eq!((taken.sequence, taken.missed), (read, 0));
                    read += 1;
                    taken.held.release();
                }
            }
            writer.collect_returned(&mut |_| ());
            let out = model.pushed_out(bytes);
            let room = model.kept.iter().take(out).all(|(sequence, _)| *sequence < read);
            prop_assert_eq!(writer.has_room(bytes), room);
            prop_assert_eq!(writer.held_back_by(bytes), u64::from(!room));
            if room {
                let loan = writer.loan(0, bytes).unwrap();
                let message = Message { bytes, ..Message::default() };
                writer.publish(loan, &message, &mut |_| ()).unwrap();
                model.kept.drain(..out);
                model.kept.push_back((model.next, bytes));
                model.next += 1;
            }
            prop_assert_eq!(writer.retained(), model.kept.len() as u64);
        }
    }
}

/// A back-pressured publisher asks again and again. If it looked at each message of the deepest history every
/// time, this test would take hours, and its runner would end it.
#[test]
#[cfg_attr(miri, ignore = "asks millions of times")]
fn asking_for_room_does_not_look_at_the_whole_history() {
    let depth = MAX_DEPTH;
    let fixture = Fixture::with_geometry(PublisherRegion {
        ring_capacity: depth * 2,
        block_capacity: depth * 2,
    });
    let mut writer = fixture.writer_limited(0, depth, u64::from(depth) * 8);
    let _reader = fixture.reader(0, true, Start::Live);
    for _ in 0..depth {
        let loan = writer.loan(0, 8).unwrap();
        let message = Message {
            bytes: 8,
            ..Message::default()
        };
        writer.publish(loan, &message, &mut |_| ()).unwrap();
    }
    for _ in 0..5_000_000 {
        assert!(!writer.has_room(u64::from(depth) * 8));
    }
}

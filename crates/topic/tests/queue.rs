//! A subscriber with a depth: it queues the newest messages of all publishers together, however many those keep.
#![cfg(not(loom))]

mod fixture;

use fixture::Fixture;
use proptest::prelude::*;
use rgaps_topic::{Message, Reader, Shared, Start, Writer};
use std::sync::atomic::Ordering::SeqCst;

fn publish(writer: &mut Writer<Shared>, ns: u64) {
    writer.collect_returned(&mut |_| ());
    let loan = writer.loan(0, 256).unwrap();
    let message = Message {
        bytes: 1,
        publish_ns: ns,
        tag: ns,
        ..Message::default()
    };
    writer.publish(loan, &message, &mut |_| ()).unwrap();
}

fn queued(fixture: &Fixture, depth: u32, reliable: bool, start: Start) -> Reader<Shared> {
    fixture.topic.subscriber(0).depth().store(depth, SeqCst);
    fixture.reader(0, reliable, start)
}

#[test]
fn a_slow_reader_of_a_fast_publisher_reads_the_newest_message_and_counts_those_it_skipped() {
    let fixture = Fixture::new(16, 4);
    let mut writer = fixture.writer(0, 16);
    let mut reader = queued(&fixture, 1, false, Start::Live);
    for round in 1..=5 {
        (0..3).for_each(|n| publish(&mut writer, 3 * round + n));
        assert!(reader.is_ready());
        let taken = reader.poll().unwrap();
        assert_eq!((taken.message.tag, taken.missed), (3 * round + 2, 2));
        taken.held.release();
        assert!(reader.poll().is_none() && !reader.is_ready());
        assert_eq!(reader.missed(), 2 * round);
    }
}

#[test]
fn a_reliable_reader_with_a_depth_holds_back_only_who_keeps_less() {
    for (keeps, depth, waits) in [(4, 1, false), (4, 4, false), (4, 5, true), (4, 0, true)] {
        let fixture = Fixture::new(keeps, 4);
        let mut writer = fixture.writer(0, keeps);
        let mut reader = queued(&fixture, depth, true, Start::Live);
        (0..u64::from(keeps)).for_each(|n| publish(&mut writer, n));
        assert_eq!(writer.has_room(1), !waits, "{keeps} {depth}");
        assert_eq!(writer.held_back_by(1), u64::from(waits), "{keeps} {depth}");
        if waits {
            reader.poll().unwrap().held.release();
            assert!(writer.has_room(1));
        }
    }
}

#[test]
fn a_reader_with_a_depth_that_sleeps_keeps_only_so_many_blocks() {
    for (depth, evicted) in [(0, 0), (1, 7), (3, 5), (8, 0), (9, 0)] {
        let fixture = Fixture::new(8, 4);
        let mut writer = fixture.writer(0, 8);
        let mut reader = queued(&fixture, depth, false, Start::Live);
        (0..8).for_each(|n| publish(&mut writer, n));
        let mut freed = 0;
        assert_eq!(writer.evict_consumed(&mut |_| freed += 1), evicted);
        assert_eq!(freed, evicted);
        let taken = reader.poll().unwrap();
        assert_eq!((taken.message.tag, taken.missed), (evicted, evicted));
        taken.held.release();
    }
}

#[test]
fn a_late_joiner_with_a_depth_begins_with_its_newest_and_has_missed_nothing() {
    let fixture = Fixture::new(8, 4);
    let mut writer = fixture.writer(0, 8);
    (0..20).for_each(|n| publish(&mut writer, n));
    let mut reader = queued(&fixture, 2, false, Start::Kept(u64::MAX));
    for tag in [18, 19] {
        let taken = reader.poll().unwrap();
        assert_eq!((taken.message.tag, taken.missed), (tag, 0));
        taken.held.release();
    }
    assert!(reader.poll().is_none());
}

#[test]
fn a_publisher_that_lies_about_its_head_does_not_keep_the_others_out() {
    let fixture = Fixture::new(8, 4);
    let (mut honest, mut liar) = (fixture.writer(0, 8), fixture.writer(1, 8));
    let mut reader = queued(&fixture, 2, false, Start::Live);
    publish(&mut liar, 1);
    fixture.topic.publisher(1).head().store(u64::MAX, SeqCst);
    let mut newest = None;
    for ns in 2..6 {
        publish(&mut honest, ns);
        while let Some(taken) = reader.poll() {
            newest = Some(taken.message.tag);
            taken.held.release();
        }
        assert_eq!(newest, Some(ns));
    }
}

/// The model of one publisher: its messages' times, the reader's cursor, and how many messages it keeps.
#[derive(Default)]
struct Model {
    times: Vec<u64>,
    cursor: usize,
    keeps: usize,
}

impl Model {
    fn waiting(&self) -> &[u64] {
        let kept = self.times.len().saturating_sub(self.keeps);
        &self.times[self.cursor.max(kept)..]
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_reader_takes_the_newest_of_all_publishers_and_counts_the_rest(
        keeps in prop::collection::vec(1u32..16, 1..5),
        depth in 1u32..20,
        steps in prop::collection::vec((0usize..8, 1u64..40), 1..120),
    ) {
        let fixture = Fixture::new(16, 4);
        let mut writers: Vec<_> = (0..).zip(&keeps).map(|(n, keeps)| fixture.writer(n, *keeps)).collect();
        let mut reader = queued(&fixture, depth, false, Start::Live);
        let mut models: Vec<_> = keeps
            .iter()
            .map(|keeps| Model { keeps: *keeps as usize, ..Model::default() })
            .collect();
        let (mut now, mut read, mut missed) = (0, 0, 0);
        for (who, count) in steps {
            if who < writers.len() {
                for _ in 0..count {
                    now += 1;
                    publish(&mut writers[who], now);
                    models[who].times.push(now);
                }
                continue;
            }
            let mut waiting: Vec<u64> = models.iter().flat_map(Model::waiting).copied().collect();
            waiting.sort_unstable();
            let first = waiting.len().saturating_sub(depth as usize);
            let Some(oldest) = waiting.get(first) else {
                prop_assert!(reader.poll().is_none());
                continue;
            };
            prop_assert!(reader.is_ready());
            let taken = reader.poll().unwrap();
            // The reader skips all messages older than the newest `depth`, also of publishers from which it received none.
            for model in &mut models {
                let kept = model.times.len().saturating_sub(model.keeps);
                let from = model.times.partition_point(|ns| ns < oldest).max(kept);
                missed += from.saturating_sub(model.cursor);
                model.cursor = model.cursor.max(from);
            }
            let model = &mut models[taken.publisher as usize];
            prop_assert_eq!(taken.sequence, model.cursor as u64);
            prop_assert_eq!(taken.message.tag, model.times[model.cursor]);
            model.cursor += 1;
            read += 1;
            taken.held.release();
            // The reader has not yet noticed all overruns of other publishers.
            prop_assert!(reader.missed() as usize <= missed);
        }
        while let Some(taken) = reader.poll() {
            read += 1;
            taken.held.release();
        }
        prop_assert_eq!(reader.missed() + read, now);
    }
}

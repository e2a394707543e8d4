//! Misbehaving peers that write wrong values into the control segment: whatever they write, nobody panics, hangs, or
//! frees a block twice.
#![cfg(not(loom))]

mod fixture;

use fixture::Fixture;
use proptest::prelude::*;
use rgaps_layout::{
    DeferredRelease as Entry, PublisherRegion, TopicRegion, CONTROL_PAGE, DYNAMIC_OFFSET,
    MAX_DEFERRED_RELEASES, MAX_SUBSCRIBERS, MAX_TIMELINES, TIMELINE_TABLE_OFFSET,
};
use rgaps_topic::{
    abandon, clear_deferred_releases, clear_holder, empty_deferred_releases, evict_through,
    live_blocks, progress, ring_publishers, ring_range, ring_sleepers, settle_points, timeline,
    Held, Holders, Message, Metadata, Point, Progress, Reader, RegionView, ReleaseList, Shared,
    Start, Storage, TopicView, With, Writer,
};
use std::mem::offset_of;
use std::sync::atomic::Ordering::SeqCst;

const SMALL: PublisherRegion = PublisherRegion {
    ring_capacity: 8,
    block_capacity: 64,
};

fn publish(writer: &mut Writer<Shared>, tag: u64, freed: &mut Vec<u32>) -> u32 {
    let loan = writer.loan(0, 256).unwrap();
    let block = loan.block();
    let message = Message {
        tag,
        ..Message::default()
    };
    writer
        .publish(loan, &message, &mut |block| freed.push(block))
        .unwrap();
    block
}

fn store(fixture: &Fixture, block: u32, holders: Holders) {
    fixture
        .region(0)
        .holders(block)
        .unwrap()
        .store(holders.pack(), SeqCst);
}

#[test]
fn grants_that_cannot_be_are_refused() {
    let fixture = Fixture::with_geometry(SMALL);
    let writer = |slot, depth, start| {
        let topic = fixture.topic.clone();
        Writer::new(topic, slot, fixture.region(0), 1, start, depth, u64::MAX)
    };
    assert!(writer(15, 7, 0).is_some());
    assert!(writer(16, 7, 0).is_none());
    assert!(writer(u32::MAX, 7, 0).is_none());
    assert!(writer(0, 0, 0).is_none());
    assert!(writer(0, 8, 0).is_none());
    assert!(writer(0, 7, u64::MAX).is_none());
    let reader = |slot| Reader::new(fixture.topic.clone(), slot, true, Start::Live);
    assert!(reader(MAX_SUBSCRIBERS as u32 - 1).is_some());
    assert!(reader(MAX_SUBSCRIBERS as u32).is_none());
    for base in [
        1,
        CONTROL_PAGE / 2,
        fixture.shared.len(),
        u64::MAX - CONTROL_PAGE + 1,
    ] {
        assert!(TopicView::new(fixture.shared, base).is_none());
        assert!(RegionView::new(fixture.shared, base, SMALL).is_none());
    }
    for (ring_capacity, block_capacity) in [
        (0, 64),
        (3, 64),
        (8, 0),
        (8, 65),
        (1 << 31, 64),
        (8, 1 << 31),
    ] {
        let geometry = PublisherRegion {
            ring_capacity,
            block_capacity,
        };
        assert!(RegionView::new(fixture.shared, DYNAMIC_OFFSET, geometry).is_none());
    }
}

#[test]
fn a_block_that_is_made_to_look_emptied_twice_is_freed_once() {
    let fixture = Fixture::with_geometry(SMALL);
    let mut writer = fixture.writer(0, 4);
    let mut freed = Vec::new();
    let block = publish(&mut writer, 0, &mut freed);
    let word = Holders::load(fixture.region(0).holders(block).unwrap());
    // The block looks returned while it is in the ring,
    store(
        &fixture,
        block,
        Holders {
            generation: word.generation + 1,
            mask: 0,
        },
    );
    writer.topic().publisher(0).sweep().fetch_add(1, SeqCst);
    writer.collect_returned(&mut |block| freed.push(block));
    assert_eq!(freed, [block]);
    // and then as if only the ring held it.
    store(&fixture, block, word);
    assert!(writer.evict_oldest(&mut |block| freed.push(block)));
    writer.collect_returned(&mut |block| freed.push(block));
    assert_eq!(freed, [block]);
    // The same with the block's next generation.
    let block = publish(&mut writer, 1, &mut freed);
    let loan = writer.loan(0, 256).unwrap();
    let word = Holders::load(fixture.region(0).holders(block).unwrap());
    store(
        &fixture,
        block,
        Holders {
            generation: word.generation - 1,
            mask: word.mask,
        },
    );
    writer.abandon(loan, Point::NONE, &mut |block| freed.push(block));
    writer.evict_oldest(&mut |block| freed.push(block));
    assert_eq!(freed.iter().filter(|freed| **freed == block).count(), 1);
}

#[test]
fn a_ring_full_of_the_future_does_not_hold_a_reader() {
    let fixture = Fixture::with_geometry(SMALL);
    let mut writer = fixture.writer(0, 4);
    let mut reader = fixture.reader(0, true, Start::Live);
    let mut freed = Vec::new();
    publish(&mut writer, 0, &mut freed);
    for slot in 0..8 {
        let descriptor = fixture.descriptor(0, slot);
        descriptor.committed().store(u64::MAX, SeqCst);
    }
    // Each poll returns, and the count of missed messages does not overflow.
    for _ in 0..100 {
        assert!(reader.poll().is_none());
        let slot = writer.topic().publisher(0);
        slot.head().store(u64::MAX, SeqCst);
        slot.tail().store(u64::MAX, SeqCst);
    }
}

#[test]
fn a_block_that_is_announced_twice_is_held_once() {
    let fixture = Fixture::with_geometry(SMALL);
    let mut writer = fixture.writer(0, 4);
    let mut reader = fixture.reader(0, false, Start::Live);
    let mut freed = Vec::new();
    publish(&mut writer, 0, &mut freed);
    publish(&mut writer, 1, &mut freed);
    // The second descriptor names the first one's block and generation.
    let (first, second) = (fixture.descriptor(0, 0), fixture.descriptor(0, 1));
    let generation = first.generation().load(SeqCst);
    second.generation().store(generation, SeqCst);
    second.block().store(first.block().load(SeqCst), SeqCst);
    let taken = reader.poll().unwrap();
    assert!(
        reader.poll().is_none(),
        "one bit cannot stand for two holds"
    );
    taken.held.release();
    while writer.evict_oldest(&mut |block| freed.push(block)) {}
    writer.collect_returned(&mut |block| freed.push(block));
    freed.sort_unstable();
    assert_eq!(freed, [0, 1]);
}

#[test]
fn a_reader_that_was_lied_away_comes_back_for_the_next_publisher_of_the_slot() {
    let fixture = Fixture::with_geometry(SMALL);
    let liar = fixture.writer(0, 4);
    let mut reader = fixture.reader(0, true, Start::Live);
    let slot = fixture.topic.publisher(0);
    for far in [1 << 40, u64::MAX] {
        slot.tail().store(far, SeqCst);
        slot.head().store(far, SeqCst);
        assert!(reader.poll().is_none());
    }
    drop(liar);
    // The daemon restores the sequence number that it recorded itself.
    slot.incarnation().store(0, SeqCst);
    slot.head().store(0, SeqCst);
    slot.tail().store(0, SeqCst);
    fixture.bump_epoch();
    assert!(reader.poll().is_none());
    let mut writer = fixture.writer(0, 4);
    publish(&mut writer, 7, &mut Vec::new());
    assert_eq!(reader.poll().unwrap().message.tag, 7);
}

#[test]
fn an_entry_that_is_scribbled_on_is_released_all_the_same() {
    // All states of an entry, with wrong counts of its uses.
    for state in (0..20).chain([u64::MAX, u64::MAX - 1, u64::MAX - 2, u64::MAX - 3]) {
        for publisher_first in [false, true] {
            let fixture = Fixture::with_geometry(SMALL);
            let mut writer = fixture.writer(0, 4);
            let mut reader = fixture.reader(7, false, Start::Live);
            let mut list = ReleaseList::new(fixture.topic.clone(), 7);
            let mut freed = Vec::new();
            let passed = Point {
                timeline: 1,
                value: 1,
            };
            for _ in 0..2 {
                publish(&mut writer, 0, &mut freed);
                list.push(reader.poll().unwrap().held, passed).unwrap();
            }
            fixture
                .topic
                .deferred_releases(7, 0)
                .state()
                .store(state, SeqCst);
            let collect = |writer: &mut Writer<Shared>, freed: &mut Vec<u32>| {
                writer.collect_deferred_releases(&mut |block| freed.push(block));
                writer.collect_returned(&mut |block| freed.push(block));
            };
            // Whatever the state is, nobody frees the block before its point has passed.
            collect(&mut writer, &mut freed);
            let left = list.tidy();
            while writer.evict_oldest(&mut |block| freed.push(block)) {}
            collect(&mut writer, &mut freed);
            let lied_free = state == 1 << 2;
            assert_eq!(
                (left, freed.len()),
                (2 - usize::from(lied_free), 0),
                "{state}"
            );
            let timeline = timeline(&fixture.shared, 1).unwrap();
            timeline.value().store(1, SeqCst);
            if publisher_first {
                collect(&mut writer, &mut freed);
            }
            list.tidy();
            collect(&mut writer, &mut freed);
            assert_eq!(list.tidy(), 0, "{state}");
            collect(&mut writer, &mut freed);
            // The state claims that the entry is cleared, but its bit is set: the daemon clears it when the subscriber has left.
            let region = fixture.region(0);
            assert_eq!(freed.len(), 2 - usize::from(lied_free), "{state}");
            if lied_free {
                assert_eq!(clear_holder(&fixture.topic.publisher(0), &region, 7), 1);
                writer.collect_returned(&mut |block| freed.push(block));
            }
            freed.sort_unstable();
            assert_eq!(freed, [0, 1], "{state}");
            assert!(
                empty_deferred_releases(&fixture.topic, 7, |_, _| true),
                "{state}"
            );
        }
    }
}

#[test]
fn a_point_on_a_timeline_that_cannot_be_is_never_waited_for() {
    let fixture = Fixture::with_geometry(SMALL);
    for timeline in [0, MAX_TIMELINES, MAX_TIMELINES + 1, u32::MAX] {
        for value in [1, 1 << 32, u64::MAX - 1] {
            let point = Point { timeline, value };
            assert_eq!(progress(&fixture.shared, point), Progress::Aborted);
        }
    }
    let view = timeline(&fixture.shared, 1).unwrap();
    let mut seen = [false; 3];
    for value in [0, 1, 5, 1 << 32, 1 << 63, u64::MAX] {
        for reached in [0, 5, 1 << 32 | 7, u64::MAX] {
            view.value().store(value, SeqCst);
            view.reached().store(reached, SeqCst);
            for value in [1, 5, 6, 1 << 32 | 6, 2 << 32, 1 << 63 | 1] {
                match progress(&fixture.shared, Point { timeline: 1, value }) {
                    Progress::Pending => seen[0] = true,
                    Progress::Reached => seen[1] = true,
                    Progress::Aborted => seen[2] = true,
                }
            }
        }
    }
    assert_eq!(seen, [true; 3]);
}

/// One step of an honest member or of the daemon, or a lie: a value that a peer writes to a word of shared memory.
#[derive(Clone, Debug)]
enum Step {
    /// True: behind GPU work.
    Publish(bool),
    Abandon(bool),
    Collect,
    Evict,
    Room(u64),
    Poll(usize),
    Release(usize),
    LetGo(usize),
    Tidy(usize),
    /// The stream reaches its next point.
    Pass,
    Rejoin(u32),
    Daemon(u32),
    Lie {
        word: u64,
        value: u64,
    },
    LieOfReleaseList {
        subscriber: usize,
        entry: usize,
        state: u64,
    },
    LieOfTime {
        word: u64,
        value: u64,
    },
    LieOfHolders {
        block: u32,
        generation: u64,
        mask: u64,
    },
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..16,
        any::<u64>(),
        (0u32..64).prop_map(|bit| 1 << bit),
        (0u64..4).prop_map(|less| u64::MAX - less),
        (0u64..4).prop_map(|less| (1 << 62) - less),
    ]
}

fn step(words: u64) -> impl Strategy<Value = Step> {
    let holders = (0u32..8, 0u64..6, value());
    prop_oneof![
        4 => any::<bool>().prop_map(Step::Publish),
        1 => any::<bool>().prop_map(Step::Abandon),
        2 => Just(Step::Collect),
        1 => Just(Step::Evict),
        1 => value().prop_map(Step::Room),
        4 => (0usize..2).prop_map(Step::Poll),
        2 => (0usize..8).prop_map(Step::Release),
        3 => (0usize..8).prop_map(Step::LetGo),
        2 => (0usize..2).prop_map(Step::Tidy),
        2 => Just(Step::Pass),
        1 => (0u32..2).prop_map(Step::Rejoin),
        1 => (0u32..7).prop_map(Step::Daemon),
        4 => (0..words, value()).prop_map(|(word, value)| Step::Lie { word, value }),
        2 => (0usize..2, 0usize..4, value()).prop_map(|(subscriber, entry, state)| {
            Step::LieOfReleaseList { subscriber, entry, state }
        }),
        1 => (0u64..16, value()).prop_map(|(word, value)| Step::LieOfTime { word, value }),
        4 => holders.prop_map(|(block, generation, mask)| Step::LieOfHolders { block, generation, mask }),
    ]
}

/// The bytes of the topic's region that lies overwrite: all but the release lists of subscribers that do not exist.
const TOPIC_BYTES_SCRIBBLED: u64 = (offset_of!(TopicRegion, deferred_releases)
    + 2 * MAX_DEFERRED_RELEASES * size_of::<Entry>()) as u64;

/// The honest members: a publisher with its memory, and two subscribers.
struct Honest {
    fixture: Fixture,
    writer: Writer<Shared>,
    readers: [Reader<Shared>; 2],
    lists: [ReleaseList<Shared>; 2],
    /// The held blocks, each with the index of its subscriber.
    held: Vec<(usize, Held<Shared>)>,
    /// The last points of timeline 1 that were queued and reached.
    queued: u64,
    passed: u64,
    /// Blocks whose memory is in use.
    live: [bool; SMALL.block_capacity as usize],
}

impl Honest {
    fn new() -> Honest {
        let fixture = Fixture::with_geometry(SMALL);
        let writer = fixture.writer_limited(0, 4, 1000);
        let readers = [0, 1].map(|index| fixture.reader(index, index == 0, Start::Live));
        let lists = [0, 1].map(|index| ReleaseList::new(fixture.topic.clone(), index));
        Honest {
            fixture,
            writer,
            readers,
            lists,
            held: Vec::new(),
            queued: 0,
            passed: 0,
            live: [false; 64],
        }
    }

    fn take(&mut self, step: Step) {
        let Honest {
            fixture,
            writer,
            readers,
            lists,
            held,
            queued,
            passed,
            live,
        } = self;
        let mut enqueue = || {
            *queued += 1;
            Point {
                timeline: 1,
                value: *queued,
            }
        };
        let mut freed = |block: u32| assert!(std::mem::take(&mut live[block as usize]), "{block}");
        let slot = fixture.topic.publisher(0);
        match step {
            Step::Publish(behind) | Step::Abandon(behind) => {
                let Ok(loan) = writer.loan(0, 256) else {
                    return;
                };
                assert!(!std::mem::replace(&mut live[loan.block() as usize], true));
                let mut freed = |block: u32| assert!(std::mem::take(&mut live[block as usize]));
                let point = if behind { enqueue() } else { Point::NONE };
                if matches!(step, Step::Abandon(_)) {
                    return writer.abandon(loan, point, &mut freed);
                }
                let message = Message {
                    bytes: 200,
                    point,
                    ..Message::default()
                };
                // Publishing fails if a lie changed the block's holder word during the loan.
                let mut metadata = Metadata::default();
                assert!(metadata.set_attachment(&[7; 300], false));
                let with = With {
                    tensor: None,
                    metadata: behind.then_some(&metadata),
                    read: point,
                    copies: [],
                };
                let _ = writer.publish_with(loan, &message, with, &mut freed);
            }
            Step::Collect => {
                writer.collect_queued(&mut freed);
                writer.collect_deferred_releases(&mut freed);
                writer.collect_returned(&mut freed);
                let _ = (writer.has_queued(), writer.has_deferred_releases());
            }
            Step::Evict => drop(writer.evict_oldest(&mut freed)),
            Step::Room(bytes) => {
                let _ = (writer.has_room(bytes), writer.held_back_by(bytes));
                writer.evict_consumed(&mut freed);
            }
            Step::Poll(reader) => {
                if let Some(taken) = readers[reader].poll() {
                    let _ = progress(&fixture.shared, taken.message.point);
                    let mut metadata = Metadata::default();
                    let had = readers[reader].swap_metadata(&mut metadata);
                    let lengths = metadata.lengths();
                    assert!(lengths.is_sound() && metadata.as_bytes().len() == lengths.bytes());
                    assert_eq!(metadata.parts().count(), usize::from(lengths.parts));
                    assert!(had || metadata.is_empty());
                    held.push((reader, taken.held));
                }
            }
            Step::Release(nth) if nth < held.len() => held.swap_remove(nth).1.release(),
            Step::LetGo(nth) if nth < held.len() => {
                let (reader, hold) = held.swap_remove(nth);
                if let Err(hold) = lists[reader].push(hold, enqueue()) {
                    held.push((reader, hold));
                }
            }
            Step::Release(_) | Step::LetGo(_) => {}
            Step::Tidy(reader) => drop(lists[reader].tidy()),
            Step::Pass => {
                *passed = *queued.min(&mut (*passed + 1));
                let timeline = timeline(&fixture.shared, 1).unwrap();
                timeline.value().store(*passed, SeqCst);
            }
            Step::Rejoin(index) => {
                let start = if index == 0 {
                    Start::Live
                } else {
                    Start::Kept(3)
                };
                readers[index as usize] = fixture.reader(index, index == 0, start);
            }
            Step::Daemon(0) => drop(clear_holder(&slot, &fixture.region(0), 1)),
            Step::Daemon(1) => {
                ring_publishers(&fixture.topic, u64::MAX);
                ring_sleepers(&fixture.topic, &fixture.topic.publisher(0));
            }
            Step::Daemon(2) => {
                let left = abandon(&slot, &fixture.region(0), fixture.incarnation(0), 0);
                assert!(left.head - left.tail <= 8);
            }
            Step::Daemon(3) => {
                let lives = |slot, incarnation| (slot, incarnation) == (0, fixture.incarnation(0));
                let _ = empty_deferred_releases(&fixture.topic, 1, lives);
            }
            Step::Daemon(4) => {
                let (region, incarnation) = (fixture.region(0), fixture.incarnation(0));
                let _ = clear_deferred_releases(&fixture.topic, &region, 0, incarnation);
            }
            Step::Daemon(5) => {
                let (region, incarnation) = (fixture.region(0), fixture.incarnation(0));
                let range = ring_range(&slot, &region);
                let _ = settle_points(&region, incarnation, range, |timeline| timeline == 1);
            }
            Step::Daemon(_) => {
                evict_through(&slot, &fixture.region(0), fixture.incarnation(0), 0..8);
                assert!(live_blocks(&slot, &fixture.region(0)).count() <= 64);
            }
            Step::Lie { word, value } => {
                let at = match (word * 8).checked_sub(TOPIC_BYTES_SCRIBBLED) {
                    None => DYNAMIC_OFFSET + word * 8,
                    Some(at) => fixture.region_offset(0) + at,
                };
                fixture.shared.u64(at).store(value, SeqCst);
                fixture.bump_epoch();
            }
            Step::LieOfReleaseList {
                subscriber,
                entry,
                state,
            } => {
                let view = fixture.topic.deferred_releases(subscriber, entry);
                view.state().store(state, SeqCst);
            }
            Step::LieOfTime { word, value } => {
                let at = TIMELINE_TABLE_OFFSET + word * 8;
                fixture.shared.u64(at).store(value, SeqCst);
            }
            Step::LieOfHolders {
                block,
                generation,
                mask,
            } => {
                store(fixture, block, Holders { generation, mask });
                writer.topic().publisher(0).sweep().fetch_add(1, SeqCst);
            }
        }
    }
}

/// Steps of a case. Few under Miri, which takes a thousand times as long.
const STEPS: usize = if cfg!(miri) { 24 } else { 300 };

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]

    #[test]
    fn whatever_is_scribbled_over_a_topic_nobody_panics_or_frees_twice(
        steps in prop::collection::vec(step((TOPIC_BYTES_SCRIBBLED + SMALL.metadata_far()) / 8), 1..STEPS),
    ) {
        let mut honest = Honest::new();
        for step in steps {
            honest.take(step);
        }
    }
}

//! Peers that write what they should not into the control segment: whatever they write, nobody
//! panics, hangs, or frees a block twice.
#![cfg(not(loom))]

mod fixture;

use fixture::Fixture;
use proptest::prelude::*;
use rgaps_layout::{
    LettingGo, PublisherRegion, TopicRegion, CONTROL_PAGE, DYNAMIC_OFFSET, MAX_LETTING_GO,
    MAX_SUBSCRIBERS,
};
use rgaps_topic::{
    abandon, clear_holder, evict_through, live_blocks, ring_publishers, ring_sleepers, Held,
    Holders, Message, Reader, RegionView, Shared, Start, Storage, TopicView, Writer,
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
    // It looks returned, while it is in the ring,
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
    // and then as if only the ring had it.
    store(&fixture, block, word);
    assert!(writer.evict_oldest(&mut |block| freed.push(block)));
    writer.collect_returned(&mut |block| freed.push(block));
    assert_eq!(freed, [block]);
    // The same while its next life lasts.
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
    writer.abandon(loan, rgaps_topic::Point::NONE, &mut |block| {
        freed.push(block)
    });
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
        fixture.descriptor_word(0, slot, 0).store(u64::MAX, SeqCst);
    }
    // Each poll ends, and the count of what was missed does not run over.
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
    // The second descriptor names the first one's block and life.
    for word in [1, 3] {
        let first = fixture.descriptor_word(0, 0, word).load(SeqCst);
        fixture.descriptor_word(0, 1, word).store(first, SeqCst);
    }
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
    // The daemon goes on with the number that it knows.
    slot.incarnation().store(0, SeqCst);
    slot.head().store(0, SeqCst);
    slot.tail().store(0, SeqCst);
    fixture.bump_epoch();
    assert!(reader.poll().is_none());
    let mut writer = fixture.writer(0, 4);
    publish(&mut writer, 7, &mut Vec::new());
    assert_eq!(reader.poll().unwrap().message.tag, 7);
}

/// One step of somebody, or a lie: a value written to a word of the topic or of a region.
#[derive(Clone, Debug)]
enum Step {
    Publish,
    Abandon,
    Collect,
    Evict,
    Room(u64),
    Poll(usize),
    Release(usize),
    Rejoin(u32),
    Daemon(u32),
    Lie {
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
        4 => Just(Step::Publish),
        1 => Just(Step::Abandon),
        2 => Just(Step::Collect),
        1 => Just(Step::Evict),
        1 => value().prop_map(Step::Room),
        4 => (0usize..2).prop_map(Step::Poll),
        2 => (0usize..8).prop_map(Step::Release),
        1 => (0u32..2).prop_map(Step::Rejoin),
        1 => (0u32..4).prop_map(Step::Daemon),
        4 => (0..words, value()).prop_map(|(word, value)| Step::Lie { word, value }),
        4 => holders.prop_map(|(block, generation, mask)| Step::LieOfHolders { block, generation, mask }),
    ]
}

/// Of the topic's region: all but what subscribers that there are not let go of.
const TOPIC_BYTES_SCRIBBLED: u64 =
    (offset_of!(TopicRegion, letting_go) + 2 * MAX_LETTING_GO * size_of::<LettingGo>()) as u64;

/// The honest ones among whom the liar is: a publisher with its memory, two subscribers.
struct Honest {
    fixture: Fixture,
    writer: Writer<Shared>,
    readers: [Reader<Shared>; 2],
    held: Vec<Held<Shared>>,
    /// Blocks whose memory is in use.
    live: [bool; SMALL.block_capacity as usize],
}

impl Honest {
    fn new() -> Honest {
        let fixture = Fixture::with_geometry(SMALL);
        let writer = fixture.writer_limited(0, 4, 1000);
        let readers = [0, 1].map(|index| fixture.reader(index, index == 0, Start::Live));
        Honest {
            fixture,
            writer,
            readers,
            held: Vec::new(),
            live: [false; 64],
        }
    }

    fn take(&mut self, step: Step) {
        let Honest {
            fixture,
            writer,
            readers,
            held,
            live,
        } = self;
        let mut freed = |block: u32| assert!(std::mem::take(&mut live[block as usize]), "{block}");
        let slot = fixture.topic.publisher(0);
        match step {
            Step::Publish | Step::Abandon => {
                let Ok(loan) = writer.loan(0, 256) else {
                    return;
                };
                assert!(!std::mem::replace(&mut live[loan.block() as usize], true));
                let mut freed = |block: u32| assert!(std::mem::take(&mut live[block as usize]));
                if matches!(step, Step::Abandon) {
                    return writer.abandon(loan, rgaps_topic::Point::NONE, &mut freed);
                }
                let message = Message {
                    bytes: 200,
                    ..Message::default()
                };
                // An error: the word was scribbled on while the block was lent.
                let _ = writer.publish(loan, &message, &mut freed);
            }
            Step::Collect => writer.collect_returned(&mut freed),
            Step::Evict => drop(writer.evict_oldest(&mut freed)),
            Step::Room(bytes) => {
                let _ = (writer.has_room(bytes), writer.held_back_by(bytes));
                writer.evict_consumed(&mut freed);
            }
            Step::Poll(reader) => {
                if let Some(taken) = readers[reader].poll() {
                    held.push(taken.held);
                }
            }
            Step::Release(nth) if nth < held.len() => held.swap_remove(nth).release(),
            Step::Release(_) => {}
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
                ring_sleepers(&fixture.topic, u64::MAX);
            }
            Step::Daemon(2) => {
                let left = abandon(&slot, &fixture.region(0), fixture.incarnation(0), 0);
                assert!(left.head - left.tail <= 8);
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]

    #[test]
    fn whatever_is_scribbled_over_a_topic_nobody_panics_or_frees_twice(
        steps in prop::collection::vec(step((TOPIC_BYTES_SCRIBBLED + SMALL.bytes()) / 8), 1..300),
    ) {
        let mut honest = Honest::new();
        for step in steps {
            honest.take(step);
        }
    }
}

//! Blocks that GPU work uses, the publisher's or the readers': each comes back when nobody and no work needs it, and
//! not before.
#![cfg(not(loom))]

mod fixture;

use fixture::Fixture;
use proptest::prelude::*;
use rgaps_layout::{
    PublisherRegion, DEFERRED_RELEASE_BY_PUBLISHER, DEFERRED_RELEASE_PENDING,
    MAX_DEFERRED_RELEASES, MAX_TIMELINES,
};
use rgaps_topic::{
    clear_deferred_releases, clear_holder, empty_deferred_releases, live_blocks, progress,
    timeline, Held, Message, Point, Progress, Reader, ReleaseList, Shared, Start, Writer,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering::SeqCst;

const SMALL: PublisherRegion = PublisherRegion {
    ring_capacity: 8,
    block_capacity: 256,
};

fn point(timeline: u32, value: u64) -> Point {
    Point { timeline, value }
}

/// Advances a timeline to `point`, as a GPU does behind the work of a stream.
fn reach(fixture: &Fixture, point: Point) {
    let timeline = timeline(&fixture.shared, point.timeline).unwrap();
    timeline.value().store(point.value, SeqCst);
}

fn publish(writer: &mut Writer<Shared>, point: Point, freed: &mut Vec<u32>) -> u32 {
    let loan = writer.loan(0, 256).unwrap();
    let block = loan.block();
    let message = Message {
        tag: u64::from(block),
        point,
        ..Message::default()
    };
    writer
        .publish(loan, &message, &mut |block| freed.push(block))
        .unwrap();
    block
}

/// Collects free blocks, as a publisher does that needs one.
fn collect(writer: &mut Writer<Shared>, freed: &mut Vec<u32>) {
    let freed = &mut |block| freed.push(block);
    writer.collect_queued(freed);
    writer.collect_deferred_releases(freed);
    writer.collect_returned(freed);
}

fn list(fixture: &Fixture, subscriber: u32) -> ReleaseList<Shared> {
    ReleaseList::new(fixture.topic.clone(), subscriber)
}

fn deferring(fixture: &Fixture) -> u64 {
    fixture.topic.deferring().load(SeqCst)
}

#[test]
fn an_evicted_message_and_a_returned_loan_stay_until_their_kernels_have_passed() {
    let fixture = Fixture::with_geometry(SMALL);
    let mut writer = fixture.writer(0, 1);
    let mut freed = Vec::new();
    let first = publish(&mut writer, point(1, 1), &mut freed);
    let loan = writer.loan(0, 256).unwrap();
    let given_back = loan.block();
    writer.abandon(loan, point(2, 1), &mut |block| freed.push(block));
    let second = publish(&mut writer, point(1, 2), &mut freed);
    assert!(writer.has_queued());
    collect(&mut writer, &mut freed);
    assert_eq!(freed, [0; 0]);
    // Streams finish in any order; each runs its own work in the order of queueing.
    reach(&fixture, point(2, 1));
    collect(&mut writer, &mut freed);
    assert_eq!(freed, [given_back]);
    reach(&fixture, point(1, 1));
    collect(&mut writer, &mut freed);
    assert_eq!(freed, [given_back, first]);
    assert!(
        writer.has_queued(),
        "the second one is in the ring and queued"
    );
    reach(&fixture, point(1, 2));
    collect(&mut writer, &mut freed);
    assert!(!writer.has_queued());
    assert_eq!(freed, [given_back, first]);
    writer.evict_oldest(&mut |block| freed.push(block));
    assert_eq!(freed, [given_back, first, second]);
}

#[test]
fn a_reader_finds_the_point_that_a_message_waits_for() {
    let fixture = Fixture::with_geometry(SMALL);
    let mut writer = fixture.writer(0, 4);
    let mut reader = fixture.reader(0, false, Start::Live);
    let mut freed = Vec::new();
    let points = [
        point(1, 1),
        Point::NONE,
        point(MAX_TIMELINES - 1, 7 << 32 | 9),
        point(1, 2),
    ];
    for sent in points {
        publish(&mut writer, sent, &mut freed);
        let taken = reader.poll().unwrap();
        assert_eq!(taken.message.point, sent);
        taken.held.release();
    }
}

#[test]
fn a_publisher_gets_back_what_was_let_go_of_though_the_subscriber_never_looks() {
    let fixture = Fixture::with_geometry(SMALL);
    let mut writer = fixture.writer(0, 1);
    let mut other = fixture.writer(1, 1);
    let mut reader = fixture.reader(3, false, Start::Live);
    let mut list = list(&fixture, 3);
    let mut freed = Vec::new();
    let first = publish(&mut writer, Point::NONE, &mut freed);
    list.push(reader.poll().unwrap().held, point(1, 1)).unwrap();
    let second = publish(&mut writer, Point::NONE, &mut freed);
    list.push(reader.poll().unwrap().held, point(1, 2)).unwrap();
    publish(&mut writer, Point::NONE, &mut freed);
    assert_eq!((deferring(&fixture), list.len()), (1 << 3, 2));
    assert!(writer.has_deferred_releases() && !writer.has_queued());
    collect(&mut writer, &mut freed);
    assert_eq!(freed, [0; 0], "a kernel reads them");
    reach(&fixture, point(1, 1));
    collect(&mut other, &mut freed);
    assert_eq!(freed, [0; 0], "they are not the other one's");
    collect(&mut writer, &mut freed);
    assert_eq!(freed, [first]);
    reach(&fixture, point(1, 2));
    collect(&mut writer, &mut freed);
    assert_eq!(freed, [first, second]);
    // The subscriber finds both entries already cleared.
    assert_eq!((list.tidy(), deferring(&fixture)), (0, 0));
    collect(&mut writer, &mut freed);
    assert_eq!(freed, [first, second]);
}

#[test]
fn a_full_list_gives_the_hold_back_and_has_room_again_when_one_has_passed() {
    let fixture = Fixture::with_geometry(SMALL);
    let mut writer = fixture.writer(0, 1);
    let mut reader = fixture.reader(0, false, Start::Live);
    let mut list = list(&fixture, 0);
    let mut freed = Vec::new();
    let mut take = |freed: &mut Vec<u32>| {
        publish(&mut writer, Point::NONE, freed);
        reader.poll().unwrap().held
    };
    for value in 1..=MAX_DEFERRED_RELEASES as u64 {
        list.push(take(&mut freed), point(1, value)).unwrap();
    }
    let held = take(&mut freed);
    let held = list.push(held, point(2, 1)).unwrap_err();
    assert_eq!(list.tidy(), MAX_DEFERRED_RELEASES);
    reach(&fixture, point(1, 1));
    assert_eq!(list.tidy(), MAX_DEFERRED_RELEASES - 1);
    list.push(held, point(2, 1)).unwrap();
    // An entry also leaves if its point passes before that of an older one.
    reach(&fixture, point(2, 1));
    assert_eq!(list.tidy(), MAX_DEFERRED_RELEASES - 1);
    reach(&fixture, point(1, MAX_DEFERRED_RELEASES as u64));
    assert_eq!(list.tidy(), 0);
    while writer.evict_oldest(&mut |block| freed.push(block)) {}
    collect(&mut writer, &mut freed);
    let blocks: BTreeSet<u32> = freed.iter().copied().collect();
    assert_eq!((freed.len(), blocks.len()), (129, 129));
}

#[test]
fn a_publishers_region_is_looked_at_until_what_was_let_go_of_there_has_passed() {
    let fixture = Fixture::with_geometry(SMALL);
    let mut writer = fixture.writer(0, 1);
    let mut reader = fixture.reader(0, false, Start::Live);
    let mut list = list(&fixture, 0);
    publish(&mut writer, Point::NONE, &mut Vec::new());
    list.push(reader.poll().unwrap().held, point(1, 1)).unwrap();
    drop(writer);
    fixture.topic.publisher(0).incarnation().store(0, SeqCst);
    fixture.topic.publishers().store(0, SeqCst);
    fixture.bump_epoch();
    let epoch = fixture.topic.membership_epoch().load(SeqCst);
    let seen = fixture.topic.subscriber(0);
    let seen = seen.seen_epoch();
    assert!(reader.poll().is_none());
    assert!(seen.load(SeqCst) < epoch);
    assert_eq!(list.tidy(), 1);
    assert!(reader.poll().is_none());
    assert!(seen.load(SeqCst) < epoch);
    reach(&fixture, point(1, 1));
    assert_eq!(list.tidy(), 0);
    assert!(reader.poll().is_none());
    assert_eq!(seen.load(SeqCst), epoch);
}

/// A subscriber released three blocks behind work and died, after a publisher had claimed the second entry.
fn one_is_claimed() -> (Fixture, Writer<Shared>, Vec<u32>) {
    let fixture = Fixture::with_geometry(SMALL);
    let mut writer = fixture.writer(0, 1);
    let mut reader = fixture.reader(5, false, Start::Live);
    let mut list = list(&fixture, 5);
    let mut freed = Vec::new();
    for value in 1..=3 {
        publish(&mut writer, Point::NONE, &mut freed);
        list.push(reader.poll().unwrap().held, point(1, value))
            .unwrap();
    }
    assert_eq!(freed, [0; 0]);
    let claimed = fixture.topic.deferred_releases(5, 1);
    assert_eq!(
        claimed.state().load(SeqCst),
        1 << 2 | DEFERRED_RELEASE_PENDING
    );
    claimed
        .state()
        .store(1 << 2 | DEFERRED_RELEASE_BY_PUBLISHER, SeqCst);
    (fixture, writer, freed)
}

#[test]
fn a_slot_is_not_given_away_while_a_publisher_is_about_to_clear_its_bit() {
    let (fixture, _writer, _) = one_is_claimed();
    clear_holder(&fixture.topic.publisher(0), &fixture.region(0), 5);
    let lives = |slot, incarnation| (slot, incarnation) == (0, fixture.incarnation(0));
    for _ in 0..2 {
        assert!(!empty_deferred_releases(&fixture.topic, 5, lives));
        assert_eq!(deferring(&fixture), 1 << 5);
    }
    // The publisher has cleared the bit.
    fixture
        .topic
        .deferred_releases(5, 1)
        .state()
        .store(1 << 2, SeqCst);
    assert!(empty_deferred_releases(&fixture.topic, 5, lives));
    assert_eq!(deferring(&fixture), 0);
    let state = |entry| {
        fixture
            .topic
            .deferred_releases(5, entry)
            .state()
            .load(SeqCst)
    };
    assert_eq!([0, 1, 2, 3].map(state), [4, 4, 4, 0]);
    // The slot's next owner reuses the entries, with a higher count.
    let mut writer = fixture.writer(1, 1);
    let mut reader = fixture.reader(5, false, Start::Live);
    let mut next = list(&fixture, 5);
    publish(&mut writer, Point::NONE, &mut Vec::new());
    next.push(reader.poll().unwrap().held, point(2, 1)).unwrap();
    assert_eq!(state(0), 2 << 2 | DEFERRED_RELEASE_PENDING);
}

#[test]
fn a_slot_is_given_away_when_the_publisher_that_had_claimed_is_gone() {
    let (fixture, _writer, _) = one_is_claimed();
    clear_holder(&fixture.topic.publisher(0), &fixture.region(0), 5);
    assert!(empty_deferred_releases(&fixture.topic, 5, |_, _| false));
    assert_eq!(deferring(&fixture), 0);
}

#[test]
fn what_a_dead_publisher_would_have_cleared_is_and_nothing_else() {
    let (fixture, writer, _) = one_is_claimed();
    drop(writer);
    let (slot, region) = (fixture.topic.publisher(0), fixture.region(0));
    let incarnation = fixture.incarnation(0);
    rgaps_topic::abandon(&slot, &region, incarnation, 0);
    rgaps_topic::evict_through(&slot, &region, incarnation, 0..3);
    assert_eq!(live_blocks(&slot, &region).count(), 3);
    let collect =
        |slot, incarnation| clear_deferred_releases(&fixture.topic, &region, slot, incarnation);
    reach(&fixture, point(1, 2));
    assert_eq!(
        (collect(0, incarnation + 1), collect(1, incarnation)),
        (0, 0)
    );
    // The entry whose point has passed, and the claimed one.
    assert_eq!((collect(0, incarnation), collect(0, incarnation)), (2, 0));
    reach(&fixture, point(1, 3));
    assert_eq!((collect(0, incarnation), collect(0, incarnation)), (1, 0));
    assert_eq!(live_blocks(&slot, &region).count(), 0);
}

/// Subscribers and streams of the random test. Timelines are numbered from 1.
const SUBSCRIBERS: usize = 3;
const STREAMS: usize = 3;

/// One step of the publisher, a subscriber or a stream.
#[derive(Clone, Debug)]
enum Step {
    /// Behind the work of a stream; None: without work.
    Publish(Option<usize>),
    Abandon(Option<usize>),
    Evict,
    Collect,
    Poll(usize),
    Release(usize, usize),
    LetGo(usize, usize, usize),
    Tidy(usize),
    /// The stream finishes its oldest work.
    Pass(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let stream = || prop::option::of(0..STREAMS);
    let reader = || 0..SUBSCRIBERS;
    prop_oneof![
        4 => stream().prop_map(Step::Publish),
        1 => stream().prop_map(Step::Abandon),
        1 => Just(Step::Evict),
        2 => Just(Step::Collect),
        6 => reader().prop_map(Step::Poll),
        2 => (reader(), 0usize..8).prop_map(|(reader, nth)| Step::Release(reader, nth)),
        4 => (reader(), 0usize..8, 0..STREAMS)
            .prop_map(|(reader, nth, stream)| Step::LetGo(reader, nth, stream)),
        2 => reader().prop_map(Step::Tidy),
        4 => (0..STREAMS).prop_map(Step::Pass),
    ]
}

/// A reason why a block is not free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Use {
    Ring,
    Held(usize),
    /// Work of this stream uses it until the stream reaches this point.
    Queued(usize, u64),
}

/// The code under test, and beside it the expected state of each block.
struct Model {
    fixture: Fixture,
    writer: Writer<Shared>,
    readers: Vec<Reader<Shared>>,
    lists: Vec<ReleaseList<Shared>>,
    held: Vec<Vec<(u32, Held<Shared>)>>,
    ring: VecDeque<u32>,
    uses: BTreeMap<u32, BTreeSet<Use>>,
    /// Per stream: the last point queued, and the last point reached.
    streams: [(u64, u64); STREAMS],
    freed: Vec<u32>,
}

impl Model {
    fn new() -> Model {
        let fixture = Fixture::with_geometry(SMALL);
        Model {
            writer: fixture.writer(0, 4),
            readers: (0..SUBSCRIBERS as u32)
                .map(|slot| fixture.reader(slot, false, Start::Live))
                .collect(),
            lists: (0..SUBSCRIBERS as u32)
                .map(|slot| list(&fixture, slot))
                .collect(),
            held: (0..SUBSCRIBERS).map(|_| Vec::new()).collect(),
            ring: VecDeque::new(),
            uses: BTreeMap::new(),
            streams: [(0, 0); STREAMS],
            freed: Vec::new(),
            fixture,
        }
    }

    /// The next point of a stream, and the use of a block that lasts until then.
    fn enqueue(&mut self, stream: Option<usize>) -> (Point, Option<Use>) {
        let Some(stream) = stream else {
            return (Point::NONE, None);
        };
        self.streams[stream].0 += 1;
        let value = self.streams[stream].0;
        (
            point(stream as u32 + 1, value),
            Some(Use::Queued(stream, value)),
        )
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Publish(stream) => self.publish(stream),
            Step::Abandon(stream) => {
                let Ok(loan) = self.writer.loan(0, 256) else {
                    return;
                };
                let (point, queued) = self.enqueue(stream);
                self.uses.insert(loan.block(), queued.into_iter().collect());
                let freed = &mut self.freed;
                self.writer
                    .abandon(loan, point, &mut |block| freed.push(block));
            }
            Step::Evict => {
                let freed = &mut self.freed;
                assert_eq!(
                    self.writer.evict_oldest(&mut |block| freed.push(block)),
                    !self.ring.is_empty()
                );
                self.evicted(usize::from(!self.ring.is_empty()));
            }
            Step::Collect => self.collect(),
            Step::Poll(reader) => {
                if let Some(taken) = self.readers[reader].poll() {
                    let block = taken.message.tag as u32;
                    self.uses.get_mut(&block).unwrap().insert(Use::Held(reader));
                    self.held[reader].push((block, taken.held));
                }
            }
            Step::Release(reader, nth) if nth < self.held[reader].len() => {
                let (block, held) = self.held[reader].swap_remove(nth);
                held.release();
                self.uses
                    .get_mut(&block)
                    .unwrap()
                    .remove(&Use::Held(reader));
            }
            Step::LetGo(reader, nth, stream) if nth < self.held[reader].len() => {
                let (block, held) = self.held[reader].swap_remove(nth);
                let (point, queued) = self.enqueue(Some(stream));
                match self.lists[reader].push(held, point) {
                    Err(held) => self.held[reader].push((block, held)),
                    Ok(()) => {
                        let uses = self.uses.get_mut(&block).unwrap();
                        uses.remove(&Use::Held(reader));
                        uses.extend(queued);
                    }
                }
            }
            Step::Release(..) | Step::LetGo(..) => {}
            Step::Tidy(reader) => drop(self.lists[reader].tidy()),
            Step::Pass(stream) => self.pass(stream),
        }
        self.check_freed();
    }

    fn publish(&mut self, stream: Option<usize>) {
        let Ok(loan) = self.writer.loan(0, 256) else {
            return;
        };
        let block = loan.block();
        let (point, queued) = self.enqueue(stream);
        self.uses
            .insert(block, queued.into_iter().chain([Use::Ring]).collect());
        self.ring.push_back(block);
        let message = Message {
            tag: u64::from(block),
            point,
            ..Message::default()
        };
        let freed = &mut self.freed;
        self.writer
            .publish(loan, &message, &mut |block| freed.push(block))
            .unwrap();
        self.evicted(self.ring.len().saturating_sub(4));
    }

    fn evicted(&mut self, count: usize) {
        for block in self.ring.drain(..count) {
            self.uses.get_mut(&block).unwrap().remove(&Use::Ring);
        }
    }

    fn pass(&mut self, stream: usize) {
        let (queued, passed) = &mut self.streams[stream];
        if passed < queued {
            *passed += 1;
            let point = point(stream as u32 + 1, *passed);
            let last = Use::Queued(stream, *passed);
            for uses in self.uses.values_mut() {
                uses.remove(&last);
            }
            reach(&self.fixture, point);
            assert_eq!(progress(&self.fixture.shared, point), Progress::Reached);
        }
    }

    /// Collects free blocks, and checks that it found every block that nobody needs.
    fn collect(&mut self) {
        collect(&mut self.writer, &mut self.freed);
        self.check_freed();
        assert!(
            self.uses.values().all(|uses| !uses.is_empty()),
            "a block was not found: {:?}",
            self.uses
        );
    }

    fn check_freed(&mut self) {
        for block in self.freed.drain(..) {
            let uses = self.uses.remove(&block).expect("freed twice");
            assert_eq!(uses, BTreeSet::new(), "block {block} was freed early");
        }
    }

    fn finish(mut self) {
        for stream in 0..STREAMS {
            while self.streams[stream].1 < self.streams[stream].0 {
                self.pass(stream);
            }
        }
        for (block, held) in self.held.iter_mut().flat_map(std::mem::take) {
            held.release();
            let uses = self.uses.get_mut(&block).unwrap();
            uses.retain(|it| !matches!(it, Use::Held(_)));
        }
        while !self.ring.is_empty() {
            self.take(Step::Evict);
        }
        self.collect();
        assert_eq!(self.uses, BTreeMap::new());
        assert!(!self.writer.has_queued());
        for list in &mut self.lists {
            assert_eq!(list.tidy(), 0);
        }
        assert_eq!(deferring(&self.fixture), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]

    #[test]
    fn blocks_come_back_when_nobody_and_no_work_needs_them(steps in prop::collection::vec(step(), 1..250)) {
        let mut model = Model::new();
        for step in steps {
            model.take(step);
        }
        model.finish();
    }
}

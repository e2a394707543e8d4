//! The history of several publishers that late joiners receive, against a plain model.
#![cfg(not(loom))]

mod fixture;

use fixture::Fixture;
use proptest::prelude::*;
use rgaps_layout::{PublisherRegion, MAX_PUBLISHERS};
use rgaps_topic::{published_after, Message, Reader, Shared, Start, Writer};
use std::collections::VecDeque;

const GEOMETRY: PublisherRegion = PublisherRegion {
    ring_capacity: 8,
    block_capacity: 64,
};

/// Publishers that keep `depth` messages each. `kept` models their histories: the times of the kept messages, by slot.
struct World {
    fixture: Fixture,
    depth: usize,
    writers: Vec<Writer<Shared>>,
    kept: Vec<VecDeque<u64>>,
    now_ns: u64,
}

impl World {
    fn new(publishers: usize, depth: u32) -> World {
        let fixture = Fixture::with_geometry(GEOMETRY);
        let writers = (0..publishers as u32).map(|index| fixture.writer(index, depth));
        World {
            writers: writers.collect(),
            kept: vec![VecDeque::new(); publishers],
            depth: depth as usize,
            now_ns: 0,
            fixture,
        }
    }

    /// Publishes a message whose tag is its publish time.
    fn publish(&mut self, publisher: usize) {
        self.now_ns += 1;
        let writer = &mut self.writers[publisher];
        writer.collect_returned(&mut |_| ());
        let loan = writer.loan(0, 1).unwrap();
        let message = Message {
            tag: self.now_ns,
            publish_ns: self.now_ns,
            ..Message::default()
        };
        writer.publish(loan, &message, &mut |_| ()).unwrap();
        let kept = &mut self.kept[publisher];
        kept.push_back(self.now_ns);
        if kept.len() > self.depth {
            kept.pop_front();
        }
    }

    fn newest(&self, n: u64) -> Vec<u64> {
        let mut all: Vec<u64> = self.kept.iter().flatten().copied().collect();
        all.sort_unstable();
        let begin = all.len().saturating_sub(n as usize);
        all.split_off(begin)
    }
}

fn read_all(reader: &mut Reader<Shared>) -> Vec<u64> {
    std::iter::from_fn(|| {
        let taken = reader.poll()?;
        taken.held.release();
        Some(taken.message.tag)
    })
    .collect()
}

#[test]
fn the_latest_of_many_publishers_is_the_newest_and_not_that_of_the_first_slot() {
    let mut world = World::new(MAX_PUBLISHERS, 2);
    for publisher in [3, 15, 0, 7, 1] {
        world.publish(publisher);
        let mut reader = world.fixture.reader(0, false, Start::Kept(1));
        assert_eq!(read_all(&mut reader), [world.now_ns], "slot {publisher}");
    }
}

#[test]
fn twenty_restarts_are_read_in_the_order_of_publishing() {
    // The daemon reuses slots like this: the oldest publisher leaves, and the next one gets its slot.
    let mut world = World::new(MAX_PUBLISHERS, 1);
    for publisher in (0..20).map(|n| n % MAX_PUBLISHERS) {
        world.publish(publisher);
    }
    for (n, expected) in [(u64::MAX, 5..=20), (4, 17..=20), (1, 20..=20)] {
        for reliable in [false, true] {
            let mut reader = world.fixture.reader(0, reliable, Start::Kept(n));
            assert_eq!(read_all(&mut reader), expected.clone().collect::<Vec<_>>());
        }
    }
}

#[test]
fn messages_from_before_this_host_started_are_in_order_too() {
    let mut world = World::new(3, 1);
    for (publisher, ns) in [(0, -5i64), (1, 3), (2, -9)] {
        world.now_ns = (ns as u64).wrapping_sub(1);
        world.publish(publisher);
    }
    let mut reader = world.fixture.reader(0, false, Start::Kept(2));
    let read: Vec<i64> = read_all(&mut reader).iter().map(|ns| *ns as i64).collect();
    assert_eq!(read, [-5, 3]);
}

#[test]
fn a_publisher_that_claims_messages_it_does_not_have_holds_up_nobodys_history() {
    for (tail, head) in [(0, 1 << 40), (1 << 40, 1 << 40), (0, u64::MAX), (2, 6)] {
        let mut world = World::new(2, 4);
        (0..6).for_each(|n| world.publish(n % 2));
        let liar = world.fixture.topic.publisher(0);
        liar.tail().store(tail, std::sync::atomic::Ordering::SeqCst);
        liar.head().store(head, std::sync::atomic::Ordering::SeqCst);
        for n in [2, u64::MAX] {
            let mut reader = world.fixture.reader(0, false, Start::Kept(n));
            let read = read_all(&mut reader);
            let honest: Vec<u64> = read.into_iter().filter(|ns| ns % 2 == 0).collect();
            assert!(honest.is_sorted(), "{honest:?}");
            assert_eq!(honest.last(), Some(&6), "tail {tail}, head {head}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_newest_n_come_in_the_order_of_publishing_and_then_what_is_live(
        publishers in 1usize..=MAX_PUBLISHERS,
        depth in 1u32..7,
        before in prop::collection::vec(any::<prop::sample::Index>(), 0..120),
        // Some(publisher): it publishes. None: the reader polls.
        meanwhile in prop::collection::vec(prop::option::of(any::<prop::sample::Index>()), 0..60),
        n in prop_oneof![0u64..20, Just(u64::MAX)],
    ) {
        let mut world = World::new(publishers, depth);
        before.iter().for_each(|index| world.publish(index.index(publishers)));
        let mut expected: VecDeque<u64> = world.newest(n).into();
        let joined_ns = world.now_ns;
        let mut reader = world.fixture.reader(0, false, Start::Kept(n));
        let mut read = Vec::new();
        let mut poll = |world: &World| {
            let taken = reader.poll()?;
            taken.held.release();
            let ns = taken.message.tag;
            if ns <= joined_ns {
                // The reader skips messages that left the ring meanwhile.
                while expected.front().is_some_and(|next| !is_kept(world, *next)) {
                    expected.pop_front();
                }
                assert_eq!(expected.pop_front(), Some(ns));
            } else {
                let left = expected.iter().find(|next| is_kept(world, **next));
                assert_eq!(left, None, "history comes before what is live");
            }
            Some((taken.publisher, ns))
        };
        for index in meanwhile {
            match index {
                Some(index) => world.publish(index.index(publishers)),
                None => read.extend(poll(&world)),
            }
        }
        while let Some(taken) = poll(&world) {
            read.push(taken);
        }
        expected.retain(|next| is_kept(&world, *next));
        prop_assert!(expected.is_empty(), "not delivered: {expected:?}");
        for publisher in 0..publishers as u32 {
            let of: Vec<u64> = read.iter().filter(|r| r.0 == publisher).map(|r| r.1).collect();
            prop_assert!(of.is_sorted(), "{of:?}");
        }
    }

    #[test]
    fn messages_after_a_time_are_counted_without_looking_at_each(
        depth in 1u32..7,
        published in 0u64..30,
        after in 0i64..35,
    ) {
        let mut world = World::new(1, depth);
        (0..published).for_each(|_| world.publish(0));
        let slot = world.fixture.topic.publisher(0);
        let region = world.fixture.region(0);
        let newer = world.kept[0].iter().filter(|ns| **ns as i64 > after).count() as u64;
        let incarnation = world.fixture.incarnation(0);
        prop_assert_eq!(published_after(&slot, &region, incarnation, after), newer);
    }
}

fn is_kept(world: &World, ns: u64) -> bool {
    world.kept.iter().flatten().any(|kept| *kept == ns)
}

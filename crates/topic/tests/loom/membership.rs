//! Models of joining and leaving: the messages that a publisher leaves are read or freed, never both, and its region is
//! reused only when nobody accesses it any more.

use crate::cells::{Cells, Shape};
use crate::check;
use crate::world::World;
use loom::thread;
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{
    abandon, admit_subscriber, evict_through, live_blocks, Admission, Reader, Start, Taken,
};

const SMALL: Shape = Shape {
    publishers: 1,
    subscribers: 1,
    blocks: 2,
    doorbells: 2,
    timelines: 0,
    deferred_releases: 0,
};

/// Cleans up, as the daemon does, after a publisher that died with a message in its ring and an open loan. True: nobody
/// holds a block, so its memory is free.
fn end_publisher(world: &World) -> bool {
    let (slot, region) = (world.slot(0), world.region(0));
    let incarnation = World::incarnation(0);
    let left = abandon(&slot, &region, incarnation, 0);
    assert_eq!((left.tail, left.head, left.freed), (0, 1, 1));
    evict_through(&slot, &region, incarnation, left.tail..left.head);
    live_blocks(&slot, &region).count() == 0
}

/// Reuses the region of a publisher that left, if the subscriber has seen that. Whether it did.
fn reuse_region(world: &World, epoch: u32) -> bool {
    let seen = world
        .topic
        .subscriber(0)
        .seen_epoch()
        .load(Ordering::Acquire)
        >= epoch;
    if seen {
        world.cells.reuse_region(0);
    }
    seen
}

/// The daemon ends an orphan while a subscriber polls it: either the subscriber gets the message,
/// and its block stays until the subscriber releases it, or the block is free.
#[test]
fn an_orphans_message_is_read_or_freed() {
    check(5, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut reader = world.subscriber(0, false);
        publisher.publish(1);
        let _open = publisher.writer.loan(1, 1).unwrap();
        drop(publisher);
        let daemon = thread::spawn({
            let world = world.clone();
            move || {
                if end_publisher(&world) {
                    world.reuse_memory(0);
                }
            }
        });
        let taken = reader.poll();
        if let Some(taken) = &taken {
            world.verify(taken);
        }
        daemon.join().unwrap();
        let live = live_blocks(&world.slot(0), &world.region(0)).count();
        assert_eq!(live, usize::from(taken.is_some()));
        taken
            .into_iter()
            .for_each(|taken| assert_eq!(world.consume(taken), 1));
        assert_eq!(live_blocks(&world.slot(0), &world.region(0)).count(), 0);
    });
}

/// The daemon removes an ended publisher while a subscriber polls, and reuses the region once the subscriber has
/// reported the new epoch.
#[test]
fn a_region_is_reused_only_when_the_subscriber_does_not_look_at_it() {
    check(5, || {
        let world = World::new(SMALL);
        drop(world.publisher());
        let mut reader = world.subscriber(0, false);
        let daemon = thread::spawn({
            let world = world.clone();
            move || {
                let epoch = world.remove_publisher(0);
                reuse_region(&world, epoch) || reuse_region(&world, epoch)
            }
        });
        assert!(reader.poll().is_none());
        assert!(reader.poll().is_none());
        let reused = daemon.join().unwrap();
        assert!(reader.poll().is_none());
        assert!(
            reused || reuse_region(&world, 2),
            "the subscriber has said so by now"
        );
    });
}

/// The same while the subscriber still holds a block, which another thread releases. The region counts as used until
/// then.
#[test]
fn a_region_is_not_reused_before_the_last_block_in_it_is_released() {
    check(5, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut reader = world.subscriber(0, false);
        publisher.publish(1);
        let taken: Taken<Cells> = reader.poll().unwrap();
        publisher.evict();
        drop(publisher);
        let epoch = world.remove_publisher(0);
        let releasing = thread::spawn({
            let world = world.clone();
            move || world.consume(taken)
        });
        let daemon = thread::spawn({
            let world = world.clone();
            move || reuse_region(&world, epoch)
        });
        assert!(reader.poll().is_none());
        assert!(reader.poll().is_none());
        let reused = daemon.join().unwrap();
        releasing.join().unwrap();
        assert!(reader.poll().is_none());
        assert!(
            reused || reuse_region(&world, epoch),
            "the subscriber has said so by now"
        );
    });
}

/// A publisher leaves and another takes its slot while a subscriber learns of them. The subscriber reads all messages of
/// the second.
#[test]
fn a_subscriber_does_not_mistake_a_publisher_for_its_predecessor() {
    check(3, || {
        let world = World::new(Shape {
            publishers: 2,
            ..SMALL
        });
        let mut reader = world.subscriber(0, false);
        let polling = thread::spawn({
            let world = world.clone();
            move || {
                let taken = reader.poll();
                (
                    taken.map(|taken| (taken.missed, world.consume(taken))),
                    reader,
                )
            }
        });
        world.add_publisher(0, 0, 0);
        world.remove_publisher(0);
        world.add_publisher(0, 1, 0);
        let mut publisher = world.publisher_at(0, 1, 0);
        publisher.publish(1);
        let (early, mut reader) = polling.join().unwrap();
        let late = reader
            .poll()
            .map(|taken| (taken.missed, world.consume(taken)));
        assert_eq!(early.or(late), Some((0, 1)));
        publisher.finish();
    });
}

/// A reliable subscriber joins while a publisher goes round its ring without waiting for anyone. From its first message
/// on, the subscriber receives all without a gap.
#[test]
fn a_reliable_subscriber_misses_nothing_from_its_first_message_on() {
    check(4, || {
        let world = World::new(SMALL);
        // The publisher joined before the subscriber, and the daemon has not matched them yet.
        world.add_matched_publisher(0, 0, 0, 0);
        let mut publisher = world.publisher_at(0, 0, 0);
        publisher.publish(1);
        let publishing = thread::spawn(move || {
            for tag in 2..4 {
                if !publisher.writer.has_room(tag) {
                    break;
                }
                publisher.publish(tag);
            }
            publisher
        });
        let admission = Admission {
            reliable: true,
            late: false,
            matched: 1,
            epoch: 2,
        };
        admit_subscriber(&world.topic, 0, admission);
        let mut reader = Reader::new(world.topic.clone(), 0, true, Start::Live).unwrap();
        let publisher = publishing.join().unwrap();
        let first = reader.poll();
        let missed = first.as_ref().map(|taken| taken.missed);
        assert!(missed.is_none_or(|missed| missed == 0), "missed {missed:?}");
        first.into_iter().for_each(|taken| {
            world.consume(taken);
        });
        assert_eq!(reader.missed(), 0);
        publisher.finish();
    });
}

/// A publisher that does not match joins, publishes and ends, and one that matches takes its slot, while a subscriber
/// learns of them. The subscriber reads only the second one's messages, and has missed nothing.
#[test]
fn a_subscriber_reads_only_publishers_that_match() {
    check(3, || {
        let world = World::new(Shape {
            publishers: 2,
            ..SMALL
        });
        let mut reader = world.subscriber(0, false);
        let polling = thread::spawn({
            let world = world.clone();
            move || {
                let taken = reader.poll();
                let taken = taken.map(|taken| (taken.missed, world.consume(taken)));
                (taken, reader)
            }
        });
        world.add_matched_publisher(0, 0, 0, 0);
        let mut stranger = world.publisher_at(0, 0, 0);
        stranger.publish(1);
        // As the engine's `end_publisher` does.
        let passed_over = world.topic.subscriber(0);
        passed_over.passed_over(0).store(1, Ordering::Relaxed);
        world.remove_publisher(0);
        world.add_matched_publisher(0, 1, 1, 1);
        let mut publisher = world.publisher_at(0, 1, 1);
        publisher.publish(2);
        let (early, mut reader) = polling.join().unwrap();
        let late = reader
            .poll()
            .map(|taken| (taken.missed, world.consume(taken)));
        assert_eq!(early.or(late), Some((0, 2)));
        assert_eq!(reader.missed(), 0);
        stranger.finish();
        publisher.finish();
    });
}

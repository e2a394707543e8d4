//! Models of coming and going: what a publisher leaves is read or freed, never both, and its
//! region is reused only when nobody looks at it any more.

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

/// A publisher has died with a message in its ring and a loan open. What the daemon does about it,
/// after which its memory is free if nobody holds a block. True: it is.
fn end_publisher(world: &World) -> bool {
    let (slot, region) = (world.slot(0), world.region(0));
    let incarnation = World::incarnation(0);
    let left = abandon(&slot, &region, incarnation, 0);
    assert_eq!((left.tail, left.head, left.freed), (0, 1, 1));
    evict_through(&slot, &region, incarnation, left.tail..left.head);
    live_blocks(&slot, &region).count() == 0
}

/// Reuses the region of a publisher that is gone, if every subscriber has seen that.
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
/// and its block stays until it lets go, or the block is free.
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

/// The daemon takes an ended publisher out while a subscriber polls, and reuses the region once
/// the subscriber has said that it knows.
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

/// The same, but the subscriber still holds a block, which another thread lets go of: the region
/// counts as looked at until that is done.
#[test]
fn a_region_is_not_reused_before_the_last_block_in_it_has_deferred_releases_of() {
    check(5, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut reader = world.subscriber(0, false);
        publisher.publish(1);
        let taken: Taken<Cells> = reader.poll().unwrap();
        publisher.evict();
        drop(publisher);
        let epoch = world.remove_publisher(0);
        let deferred_releases = thread::spawn({
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
        deferred_releases.join().unwrap();
        assert!(reader.poll().is_none());
        assert!(
            reused || reuse_region(&world, epoch),
            "the subscriber has said so by now"
        );
    });
}

/// A publisher leaves and another takes its slot while a subscriber learns of them: it reads all
/// messages of the one that stayed.
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

/// A reliable subscriber comes while a publisher that waited for nobody goes round its ring: what
/// is published from then on it gets without a gap.
#[test]
fn a_reliable_subscriber_misses_nothing_from_its_first_message_on() {
    check(4, || {
        let world = World::new(SMALL);
        // It joined before the subscriber, which the daemon has not matched with it yet.
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

/// A publisher that does not match comes, publishes and ends, and one that matches takes its slot, while
/// a subscriber learns of them: it reads the second one's messages only, and has missed nothing.
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
        // The engine's `end_publisher`.
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

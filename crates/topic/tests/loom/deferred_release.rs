//! Models of holds that are let go of behind GPU work: the bytes stay until the work has passed its
//! point, whoever clears the bit, and a slot's next owner loses nothing to those who come late.

use crate::cells::{Cells, Shape};
use crate::check;
use crate::world::World;
use loom::thread;
use rgaps_layout::DEFERRED_RELEASE_BY_PUBLISHER;
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{
    abandon, clear_deferred_releases, clear_holder, empty_deferred_releases, evict_through,
    live_blocks, Holders, Point, Reader, Start, Taken,
};

const SMALL: Shape = Shape {
    publishers: 1,
    subscribers: 1,
    blocks: 3,
    doorbells: 2,
    timelines: 1,
    deferred_releases: 2,
};

/// A point of the subscriber's stream.
fn point(value: u64) -> Point {
    Point { timeline: 1, value }
}

/// A kernel reads a block that its subscriber has let go of behind it, while the publisher wants the
/// block back and the subscriber looks, too.
#[test]
fn a_block_that_has_deferred_releases_of_is_not_reused_before_its_reader_has_passed() {
    check(4, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut reader = world.subscriber(0, false);
        let mut list = world.deferred_releases(0);
        publisher.publish(1);
        let taken = reader.poll().unwrap();
        let payload = world.payload(&taken);
        let gpu = thread::spawn({
            let world = world.clone();
            move || {
                assert_eq!(
                    payload.get(),
                    1,
                    "the block was reused while a kernel reads it"
                );
                world.reach(point(1));
            }
        });
        let subscriber = thread::spawn(move || {
            list.push(taken.held, point(1)).unwrap();
            list.tidy();
            list
        });
        publisher.evict();
        publisher.collect_all();
        publisher.reuse_all();
        gpu.join().unwrap();
        let mut list = subscriber.join().unwrap();
        publisher.collect_all();
        publisher.reuse_all();
        // Whoever of the two has not looked yet finds what the other has done.
        assert_eq!(list.tidy(), 0);
        publisher.finish();
    });
}

/// An entry is used for a second hold while the publisher is still about the first one: the second
/// one's reader has not passed.
#[test]
fn an_entry_that_is_used_again_is_not_taken_for_what_it_was() {
    check(2, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut reader = world.subscriber(0, false);
        let mut list = world.deferred_releases(0);
        let [first, second] = [1, 2].map(|tag| {
            publisher.publish(tag);
            reader.poll().unwrap()
        });
        publisher.evict();
        world.reach(point(1));
        let payload = world.payload(&second);
        let gpu = thread::spawn({
            let world = world.clone();
            move || {
                assert_eq!(
                    payload.get(),
                    2,
                    "the block was reused while a kernel reads it"
                );
                world.reach(point(2));
            }
        });
        let subscriber = thread::spawn(move || {
            list.push(first.held, point(1)).unwrap();
            list.tidy();
            list.push(second.held, point(2)).unwrap();
            list
        });
        publisher.collect_all();
        publisher.reuse_all();
        gpu.join().unwrap();
        let mut list = subscriber.join().unwrap();
        // Alone: what is pending is its to find.
        publisher.collect_all();
        assert_eq!(list.tidy(), 0);
        publisher.finish();
    });
}

/// The subscriber never comes back to its list, and the publisher gets the block all the same.
#[test]
fn a_publisher_needs_no_subscriber_to_get_its_block_back() {
    check(5, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut reader = world.subscriber(0, false);
        let mut list = world.deferred_releases(0);
        publisher.publish(1);
        let taken = reader.poll().unwrap();
        publisher.evict();
        let payload = world.payload(&taken);
        list.push(taken.held, point(1)).unwrap();
        let gpu = thread::spawn({
            let world = world.clone();
            move || {
                assert_eq!(
                    payload.get(),
                    1,
                    "the block was reused while a kernel reads it"
                );
                world.reach(point(1));
            }
        });
        publisher.collect_all();
        publisher.reuse_all();
        gpu.join().unwrap();
        publisher.collect_all();
        publisher.finish();
        assert_eq!(list.tidy(), 0);
    });
}

/// Two subscribers let go of one block behind a point each, and the ring does: the last one frees it.
#[test]
fn of_two_that_let_go_behind_points_the_last_one_frees_the_block() {
    check(3, || {
        let world = World::new(Shape {
            subscribers: 2,
            doorbells: 3,
            deferred_releases: 1,
            ..SMALL
        });
        let mut publisher = world.publisher();
        let mut readers = [0, 1].map(|index| world.subscriber(index, false));
        publisher.publish(1);
        world.reach(point(1));
        let mut lists = [0, 1].map(|index| world.deferred_releases(index));
        for (reader, list) in readers.iter_mut().zip(&mut lists) {
            let held = reader.poll().unwrap().held;
            list.push(held, point(1)).unwrap();
        }
        let tidying = lists.map(|mut list| {
            thread::spawn(move || {
                list.tidy();
                list
            })
        });
        publisher.evict();
        publisher.collect_all();
        publisher.reuse_all();
        for list in tidying {
            assert_eq!(list.join().unwrap().tidy(), 0);
        }
        publisher.finish();
    });
}

/// A publisher takes the slot of another one, whose block a subscriber has let go of and has not
/// looked after. The entry is not the new one's, whose block of that number and life the subscriber
/// holds.
#[test]
fn a_publisher_does_not_clear_what_was_its_predecessors() {
    check(5, || {
        let world = World::new(Shape {
            publishers: 2,
            ..SMALL
        });
        let mut old = world.publisher();
        let mut reader = world.subscriber(0, false);
        let mut list = world.deferred_releases(0);
        old.publish(1);
        list.push(reader.poll().unwrap().held, point(1)).unwrap();
        world.reach(point(1));
        old.evict();
        // It dies. Its region is in quarantine as long as the subscriber has a hold there.
        drop(old);
        world.remove_publisher(0);
        world.add_publisher(0, 1, 1);
        let mut publisher = world.publisher_at(0, 1, 1);
        publisher.publish(1);
        let taken = reader.poll().unwrap();
        let subscriber = thread::spawn({
            let world = world.clone();
            move || {
                assert_eq!(world.consume(taken), 1);
                assert_eq!(list.tidy(), 0);
            }
        });
        publisher.evict();
        publisher.collect_all();
        publisher.reuse_all();
        subscriber.join().unwrap();
        publisher.finish();
    });
}

/// What the daemon does about subscriber 0, which is gone with its GPU work, and what the slot's next
/// owner takes, if the slot can be given away already.
fn take_over(world: &World) -> Option<Taken<Cells>> {
    clear_holder(&world.slot(0), &world.region(0), 0);
    world.slot(0).sweep().fetch_add(1, Ordering::AcqRel);
    if !empty_deferred_releases(&world.topic, 0, |_, _| true) {
        return None;
    }
    let next = Reader::new(world.topic.clone(), 0, false, Start::Kept(1));
    next.unwrap().poll()
}

/// What the slot's next owner took is its own until it lets go of it.
fn check_next_owner(world: &World, taken: Option<Taken<Cells>>, block: u32) {
    if let Some(taken) = taken {
        let region = world.region(0);
        let now = Holders::load(region.holders(block).unwrap());
        assert_eq!(now.mask & 1, 1, "its bit was cleared");
        world.consume(taken);
    }
}

/// A subscriber lets go of a block and dies. Its slot goes to another one, which takes the same block
/// in the same life: it is in the ring still. Its publisher, which was about to clear the first one's
/// bit, does not clear the second one's.
#[test]
fn a_late_publisher_does_not_clear_the_bit_of_the_slots_next_owner() {
    check(4, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut dead = world.subscriber(0, false);
        let mut list = world.deferred_releases(0);
        publisher.publish(1);
        list.push(dead.poll().unwrap().held, point(1)).unwrap();
        world.reach(point(1));
        let daemon = thread::spawn({
            let world = world.clone();
            move || take_over(&world)
        });
        publisher.collect_all();
        publisher.evict();
        publisher.collect_all();
        publisher.reuse_all();
        check_next_owner(&world, daemon.join().unwrap(), 0);
        publisher.finish();
    });
}

/// The same, when the dead one had used the entry again.
#[test]
fn a_late_publisher_does_not_clear_the_next_owners_bit_for_a_used_entry() {
    check(2, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut reader = world.subscriber(0, false);
        let mut list = world.deferred_releases(0);
        let [first, second] = [1, 2].map(|tag| {
            publisher.publish(tag);
            reader.poll().unwrap()
        });
        list.push(second.held, point(1)).unwrap();
        world.reach(point(1));
        let daemon = thread::spawn({
            let world = world.clone();
            move || {
                // The last that the dead one does: an entry that is free again is used again.
                list.tidy();
                list.push(first.held, point(1)).unwrap();
                take_over(&world)
            }
        });
        publisher.collect_all();
        check_next_owner(&world, daemon.join().unwrap(), 1);
        publisher.finish();
    });
}

/// What the daemon does for publisher 0. True: nobody holds a block of its.
fn bury_publisher(world: &World) -> bool {
    let (slot, region) = (world.slot(0), world.region(0));
    let incarnation = World::incarnation(0);
    let left = abandon(&slot, &region, incarnation, 0);
    evict_through(&slot, &region, incarnation, left.tail..left.head);
    clear_deferred_releases(&world.topic, &region, 0, incarnation);
    live_blocks(&slot, &region).count() == 0
}

/// A publisher died while a kernel reads a block that its subscriber has let go of. The daemon wants
/// the block back, and the subscriber looks, too.
#[test]
fn the_daemon_collects_for_a_dead_publisher() {
    check(4, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut reader = world.subscriber(0, false);
        let mut list = world.deferred_releases(0);
        publisher.publish(1);
        let taken = reader.poll().unwrap();
        let payload = world.payload(&taken);
        list.push(taken.held, point(1)).unwrap();
        drop(publisher);
        let gpu = thread::spawn({
            let world = world.clone();
            move || {
                assert_eq!(
                    payload.get(),
                    1,
                    "the memory was reused while a kernel reads it"
                );
                world.reach(point(1));
            }
        });
        let subscriber = thread::spawn(move || {
            list.tidy();
            list
        });
        let free = bury_publisher(&world);
        if free {
            world.reuse_memory(0);
        }
        gpu.join().unwrap();
        let mut list = subscriber.join().unwrap();
        assert!(free || bury_publisher(&world), "a block is lost");
        assert_eq!(list.tidy(), 0);
    });
}

/// A publisher died when it had claimed an entry. The daemon does the rest while the subscriber looks.
#[test]
fn what_a_dead_publisher_had_claimed_is_cleared_for_it() {
    check(4, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut reader = world.subscriber(0, false);
        let mut list = world.deferred_releases(0);
        publisher.publish(1);
        list.push(reader.poll().unwrap().held, point(1)).unwrap();
        world.reach(point(1));
        // Its last step.
        let view = world.topic.deferred_releases(0, 0);
        view.state()
            .store(1 << 2 | DEFERRED_RELEASE_BY_PUBLISHER, Ordering::Release);
        drop(publisher);
        let subscriber = thread::spawn(move || {
            list.tidy();
            list
        });
        assert!(bury_publisher(&world), "a block is lost");
        world.reuse_memory(0);
        assert_eq!(subscriber.join().unwrap().tidy(), 0);
    });
}

//! Models of deferred releases: a block stays until the GPU work that reads it has passed its point, whoever clears the
//! bit, and nobody who acts late clears a bit of the slot's next owner.

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

/// A kernel reads a block that its subscriber released behind it. The publisher collects the block and the subscriber
/// tidies its list meanwhile.
#[test]
fn a_block_with_a_deferred_release_is_not_reused_before_its_reader_is_past_it() {
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
        // If the publisher cleared the bit, the list learns of it here.
        assert_eq!(list.tidy(), 0);
        publisher.finish();
    });
}

/// The subscriber reuses an entry for a second hold while the publisher still processes the first. The second hold's
/// kernel has not passed, so the publisher must not release that block.
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
        // All other threads have ended, so this publisher alone collects the pending blocks.
        publisher.collect_all();
        assert_eq!(list.tidy(), 0);
        publisher.finish();
    });
}

/// The subscriber does not tidy its list, and the publisher gets the block back anyway.
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

/// Two subscribers release one block behind points, and the publisher evicts it: the last of the three frees it.
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

/// A publisher takes the slot of a dead one while an entry of a release list still names the dead one's block. The
/// subscriber holds a block of the new publisher with the same number and generation. The new publisher ignores the entry.
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
        // The old publisher dies. Its region stays in quarantine while the subscriber has a hold there.
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

/// Cleans up after subscriber 0, which died with its GPU work, as the daemon does. Returns the message that the slot's
/// next owner receives. None: the slot is not free yet, or there is no message.
fn take_over(world: &World) -> Option<Taken<Cells>> {
    clear_holder(&world.slot(0), &world.region(0), 0);
    world.slot(0).sweep().fetch_add(1, Ordering::AcqRel);
    if !empty_deferred_releases(&world.topic, 0, |_, _| true) {
        return None;
    }
    let next = Reader::new(world.topic.clone(), 0, false, Start::Kept(1));
    next.unwrap().poll()
}

/// Checks that the slot's next owner still holds the block that it received, and releases it.
fn check_next_owner(world: &World, taken: Option<Taken<Cells>>, block: u32) {
    if let Some(taken) = taken {
        let region = world.region(0);
        let now = Holders::load(region.holders(block).unwrap());
        assert_eq!(now.mask & 1, 1, "its bit was cleared");
        world.consume(taken);
    }
}

/// A subscriber releases a block behind work and dies. The slot's next owner receives the same block in the same
/// generation, because it is still in the ring. The publisher, which was about to clear the first owner's bit, does not
/// clear that of the second.
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

/// The same, when the dead subscriber had reused the entry.
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
                // The dead subscriber's last steps: it reuses an entry that is free again.
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

/// Cleans up after publisher 0, as the daemon does. True: nobody holds one of its blocks.
fn bury_publisher(world: &World) -> bool {
    let (slot, region) = (world.slot(0), world.region(0));
    let incarnation = World::incarnation(0);
    let left = abandon(&slot, &region, incarnation, 0);
    evict_through(&slot, &region, incarnation, left.tail..left.head);
    clear_deferred_releases(&world.topic, &region, 0, incarnation);
    live_blocks(&slot, &region).count() == 0
}

/// A publisher died while a kernel reads a block that its subscriber released behind the kernel. The daemon collects the
/// block while the subscriber tidies its list.
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

/// A publisher died after it had claimed an entry. The daemon clears the bit while the subscriber tidies its list.
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
        // The publisher's last step: it claims the entry.
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

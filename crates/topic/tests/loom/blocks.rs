//! Models of a block's life: no block is reused while somebody holds it, and every block comes back exactly once,
//! whoever releases it last and whoever dies.

use crate::cells::Shape;
use crate::check;
use crate::world::World;
use loom::thread;
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{clear_holder, Holders};

const SMALL: Shape = Shape {
    publishers: 1,
    subscribers: 2,
    blocks: 3,
    doorbells: 3,
    timelines: 0,
    deferred_releases: 0,
};

/// A publisher pushes a message out and reuses its block while a reader receives and releases it.
#[test]
fn a_block_is_not_reused_while_a_reader_holds_it() {
    check(5, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut reader = world.subscriber(0, false);
        publisher.publish(1);
        let reading = thread::spawn({
            let world = world.clone();
            move || {
                let mut last = 0;
                for _ in 0..2 {
                    if let Some(taken) = reader.poll() {
                        let tag = world.consume(taken);
                        assert!(tag > last, "order");
                        last = tag;
                    }
                }
            }
        });
        publisher.publish(2);
        publisher.collect();
        publisher.reuse();
        reading.join().unwrap();
        publisher.finish();
    });
}

/// One reader receives and releases a block, and another releases it, while the publisher evicts it.
#[test]
fn of_two_readers_and_the_ring_the_last_one_returns_the_block() {
    check(4, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let [mut first, mut second] = [0, 1].map(|index| world.subscriber(index, false));
        publisher.publish(1);
        let held = first.poll().unwrap();
        let releasing = thread::spawn({
            let world = world.clone();
            move || world.consume(held)
        });
        let reading = thread::spawn({
            let world = world.clone();
            move || second.poll().map(|taken| world.consume(taken))
        });
        publisher.evict();
        publisher.collect();
        publisher.reuse();
        releasing.join().unwrap();
        reading.join().unwrap();
        publisher.finish();
    });
}

/// Two readers receive and release the same block while the publisher pushes it out.
#[test]
fn two_readers_take_and_let_go_of_one_block() {
    check(4, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let readers = [0, 1].map(|index| world.subscriber(index, false));
        publisher.publish(1);
        let reading = readers.map(|mut reader| {
            let world = world.clone();
            thread::spawn(move || reader.poll().map(|taken| world.consume(taken)))
        });
        publisher.publish(2);
        publisher.collect();
        publisher.reuse();
        for reader in reading {
            reader.join().unwrap();
        }
        publisher.finish();
    });
}

/// Two holders return a block each while the publisher empties the bitmap of returned blocks.
#[test]
fn no_returned_block_is_overlooked() {
    check(4, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut reader = world.subscriber(0, false);
        let held = [1, 2].map(|tag| {
            publisher.publish(tag);
            reader.poll().unwrap().held
        });
        publisher.evict();
        let returning = held.map(|held| thread::spawn(move || held.release()));
        publisher.collect();
        for holder in returning {
            holder.join().unwrap();
        }
        publisher.collect();
        assert_eq!(publisher.memory.freed, 2);
        publisher.finish();
    });
}

/// A subscriber died while it held a block. The daemon clears its bit while another subscriber releases the block and
/// the publisher evicts it.
#[test]
fn a_dead_holders_bit_is_cleared_and_the_block_comes_back_once() {
    check(3, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let [mut dead, mut alive] = [0, 1].map(|index| world.subscriber(index, false));
        publisher.publish(1);
        // The dead subscriber's hold is dropped at the end of the model, and never released.
        let held_by_the_dead = dead.poll().unwrap();
        let held = alive.poll().unwrap();
        let daemon = thread::spawn({
            let world = world.clone();
            move || {
                clear_holder(&world.slot(0), &world.region(0), 0);
                world.slot(0).sweep().fetch_add(1, Ordering::AcqRel);
            }
        });
        let releasing = thread::spawn({
            let world = world.clone();
            move || world.consume(held)
        });
        publisher.evict();
        publisher.collect();
        publisher.publish(2);
        daemon.join().unwrap();
        releasing.join().unwrap();
        publisher.finish();
        drop(held_by_the_dead);
    });
}

/// A holder dies after it emptied the holder word and before it marked the block as returned. The daemon makes the
/// publisher check all its blocks.
#[test]
fn a_block_that_a_dead_holder_did_not_announce_is_swept_once() {
    check(5, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let [mut dead, mut alive] = [0, 1].map(|index| world.subscriber(index, false));
        publisher.publish(1);
        let taken = dead.poll().unwrap();
        let held = alive.poll().unwrap();
        publisher.evict();
        held.held.release();
        let daemon = thread::spawn({
            let world = world.clone();
            move || {
                // The dead subscriber's last step. The daemon acts only after it has proof of the death.
                world.verify(&taken);
                let region = world.region(0);
                let word = region.holders(0).unwrap();
                let now = Holders::load(word);
                assert_eq!(now.mask, 1);
                let ended = Holders {
                    generation: now.generation + 1,
                    mask: 0,
                };
                word.compare_exchange(
                    now.pack(),
                    ended.pack(),
                    Ordering::AcqRel,
                    Ordering::Acquire,
                )
                .unwrap();
                clear_holder(&world.slot(0), &region, 0);
                world.slot(0).sweep().fetch_add(1, Ordering::AcqRel);
            }
        });
        publisher.collect();
        publisher.publish(2);
        publisher.collect();
        publisher.publish(3);
        daemon.join().unwrap();
        publisher.finish();
    });
}

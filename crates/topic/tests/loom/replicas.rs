//! Models of replicas in pools of other domains: a reader there holds the replica's block and no other, each block is
//! freed once, and a reader that is too late finds nothing.

use crate::cells::{Cells, Shape};
use crate::check;
use crate::world::{World, ELSEWHERE};
use loom::thread;
use rgaps_topic::Reader;

const SMALL: Shape = Shape {
    publishers: 1,
    subscribers: 1,
    blocks: 4,
    doorbells: 2,
    timelines: 0,
    deferred_releases: 1,
};

const TWO: Shape = Shape {
    subscribers: 2,
    doorbells: 3,
    ..SMALL
};

/// A subscriber that reads in the replicas' pool.
fn elsewhere(world: &World, index: u32) -> Reader<Cells> {
    let mut reader = world.subscriber(index, false);
    reader.read_in(ELSEWHERE);
    reader
}

/// Receives one message, if there is one, and checks its bytes. Returns its tag and pool.
fn consume_one(world: &World, reader: &mut Reader<Cells>) -> Option<(u64, u16)> {
    reader.poll().map(|taken| world.consume_copy(taken))
}

/// One subscriber reads the message and one its replica, while the publisher evicts and collects both.
#[test]
fn a_message_and_its_copy_live_lives_of_their_own() {
    check(3, || {
        let world = World::new(TWO);
        let mut publisher = world.publisher();
        let mut near = world.subscriber(0, false);
        let mut far = elsewhere(&world, 1);
        publisher.publish_copied(1);
        let reading = [
            thread::spawn({
                let world = world.clone();
                move || {
                    let read = consume_one(&world, &mut near);
                    assert!(matches!(read, None | Some((1, 1))), "{read:?}");
                }
            }),
            thread::spawn({
                let world = world.clone();
                move || {
                    let read = consume_one(&world, &mut far);
                    // If the replica is freed already, the reader holds the message itself.
                    assert!(matches!(read, None | Some((1, 1 | ELSEWHERE))), "{read:?}");
                }
            }),
        ];
        publisher.evict();
        publisher.collect();
        publisher.reuse_all();
        for thread in reading {
            thread.join().unwrap();
        }
        publisher.finish();
    });
}

/// Two subscribers and the ring hold a replica: the last of them frees it, once.
#[test]
fn of_two_readers_of_a_copy_and_the_ring_the_last_one_frees_it() {
    check(2, || {
        let world = World::new(TWO);
        let mut publisher = world.publisher();
        let readers = [0, 1].map(|index| elsewhere(&world, index));
        publisher.publish_copied(1);
        let reading = readers.map(|mut reader| {
            thread::spawn({
                let world = world.clone();
                move || {
                    let read = consume_one(&world, &mut reader);
                    assert!(matches!(read, None | Some((1, 1 | ELSEWHERE))), "{read:?}");
                }
            })
        });
        publisher.evict();
        publisher.collect();
        publisher.reuse_all();
        for thread in reading {
            thread.join().unwrap();
        }
        publisher.finish();
    });
}

/// A subscriber tries to take a replica that has left the ring and whose block is a loan again. It finds nothing, and
/// sets no bit on the loan: otherwise publishing the loan would fail.
#[test]
fn who_looks_late_for_a_copy_spoils_no_loan() {
    check(4, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut late = elsewhere(&world, 0);
        publisher.publish_copied(1);
        let reading = thread::spawn({
            let world = world.clone();
            move || {
                let read = consume_one(&world, &mut late);
                assert!(matches!(read, None | Some((1 | 2, _))), "{read:?}");
            }
        });
        publisher.evict();
        publisher.collect();
        // The block that came back last is lent first: the replica's, if nobody holds it.
        publisher.publish(2);
        publisher.reuse_all();
        reading.join().unwrap();
        publisher.finish();
    });
}

/// A replica's block is reused for a replica of the next message. A reader that wants the first does not get the bytes
/// of the second instead.
#[test]
fn a_block_that_is_a_copy_again_is_not_taken_for_what_it_was() {
    check(3, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut late = elsewhere(&world, 0);
        publisher.publish_copied(1);
        let reading = thread::spawn({
            let world = world.clone();
            move || {
                let read = consume_one(&world, &mut late);
                assert!(matches!(read, None | Some((1 | 2, _))), "{read:?}");
            }
        });
        publisher.evict();
        publisher.collect();
        publisher.publish_copied(2);
        publisher.reuse_all();
        reading.join().unwrap();
        publisher.finish();
    });
}

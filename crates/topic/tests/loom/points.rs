//! Models of points: readers read, and the publisher reuses, a block that GPU work writes only after the work's point has
//! passed. If the work ended early, everybody learns which messages it had finished.

use crate::cells::{Cells, Shape};
use crate::check;
use crate::world::{behind, World};
use loom::thread;
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{progress, ring_range, settle_points, timeline, Point, Progress};

const SMALL: Shape = Shape {
    publishers: 1,
    subscribers: 1,
    blocks: 3,
    doorbells: 2,
    timelines: 1,
    deferred_releases: 1,
};

/// A kernel writes a message that is already announced. A reader checks the point before it reads, while the publisher
/// evicts the message and collects its block.
#[test]
fn a_message_is_read_when_its_kernel_has_passed_and_reused_then() {
    check(4, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut reader = world.subscriber(0, false);
        let (loan, payload) = publisher.lend_to_gpu();
        publisher.publish_behind(loan, &payload, 1);
        let gpu = thread::spawn({
            let world = world.clone();
            move || {
                payload.set(1);
                world.reach(behind(1));
            }
        });
        let reading = thread::spawn({
            let world = world.clone();
            move || {
                let Some(taken) = reader.poll() else { return };
                match progress(&world.cells, taken.message.point) {
                    Progress::Reached => drop(world.consume(taken)),
                    Progress::Pending => taken.held.release(),
                    Progress::Aborted => panic!("nobody died"),
                }
            }
        });
        publisher.evict();
        publisher.collect_all();
        publisher.reuse_all();
        gpu.join().unwrap();
        publisher.collect_all();
        publisher.reuse_all();
        reading.join().unwrap();
        publisher.collect_all();
        assert!(!publisher.writer.has_queued());
        publisher.finish();
    });
}

/// One stream writes two messages and a loan that is given back: each block comes back when its own work has passed.
#[test]
fn blocks_come_back_as_a_stream_passes_them() {
    check(5, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut payloads = Vec::new();
        for tag in [1, 2] {
            let (loan, payload) = publisher.lend_to_gpu();
            publisher.publish_behind(loan, &payload, tag);
            payloads.push(payload);
        }
        let (loan, payload) = publisher.lend_to_gpu();
        publisher.abandon_behind(loan, behind(3));
        payloads.push(payload);
        let gpu = thread::spawn({
            let world = world.clone();
            move || {
                for (tag, payload) in (1..).zip(payloads) {
                    payload.set(tag);
                    world.reach(behind(tag));
                }
            }
        });
        for _ in 0..2 {
            publisher.collect_all();
            publisher.reuse_all();
        }
        publisher.evict();
        gpu.join().unwrap();
        publisher.collect_all();
        assert!(!publisher.writer.has_queued());
        publisher.finish();
    });
}

/// Ends the tenure of timeline 1, as the daemon does when the owner and its GPU work have ended.
fn end_tenure(cells: &Cells) {
    let timeline = timeline(cells, 1).unwrap();
    let value = timeline.value().load(Ordering::Acquire);
    timeline.reached().store(value, Ordering::Release);
    let tenure = (value >> 32) + 1;
    timeline.value().store(tenure << 32, Ordering::Release);
}

/// A publisher died before or after its kernel had written the message (`reached`). A reader that checks the point while
/// the daemon ends the tenure, and while the timeline's next owner continues, gets the right answer.
fn death(reached: bool) {
    let world = World::new(Shape {
        subscribers: 2,
        doorbells: 3,
        ..SMALL
    });
    let mut publisher = world.publisher();
    let [mut reader, mut late] = [0, 1].map(|index| world.subscriber(index, false));
    let (loan, payload) = publisher.lend_to_gpu();
    publisher.publish_behind(loan, &payload, 1);
    drop(publisher);
    let gpu = thread::spawn({
        let world = world.clone();
        move || {
            payload.set(1);
            if reached {
                world.reach(behind(1));
            }
        }
    });
    let reading = thread::spawn({
        let world = world.clone();
        move || {
            let taken = reader.poll().unwrap();
            for _ in 0..2 {
                match progress(&world.cells, taken.message.point) {
                    Progress::Pending => {}
                    Progress::Reached => {
                        assert!(reached, "the message was never written");
                        world.verify(&taken);
                    }
                    Progress::Aborted => assert!(!reached, "the message was written"),
                }
            }
            taken
        }
    });
    // The daemon acts only after it has proof that the GPU work has ended.
    gpu.join().unwrap();
    end_tenure(&world.cells);
    let (slot, region) = (world.slot(0), world.region(0));
    let range = ring_range(&slot, &region);
    let pending = settle_points(&region, World::incarnation(0), range, |_| false);
    assert_eq!(pending, 0);
    let next = 1 << 32 | 7;
    world.reach(Point {
        value: next,
        ..behind(1)
    });
    let taken = reading.join().unwrap();
    let expected = match reached {
        true => Progress::Reached,
        false => Progress::Aborted,
    };
    assert_eq!(progress(&world.cells, taken.message.point), expected);
    taken.held.release();
    // That owner ends, too, which overwrites how far the first one came. A reader that receives the message only then
    // finds the outcome in the descriptor.
    end_tenure(&world.cells);
    let late = late.poll().unwrap();
    assert_eq!(progress(&world.cells, late.message.point), expected);
    if reached {
        world.verify(&late);
    }
    late.held.release();
}

#[test]
fn what_a_dead_publishers_kernel_had_written_is_read() {
    check(5, || death(true));
}

#[test]
fn what_a_dead_publishers_kernel_had_not_written_is_aborted() {
    check(5, || death(false));
}

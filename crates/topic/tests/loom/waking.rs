//! Models of sleeping: a member that announces its sleep, and checks once more before it sleeps, is woken.

use crate::cells::{Cells, Shape};
use crate::check;
use crate::world::{Publisher, World};
use loom::thread;
use rgaps_layout::WAIT_SLICE_NS;
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{ring_ahead, ring_sleepers, Reader, Sleeper, Taken, TopicView};

const SMALL: Shape = Shape {
    publishers: 1,
    subscribers: 1,
    blocks: 2,
    doorbells: 2,
    timelines: 0,
    deferred_releases: 0,
};
/// Two doorbells: that of subscriber 0, and another for the publisher or a wait set.
const OWN: u32 = 0;
const OTHER: u32 = 1;

/// Receives the next message. Sleeps at `doorbell` while there is none.
pub fn wait(reader: &mut Reader<Cells>, doorbell: u32) -> Taken<Cells> {
    let cells = reader.topic().storage().clone();
    loop {
        let sleeper = Sleeper::new(&cells, doorbell).unwrap();
        reader.announce_sleep();
        if let Some(taken) = reader.poll() {
            return taken;
        }
        sleeper.sleep(WAIT_SLICE_NS);
        if let Some(taken) = reader.poll() {
            return taken;
        }
    }
}

/// A subscriber sleeps until `publish` publishes message 1.
fn message_wakes(preemptions: usize, publish: fn(&mut Publisher, &TopicView<Cells>)) {
    check(preemptions, move || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut reader = world.subscriber(0, false);
        let topic = reader.topic().clone();
        let reading = thread::spawn({
            let world = world.clone();
            move || {
                let taken = wait(&mut reader, OWN);
                world.consume(taken)
            }
        });
        publish(&mut publisher, &topic);
        assert_eq!(reading.join().unwrap(), 1);
        publisher.finish();
    });
}

#[test]
fn a_sleeping_subscriber_is_woken_by_a_message() {
    message_wakes(5, |publisher, _| publisher.publish(1));
}

/// The publisher also rings before it publishes the message. A subscriber that this wakes finds nothing, sleeps again,
/// and is woken again.
#[test]
fn a_subscriber_that_is_woken_ahead_of_a_message_is_woken_by_it() {
    message_wakes(4, |publisher, topic| {
        ring_ahead(topic, &topic.publisher(0));
        publisher.publish(1);
    });
}

#[test]
fn a_sleeping_subscriber_is_woken_for_messages_that_were_published_quietly() {
    message_wakes(4, |publisher, topic| {
        publisher.publish_quietly(1);
        ring_sleepers(topic, &topic.publisher(0));
    });
}

/// A subscriber that slept in vain joins a wait set while a message is published: its doorbell
/// changes, while a publisher may still know the old one.
#[test]
fn a_subscriber_that_changes_its_doorbell_is_woken_at_the_new_one() {
    check(5, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        let mut reader = world.subscriber(0, false);
        // The subscriber slept at its own doorbell until a timeout, so its bit in `sleepers` is set.
        reader.announce_sleep();
        let reading = thread::spawn({
            let world = world.clone();
            move || {
                world
                    .topic
                    .subscriber(0)
                    .doorbell()
                    .store(OTHER, Ordering::Release);
                let taken = wait(&mut reader, OTHER);
                world.consume(taken)
            }
        });
        publisher.publish(1);
        assert_eq!(reading.join().unwrap(), 1);
        publisher.finish();
    });
}

#[test]
fn a_publisher_that_is_held_back_is_woken_when_a_reliable_subscriber_reads_on() {
    check(5, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        world.slot(0).doorbell().store(OTHER, Ordering::Relaxed);
        let mut reader = world.subscriber(0, true);
        publisher.publish(1);
        let reading = thread::spawn({
            let world = world.clone();
            move || {
                let taken = reader.poll().expect("it was there before");
                assert_eq!(world.consume(taken), 1);
                reader
            }
        });
        while !publisher.writer.has_room(1) {
            let sleeper = Sleeper::new(&world.cells, OTHER).unwrap();
            publisher.writer.announce_blocked();
            if publisher.writer.has_room(1) {
                break;
            }
            sleeper.sleep(WAIT_SLICE_NS);
        }
        publisher.collect();
        publisher.publish(2);
        let mut reader = reading.join().unwrap();
        let taken = reader.poll().unwrap();
        assert_eq!((taken.missed, world.consume(taken)), (0, 2));
        publisher.finish();
    });
}

#[test]
fn a_publisher_that_wants_blocks_is_woken_by_the_last_holder() {
    check(5, || {
        let world = World::new(SMALL);
        let mut publisher = world.publisher();
        world.slot(0).doorbell().store(OTHER, Ordering::Relaxed);
        let mut reader = world.subscriber(0, false);
        publisher.publish(1);
        let taken = reader.poll().unwrap();
        publisher.evict();
        let releasing = thread::spawn({
            let world = world.clone();
            move || world.consume(taken)
        });
        while publisher.memory.freed == 0 {
            let sleeper = Sleeper::new(&world.cells, OTHER).unwrap();
            publisher.writer.announce_wants_blocks(true);
            publisher.collect();
            if publisher.memory.freed == 0 {
                sleeper.sleep(WAIT_SLICE_NS);
            }
        }
        publisher.writer.announce_wants_blocks(false);
        publisher.publish(2);
        releasing.join().unwrap();
        publisher.finish();
    });
}

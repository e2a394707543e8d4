//! Models of history that arrives from another host while a subscriber waits.

use crate::cells::Shape;
use crate::check;
use crate::waking::wait;
use crate::world::World;
use loom::thread;
use rgaps_topic::Start;

const SMALL: Shape = Shape {
    publishers: 1,
    subscribers: 1,
    blocks: 2,
    doorbells: 1,
    timelines: 0,
    deferred_releases: 0,
};

/// The message wakes the subscriber, too, but only the end of the history lets it read: until then it sleeps again.
#[test]
fn a_late_joiner_that_sleeps_is_woken_by_the_end_of_the_history() {
    check(4, || {
        let world = World::new(SMALL);
        let mut publisher = world.landing_publisher();
        let mut reader = world.subscriber_from(0, false, Start::Kept(1));
        let reading = thread::spawn({
            let world = world.clone();
            move || {
                let taken = wait(&mut reader, 0);
                world.consume(taken)
            }
        });
        publisher.publish(1);
        publisher.writer.end_history();
        assert_eq!(reading.join().unwrap(), 1);
        publisher.finish();
    });
}

/// The ring keeps one message. The live one pushes the history out, possibly while the subscriber skips the history.
#[test]
fn a_live_subscriber_gets_the_first_message_behind_the_history_and_none_before() {
    check(4, || {
        let world = World::new(SMALL);
        let mut publisher = world.landing_publisher();
        let mut reader = world.subscriber(0, false);
        let reading = thread::spawn({
            let world = world.clone();
            move || {
                let taken = wait(&mut reader, 0);
                assert_eq!(taken.missed, 0);
                world.consume(taken)
            }
        });
        publisher.publish(1);
        publisher.writer.end_history();
        publisher.publish(2);
        assert_eq!(reading.join().unwrap(), 2);
        publisher.finish();
    });
}

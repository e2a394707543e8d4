//! Model of the descriptor's sequence lock.

use crate::cells::Shape;
use crate::check;
use crate::world::{attachment, World};
use loom::thread;
use rgaps_topic::Metadata;

/// A slow reader copies a descriptor that the publisher, going round the ring, writes anew. The
/// block of the old message is held by another subscriber, so that the reader is not saved by
/// the block's generation from taking it under a torn descriptor.
#[test]
fn a_descriptor_is_never_a_mixture_of_two() {
    check(2, || {
        let world = World::new(Shape {
            publishers: 1,
            subscribers: 2,
            blocks: 3,
            doorbells: 3,
            timelines: 0,
            deferred_releases: 0,
        });
        let mut publisher = world.publisher();
        let [mut other, mut slow] = [0, 1].map(|index| world.subscriber(index, false));
        publisher.publish(1);
        let held = other.poll().unwrap();
        publisher.publish(2);
        let reading = thread::spawn(move || (slow.poll(), slow));
        publisher.publish(3);
        let (taken, mut slow) = reading.join().unwrap();
        let first = world.consume(taken.expect("the oldest or the newest message"));
        // Whatever came first, the rest follows in order, and what is missing is counted.
        let mut expected = first;
        while let Some(taken) = slow.poll() {
            expected += 1 + taken.missed;
            assert_eq!(world.consume(taken), expected);
        }
        assert_eq!(expected, 3);
        world.consume(held);
        publisher.finish();
    });
}

/// The same with attachments: what the reader has copied is that of the message that it takes.
#[test]
fn an_attachment_is_never_a_mixture_of_two() {
    check(2, || {
        let world = World::new(Shape {
            publishers: 1,
            subscribers: 2,
            blocks: 3,
            doorbells: 3,
            timelines: 0,
            deferred_releases: 0,
        });
        let mut publisher = world.publisher();
        let [mut other, mut slow] = [0, 1].map(|index| world.subscriber(index, false));
        publisher.publish_attached(1);
        let held = other.poll().unwrap();
        publisher.publish(2);
        let reading = thread::spawn(move || (slow.poll(), slow));
        publisher.publish_attached(3);
        let (taken, mut slow) = reading.join().unwrap();
        let mut taken = taken;
        let mut last = 0;
        while let Some(message) = taken {
            let mut metadata = Metadata::default();
            let has_metadata = slow.swap_metadata(&mut metadata);
            last = world.consume(message);
            assert_eq!(has_metadata, last != 2);
            if has_metadata {
                assert_eq!(metadata.attachment(), attachment(last));
            }
            taken = slow.poll();
        }
        assert_eq!(last, 3);
        world.consume(held);
        publisher.finish();
    });
}

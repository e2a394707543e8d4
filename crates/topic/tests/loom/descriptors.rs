//! Models of the descriptor's sequence lock.

use crate::cells::Shape;
use crate::check;
use crate::world::{attachment, World};
use loom::thread;
use rgaps_topic::Metadata;

/// A slow reader copies a descriptor that the publisher, going round the ring, overwrites. Another subscriber holds the
/// old message's block. So the block's generation stays the same, and only the sequence lock protects the reader from a
/// torn descriptor.
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
        // Whichever message came first, the rest follows in order, and the reader counts the missing ones.
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

/// The same with attachments: the reader's copy belongs to the message that it receives.
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

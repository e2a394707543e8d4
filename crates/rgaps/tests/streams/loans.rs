//! Blocks that the publisher's own work still writes: nobody reuses them before that work has finished.

use crate::gpu::{gpu, publish, publish_done, room, small_pool, value_of, MESSAGE, POOL_BLOCKS};
use crate::harness::{alone, never, until, SOON};
use rgaps::{Node, PublishError, Publisher, Stream};
use std::time::Duration;

fn publisher(node: &Node, domain: rgaps::Domain) -> Publisher {
    node.publisher("t")
        .domain(domain)
        .keep_last(1)
        .deadline(Duration::ZERO)
        .loan_timeout(Duration::ZERO)
        .create()
        .unwrap()
}

#[test]
fn dropped_loans_are_not_reused_under_their_work() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let publisher = publisher(&node, gpu.domain);
        let (stream, other) = (gpu.stream(), gpu.stream());
        assert_eq!(room(&publisher), POOL_BLOCKS);
        let gate = gpu.close(&stream);
        let loan = publisher.loan(MESSAGE).unwrap();
        // SAFETY: the loan's bytes are ours until the stream has passed.
        unsafe { stream.fill(loan.address(), 1, MESSAGE).unwrap() };
        loan.discard_on(stream.handle());
        // A loan remembers the stream on which it was copied into.
        let mut loan = publisher.loan(MESSAGE).unwrap();
        let source = publisher.loan(MESSAGE).unwrap();
        // SAFETY: both loans' bytes are ours until the stream has passed.
        unsafe {
            loan.copy_from_on(0, source.address(), MESSAGE, stream.handle())
                .unwrap()
        };
        drop(loan);
        source.discard_on(stream.handle());
        // No work uses this loan.
        publisher.loan(MESSAGE).unwrap().discard_on(other.handle());
        never("a block is reused that is still written", || {
            room(&publisher) != POOL_BLOCKS - 3
        });
        drop(gate);
        until("the blocks come back", || room(&publisher) == POOL_BLOCKS);
    });
}

#[test]
fn an_evicted_message_is_not_reused_under_its_work() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let publisher = publisher(&node, gpu.domain);
        // The subscriber reads nothing, so the last message stays.
        let _subscriber = node.subscriber("t").create().unwrap();
        let streams = [gpu.stream(), gpu.stream()];
        let gates = streams.each_ref().map(|stream| gpu.close(stream));
        publish(&publisher, &streams[0], 1);
        publish(&publisher, &streams[1], 2);
        publish(&publisher, &streams[1], 3);
        never("a block is reused that is still written", || {
            room(&publisher) != POOL_BLOCKS - 3
        });
        let [first, second] = gates;
        drop(first);
        until("the first comes back", || {
            room(&publisher) == POOL_BLOCKS - 2
        });
        drop(second);
        until("the second comes back", || {
            room(&publisher) == POOL_BLOCKS - 1
        });
    });
}

/// The user drops the loan that came back. The stream on which it should have been published still writes it.
#[test]
fn a_loan_whose_publishing_failed_is_not_reused_under_its_work() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let publisher = publisher(&node, gpu.domain);
        let subscriber = node.subscriber("t").reliable().create().unwrap();
        let stream = gpu.stream();
        publish_done(&publisher, &stream, 1);
        let gate = gpu.close(&stream);
        let loan = publisher.loan(MESSAGE).unwrap();
        // SAFETY: the loan's bytes are ours until the stream has passed.
        unsafe { stream.fill(loan.address(), 2, MESSAGE).unwrap() };
        gpu.configure("");
        let unpublished = loan.publish_on(stream.handle()).unwrap_err();
        assert!(
            matches!(unpublished.error, PublishError::BackPressured { .. }),
            "{unpublished}"
        );
        assert!(
            matches!(gpu.calls("cuStreamWriteValue64"), None | Some(0)),
            "something was queued before there was room"
        );
        drop(unpublished);
        never("a block is reused that is still written", || {
            room(&publisher) != POOL_BLOCKS - 2
        });
        drop(gate);
        until("the block comes back", || {
            room(&publisher) == POOL_BLOCKS - 1
        });
        assert_eq!(value_of(&subscriber.recv_timeout(SOON).unwrap()), Some(1));
    });
}

/// `Stream::NONE` means that the caller has waited for the work. rgaps asks no stream, and the message is ready at once.
#[test]
fn without_a_stream_no_stream_is_asked() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = publisher(&node, gpu.domain);
        let (stream, busy) = (gpu.stream(), gpu.stream());
        publish_done(&publisher, &stream, 1);
        drop(subscriber.recv_timeout(SOON).unwrap());
        let loan = publisher.loan(MESSAGE).unwrap();
        // SAFETY: we hold the loan, so nobody else uses its bytes, and `synchronize` waits for the work.
        unsafe { stream.fill(loan.address(), 2, MESSAGE).unwrap() };
        stream.synchronize().unwrap();
        let gate = gpu.close(&busy);
        gpu.configure("");
        loan.publish_on(Stream::NONE).unwrap();
        for call in [
            "cuStreamQuery",
            "cuStreamWriteValue64",
            "cuStreamIsCapturing",
        ] {
            assert!(matches!(gpu.calls(call), None | Some(0)), "{call}");
        }
        let sample = subscriber.recv_timeout(SOON).unwrap();
        assert!(sample.is_ready().unwrap());
        assert_eq!(value_of(&sample), Some(2));
        drop(gate);
        // A loan that is discarded without a stream comes back at once.
        publisher.loan(MESSAGE).unwrap().discard_on(Stream::NONE);
        assert_eq!(room(&publisher), POOL_BLOCKS - 1);
    });
}

/// A publisher closes with work queued. Its memory is leased to others only after that work.
#[test]
fn a_publisher_that_is_closed_waits_for_its_work() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let first = publisher(&node, gpu.domain);
        let stream = gpu.stream();
        let gate = gpu.close(&stream);
        publish(&first, &stream, 1);
        let second = node
            .publisher("u")
            .domain(gpu.domain)
            .loan_timeout(Duration::ZERO);
        let second = second.create().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(first));
            never("its memory is leased to another", || {
                room(&second) > POOL_BLOCKS - 1
            });
            drop(gate);
        });
        until("its memory is free", || room(&second) == POOL_BLOCKS);
    });
}

//! Streams that capture a graph: rgaps queues nothing on them, and does not invalidate the capture.

use crate::gpu::MESSAGE;
use crate::gpu::{gpu, publish, publish_done, room, small_pool, value_of, Pinned, POOL_BLOCKS};
use crate::harness::{alone, never, until, SOON};
use std::time::Duration;

#[test]
fn a_capturing_stream_is_refused_and_the_loan_given_back() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = node.publisher("t").domain(gpu.domain).create().unwrap();
        let (captures, other) = (gpu.stream(), gpu.stream());
        gpu.begin_capture(&captures);
        let loan = publisher.loan(MESSAGE).unwrap();
        // SAFETY: the loan's bytes are ours until the stream has passed.
        unsafe { other.fill(loan.address(), 3, MESSAGE).unwrap() };
        let unpublished = loan.publish_on(captures.handle()).unwrap_err();
        let text = unpublished.to_string();
        assert!(
            text.contains("capturing") && text.contains("outside"),
            "{text}"
        );
        let gate = gpu.close(&other);
        let loan = unpublished.loan.expect("the loan comes back");
        // SAFETY: the failed publish gave the loan back, so its bytes are ours until the stream has passed.
        unsafe { other.fill(loan.address(), 4, MESSAGE).unwrap() };
        loan.publish_on(other.handle()).unwrap();
        let sample = subscriber.recv_timeout(SOON).unwrap();
        let text = sample.wait_on(captures.handle()).unwrap_err().to_string();
        assert!(text.contains("capturing"), "{text}");
        drop(gate);
        assert_eq!(value_of(&sample), Some(4));
        gpu.end_capture(&captures);
        sample.wait_on(captures.handle()).unwrap();
        publish(&publisher, &captures, 5);
        assert_eq!(value_of(&subscriber.recv_timeout(SOON).unwrap()), Some(5));
    });
}

/// Work that was queued before the capture began may still read the block. Only after the capture can rgaps ask
/// CUDA whether that work has finished.
#[test]
fn what_is_released_on_a_capturing_stream_is_kept_until_the_capture_has_ended() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = node.publisher("t").domain(gpu.domain).keep_last(1);
        let publisher = publisher.loan_timeout(Duration::ZERO).create().unwrap();
        let (writes, reads) = (gpu.stream(), gpu.stream());
        publish_done(&publisher, &writes, 1);
        let sample = subscriber.recv_timeout(SOON).unwrap();
        publish_done(&publisher, &writes, 2);
        let target = Pinned::new(&gpu, MESSAGE as usize);
        let gate = gpu.close(&reads);
        target.take(&reads, &sample);
        gpu.begin_capture(&reads);
        sample.release_on(reads.handle());
        never("a block is reused that may be read", || {
            room(&publisher) != POOL_BLOCKS - 2
        });
        gpu.end_capture(&reads);
        never("a block is reused that is read", || {
            room(&publisher) != POOL_BLOCKS - 2
        });
        drop(gate);
        until("the block comes back", || {
            room(&publisher) == POOL_BLOCKS - 1
        });
        assert_eq!(target.value(MESSAGE as usize), Some(1));
    });
}

#[test]
fn a_loan_that_is_dropped_on_a_capturing_stream_is_kept_until_the_capture_has_ended() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let publisher = node.publisher("t").domain(gpu.domain);
        let publisher = publisher.loan_timeout(Duration::ZERO).create().unwrap();
        assert_eq!(room(&publisher), POOL_BLOCKS);
        let stream = gpu.stream();
        let gate = gpu.close(&stream);
        let loan = publisher.loan(MESSAGE).unwrap();
        // SAFETY: the loan's bytes are ours until the stream has passed.
        unsafe { stream.fill(loan.address(), 1, MESSAGE).unwrap() };
        gpu.begin_capture(&stream);
        drop(loan.publish_on(stream.handle()).unwrap_err());
        never("a block is reused that may be written", || {
            room(&publisher) != POOL_BLOCKS - 1
        });
        gpu.end_capture(&stream);
        never("a block is reused that is written", || {
            room(&publisher) != POOL_BLOCKS - 1
        });
        drop(gate);
        until("the block comes back", || room(&publisher) == POOL_BLOCKS);
    });
}

/// A thread may close a subscriber before it ends its stream's capture. The blocks in use come back after the capture.
#[test]
fn closing_while_a_stream_captures_ends_and_gives_back_all_memory() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let (node, observer) = (daemon.node("test"), daemon.node("observer"));
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = node.publisher("t").domain(gpu.domain).create().unwrap();
        let stream = gpu.stream();
        publish_done(&publisher, &stream, 1);
        let sample = subscriber.recv_timeout(SOON).unwrap();
        let loan = publisher.loan(MESSAGE).unwrap();
        gpu.begin_capture(&stream);
        sample.release_on(stream.handle());
        loan.discard_on(stream.handle());
        drop((subscriber, publisher));
        drop(node);
        gpu.end_capture(&stream);
        until("all memory to come back", || {
            let pools = observer.pools().unwrap();
            pools.iter().all(|pool| pool.leased_bytes == 0)
        });
    });
}

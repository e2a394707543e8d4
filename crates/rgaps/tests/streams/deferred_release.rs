//! Deferred releases: samples that are released on streams whose work still reads their blocks.

use crate::gpu::{
    gpu, publish, publish_done, role_node, room, small_pool, Pinned, MESSAGE, POOL_BLOCKS,
};
use crate::harness::{alone, hear, never, say, until, Process, Setting, SOON};
use rgaps::{Node, Publisher};
use std::time::Duration;

/// A publisher that keeps one message, and does not wait for memory.
fn publisher(node: &Node, domain: rgaps::Domain) -> Publisher {
    node.publisher("t")
        .domain(domain)
        .keep_last(1)
        .loan_timeout(Duration::ZERO)
        .create()
        .unwrap()
}

/// Role: receives a message, queues work that reads it on a stopped stream, releases it there, and then makes no more
/// calls of rgaps.
pub fn subscriber() {
    let gpu = gpu();
    let node = role_node("subscriber");
    let subscriber = node.subscriber("t").create().unwrap();
    say("joined");
    let sample = subscriber.recv_timeout(SOON).unwrap();
    let stream = gpu.stream();
    let bytes = Pinned::new(&gpu, MESSAGE as usize);
    let gate = gpu.close(&stream);
    sample.wait_on(stream.handle()).unwrap();
    bytes.take(&stream, &sample);
    sample.release_on(stream.handle());
    say("released");
    assert_eq!(hear(), "open");
    drop(gate);
    until("the stream goes on", || stream.is_idle().unwrap());
    say(&format!("{:?}", bytes.value(MESSAGE as usize)));
    assert_eq!(hear(), "end");
}

fn released_by_another(settings: &[Setting<'_>], stop: bool) {
    let gpu = gpu();
    let daemon = small_pool();
    let node = daemon.node("test");
    let mut child = Process::role("subscriber", &daemon, settings);
    child.expect("joined");
    let publisher = publisher(&node, gpu.domain);
    let stream = gpu.stream();
    publish_done(&publisher, &stream, 1);
    child.expect("released");
    // Pushes the first message out of the history: only the work in the other process needs it.
    publish_done(&publisher, &stream, 2);
    assert_eq!(room(&publisher), POOL_BLOCKS - 2, "a block that is read");
    // These messages would overwrite the block if the publisher reused it.
    for value in 3..10 {
        publish_done(&publisher, &stream, value);
    }
    child.say("open");
    child.expect("Some(1)");
    if stop {
        rgaps_testkit::stop(child.number());
    }
    until("the block comes back", || {
        room(&publisher) == POOL_BLOCKS - 1
    });
    if stop {
        rgaps_testkit::resume(child.number());
    }
    child.say("end");
    child.finish();
}

#[test]
fn a_block_comes_back_when_the_work_that_reads_it_has_passed() {
    alone(&[], || released_by_another(&[], false));
}

#[test]
fn a_stopped_subscriber_keeps_no_block_that_its_work_has_passed() {
    alone(&[], || released_by_another(&[], true));
}

#[test]
fn order_on_the_gpu_meets_order_on_the_cpu() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let publisher = publisher(&node, gpu.domain);
        let child = Process::role("reader", &daemon, &[("RGAPS_TEST_DRIVER_LACK", "memops")]);
        child.expect("joined");
        let stream = gpu.stream();
        let gate = gpu.close(&stream);
        publish(&publisher, &stream, 9);
        child.expect("pending");
        drop(gate);
        child.expect("Some(9)");
        child.finish();
    });
}

/// The block comes back only after the work of all streams that all clones recorded.
#[test]
fn every_recorded_stream_of_every_clone_keeps_the_block() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = publisher(&node, gpu.domain);
        let streams = [gpu.stream(), gpu.stream(), gpu.stream()];
        let writes = gpu.stream();
        publish_done(&publisher, &writes, 1);
        let sample = subscriber.recv_timeout(SOON).unwrap();
        publish_done(&publisher, &writes, 2);
        let mut gates: Vec<_> = streams.iter().map(|s| gpu.close(s)).collect();
        let bytes = streams.each_ref().map(|_| Pinned::new(&gpu, 4096));
        for (stream, bytes) in streams.iter().zip(&bytes) {
            // SAFETY: the sample keeps its bytes until the stream has passed.
            unsafe { stream.copy(bytes.address(), sample.address(), 4096) }.unwrap();
        }
        let clone = sample.clone();
        clone.record_stream(streams[0].handle());
        drop(clone);
        sample.clone().release_on(streams[1].handle());
        sample.release_on(streams[2].handle());
        while let Some(gate) = gates.pop() {
            never("a block is reused that a stream still reads", || {
                room(&publisher) != POOL_BLOCKS - 2
            });
            drop(gate);
        }
        // The block comes back without another call of the subscriber.
        until("the block comes back", || {
            room(&publisher) == POOL_BLOCKS - 1
        });
        assert!(bytes.iter().all(|bytes| bytes.value(4096) == Some(1)));
        assert_eq!(subscriber.held(), 0);
    });
}

/// No stream was named, so the release waits for the work of the default stream.
#[test]
fn a_dropped_sample_waits_for_the_default_stream() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = publisher(&node, gpu.domain);
        let writes = gpu.stream();
        publish_done(&publisher, &writes, 1);
        let sample = subscriber.recv_timeout(SOON).unwrap();
        publish_done(&publisher, &writes, 2);
        let gate = gpu.close_default();
        drop(sample);
        never("a block is reused under the default stream's work", || {
            room(&publisher) != POOL_BLOCKS - 2
        });
        drop(gate);
        until("the block comes back", || {
            room(&publisher) == POOL_BLOCKS - 1
        });
    });
}

/// A subscriber is closed while its work is queued. Its blocks are reused only after that work, and closing returns.
#[test]
fn a_subscriber_that_is_closed_waits_for_its_work() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = publisher(&node, gpu.domain);
        let (writes, reads) = (gpu.stream(), gpu.stream());
        publish_done(&publisher, &writes, 1);
        let sample = subscriber.recv_timeout(SOON).unwrap();
        publish_done(&publisher, &writes, 2);
        let gate = gpu.close(&reads);
        let bytes = Pinned::new(&gpu, 4096);
        // SAFETY: the sample keeps its bytes until the stream has passed.
        unsafe { reads.copy(bytes.address(), sample.address(), 4096) }.unwrap();
        sample.release_on(reads.handle());
        std::thread::scope(|scope| {
            scope.spawn(|| drop(subscriber));
            never("its block is reused", || {
                room(&publisher) != POOL_BLOCKS - 2
            });
            drop(gate);
        });
        // The last message's block comes back, too: no subscriber has still to read it.
        until("the blocks come back", || room(&publisher) == POOL_BLOCKS);
        assert_eq!(bytes.value(4096), Some(1));
    });
}

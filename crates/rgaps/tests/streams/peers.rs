//! Two processes that wait for each other, with a single hardware queue on the GPU.

use crate::gpu::{gpu, role_node, small_pool, Pinned};
use crate::harness::{alone, say, until, Process, Setting, SOON};

const ROUNDS: u64 = 60;
const BYTES: u64 = 1 << 16;

/// Role: in each round publishes a message on one topic, and then reads the other process's message on the other topic.
pub fn peer() {
    let gpu = gpu();
    let node = role_node("peer");
    let mine = std::env::var("RGAPS_TEST_PEER").unwrap();
    let (to, from) = match &*mine {
        "0" => ("a", "b"),
        _ => ("b", "a"),
    };
    let subscriber = node.subscriber(from).reliable().create().unwrap();
    let publisher = node.publisher(to).domain(gpu.domain).keep_last(1);
    let publisher = publisher
        .deadline(SOON)
        .loan_timeout(SOON)
        .create()
        .unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON).unwrap());
    let (writes, reads) = (gpu.stream(), gpu.stream());
    let bytes = Pinned::new(&gpu, BYTES as usize);
    for round in 0..ROUNDS {
        let loan = publisher.loan(BYTES).unwrap();
        // SAFETY: the loan's bytes are ours until the stream has passed.
        unsafe { writes.fill(loan.address(), round as u8, BYTES).unwrap() };
        loan.publish_on(writes.handle()).unwrap();
        if round % 5 == 2 {
            // Waits while the other process's work may wait for work that we have not queued yet.
            gpu.context.synchronize().unwrap();
        }
        let sample = subscriber.recv_timeout(SOON).unwrap();
        assert_eq!((sample.sequence(), sample.missed()), (round, 0));
        sample.wait_on(reads.handle()).unwrap();
        bytes.take(&reads, &sample);
        if round % 5 == 4 {
            gpu.context.synchronize().unwrap();
        }
        sample.release_on(reads.handle());
        until("what was read is there", || reads.is_idle().unwrap());
        assert_eq!(bytes.value(BYTES as usize), Some(round as u8));
    }
    say("all rounds");
}

#[test]
fn two_processes_with_one_hardware_queue_do_not_deadlock() {
    alone(&[], || {
        gpu();
        let daemon = small_pool();
        let one = |mine| -> [Setting<'static>; 6] {
            [
                ("RGAPS_TEST_PEER", mine),
                ("RGAPS_TEST_DRIVER_QUEUES", "1"),
                ("RGAPS_TEST_DRIVER_DEPTH", "4"),
                ("RGAPS_TEST_DRIVER_DELAY_US", "200"),
                ("RGAPS_TEST_DRIVER_SEED", mine),
                ("CUDA_DEVICE_MAX_CONNECTIONS", "1"),
            ]
        };
        let peers = ["0", "1"].map(|mine| Process::role("peer", &daemon, &one(mine)));
        for peer in peers {
            peer.expect("all rounds");
            peer.finish();
        }
    });
}

//! Many streams, and streams that end.

use crate::gpu::{gpu, publish, publish_done, room, small_pool, value_of, MESSAGE, POOL_BLOCKS};
use crate::harness::{alone, never, until, A_WHILE, SOON};
use rgaps_cuda::CudaStream;
use rgaps_testkit::Daemon;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How many streams of a process can have timelines at once.
const LINES: usize = 64;
const SMALL: u64 = 4096;

#[test]
fn more_streams_than_timelines_take_turns() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = Daemon::start_with("[pool.cuda]\ncap = \"64MiB\"\n");
        let node = daemon.node("test");
        let subscriber = node
            .subscriber("t")
            .max_held(LINES as u32 + 1)
            .create()
            .unwrap();
        let publisher = node.publisher("t").domain(gpu.domain).keep_last(200);
        let publisher = publisher.create().unwrap();
        let publish = |stream: &CudaStream, value: u8| {
            let loan = publisher.loan(SMALL).unwrap();
            // SAFETY: the loan's bytes are ours until the stream has passed.
            unsafe { stream.fill(loan.address(), value, SMALL).unwrap() };
            loan.publish_on(stream.handle()).unwrap();
        };
        for round in 0..2 {
            // All streams are created before any is stopped: only then does a GPU give each its queue.
            let mut streams: Vec<_> = (0..LINES).map(|_| gpu.stream()).collect();
            let stream = gpu.stream();
            let mut gates: Vec<_> = streams.iter().map(|stream| gpu.close(stream)).collect();
            for (at, stream) in streams.iter().enumerate() {
                publish(stream, at as u8);
            }
            let gate = gpu.close(&stream);
            // A real GPU has at most 32 queues, and a stopped stream blocks the others of its queue. So all gates open at once.
            let others = match gpu.control {
                Some(_) => vec![],
                None => std::mem::take(&mut gates),
            };
            let opened = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(A_WHILE);
                    opened.store(true, Ordering::Release);
                    drop((gate, others));
                });
                publish(&stream, 200);
                assert!(
                    opened.load(Ordering::Acquire),
                    "round {round}: on which timeline?"
                );
            });
            let samples: Vec<_> = (0..=LINES)
                .map(|_| subscriber.recv_timeout(SOON).unwrap())
                .collect();
            assert!(samples[LINES].is_ready().unwrap());
            assert_eq!(value_of(&samples[LINES]), Some(200));
            // The gates open in another order than that of publishing.
            let turn = gates.len().min(7);
            gates.rotate_left(turn);
            streams.rotate_left(turn);
            for (at, sample) in samples.iter().enumerate().take(gates.len()) {
                assert!(!sample.is_ready().unwrap(), "round {round}, message {at}");
            }
            gates.into_iter().zip(streams).for_each(drop);
            for (at, sample) in samples.iter().enumerate().take(LINES) {
                assert_eq!(value_of(sample), Some(at as u8), "round {round}");
            }
        }
    });
}

/// The driver reuses the handles of destroyed streams. A new stream with an old handle has a timeline of its own.
#[test]
fn streams_come_and_go() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = node.publisher("t").domain(gpu.domain).create().unwrap();
        for round in 0..3 * LINES {
            let stream = gpu.stream();
            let gate = gpu.close(&stream);
            publish(&publisher, &stream, round as u8);
            let sample = subscriber.recv_timeout(SOON).unwrap();
            assert!(!sample.is_ready().unwrap(), "round {round}");
            drop(gate);
            assert_eq!(value_of(&sample), Some(round as u8));
            sample.release_on(stream.handle());
        }
    });
}

#[test]
fn a_stream_that_is_destroyed_finishes_its_work() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = node.publisher("t").domain(gpu.domain).keep_last(1);
        let publisher = publisher.loan_timeout(Duration::ZERO).create().unwrap();
        let (writes, reads) = (gpu.stream(), gpu.stream());
        let (write_gate, read_gate) = (gpu.close_by_number(&writes), gpu.close_by_number(&reads));
        publish(&publisher, &writes, 1);
        drop(writes);
        let sample = subscriber.recv_timeout(SOON).unwrap();
        never("it is ready too early", || sample.is_ready().unwrap());
        drop(write_gate);
        assert_eq!(value_of(&sample), Some(1));
        sample.release_on(reads.handle());
        drop(reads);
        publish_done(&publisher, &gpu.stream(), 2);
        never("a block is reused that is still read", || {
            room(&publisher) != POOL_BLOCKS - 2
        });
        drop(read_gate);
        until("the block comes back", || {
            room(&publisher) == POOL_BLOCKS - 1
        });
    });
}

/// A recorded stream must live as long as the sample. If it does not, rgaps still leaks nothing.
#[test]
fn a_recorded_stream_that_is_gone_leaks_nothing() {
    alone(&[], || {
        let gpu = gpu();
        if gpu.control.is_none() {
            return println!("a real driver follows the handle");
        }
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = node.publisher("t").domain(gpu.domain).keep_last(1);
        let publisher = publisher.loan_timeout(Duration::ZERO).create().unwrap();
        let (writes, reads) = (gpu.stream(), gpu.stream());
        publish_done(&publisher, &writes, 1);
        let sample = subscriber.recv_timeout(SOON).unwrap();
        sample.wait_on(reads.handle()).unwrap();
        drop(reads);
        drop(sample);
        publish_done(&publisher, &writes, 2);
        until("the block comes back", || {
            room(&publisher) == POOL_BLOCKS - 1
        });
        assert_eq!(subscriber.held(), 0);
        assert!(publisher.loan(MESSAGE).is_ok());
    });
}

//! Publishing does not wait for the queued work that writes a message; reading does.

use crate::gpu::{gpu, publish, small_pool, value_of, Pinned, MESSAGE};
use crate::harness::{alone, never, until, A_WHILE, SOON};
use rgaps::RecvError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn publishing_returns_while_the_work_is_queued_and_readers_wait_for_it() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = node.publisher("t").domain(gpu.domain).create().unwrap();
        let (writes, waits, reads_at_once) = (gpu.stream(), gpu.stream(), gpu.stream());
        let (waited, unwaited) = (
            Pinned::new(&gpu, MESSAGE as usize),
            Pinned::new(&gpu, MESSAGE as usize),
        );
        for value in 1..4 {
            let gate = gpu.close(&writes);
            assert_eq!(publish(&publisher, &writes, value), u64::from(value) - 1);
            let sample = subscriber.recv_timeout(SOON).unwrap();
            assert!(!sample.is_ready().unwrap(), "its work is held up");
            let early = sample.synchronize(Duration::from_millis(5));
            assert!(
                matches!(early, Err(RecvError::Unfinished { .. })),
                "{early:?}"
            );

            sample.wait_on(waits.handle()).unwrap();
            waited.take(&waits, &sample);
            unwaited.take(&reads_at_once, &sample);
            until("a stream that does not wait goes on", || {
                reads_at_once.is_idle().unwrap()
            });
            assert_ne!(unwaited.value(MESSAGE as usize), Some(value), "it is early");
            never("a stream did not wait", || waits.is_idle().unwrap());

            drop(gate);
            until("the waiting stream goes on", || waits.is_idle().unwrap());
            assert_eq!(waited.value(MESSAGE as usize), Some(value));
            sample.synchronize(SOON).unwrap();
            assert!(sample.is_ready().unwrap());
            assert_eq!(value_of(&sample), Some(value));
        }
    });
}

/// The reader on the CPU waits inside `read`.
#[test]
fn reading_on_the_cpu_waits() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = node.publisher("t").domain(gpu.domain).create().unwrap();
        let writes = gpu.stream();
        let gate = gpu.close(&writes);
        publish(&publisher, &writes, 5);
        let sample = subscriber.recv_timeout(SOON).unwrap();
        let opened = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(A_WHILE);
                opened.store(true, Ordering::Release);
                drop(gate);
            });
            assert_eq!(value_of(&sample), Some(5));
            assert!(opened.load(Ordering::Acquire), "it did not wait");
        });
    });
}

/// Where streams cannot write numbers, publishing and releasing wait on the CPU.
#[test]
fn without_memory_operations_the_cpu_waits() {
    alone(&[("RGAPS_TEST_DRIVER_LACK", "memops")], || {
        order_on_the_cpu("memops");
    });
}

#[test]
fn without_registered_memory_the_cpu_waits() {
    alone(&[("RGAPS_TEST_DRIVER_LACK", "register")], || {
        order_on_the_cpu("register");
    });
}

fn order_on_the_cpu(lack: &str) {
    let gpu = gpu();
    if gpu.control.is_none() {
        return println!("a real GPU does not lack {lack}");
    }
    let daemon = small_pool();
    let node = daemon.node("test");
    let subscriber = node.subscriber("t").create().unwrap();
    let publisher = node.publisher("t").domain(gpu.domain).create().unwrap();
    let (writes, reads) = (gpu.stream(), gpu.stream());
    // Restarts the counts of calls, which leaves out those that tested the driver.
    gpu.configure("");
    let opened = AtomicBool::new(false);
    let open = |gate| {
        std::thread::sleep(A_WHILE);
        opened.store(true, Ordering::Release);
        drop(gate);
    };
    std::thread::scope(|scope| {
        let gate = gpu.close(&writes);
        scope.spawn(|| open(gate));
        publish(&publisher, &writes, 7);
        assert!(opened.swap(false, Ordering::AcqRel), "it did not wait");
        let sample = subscriber.recv_timeout(SOON).unwrap();
        assert!(sample.is_ready().unwrap());
        assert!(sample.gpu_point().is_none());
        sample.wait_on(reads.handle()).unwrap();
        assert_eq!(value_of(&sample), Some(7));

        let gate = gpu.close(&reads);
        let other = publisher.loan(MESSAGE).unwrap();
        // SAFETY: the sample keeps the source and the loan the target until both are released on this stream.
        unsafe { reads.copy(other.address(), sample.address(), 64) }.unwrap();
        scope.spawn(|| open(gate));
        sample.release_on(reads.handle());
        assert!(opened.load(Ordering::Acquire), "the release did not wait");
        other.discard_on(reads.handle());
    });
    for call in ["cuStreamWriteValue64", "cuStreamWaitValue64"] {
        assert_eq!(gpu.calls(call), Some(0), "{call}");
    }
}

/// For an idle stream rgaps only queries it: it queues nothing and waits for nothing.
#[test]
fn idle_streams_get_nothing_queued() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = node.publisher("t").domain(gpu.domain).create().unwrap();
        let (writes, reads) = (gpu.stream(), gpu.stream());
        // With the first message rgaps tests what the driver supports.
        publish(&publisher, &writes, 1);
        until("the stream is idle", || writes.is_idle().unwrap());
        drop(subscriber.recv_timeout(SOON).unwrap());
        gpu.configure("");
        for _ in 0..10 {
            let loan = publisher.loan(MESSAGE).unwrap();
            loan.publish_on(writes.handle()).unwrap();
            let sample = subscriber.recv_timeout(SOON).unwrap();
            assert!(sample.is_ready().unwrap());
            sample.wait_on(reads.handle()).unwrap();
            sample.release_on(reads.handle());
            publisher.loan(MESSAGE).unwrap().discard_on(writes.handle());
        }
        let queued = [
            "cuStreamWriteValue64",
            "cuStreamWaitValue64",
            "cuStreamSynchronize",
            "cuCtxSynchronize",
        ];
        for call in queued {
            assert!(matches!(gpu.calls(call), None | Some(0)), "{call}");
        }
        assert_ne!(gpu.calls("cuStreamQuery"), Some(0), "nothing is counted");
    });
}

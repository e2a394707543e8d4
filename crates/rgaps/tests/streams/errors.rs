//! Driver calls that fail: the errors name the call and its code, and everything works afterwards.

use crate::gpu::{gpu, publish, publish_done, room, small_pool, value_of, MESSAGE, POOL_BLOCKS};
use crate::harness::{alone, never, until, SOON};
use rgaps::{PoolError, PublishError, RecvError};
use std::time::Duration;

const OUT_OF_MEMORY: i32 = 2;

#[test]
fn calls_that_fail_are_named_and_leave_everything_usable() {
    alone(&[], || {
        let gpu = gpu();
        if gpu.control.is_none() {
            return println!("calls of a real GPU do not fail when told to");
        }
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = node.publisher("t").domain(gpu.domain).keep_last(1);
        let publisher = publisher.loan_timeout(Duration::ZERO).create().unwrap();
        let (writes, reads) = (gpu.stream(), gpu.stream());
        publish_done(&publisher, &writes, 1);
        let held = subscriber.recv_timeout(SOON).unwrap();

        for call in ["cuStreamWriteValue64", "cuStreamQuery", "cuStreamGetId"] {
            let gate = gpu.close(&writes);
            let loan = publisher.loan(MESSAGE).unwrap();
            // SAFETY: the loan's bytes are ours until the stream has passed.
            unsafe { writes.fill(loan.address(), 2, MESSAGE).unwrap() };
            gpu.configure(&format!("fail={call}:1:CUDA_ERROR_OUT_OF_MEMORY"));
            let unpublished = loan.publish_on(writes.handle()).unwrap_err();
            match &unpublished.error {
                PublishError::Pool(PoolError::Cuda {
                    call: named, code, ..
                }) => {
                    assert_eq!((*named, *code), (call, OUT_OF_MEMORY));
                }
                other => panic!("{other:?}"),
            }
            let loan = unpublished.loan.expect("the loan comes back");
            loan.publish_on(writes.handle()).unwrap();
            let sample = subscriber.recv_timeout(SOON).unwrap();
            assert!(!sample.is_ready().unwrap());
            gpu.configure("fail=cuStreamWaitValue64:1:CUDA_ERROR_OUT_OF_MEMORY");
            match sample.wait_on(reads.handle()).unwrap_err() {
                RecvError::Pool(PoolError::Cuda { call, code, .. }) => {
                    assert_eq!((call, code), ("cuStreamWaitValue64", OUT_OF_MEMORY));
                }
                other => panic!("{other:?}"),
            }
            sample.wait_on(reads.handle()).unwrap();
            drop(gate);
            sample.synchronize(SOON).unwrap();
            assert_eq!(value_of(&sample), Some(2));
            sample.release_on(reads.handle());
        }
        drop(held);
        until("nothing is leaked", || room(&publisher) == POOL_BLOCKS);
    });
}

/// A release cannot return an error: if a driver call fails, it waits for all work instead, and leaks nothing.
#[test]
fn a_deferred_release_outlives_calls_that_fail() {
    alone(&[], || {
        let gpu = gpu();
        if gpu.control.is_none() {
            return println!("calls of a real GPU do not fail when told to");
        }
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = node.publisher("t").domain(gpu.domain).keep_last(1);
        let publisher = publisher.loan_timeout(Duration::ZERO).create().unwrap();
        let (writes, reads) = (gpu.stream(), gpu.stream());
        for (number, fails) in [
            "fail=cuStreamWriteValue64:1:CUDA_ERROR_OUT_OF_MEMORY",
            "fail=cuStreamQuery:*:CUDA_ERROR_UNKNOWN",
            "fail=cuStreamGetCtx:1+:CUDA_ERROR_INVALID_HANDLE",
        ]
        .into_iter()
        .enumerate()
        {
            publish_done(&publisher, &writes, 1);
            let sample = subscriber.recv_timeout(SOON).unwrap();
            publish_done(&publisher, &writes, 2);
            drop(subscriber.recv_timeout(SOON).unwrap());
            let gate = gpu.close(&reads);
            let target = crate::gpu::Pinned::new(&gpu, MESSAGE as usize);
            target.take(&reads, &sample);
            std::thread::scope(|scope| {
                let (handle, gpu) = (reads.handle(), &gpu);
                scope.spawn(move || {
                    gpu.configure(fails);
                    match number % 2 {
                        0 => sample.release_on(handle),
                        _ => {
                            sample.record_stream(handle);
                            drop(sample);
                        }
                    }
                });
                never("a block is reused that is still read", || {
                    target.value(MESSAGE as usize) == Some(2)
                });
                drop(gate);
            });
            gpu.configure("fail=");
            until("its stream is done", || reads.is_idle().unwrap());
            assert_eq!(target.value(MESSAGE as usize), Some(1), "{fails}");
            until("nothing is leaked", || room(&publisher) == POOL_BLOCKS);
        }
    });
}

/// One registration of host memory fails. From then on publishing waits on the CPU.
#[test]
fn a_refused_registration_is_no_end() {
    alone(
        &[(
            "RGAPS_TEST_DRIVER_FAIL",
            "cuMemHostRegister:1:CUDA_ERROR_OUT_OF_MEMORY",
        )],
        || {
            let gpu = gpu();
            if gpu.control.is_none() {
                return println!("calls of a real GPU do not fail when told to");
            }
            let daemon = small_pool();
            let node = daemon.node("test");
            let subscriber = node.subscriber("t").create().unwrap();
            let publisher = node.publisher("t").domain(gpu.domain).create().unwrap();
            let stream = gpu.stream();
            for value in 1..4 {
                publish(&publisher, &stream, value);
                let sample = subscriber.recv_timeout(SOON).unwrap();
                assert!(sample.is_ready().unwrap());
                assert_eq!(value_of(&sample), Some(value));
            }
        },
    );
}

//! Daemons that die while work is queued.

use crate::gpu::{gpu, publish, publish_done, room, small_pool, value_of, Pinned};
use crate::gpu::{MESSAGE, POOL_BLOCKS};
use crate::harness::{alone, never, until, Process, SOON};
use rgaps::RecvError;
use std::time::Duration;

#[test]
fn the_next_daemon_adopts_what_is_queued() {
    alone(&[], || {
        let gpu = gpu();
        let mut daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let publisher = node.publisher("t").domain(gpu.domain).keep_last(1);
        let publisher = publisher.loan_timeout(Duration::ZERO).create().unwrap();
        let (writes, reads, waits) = (gpu.stream(), gpu.stream(), gpu.stream());
        publish_done(&publisher, &writes, 1);
        let first = subscriber.recv_timeout(SOON).unwrap();
        let read_gate = gpu.close(&reads);
        let bytes = Pinned::new(&gpu, MESSAGE as usize);
        bytes.take(&reads, &first);
        first.release_on(reads.handle());
        let write_gate = gpu.close(&writes);
        publish(&publisher, &writes, 2);
        let second = subscriber.recv_timeout(SOON).unwrap();
        second.wait_on(waits.handle()).unwrap();

        daemon.kill();
        never("a death of the daemon ends work", || {
            second.is_ready().unwrap() || waits.is_idle().unwrap()
        });
        daemon.restart();
        until("the daemon has everything back", || {
            node.topic("t").is_ok_and(|topic| topic.row.publishers == 1)
        });
        never("the next daemon ends work, or reuses its blocks", || {
            second.is_ready().unwrap()
                || waits.is_idle().unwrap()
                || room(&publisher) > POOL_BLOCKS - 2
        });
        // The next daemon does not know this stream yet.
        let newer = gpu.stream();
        let newer_gate = gpu.close(&newer);
        publish(&publisher, &newer, 3);
        let third = subscriber.recv_timeout(SOON).unwrap();
        assert!(!third.is_ready().unwrap());
        drop(write_gate);
        assert_eq!(value_of(&second), Some(2));
        until("the waiting stream goes on", || waits.is_idle().unwrap());
        assert!(!third.is_ready().unwrap());
        drop(newer_gate);
        assert_eq!(value_of(&third), Some(3));
        drop(read_gate);
        until("what was read comes back", || {
            room(&publisher) == POOL_BLOCKS - 2
        });
        assert_eq!(bytes.value(MESSAGE as usize), Some(1));
    });
}

#[test]
fn who_died_while_there_was_no_daemon_is_found_by_the_next() {
    alone(&[], || {
        let gpu = gpu();
        let mut daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let mut child = Process::role("publisher", &daemon, &[]);
        child.expect("joined");
        child.say("publish");
        child.expect("published");
        drop(subscriber.recv_timeout(SOON).unwrap());
        let unfinished = subscriber.recv_timeout(SOON).unwrap();
        let waits = gpu.stream();
        unfinished.wait_on(waits.handle()).unwrap();
        daemon.kill();
        child.kill();
        never("who ends the work?", || unfinished.is_ready().unwrap());
        daemon.restart();
        until("the waiting stream goes on", || waits.is_idle().unwrap());
        let verdict = unfinished.is_ready();
        assert!(
            matches!(verdict, Err(RecvError::Aborted { .. })),
            "{verdict:?}"
        );
        drop(unfinished);
        let publisher = node.publisher("u").domain(gpu.domain);
        let publisher = publisher.loan_timeout(Duration::ZERO).create().unwrap();
        until("all memory is free", || room(&publisher) == POOL_BLOCKS);
    });
}

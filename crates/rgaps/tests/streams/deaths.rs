//! Processes that are killed with work queued.

use crate::gpu::{
    gpu, is_real, publish, publish_done, role_node, room, small_pool, value_of, Gpu, Pinned,
    MESSAGE, POOL_BLOCKS,
};
use crate::harness::{alone, hear, never, say, until, Process, SOON};
use rgaps::{Publisher, RecvError, Sample};
use std::time::{Duration, Instant};

/// Role: publishes a finished message and an unfinished one, and discards a loan whose work never finishes.
pub fn publisher() {
    let gpu = gpu();
    let node = role_node("publisher");
    let publisher = node.publisher("t").domain(gpu.domain).create().unwrap();
    say("joined");
    assert_eq!(hear(), "publish");
    let stream = gpu.stream();
    let gate = gpu.close(&stream);
    publish(&publisher, &stream, 1);
    drop(gate);
    until("the first is finished", || stream.is_idle().unwrap());
    let _gate = gpu.close(&stream);
    publish(&publisher, &stream, 2);
    let loan = publisher.loan(MESSAGE).unwrap();
    // SAFETY: the loan's bytes are ours until the stream has passed.
    unsafe { stream.fill(loan.address(), 3, MESSAGE).unwrap() };
    loan.discard_on(stream.handle());
    say("published");
    while hear() != "end" {}
}

/// Role: receives a message, reports its value and releases it. With `RGAPS_TEST_HOLD` it instead queues work that
/// reads the message and never ends, and holds the message.
pub fn reader() {
    let gpu = gpu();
    let node = role_node("reader");
    let subscriber = node.subscriber("t").create().unwrap();
    say("joined");
    let sample = subscriber.recv_timeout(SOON).unwrap();
    let holds = std::env::var_os("RGAPS_TEST_HOLD").is_some();
    if holds {
        sample.synchronize(SOON).unwrap();
    }
    say(match sample.is_ready().unwrap() {
        true => "ready",
        false => "pending",
    });
    if !holds {
        let stream = gpu.stream();
        sample.wait_on(stream.handle()).unwrap();
        say(&format!("{:?}", value_of(&sample)));
        return sample.release_on(stream.handle());
    }
    let stream = gpu.stream();
    let _gate = gpu.close(&stream);
    Pinned::new(&gpu, MESSAGE as usize).take(&stream, &sample);
    say("holds");
    while hear() != "end" {}
}

/// Another publisher in the same pool.
fn neighbour(node: &rgaps::Node, gpu: &Gpu) -> Publisher {
    let builder = node.publisher("u").domain(gpu.domain);
    builder.loan_timeout(Duration::ZERO).create().unwrap()
}

/// Whether a message is whole, found as a kernel would: from the numbers at the address of `gpu_point`. None: the
/// message has no such point.
fn is_whole_for_kernels(gpu: &Gpu, sample: &Sample) -> Option<bool> {
    let (address, point) = sample.gpu_point()?;
    let numbers = Pinned::new(gpu, 4096);
    let stream = gpu.stream();
    // SAFETY: the sample keeps its zone's registered memory mapped, and `numbers` lives until the copy has finished.
    unsafe { stream.copy(numbers.address(), address, 16).unwrap() };
    until("two numbers are copied", || stream.is_idle().unwrap());
    let passed = |number: u64| number >> 32 == point >> 32 && number >= point;
    Some(passed(numbers.number(0)) || passed(numbers.number(1)))
}

fn is_aborted<T>(result: &Result<T, RecvError>) -> bool {
    matches!(result, Err(RecvError::Aborted { .. }))
}

#[test]
fn a_killed_publishers_message_is_aborted_and_readers_go_on() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let mut child = Process::role("publisher", &daemon, &[]);
        child.expect("joined");
        let neighbour = neighbour(&node, &gpu);
        child.say("publish");
        child.expect("published");
        let whole = subscriber.recv_timeout(SOON).unwrap();
        let unfinished = subscriber.recv_timeout(SOON).unwrap();
        assert!(whole.is_ready().unwrap() && !unfinished.is_ready().unwrap());
        assert_eq!(is_whole_for_kernels(&gpu, &whole), Some(true));
        assert_eq!(is_whole_for_kernels(&gpu, &unfinished), Some(false));
        let stream = gpu.stream();
        let bytes = Pinned::new(&gpu, MESSAGE as usize);
        unfinished.wait_on(stream.handle()).unwrap();
        bytes.take(&stream, &unfinished);
        never("a stream did not wait", || stream.is_idle().unwrap());
        assert_eq!(room(&neighbour), POOL_BLOCKS - 3, "the publisher lives");

        let killed = Instant::now();
        child.kill();
        let gone = Instant::now();
        until("the waiting stream goes on", || stream.is_idle().unwrap());
        println!(
            "went on {:?} after the publisher was gone, {:?} after it was killed",
            gone.elapsed(),
            killed.elapsed()
        );
        assert!(
            is_aborted(&unfinished.is_ready()),
            "{:?}",
            unfinished.is_ready()
        );
        assert!(is_aborted(&unfinished.synchronize(SOON)));
        assert!(is_aborted(&unfinished.wait_on(stream.handle())));
        assert!(is_aborted(&unfinished.read(0, &mut [0; 8])));
        assert_eq!(is_whole_for_kernels(&gpu, &unfinished), Some(false));
        assert_eq!(is_whole_for_kernels(&gpu, &whole), Some(true));
        assert_eq!(value_of(&whole), Some(1));

        until("the dropped loan's block is free", || {
            room(&neighbour) == POOL_BLOCKS - 2
        });
        never("a held sample's block is reused", || {
            room(&neighbour) > POOL_BLOCKS - 2
        });
        unfinished.release_on(stream.handle());
        drop(whole);
        until("all memory is free", || room(&neighbour) == POOL_BLOCKS);
    });
}

/// The descriptor records that the message was aborted, so a subscriber that reads it later learns of it, too.
#[test]
fn what_a_killed_publisher_left_unread_says_what_became_of_it() {
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").reliable().create().unwrap();
        let mut child = Process::role("publisher", &daemon, &[]);
        child.expect("joined");
        let neighbour = neighbour(&node, &gpu);
        child.say("publish");
        child.expect("published");
        child.kill();
        until("the dropped loan's block is free", || {
            room(&neighbour) == POOL_BLOCKS - 2
        });
        let whole = subscriber.recv_timeout(SOON).unwrap();
        assert_eq!(value_of(&whole), Some(1));
        let unfinished = subscriber.recv_timeout(SOON).unwrap();
        assert!(
            is_aborted(&unfinished.is_ready()),
            "{:?}",
            unfinished.is_ready()
        );
        assert_ne!(is_whole_for_kernels(&gpu, &unfinished), Some(true));
        drop((whole, unfinished));
        until("all memory is free", || room(&neighbour) == POOL_BLOCKS);
    });
}

fn killed_reader(role: &str, says: &[&str]) {
    let gpu = gpu();
    let daemon = small_pool();
    let node = daemon.node("test");
    let mut child = Process::role(role, &daemon, &[("RGAPS_TEST_HOLD", "1")]);
    child.expect("joined");
    let publisher = node.publisher("t").domain(gpu.domain).keep_last(1);
    let publisher = publisher.loan_timeout(Duration::ZERO).create().unwrap();
    let stream = gpu.stream();
    publish_done(&publisher, &stream, 1);
    says.iter().for_each(|text| child.expect(text));
    publish_done(&publisher, &stream, 2);
    never("a block is reused that is still read", || {
        room(&publisher) != POOL_BLOCKS - 2
    });
    let killed = Instant::now();
    child.kill();
    // The last message's block comes back, too: no subscriber has still to read it.
    until("the blocks come back", || room(&publisher) == POOL_BLOCKS);
    println!("the block was back after {:?}", killed.elapsed());
}

#[test]
fn a_killed_subscribers_block_comes_back_once_it_is_gone() {
    alone(&[], || killed_reader("reader", &["ready", "holds"]));
}

#[test]
fn what_a_killed_subscriber_has_let_go_of_comes_back_once_it_is_gone() {
    alone(&[], || killed_reader("subscriber", &["released"]));
}

/// The daemon keeps the memory of a process until the process ends: its GPU work may still run while it does not answer.
#[test]
fn a_stopped_publisher_is_not_a_dead_one() {
    if is_real() {
        return println!("what a stopped process has queued goes on, on a real GPU");
    }
    alone(&[], || {
        let gpu = gpu();
        let daemon = small_pool();
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create().unwrap();
        let mut child = Process::role("publisher", &daemon, &[]);
        child.expect("joined");
        let neighbour = neighbour(&node, &gpu);
        child.say("publish");
        child.expect("published");
        drop(subscriber.recv_timeout(SOON).unwrap());
        let unfinished = subscriber.recv_timeout(SOON).unwrap();
        rgaps_testkit::stop(child.number());
        never("a stopped process counts as dead", || {
            unfinished.is_ready().is_err() || room(&neighbour) > POOL_BLOCKS - 3
        });
        child.kill();
        until("a killed one does", || is_aborted(&unfinished.is_ready()));
    });
}

//! A process that lost its CUDA context and lives on: rgaps treats its GPU work as that of a dead process.

use crate::gpu::{gpu, publish, publish_done, role_node, room, small_pool, value_of, Gpu};
use crate::gpu::{Pinned, MESSAGE, POOL_BLOCKS};
use crate::harness::{alone, hear, never, say, until, Process, SOON};
use rgaps::RecvError;
use std::time::Duration;

/// Returns a function that ends the context: on a real GPU a kernel that writes to an invalid address. CUDA loads a
/// kernel at its first launch and then waits for all queued work, so `loss` launches it once before any is queued.
fn loss(gpu: &Gpu) -> impl FnOnce() + '_ {
    let kernel = gpu.control.is_none().then(|| {
        let kernels = rgaps_kernels::Kernels::load(gpu.context.clone()).unwrap();
        let (stream, memory) = (gpu.stream(), Pinned::new(gpu, 4096));
        // SAFETY: nobody else uses this memory.
        unsafe { kernels.scribble(stream.handle(), memory.address(), 8, 0) }.unwrap();
        stream.synchronize().unwrap();
        (kernels, stream)
    });
    move || {
        let Some((kernels, stream)) = &kernel else {
            return gpu.control.unwrap().lose_context(0);
        };
        // SAFETY: nothing is mapped at this address, so the kernel writes nothing: it faults, as intended.
        unsafe { kernels.scribble(stream.handle(), 0x1000, 8, 0) }.unwrap();
        until("the context is lost", || gpu.context.is_lost());
        std::mem::forget(kernel);
    }
}

/// Role: publishes a message whose work never finishes, releases a sample behind that work, loses its context and,
/// when the test asks, calls rgaps again.
pub fn loser() {
    let gpu = gpu();
    let lose = loss(&gpu);
    let node = role_node("loser");
    let publisher = node.publisher("t").domain(gpu.domain).create().unwrap();
    let subscriber = node.subscriber("u").create().unwrap();
    say("joined");
    let stream = gpu.stream();
    let _gate = gpu.close(&stream);
    publish(&publisher, &stream, 1);
    let sample = subscriber.recv_timeout(SOON).unwrap();
    Pinned::new(&gpu, MESSAGE as usize).take(&stream, &sample);
    sample.release_on(stream.handle());
    say("queued");
    assert_eq!(hear(), "lose");
    lose();
    say("lost");
    if hear() == "call" {
        let error = publisher
            .loan(64)
            .map_err(|error| error.to_string())
            .and_then(|loan| {
                let published = loan.publish_on(stream.handle());
                published.map_err(|error| error.to_string())
            })
            .unwrap_err();
        say(&error);
        assert_eq!(hear(), "end");
    }
    std::mem::forget(stream);
}

fn lost_by_another(calls: bool) {
    let gpu = gpu();
    let daemon = small_pool();
    let node = daemon.node("test");
    let subscriber = node.subscriber("t").create().unwrap();
    let publisher = node.publisher("u").domain(gpu.domain).keep_last(1);
    let publisher = publisher.loan_timeout(Duration::ZERO).create().unwrap();
    let mut child = Process::role("loser", &daemon, &[]);
    child.expect("joined");
    let (writes, waits) = (gpu.stream(), gpu.stream());
    publish_done(&publisher, &writes, 5);
    child.expect("queued");
    publish_done(&publisher, &writes, 6);
    let unfinished = subscriber.recv_timeout(SOON).unwrap();
    unfinished.wait_on(waits.handle()).unwrap();
    never("a stream did not wait", || waits.is_idle().unwrap());
    // In use: two blocks of this process, and one of the loser.
    assert_eq!(room(&publisher), POOL_BLOCKS - 3);
    child.say("lose");
    child.expect("lost");
    if calls {
        // Returns free memory to the pool, so that the loser's call fails for the lost context and not for a full pool.
        publisher.trim(0).unwrap();
        child.say("call");
        let error = child.hear();
        assert!(error.contains("cu") && error.contains("700"), "{error}");
    }
    until("the waiting stream goes on", || waits.is_idle().unwrap());
    let verdict = unfinished.is_ready();
    assert!(
        matches!(verdict, Err(RecvError::Aborted { .. })),
        "{verdict:?}"
    );
    until("what it read comes back", || {
        room(&publisher) == POOL_BLOCKS - 2
    });
    // The pool serves others as before.
    let ours = node.subscriber("u").create().unwrap();
    publish(&publisher, &writes, 7);
    assert_eq!(value_of(&ours.recv_timeout(SOON).unwrap()), Some(7));
    drop(unfinished);
    child.say("end");
    child.finish();
    // The blocks of this process come back, too: every subscriber has read them.
    until("what it had comes back", || room(&publisher) == POOL_BLOCKS);
}

#[test]
fn a_process_that_lost_its_context_counts_as_dead() {
    alone(&[], || lost_by_another(false));
}

#[test]
fn calls_in_a_lost_context_say_what_failed() {
    alone(&[], || lost_by_another(true));
}

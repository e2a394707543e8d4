//! Streams that write and wait for numbers, that are held, that share a hardware queue, and that
//! end with their context.
mod support;

use std::ffi::c_int;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::*;

const REACHED_BY: u32 = 0;

#[test]
fn a_wait_holds_up_its_own_stream_only() {
    let gpu = Gpu::new();
    let (waiting, other) = (gpu.stream(NON_BLOCKING), gpu.stream(NON_BLOCKING));
    assert_eq!(gpu.wait(waiting, gpu.memory, 1), 0);
    gpu.fill(100, 1, waiting);
    gpu.fill(200, 2, other);
    assert_eq!(gpu.call(c"cuStreamSynchronize", other), 0);
    assert_eq!((gpu.peek(100), gpu.peek(200)), (0, 2));
    assert_eq!(gpu.query(waiting), 600);
    assert_eq!(gpu.write(other, gpu.memory, 1), 0);
    within_patience("the wait ends", || gpu.query(waiting) == 0);
    assert_eq!(gpu.peek(100), 1);
}

/// With one hardware queue, what waits holds up everything that was queued after it.
#[test]
fn streams_that_share_a_queue_wait_for_one_another() {
    let gpu = Gpu::new();
    let (waiting, other) = (gpu.stream(NON_BLOCKING), gpu.stream(NON_BLOCKING));
    gpu.control.configure("queues=1");
    gpu.fill(300, 3, other);
    assert_eq!(gpu.wait(waiting, gpu.memory, 1), 0);
    gpu.fill(200, 2, other);
    within_patience("what was queued before runs", || gpu.peek(300) == 3);
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(gpu.query(other), 600);
    assert_eq!(gpu.peek(200), 0, "it went past a wait in its queue");
    // SAFETY: inside our allocation, which is host memory.
    let number = unsafe { std::sync::atomic::AtomicU64::from_ptr(gpu.memory as *mut u64) };
    number.store(1, Ordering::Release);
    within_patience("all runs", || gpu.query(other) == 0);
    assert_eq!(gpu.peek(200), 2);
}

/// The deadlock of a single queue is one here too, and does not hang the test.
#[test]
fn a_number_that_comes_behind_its_wait_in_one_queue_never_comes() {
    let child = Child::run(
        "child_waits_for_what_is_behind",
        &[
            ("RGAPS_TEST_DRIVER_QUEUES", "1"),
            ("RGAPS_TEST_DRIVER_PATIENCE_MS", "300"),
        ],
    );
    let (status, text) = child.outcome();
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{text}");
    assert!(text.contains("a stream waits for"), "{text}");
}

#[test]
#[ignore = "run by a_number_that_comes_behind_its_wait_in_one_queue_never_comes"]
fn child_waits_for_what_is_behind() {
    let gpu = Gpu::new();
    let (waiting, other) = (gpu.stream(NON_BLOCKING), gpu.stream(NON_BLOCKING));
    assert_eq!(gpu.wait(waiting, gpu.memory, 1), 0);
    assert_eq!(gpu.write(other, gpu.memory, 1), 0);
    gpu.call(c"cuStreamSynchronize", waiting);
}

#[test]
fn a_stream_that_is_held_for_too_long_ends_the_process() {
    let patience = [("RGAPS_TEST_DRIVER_PATIENCE_MS", "300")];
    let (status, text) = Child::run("child_forgets_to_let_go", &patience).outcome();
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{text}");
    assert!(text.contains("held"), "{text}");
}

#[test]
#[ignore = "run by a_stream_that_is_held_for_too_long_ends_the_process"]
fn child_forgets_to_let_go() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    let _held = gpu.control.hold(stream as u64);
    gpu.fill(0, 1, stream);
    gpu.call(c"cuStreamSynchronize", stream);
}

#[test]
fn queueing_waits_for_room() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    gpu.control.configure("depth=4");
    let held = gpu.control.hold(stream as u64);
    (0..4).for_each(|i| gpu.fill(i, 1, stream));
    let queued = AtomicBool::new(false);
    let mut context = 0usize;
    // SAFETY: the type is that of the driver function; the output is ours.
    unsafe { gpu.control.function::<OutCurrent>(c"cuCtxGetCurrent")(&mut context) };
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            gpu.call(c"cuCtxSetCurrent", context);
            // SAFETY: it takes nothing, and cannot fail.
            tell.send(unsafe { libc::gettid() }).unwrap();
            gpu.fill(4, 1, stream);
            queued.store(true, Ordering::Release);
        });
        let thread = told.recv().unwrap();
        within_patience("it waits", || {
            // It sleeps each of several times that it is looked at, or it is done.
            (0..20).all(|_| {
                std::thread::yield_now();
                let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
                stat.is_ok_and(|stat| stat.contains(") S ")) || queued.load(Ordering::Acquire)
            })
        });
        let was_queued = queued.load(Ordering::Acquire);
        drop(held);
        assert!(!was_queued, "a fifth operation found room for four");
        within_patience("there is room", || queued.load(Ordering::Acquire));
    });
    assert_eq!(gpu.call(c"cuStreamSynchronize", stream), 0);
    assert_eq!(gpu.peek(4), 1);
}

type OutCurrent = unsafe extern "C" fn(*mut usize) -> c_int;

#[test]
fn in_a_lost_context_nothing_runs_and_every_call_says_so() {
    let gpu = Gpu::new();
    let (held_stream, waiting) = (gpu.stream(NON_BLOCKING), gpu.stream(NON_BLOCKING));
    let held = gpu.control.hold(held_stream as u64);
    gpu.fill(100, 1, held_stream);
    assert_eq!(gpu.wait(waiting, gpu.memory, 1), 0);
    gpu.fill(200, 1, waiting);
    gpu.control.lose_context(0);
    drop(held);
    for stream in [held_stream, waiting] {
        assert_eq!(gpu.call(c"cuStreamSynchronize", stream), 700);
        assert_eq!(gpu.query(stream), 700);
        assert_eq!(gpu.write(stream, gpu.memory, 1), 700);
        assert_eq!(gpu.wait(stream, gpu.memory, 1), 700);
    }
    // SAFETY: the type is that of the driver function.
    let synchronize = unsafe { gpu.control.function::<CallNone>(c"cuCtxSynchronize") };
    assert_eq!(synchronize(), 700);
    assert_eq!((gpu.peek(100), gpu.peek(200)), (0, 0), "work ran");
}

#[test]
fn a_context_is_lost_where_a_failure_says_so() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    gpu.control.configure("fail=cuStreamQuery:2:lost");
    assert_eq!([0; 3].map(|_: i32| gpu.query(stream)), [0, 700, 700]);
    gpu.control.configure("fail=");
    assert_eq!(gpu.query(stream), 700, "the context recovered");
}

#[test]
fn a_context_with_a_stream_that_waits_can_be_given_back() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    assert_eq!(gpu.wait(stream, gpu.memory, 1), 0);
    // SAFETY: the type is that of the driver function.
    let release = unsafe {
        gpu.control
            .function::<extern "C" fn(c_int) -> c_int>(c"cuDevicePrimaryCtxRelease_v2")
    };
    assert_eq!(release(0), 0);
    assert_eq!(gpu.control.live("contexts"), 0);
    assert_eq!(gpu.control.live("streams"), 0);
}

#[test]
fn only_registered_memory_and_memory_of_gpus_can_be_waited_for() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    let page = Box::new([0u64; 1024]);
    let address = (page.as_ptr() as u64).next_multiple_of(8);
    assert_eq!(gpu.wait(stream, address, 0), 1, "it is not registered");
    assert_eq!(gpu.register(address, 4096, 16), 1, "no such flag");
    assert_eq!(gpu.register(1 << 40, 4096, 3), 1, "nothing is mapped there");
    assert_eq!(gpu.register(address, 4096, 3), 0);
    assert_eq!(gpu.register(address, 4096, 3), 712);
    assert_eq!(gpu.wait(stream, address, 0), 0);
    assert_eq!(gpu.wait(stream, address + 4, 0), 1, "not aligned");
    assert_eq!(gpu.wait(stream, address + 4096, 0), 1, "behind it");
    // SAFETY: the type is that of the driver function.
    let wait = unsafe { gpu.control.function::<Number>(c"cuStreamWaitValue64_v2") };
    assert_eq!(wait(stream, address, 0, 1 << 30), 801, "no remote writes");
    assert_eq!(wait(stream, address, 0, REACHED_BY), 0);
    assert_eq!(gpu.call(c"cuMemHostUnregister", address as usize), 0);
    assert_eq!(gpu.call(c"cuMemHostUnregister", address as usize), 713);
    assert_eq!(gpu.wait(stream, address, 0), 1);
}

/// A number that another process writes, and one that it reads.
#[test]
fn processes_wait_for_one_another() {
    let path = std::env::temp_dir().join(format!("rgaps-numbers-{}", std::process::id()));
    let numbers = shared_numbers(&path);
    let child = Child::run(
        "child_answers_on_its_stream",
        &[("RGAPS_TEST_NUMBERS", path.to_str().unwrap())],
    );
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    let address = numbers.as_ptr() as u64;
    assert_eq!(gpu.register(address, 4096, 3), 0);
    for round in 1..=5 {
        assert_eq!(gpu.write(stream, address, round), 0);
        assert_eq!(gpu.wait(stream, address + 8, round), 0);
    }
    within_patience("the other process's answers", || gpu.query(stream) == 0);
    assert_eq!(numbers[1].load(Ordering::Acquire), 5);
    let (status, text) = child.outcome();
    std::fs::remove_file(path).unwrap();
    assert!(status.success(), "{text}");
}

/// Ends with a stream that waits: that does not keep a process.
#[test]
#[ignore = "run by processes_wait_for_one_another"]
fn child_answers_on_its_stream() {
    let path = PathBuf::from(std::env::var_os("RGAPS_TEST_NUMBERS").unwrap());
    let numbers = shared_numbers(&path);
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    let address = numbers.as_ptr() as u64;
    assert_eq!(gpu.register(address, 4096, 3), 0);
    for round in 1..=5 {
        assert_eq!(gpu.wait(stream, address, round), 0);
        assert_eq!(gpu.write(stream, address + 8, round), 0);
    }
    within_patience("the other process's numbers", || gpu.query(stream) == 0);
    assert_eq!(gpu.wait(stream, address, 1000), 0);
}

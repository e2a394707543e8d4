//! The stand-in keeps CUDA's order of work, and no more of it than CUDA promises.
mod support;

use std::ffi::c_int;
use std::time::{Duration, Instant};
use support::*;

const SLOW: &str = "delay_us=150000";

#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_one_another() {
    let gpu = Gpu::new();
    let blocking = gpu.stream(0);
    gpu.control.configure(SLOW);
    gpu.fill(0, 1, blocking);
    gpu.copy(100, 0, 0);
    gpu.copy(200, 100, blocking);
    assert_eq!(
        (gpu.peek(0), gpu.peek(100), gpu.peek(200)),
        (0, 0, 0),
        "it did not take its time"
    );
    assert_eq!(gpu.call(c"cuStreamQuery", blocking), 600);
    assert_eq!(gpu.call(c"cuStreamSynchronize", blocking), 0);
    assert_eq!((gpu.peek(0), gpu.peek(100), gpu.peek(200)), (1, 1, 1));
}

#[test]
fn a_non_blocking_stream_is_waited_for_by_nobody() {
    let gpu = Gpu::new();
    let (alone, blocking) = (gpu.stream(NON_BLOCKING), gpu.stream(0));
    gpu.control.configure(SLOW);
    gpu.fill(0, 1, alone);
    gpu.fill(0, 2, alone);
    gpu.fill(0, 3, alone);
    gpu.copy(100, 0, blocking);
    assert_eq!(gpu.call(c"cuStreamSynchronize", blocking), 0);
    assert_ne!(
        gpu.peek(100),
        3,
        "a blocking stream waited for a non-blocking one"
    );
    // SAFETY: the type is that of the driver function.
    let synchronize = unsafe { gpu.control.function::<CallNone>(c"cuCtxSynchronize") };
    assert_eq!(synchronize(), 0);
    assert_eq!(gpu.peek(0), 3, "the context's work was not waited for");
}

#[test]
fn an_event_orders_two_streams() {
    let gpu = Gpu::new();
    let (first, second) = (gpu.stream(NON_BLOCKING), gpu.stream(NON_BLOCKING));
    let mut event = 0;
    // SAFETY: the types are those of the driver functions; the output is ours.
    let (record, wait) = unsafe {
        assert_eq!(
            gpu.control.function::<OutCall>(c"cuEventCreate")(&mut event, 0),
            0
        );
        (
            gpu.control.function::<CallTwo>(c"cuEventRecord"),
            gpu.control.function::<CallWait>(c"cuStreamWaitEvent"),
        )
    };
    gpu.control.configure(SLOW);
    gpu.fill(0, 7, first);
    gpu.fill(0, 8, first);
    assert_eq!(record(event, first), 0);
    assert_eq!(gpu.call(c"cuEventQuery", event), 600);
    assert_eq!(wait(second, event, 0), 0);
    gpu.copy(100, 0, second);
    assert_eq!(gpu.call(c"cuStreamSynchronize", second), 0);
    assert_eq!(gpu.peek(100), 8);
    assert_eq!(gpu.call(c"cuEventSynchronize", event), 0);
    assert_eq!(gpu.call(c"cuEventQuery", event), 0);
    assert_eq!(gpu.call(c"cuEventDestroy_v2", event), 0);
    assert_eq!(gpu.call(c"cuEventQuery", event), 400);
}

/// The forms without "Async" are no more synchronous than documented.
#[test]
fn plain_copies_to_the_gpu_return_before_the_bytes_are_there() {
    let gpu = Gpu::new();
    // SAFETY: the type is that of the driver functions.
    let (to_device, to_host, between) = unsafe {
        (
            gpu.control.function::<Copy>(c"cuMemcpyHtoD_v2"),
            gpu.control.function::<Copy>(c"cuMemcpyDtoH_v2"),
            gpu.control.function::<Copy>(c"cuMemcpyDtoD_v2"),
        )
    };
    let mut host = vec![5u8; 16];
    gpu.control.configure(SLOW);
    assert_eq!(to_device(gpu.memory, host.as_ptr() as u64, 16), 0);
    host.fill(0); // Already staged.
    assert_eq!(gpu.peek(0), 0, "the copy was waited for");
    assert_eq!(between(gpu.memory + 100, gpu.memory, 16), 0);
    assert_eq!(gpu.peek(100), 0, "the copy between devices was waited for");
    assert_eq!(to_host(host.as_mut_ptr() as u64, gpu.memory + 100, 16), 0);
    assert_eq!(host, [5; 16], "a copy to the host is there when it returns");
}

#[test]
fn work_on_addresses_that_are_gone_ends_the_context() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    let (mut address, mut handle) = (0usize, 0u64);
    let unit = 2usize << 20;
    #[rustfmt::skip]
    // SAFETY: the types are those of the driver functions; outputs and descriptions are ours.
    let unmap = unsafe {
        type Reserve = unsafe extern "C" fn(*mut usize, usize, usize, u64, u64) -> c_int;
        type Create = unsafe extern "C" fn(*mut u64, usize, *const [u64; 4], u64) -> c_int;
        type Map = extern "C" fn(usize, usize, usize, u64, u64) -> c_int;
        type Access = unsafe extern "C" fn(usize, usize, *const [u32; 3], usize) -> c_int;
        let pinned_fd_on_device_0 = [1 | 1 << 32, 1, 0, 0];
        let write_on_device_0 = [1, 0, 3];
        assert_eq!(gpu.control.function::<Reserve>(c"cuMemAddressReserve")(&mut address, unit, 0, 0, 0), 0);
        assert_eq!(gpu.control.function::<Create>(c"cuMemCreate")(&mut handle, unit, &pinned_fd_on_device_0, 0), 0);
        assert_eq!(gpu.control.function::<Map>(c"cuMemMap")(address, unit, 0, handle, 0), 0);
        assert_eq!(gpu.control.function::<Access>(c"cuMemSetAccess")(address, unit, &write_on_device_0, 1), 0);
        gpu.control.function::<CallTwo>(c"cuMemUnmap")
    };
    gpu.control.configure(SLOW);
    gpu.fill((address as u64).wrapping_sub(gpu.memory), 1, stream);
    assert_eq!(unmap(address, unit), 0);
    assert_eq!(gpu.call(c"cuStreamSynchronize", stream), 700);
    assert_eq!(
        gpu.call(c"cuStreamSynchronize", stream),
        700,
        "the context recovered"
    );
}

#[test]
fn work_is_delayed() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    gpu.control.configure("delay_us=60000");
    let start = Instant::now();
    gpu.fill(0, 1, stream);
    assert_eq!(gpu.call(c"cuStreamSynchronize", stream), 0);
    assert!(start.elapsed() >= Duration::from_micros(60_000));
}

//! The stand-in keeps CUDA's order of work, and no more of it than CUDA promises.
use rgaps_test_driver::TestDriver;
use std::ffi::c_int;
use std::time::{Duration, Instant};

const SLOW: &str = "delay_us=150000";
const NON_BLOCKING: u32 = 1;

type OutCall = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type CallNone = extern "C" fn() -> c_int;
type Call = extern "C" fn(usize) -> c_int;
type CallTwo = extern "C" fn(usize, usize) -> c_int;
type CallWait = extern "C" fn(usize, usize, u32) -> c_int;
type Fill = extern "C" fn(u64, u8, usize, usize) -> c_int;
type Copy = extern "C" fn(u64, u64, usize) -> c_int;
type CopyAsync = extern "C" fn(u64, u64, usize, usize) -> c_int;

/// A GPU with its context current and some memory, which the CPU can look into.
struct Gpu {
    control: TestDriver,
    memory: u64,
}

impl Gpu {
    fn new() -> Gpu {
        let control = TestDriver::private();
        let gpu = Gpu { control, memory: 0 };
        let (mut context, mut memory) = (0usize, 0usize);
        // SAFETY: the types are those of the driver functions; the outputs are ours.
        unsafe {
            assert_eq!(gpu.control.function::<Call>(c"cuInit")(0), 0);
            let retain = gpu.control.function::<OutCall>(c"cuDevicePrimaryCtxRetain");
            assert_eq!(retain(&mut context, 0), 0);
            assert_eq!(gpu.control.function::<Call>(c"cuCtxSetCurrent")(context), 0);
            assert_eq!(
                gpu.control.function::<OutCall>(c"cuMemAlloc_v2")(&mut memory, 4096),
                0
            );
        }
        Gpu {
            memory: memory as u64,
            ..gpu
        }
    }

    fn stream(&self, flags: u32) -> usize {
        let mut stream = 0;
        // SAFETY: the type is that of the driver function; the output is ours.
        let code = unsafe {
            self.control.function::<OutCall>(c"cuStreamCreate")(&mut stream, flags as c_int)
        };
        assert_eq!(code, 0);
        stream
    }

    fn fill(&self, offset: u64, value: u8, stream: usize) {
        // SAFETY: the type is that of the driver function.
        let fill = unsafe { self.control.function::<Fill>(c"cuMemsetD8Async") };
        assert_eq!(fill(self.memory.wrapping_add(offset), value, 16, stream), 0);
    }

    fn copy(&self, to: u64, from: u64, stream: usize) {
        // SAFETY: the type is that of the driver function.
        let copy = unsafe { self.control.function::<CopyAsync>(c"cuMemcpyDtoDAsync_v2") };
        assert_eq!(copy(self.memory + to, self.memory + from, 16, stream), 0);
    }

    fn call(&self, symbol: &std::ffi::CStr, argument: usize) -> c_int {
        // SAFETY: callers name functions that take one handle.
        unsafe { self.control.function::<Call>(symbol)(argument) }
    }

    fn peek(&self, offset: u64) -> u8 {
        // SAFETY: inside our allocation, which is host memory.
        unsafe { ((self.memory + offset) as *const u8).read_volatile() }
    }
}

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
fn delays_come_from_the_seed() {
    let time = |settings: &str| {
        let gpu = Gpu::new();
        let stream = gpu.stream(NON_BLOCKING);
        gpu.control.configure(settings);
        let start = Instant::now();
        gpu.fill(0, 1, stream);
        assert_eq!(gpu.call(c"cuStreamSynchronize", stream), 0);
        start.elapsed()
    };
    let most = Duration::from_millis(60);
    assert!(time("delay_us=60000") >= most);
    let drawn: Vec<_> = (0..6)
        .map(|seed| time(&format!("delay_us=60000;seed={seed}")))
        .collect();
    let (least, greatest) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
    assert!(
        *greatest - *least > Duration::from_millis(5),
        "seeds make no difference: {drawn:?}"
    );
}

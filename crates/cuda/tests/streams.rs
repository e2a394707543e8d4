//! Which calls wait for which streams.
mod support;

use rgaps_pool::{Access, Mapping, SegmentSource, Stream};
use std::ffi::c_int;
use std::os::fd::AsFd;
use support::{cuda_code, read, Gpu, UNIT};

/// Slow enough that a call that does not wait returns too early, on a busy machine too.
const SLOW: &str = "delay_us=150000";

fn now(gpu: &Gpu) {
    gpu.control.configure("delay_us=0");
}

/// Reads a byte of the pool at once, on the CPU: the test driver's GPU memory is host memory.
fn peek(mapping: &impl Mapping, offset: u64) -> u8 {
    assert!(offset < mapping.mapped());
    // SAFETY: the byte is mapped, and the test driver maps GPU memory readable for the CPU.
    unsafe { ((mapping.base() + offset) as *const u8).read_volatile() }
}

#[test]
fn work_that_nobody_waited_for_is_not_seen() {
    let gpu = Gpu::new("");
    let (writer, segment) = gpu.pool(Access::ReadWrite);
    let reader = gpu.mapping(UNIT, Access::ReadOnly).unwrap();
    reader.extend(segment.fd.as_fd(), UNIT).unwrap();
    writer.write(0, &[1; 4096]).unwrap();

    let stream = gpu.stream(&writer);
    gpu.control.configure(SLOW);
    // SAFETY: a mapped range that only this test uses.
    unsafe { stream.fill(writer.base(), 2, 4096) }.unwrap();
    assert!(!stream.is_idle().unwrap());
    assert_eq!(
        peek(&reader, 4095),
        1,
        "without waiting there are the old bytes"
    );
    writer.synchronize(stream.handle()).unwrap();
    assert!(stream.is_idle().unwrap());
    now(&gpu);
    assert_eq!(
        read(&reader, 0, 4096),
        [2; 4096],
        "after waiting there are the new ones"
    );

    gpu.control.configure(SLOW);
    // SAFETY: a mapped range that only this test uses.
    unsafe { stream.fill_u32(writer.base(), 0x0403_0201, 8) }.unwrap();
    // SAFETY: mapped ranges that only this test uses and that do not overlap.
    unsafe { stream.copy(writer.base() + 64, writer.base(), 4) }.unwrap();
    stream.synchronize().unwrap();
    now(&gpu);
    assert_eq!(read(&reader, 64, 5), [1, 2, 3, 4, 2]);
}

#[test]
fn copies_into_the_pool_are_there_when_they_return() {
    let gpu = Gpu::new("");
    let (mapping, _segment) = gpu.pool(Access::ReadWrite);
    mapping.write(0, &[9; 100]).unwrap();
    gpu.control.configure(SLOW);
    mapping.write(1000, &[1; 100]).unwrap();
    assert_eq!(peek(&mapping, 1099), 1, "write returned too early");
    let bytes = [2u8; 100];
    // SAFETY: the sources are a live buffer and a mapped range of the pool.
    unsafe {
        mapping
            .write_from(2000, bytes.as_ptr() as u64, 100)
            .unwrap();
        assert_eq!(
            peek(&mapping, 2099),
            2,
            "write_from the host returned too early"
        );
        mapping.write_from(3000, mapping.base(), 100).unwrap();
        assert_eq!(
            peek(&mapping, 3099),
            9,
            "write_from the GPU returned too early"
        );
    }
    assert_eq!(
        read(&mapping, 3000, 100),
        [9; 100],
        "read returned too early"
    );
}

#[test]
fn any_pointer_is_a_source() {
    let gpu = Gpu::new("");
    let (mapping, _segment) = gpu.pool(Access::ReadWrite);
    type Register = extern "C" fn(u64, usize, u32) -> c_int;
    type Alloc = unsafe extern "C" fn(*mut u64, usize) -> c_int;
    type Fill = extern "C" fn(u64, u8, usize) -> c_int;
    // SAFETY: the types are those of the driver functions.
    let (register, alloc, fill, retain, set_current) = unsafe {
        (
            gpu.control.function::<Register>(c"cuMemHostRegister_v2"),
            gpu.control.function::<Alloc>(c"cuMemAlloc_v2"),
            gpu.control.function::<Fill>(c"cuMemsetD8_v2"),
            gpu.control.function::<Retain>(c"cuDevicePrimaryCtxRetain"),
            gpu.control.function::<SetCurrent>(c"cuCtxSetCurrent"),
        )
    };
    let (mut context, mut device) = (0, 0);
    let pinned = vec![3u8; 1000];
    // SAFETY: the outputs are ours.
    unsafe {
        assert_eq!(retain(&mut context, 0), 0);
        assert_eq!(set_current(context), 0);
        assert_eq!(alloc(&mut device, 1000), 0);
    }
    assert_eq!(register(pinned.as_ptr() as u64, 1000, 0), 0);
    assert_eq!(fill(device, 4, 1000), 0);
    mapping.synchronize(Stream(0)).unwrap();
    // SAFETY: both sources are readable for 1000 bytes.
    unsafe {
        mapping.write_from(0, pinned.as_ptr() as u64, 1000).unwrap();
        mapping.write_from(1000, device, 1000).unwrap();
    }
    assert_eq!(read(&mapping, 0, 1000), [3; 1000]);
    assert_eq!(read(&mapping, 1000, 1000), [4; 1000]);
}

type Retain = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type SetCurrent = extern "C" fn(usize) -> c_int;
type GetCurrent = unsafe extern "C" fn(*mut usize) -> c_int;
type FillAsync = extern "C" fn(u64, u8, usize, usize) -> c_int;

#[test]
fn default_streams_are_those_of_the_gpu() {
    let gpu = Gpu::new("devices=2");
    let (mapping, _segment) = gpu.pool(Access::ReadWrite);
    // SAFETY: the types are those of the driver functions.
    let (retain, set_current, get_current, fill) = unsafe {
        (
            gpu.control.function::<Retain>(c"cuDevicePrimaryCtxRetain"),
            gpu.control.function::<SetCurrent>(c"cuCtxSetCurrent"),
            gpu.control.function::<GetCurrent>(c"cuCtxGetCurrent"),
            gpu.control.function::<FillAsync>(c"cuMemsetD8Async"),
        )
    };
    let mut contexts = [0; 2];
    for (context, device) in contexts.iter_mut().zip(0..) {
        // SAFETY: the output is ours.
        assert_eq!(unsafe { retain(context, device) }, 0);
    }
    gpu.control.configure(SLOW);
    // Stream 0 (legacy), 1 (legacy by its explicit handle) and 2 (per thread); with the GPU's context
    // current, with another GPU's, and with none.
    for (value, stream) in [(1, 0), (2, 1), (3, 2)] {
        for current in [contexts[0], contexts[1], 0] {
            set_current(contexts[0]);
            assert_eq!(fill(mapping.base(), value, 16, stream), 0);
            set_current(current);
            mapping.synchronize(Stream(stream as u64)).unwrap();
            assert_eq!(
                peek(&mapping, 15),
                value,
                "stream {stream} was not waited for"
            );
            let mut found = 1;
            // SAFETY: the output is ours.
            assert_eq!(unsafe { get_current(&mut found) }, 0);
            assert_eq!(found, current, "the caller's context was changed");
            mapping.write(0, &[0; 16]).unwrap();
        }
    }
}

/// If the caller's own context is current, the default stream is that context's.
#[test]
fn a_default_stream_is_that_of_the_callers_context() {
    let gpu = Gpu::new("");
    let (mapping, _segment) = gpu.pool(Access::ReadWrite);
    type Create = unsafe extern "C" fn(*mut usize, u32, c_int) -> c_int;
    // SAFETY: the types are those of the driver functions.
    let (create, fill) = unsafe {
        (
            gpu.control.function::<Create>(c"cuCtxCreate_v2"),
            gpu.control.function::<FillAsync>(c"cuMemsetD8Async"),
        )
    };
    let mut own = 0;
    // SAFETY: the output is ours.
    assert_eq!(unsafe { create(&mut own, 0, 0) }, 0);
    gpu.control.configure(SLOW);
    assert_eq!(fill(mapping.base(), 4, 16, 0), 0);
    mapping.synchronize(Stream(0)).unwrap();
    assert_eq!(
        peek(&mapping, 15),
        4,
        "the default stream of another context was waited for"
    );
}

#[test]
fn calls_leave_the_callers_context_alone() {
    let gpu = Gpu::new("devices=2");
    // SAFETY: the types are those of the driver functions.
    let (retain, set_current, get_current) = unsafe {
        (
            gpu.control.function::<Retain>(c"cuDevicePrimaryCtxRetain"),
            gpu.control.function::<SetCurrent>(c"cuCtxSetCurrent"),
            gpu.control.function::<GetCurrent>(c"cuCtxGetCurrent"),
        )
    };
    let mut other = 0;
    // SAFETY: the output is ours.
    assert_eq!(unsafe { retain(&mut other, 1) }, 0);
    for current in [other, 0] {
        set_current(current);
        let (mapping, segment) = gpu.pool(Access::ReadWrite);
        mapping.write(0, &[1]).unwrap();
        read(&mapping, 0, 1);
        mapping.extend(segment.fd.as_fd(), 3 * UNIT).unwrap_err();
        let stream = gpu.stream(&mapping);
        stream.synchronize().unwrap();
        mapping.synchronize(Stream(3)).unwrap_err();
        drop((stream, mapping));
        let mut found = 1;
        // SAFETY: the output is ours.
        assert_eq!(unsafe { get_current(&mut found) }, 0);
        assert_eq!(found, current);
    }
}

#[test]
fn the_daemons_side_makes_no_context() {
    let gpu = Gpu::new("");
    let mut source = gpu.source().unwrap();
    let segment = source.create(UNIT).unwrap();
    source.adopt(segment.fd, UNIT, 0).unwrap();
    assert_eq!(gpu.control.calls("cuDevicePrimaryCtxRetain"), 0);
    gpu.assert_nothing_held("by the daemon's side");
}

#[test]
fn what_is_not_a_stream_is_refused() {
    let gpu = Gpu::new("");
    let (mapping, _segment) = gpu.pool(Access::ReadWrite);
    let heap = Box::new([0u64; 8]);
    let stream = gpu.stream(&mapping);
    let gone = stream.handle();
    mapping.synchronize(gone).unwrap();
    drop(stream);
    let wrong = [
        3,
        7,
        4096,
        0xdead_beef,
        0xdead_beef_0000,
        u64::MAX,
        heap.as_ptr() as u64,
        gone.0,
    ];
    for handle in wrong {
        let (call, code) = cuda_code(mapping.synchronize(Stream(handle)));
        assert_eq!(code, 400, "{handle:#x} at {call}");
    }
    mapping.synchronize(Stream(0)).expect("the pool is usable");
}

#[test]
fn a_capturing_stream_is_refused_and_its_capture_goes_on() {
    let gpu = Gpu::new("");
    let (mapping, _segment) = gpu.pool(Access::ReadWrite);
    type Begin = extern "C" fn(usize, c_int) -> c_int;
    type End = unsafe extern "C" fn(usize, *mut usize) -> c_int;
    let mut context = 0;
    // Capturing needs a current context.
    // SAFETY: the types are those of the driver functions.
    let (begin, end) = unsafe {
        gpu.control.function::<Retain>(c"cuDevicePrimaryCtxRetain")(&mut context, 0);
        gpu.control.function::<SetCurrent>(c"cuCtxSetCurrent")(context);
        (
            gpu.control.function::<Begin>(c"cuStreamBeginCapture_v2"),
            gpu.control.function::<End>(c"cuStreamEndCapture"),
        )
    };
    let stream = gpu.stream(&mapping);
    let raw = stream.handle().0 as usize;
    assert_eq!(begin(raw, 0), 0);
    let refused = mapping.synchronize(stream.handle());
    assert!(refused
        .as_ref()
        .is_err_and(|error| error.to_string().contains("graph")));
    assert_eq!(cuda_code(refused).1, 900);
    let mut graph = 0;
    // SAFETY: the output is ours.
    let ended = unsafe { end(raw, &mut graph) };
    assert_eq!(ended, 0, "the capture was spoiled");
    mapping.synchronize(stream.handle()).unwrap();
}

#[test]
fn threads_share_a_mapping() {
    let gpu = Gpu::new("delay_us=200;seed=3");
    let (mapping, _segment) = gpu.pool(Access::ReadWrite);
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let mapping = &mapping;
            scope.spawn(move || {
                let at = u64::from(thread) * 10_000;
                for round in 0..20u8 {
                    let value = thread * 20 + round;
                    mapping.write(at, &[value; 3000]).unwrap();
                    assert_eq!(read(mapping, at, 3000), [value; 3000]);
                }
            });
        }
    });
}

/// A failed wait does not end its copy. But the caller frees or reuses the memory when the call returns
/// the error, so the copy must have ended by then.
#[test]
fn a_copy_is_over_when_the_failure_of_its_wait_is_told() {
    let gpu = Gpu::new("");
    let (writer, segment) = gpu.pool(Access::ReadWrite);
    let reader = gpu.mapping(4 * UNIT, Access::ReadOnly).unwrap();
    reader.extend(segment.fd.as_fd(), UNIT).unwrap();
    writer.write(0, &[1; 100]).unwrap();
    let slow = "delay_us=150000;fail=cuStreamSynchronize:1:CUDA_ERROR_OUT_OF_MEMORY";
    gpu.control.configure(slow);
    let failed = cuda_code(writer.write(0, &[2; 100]));
    assert_eq!(failed, ("cuStreamSynchronize", 2));
    assert_eq!((peek(&reader, 0), peek(&reader, 99)), (2, 2));
    gpu.control.configure(slow);
    let mut found = [0; 100];
    let failed = cuda_code(reader.read(0, &mut found));
    assert_eq!(failed, ("cuStreamSynchronize", 2));
    assert_eq!(
        found, [2; 100],
        "later it would be written to what is not ours"
    );
}

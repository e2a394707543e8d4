//! Work in the order of a user's stream: numbers that the stream writes and waits for, copies, and
//! refused calls.
mod support;

use rgaps_cuda::{
    is_lost_context, memory_operations_work, Context, CudaError, CudaStream, Driver,
    ForeignStreams, Registered,
};
use rgaps_pool::{Access, Mapping, Stream};
use rgaps_test_driver::TestDriver;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Gpu, UNIT};

const PATIENCE: Duration = Duration::from_secs(120);

/// A registered page of numbers. Fields drop in this order: the registration before the page.
struct Numbers {
    registered: Registered,
    page: Box<Page>,
}

#[repr(align(4096))]
struct Page([AtomicU64; 512]);

impl Numbers {
    fn new(context: &Arc<Context>) -> Numbers {
        let page = Box::new(Page([const { AtomicU64::new(0) }; 512]));
        let start = (&raw const *page).cast_mut().cast();
        // SAFETY: the page lives in the same structure and is dropped after the registration.
        let registered = unsafe { Registered::new(context.clone(), start, 4096) };
        let registered = registered.expect("a page can be registered");
        Numbers { registered, page }
    }

    fn at(&self, number: usize) -> u64 {
        self.registered.device_address() + 8 * number as u64
    }

    fn load(&self, number: usize) -> u64 {
        self.page.0[number].load(Ordering::Acquire)
    }

    fn store(&self, number: usize, value: u64) {
        self.page.0[number].store(value, Ordering::Release);
    }
}

fn within_patience(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{PATIENCE:?} without: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Set {
    gpu: Gpu,
    context: Arc<Context>,
    streams: ForeignStreams,
}

impl Set {
    fn new(settings: &str) -> Set {
        let gpu = Gpu::new(settings);
        let context = Context::retain(gpu.driver.clone(), gpu.device.uuid).expect("a context");
        Set {
            gpu,
            context,
            streams: ForeignStreams::default(),
        }
    }

    fn stream(&self) -> CudaStream {
        CudaStream::new(self.context.clone()).expect("a stream")
    }

    fn is_idle(&self, stream: &CudaStream) -> bool {
        let on = self.streams.enter(&self.context, stream.handle()).unwrap();
        on.is_idle().unwrap()
    }

    fn write(&self, stream: &CudaStream, address: u64, value: u64) -> Result<(), CudaError> {
        let on = self.streams.enter(&self.context, stream.handle())?;
        // SAFETY: tests pass addresses of registered numbers, or addresses that the driver refuses.
        unsafe { on.write_value(address, value) }
    }

    /// Asserts that the device still runs work of other streams.
    fn others_run(&self, numbers: &Numbers) {
        let stream = self.stream();
        for value in 1..=20 {
            self.write(&stream, numbers.at(3), value).unwrap();
        }
        stream.synchronize().unwrap();
        assert_eq!(numbers.load(3), 20);
    }

    fn wait(&self, stream: &CudaStream, address: u64, value: u64) -> Result<(), CudaError> {
        let on = self.streams.enter(&self.context, stream.handle())?;
        // SAFETY: tests pass addresses of registered numbers, or addresses that the driver refuses.
        unsafe { on.wait_value(address, value) }
    }
}

#[test]
fn a_number_is_written_behind_what_was_queued() {
    let set = Set::new("");
    let numbers = Numbers::new(&set.context);
    let stream = set.stream();
    assert!(set.is_idle(&stream));
    let held = set.gpu.control.hold(stream.handle().0);
    set.write(&stream, numbers.at(0), 7).unwrap();
    set.write(&stream, numbers.at(1), 8).unwrap();
    assert!(!set.is_idle(&stream));
    set.others_run(&numbers);
    assert_eq!(
        (numbers.load(0), numbers.load(1)),
        (0, 0),
        "a held stream ran"
    );
    drop(held);
    stream.synchronize().unwrap();
    assert_eq!((numbers.load(0), numbers.load(1)), (7, 8));
}

#[test]
fn a_stream_waits_for_a_number_of_another_stream_and_of_the_cpu() {
    let set = Set::new("delay_us=500;seed=1");
    let numbers = Numbers::new(&set.context);
    let (first, second) = (set.stream(), set.stream());
    set.wait(&second, numbers.at(0), 5).unwrap();
    set.write(&second, numbers.at(1), 1).unwrap();
    set.write(&first, numbers.at(0), 4).unwrap();
    first.synchronize().unwrap();
    assert!(!set.is_idle(&second), "4 is less than 5");
    assert_eq!(numbers.load(1), 0);
    set.write(&first, numbers.at(0), 6).unwrap();
    within_patience("the stream goes on at 6", || set.is_idle(&second));
    assert_eq!(numbers.load(1), 1);

    set.wait(&second, numbers.at(2), 1).unwrap();
    set.others_run(&numbers);
    assert!(!set.is_idle(&second));
    numbers.store(2, 1);
    within_patience("the CPU's number is seen", || set.is_idle(&second));
}

#[test]
fn a_wait_does_not_outlive_its_context() {
    let set = Set::new("");
    let numbers = Numbers::new(&set.context);
    let stream = set.stream();
    set.wait(&stream, numbers.at(0), 1).unwrap();
    set.gpu.control.lose_context(0);
    within_patience("the lost stream ends", || {
        stream.is_idle().is_err_and(|error| error.is_lost())
    });
    drop((stream, numbers));
    drop(set.context);
    set.gpu.assert_nothing_held("after a wait that never ended");
}

#[test]
fn what_is_not_registered_or_not_aligned_is_refused() {
    let set = Set::new("");
    let numbers = Numbers::new(&set.context);
    let stream = set.stream();
    let elsewhere = Box::new(0u64);
    for address in [numbers.at(0) + 4, &raw const *elsewhere as u64, 0] {
        for result in [
            set.write(&stream, address, 1),
            set.wait(&stream, address, 1),
        ] {
            assert_eq!(result.unwrap_err().code(), Some(1), "{address:#x}");
        }
    }
    let again =
        // SAFETY: the page is mapped during the call, which the driver refuses.
        unsafe { Registered::new(set.context.clone(), numbers.at(0) as usize as *mut _, 4096) };
    assert_eq!(again.unwrap_err().code(), Some(712));
}

#[test]
fn a_capturing_stream_is_refused_before_anything_is_queued() {
    let set = Set::new("");
    let stream = set.stream();
    type Begin = extern "C" fn(usize, c_int) -> c_int;
    type SetCurrent = extern "C" fn(usize) -> c_int;
    type Retain = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
    type End = unsafe extern "C" fn(usize, *mut usize) -> c_int;
    let (mut context, mut graph) = (0, 0);
    // SAFETY: the types are those of the driver functions.
    let (begin, end) = unsafe {
        set.gpu
            .control
            .function::<Retain>(c"cuDevicePrimaryCtxRetain")(&mut context, 0);
        set.gpu.control.function::<SetCurrent>(c"cuCtxSetCurrent")(context);
        (
            set.gpu
                .control
                .function::<Begin>(c"cuStreamBeginCapture_v2"),
            set.gpu.control.function::<End>(c"cuStreamEndCapture"),
        )
    };
    let raw = stream.handle().0 as usize;
    assert_eq!(begin(raw, 0), 0);
    let refused = set.streams.enter(&set.context, stream.handle());
    assert_eq!(refused.map(drop).unwrap_err(), CudaError::Capturing);
    assert!(set
        .streams
        .is_capturing(&set.context, stream.handle())
        .unwrap());
    // SAFETY: the output is ours.
    let ended = unsafe { end(raw, &mut graph) };
    assert_eq!(ended, 0, "the capture was spoiled");
    assert!(!set
        .streams
        .is_capturing(&set.context, stream.handle())
        .unwrap());
    set.streams.enter(&set.context, stream.handle()).unwrap();
}

#[test]
fn streams_have_numbers_that_are_not_used_again() {
    let set = Set::new("");
    let id = |stream: Stream| {
        set.streams
            .enter(&set.context, stream)
            .unwrap()
            .id()
            .unwrap()
    };
    let mut seen = vec![id(Stream(0)), id(Stream(2))];
    assert_eq!(id(Stream(1)), seen[0]);
    for _ in 0..20 {
        let stream = set.stream();
        seen.push(id(stream.handle()));
        assert_eq!(Some(&id(stream.handle())), seen.last());
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count);
}

/// Calls on a user's stream of another context (here another GPU's) run in that stream's context.
#[test]
fn a_stream_of_another_context_is_worked_with_there() {
    let set = Set::new("devices=2");
    let other = set.gpu.driver.devices().unwrap()[1].uuid;
    let other = Context::retain(set.gpu.driver.clone(), other).unwrap();
    let numbers = Numbers::new(&set.context);
    let stream = CudaStream::new(other).unwrap();
    set.write(&stream, numbers.at(0), 3).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(numbers.load(0), 3);
}

#[test]
fn copies_go_between_any_two_addresses() {
    let set = Set::new("delay_us=200");
    let (mapping, _segment) = set.gpu.pool(Access::ReadWrite);
    let stream = set.stream();
    let from: Vec<u8> = (0..100).collect();
    let mut to = vec![0u8; 100];
    let on = mapping.on_stream(stream.handle()).unwrap();
    // SAFETY: live buffers and mapped ranges; the test waits for the stream before it uses them.
    unsafe {
        on.copy(mapping.base(), from.as_ptr() as u64, 100).unwrap();
        on.copy(mapping.base() + 4096, mapping.base(), 100).unwrap();
        on.copy(to.as_mut_ptr() as u64, mapping.base() + 4096, 100)
            .unwrap();
    }
    on.synchronize().unwrap();
    assert_eq!(from, to);
}

#[test]
fn memory_operations_are_found_out_by_doing() {
    let set = Set::new("devices=1");
    assert!(set.gpu.device.stream_memory_operations);
    memory_operations_work(&set.context).expect("they work here");
    // Each call leaves a page registered, since unregistering would wait for all work.
    let held = || {
        let mut held = set.gpu.held();
        held.retain(|(what, _)| *what != "registrations");
        held
    };
    let (mapping, _segment) = set.gpu.pool(Access::ReadWrite);
    let waiting = set.stream();
    let before = held();
    let held_up = set.gpu.control.hold(waiting.handle().0);
    // SAFETY: the test's own mapped memory, which nothing else uses.
    unsafe { waiting.fill(mapping.base(), 1, 8) }.unwrap();
    memory_operations_work(&set.context).unwrap();
    drop(held_up);
    assert_eq!(held(), before, "the probe leaves something behind");
    for (settings, code) in [
        ("lack=memops", 801),
        ("lack=register", 801),
        ("lack=;fail=cuMemHostRegister:1:CUDA_ERROR_OUT_OF_MEMORY", 2),
        ("fail=cuMemHostGetDevicePointer:1:CUDA_ERROR_UNKNOWN", 999),
        ("fail=cuStreamWaitValue64:2:CUDA_ERROR_NOT_SUPPORTED", 801),
        ("fail=cuStreamGetId:1:CUDA_ERROR_UNKNOWN", 999),
    ] {
        set.gpu.control.configure(settings);
        let refused = memory_operations_work(&set.context).unwrap_err();
        assert_eq!(refused.code(), Some(code), "{settings}: {refused}");
        set.gpu.control.configure("lack=;fail=");
        assert_eq!(held(), before, "{settings}: something is left");
    }
}

#[test]
fn an_older_driver_is_loaded_and_says_what_it_lacks() {
    for symbol in [
        "cuStreamGetId",
        "cuStreamWriteValue64_v2",
        "cuStreamWaitValue64_v2",
    ] {
        let control = TestDriver::older(&[symbol]);
        let driver = Driver::load_from(control.path()).expect("it can be used without");
        let uuid = driver.devices().unwrap()[0].uuid;
        let context = Context::retain(driver, uuid).unwrap();
        let error = memory_operations_work(&context).unwrap_err();
        let call = symbol.trim_end_matches("_v2");
        assert!(
            matches!(&error, CudaError::Lacks { call: found, .. } if *found == call),
            "{error:?}"
        );
        assert!(error.to_string().contains("update the NVIDIA driver"));
        assert!(!error.is_lost());
    }
}

#[test]
fn a_lost_context_is_told_by_every_operation() {
    let set = Set::new("devices=2");
    let numbers = Numbers::new(&set.context);
    let stream = set.stream();
    set.gpu
        .control
        .configure("fail=cuStreamWriteValue64:1:lost");
    let error = set.write(&stream, numbers.at(0), 1).unwrap_err();
    assert!(error.is_lost(), "{error:?}");
    assert!(error.to_string().contains("cuStreamWriteValue64"));
    assert!(error.to_string().contains("restart the process"));
    set.gpu.control.configure("fail=");
    assert!(set.write(&stream, numbers.at(0), 1).unwrap_err().is_lost());
    assert!(set.wait(&stream, numbers.at(0), 1).unwrap_err().is_lost());
    assert!(stream.is_idle().unwrap_err().is_lost());
    assert!(stream.synchronize().unwrap_err().is_lost());
    assert!(memory_operations_work(&set.context).unwrap_err().is_lost());
    assert!(![0, 1, 2, 400, 600, 801, 900, 999]
        .map(is_lost_context)
        .contains(&true));
}

#[test]
fn peers_see_each_other_where_they_may() {
    for (peers, expected) in [("none", false), ("all", true)] {
        let gpu = Gpu::new(&format!("devices=2;peers={peers}"));
        let devices = gpu.driver.devices().unwrap();
        let can = |a: usize, b: usize| gpu.driver.can_access_peer(&devices[a], &devices[b]);
        assert_eq!(can(0, 1), Ok(expected));
        assert_eq!(can(0, 0), Ok(false), "a GPU is no peer of itself");
        assert_ne!(
            gpu.driver.pci_bus_id(&devices[0]),
            gpu.driver.pci_bus_id(&devices[1])
        );
        // Memory of the first GPU, mapped for the second.
        let (owner, segment) = gpu.pool(Access::ReadWrite);
        owner.write(0, &[9; 64]).unwrap();
        let peer = rgaps_cuda::CudaMapping::new(
            gpu.driver.clone(),
            devices[1].uuid,
            UNIT,
            Access::ReadOnly,
        )
        .unwrap();
        let mapped = peer.extend(std::os::fd::AsFd::as_fd(&segment.fd), UNIT);
        match expected {
            true => {
                mapped.unwrap();
                assert_eq!(support::read(&peer, 0, 64), [9; 64]);
            }
            false => assert_eq!(support::cuda_code(mapped).0, "cuMemSetAccess"),
        }
    }
}

//! The GPU of these tests: streams that a test can stop, and memory in which it sees their results.

use rgaps::{Domain, Node, Publisher, Sample, Stream};
use rgaps_cuda::{Context, CudaStream, Driver, ForeignStreams, Registered};
use rgaps_test_driver::{Held, TestDriver};
pub use rgaps_testkit::driver::is_real;
use rgaps_testkit::Daemon;
use std::ffi::{c_int, c_void, CStr, CString};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The bytes of a test's messages. The pool has room for only `POOL_BLOCKS` of them, so a test sees which are in use.
pub const MESSAGE: u64 = 8 << 20;
pub const POOL_BLOCKS: usize = 4;

/// The first GPU of this process.
pub struct Gpu {
    pub context: Arc<Context>,
    pub domain: Domain,
    /// Controls the test driver. None: a real GPU.
    pub control: Option<&'static TestDriver>,
    library: Library,
}

/// The handle of the driver's library, for `dlsym`.
struct Library(*mut c_void);

// SAFETY: the handle is only passed to dlsym, and the library stays loaded.
unsafe impl Send for Library {}
// SAFETY: `dlsym` may be called from several threads, and the library stays loaded.
unsafe impl Sync for Library {}

/// The first GPU.
pub fn gpu() -> Gpu {
    static DRIVER: OnceLock<Arc<Driver>> = OnceLock::new();
    static CONTROL: OnceLock<TestDriver> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        if !is_real() {
            rgaps_testkit::driver::use_test_driver(&[]);
        }
        Driver::load().unwrap()
    });
    let path = rgaps_test_driver::library;
    let control = (!is_real()).then(|| CONTROL.get_or_init(|| TestDriver::loaded(&path())));
    let name = match is_real() {
        true => "libcuda.so.1".to_owned(),
        false => path().display().to_string(),
    };
    let name = CString::new(name).unwrap();
    // SAFETY: a C string; the library is loaded already, and stays.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    let uuid = driver.devices().unwrap()[0].uuid;
    Gpu {
        context: Context::retain(driver.clone(), uuid).unwrap(),
        domain: Domain::Cuda(uuid),
        control,
        library: Library(library),
    }
}

impl Gpu {
    pub fn stream(&self) -> CudaStream {
        CudaStream::new(self.context.clone()).unwrap()
    }

    /// Returns a driver function, for calls that rgaps itself does not make.
    ///
    /// # Safety
    /// `F` is the type of the function that `symbol` names.
    unsafe fn function<F: Copy>(&self, symbol: &CStr) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the library stays loaded.
        let address = unsafe { libc::dlsym(self.library.0, symbol.as_ptr()) };
        assert!(!address.is_null(), "{symbol:?}");
        // SAFETY: the sizes are equal, and the caller promises that `F` is the function's type.
        unsafe { std::mem::transmute_copy(&address) }
    }

    /// Makes the GPU's context current on this thread, as users of CUDA do.
    fn set_current(&self) {
        let mut context = 0usize;
        // SAFETY: the types are those of the driver functions; the output is ours.
        unsafe {
            type Retain = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
            let retain = self.function::<Retain>(c"cuDevicePrimaryCtxRetain");
            assert_eq!(retain(&mut context, 0), 0);
            let set = self.function::<extern "C" fn(usize) -> c_int>(c"cuCtxSetCurrent");
            assert_eq!(set(context), 0);
        }
    }

    pub fn begin_capture(&self, stream: &CudaStream) {
        self.set_current();
        // SAFETY: the type is that of the driver function; mode 2 leaves other streams alone.
        let code = unsafe {
            self.function::<extern "C" fn(u64, c_int) -> c_int>(c"cuStreamBeginCapture_v2")(
                stream.handle().0,
                2,
            )
        };
        assert_eq!(code, 0);
    }

    pub fn end_capture(&self, stream: &CudaStream) {
        let mut graph = 0usize;
        // SAFETY: the type is that of the driver function; the output is ours.
        let code = unsafe {
            self.function::<unsafe extern "C" fn(u64, *mut usize) -> c_int>(c"cuStreamEndCapture")(
                stream.handle().0,
                &mut graph,
            )
        };
        assert_eq!(code, 0, "the capture was spoilt");
    }

    /// How often this process called a driver function since `configure`; on a real GPU unknown.
    pub fn calls(&self, name: &str) -> Option<u64> {
        self.control.map(|control| control.calls(name))
    }

    /// Replaces the test driver's settings and restarts its counts of calls. Does nothing on a real GPU.
    pub fn configure(&self, settings: &str) {
        if let Some(control) = self.control {
            control.configure(settings);
        }
    }
}

/// Host memory that GPUs can access. It is never freed.
pub struct Pinned {
    start: *mut u8,
    bytes: usize,
    address: u64,
}

// SAFETY: the memory is never unmapped, and everything in it is accessed as atomics or volatile.
unsafe impl Send for Pinned {}

impl Pinned {
    pub fn new(gpu: &Gpu, bytes: usize) -> Pinned {
        let bytes = bytes.next_multiple_of(4096);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, never unmapped.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: the mapping has `bytes` bytes and is never unmapped.
        let registered = unsafe { Registered::new(gpu.context.clone(), start, bytes).unwrap() };
        let address = registered.device_address();
        std::mem::forget(registered);
        Pinned {
            start: start.cast(),
            bytes,
            address,
        }
    }

    /// Its address for GPUs.
    pub fn address(&self) -> u64 {
        self.address
    }

    fn word(&self, index: usize) -> &'static AtomicU64 {
        assert!(index < self.bytes / 8);
        // SAFETY: inside the mapping, aligned, never unmapped.
        unsafe { AtomicU64::from_ptr(self.start.cast::<u64>().add(index)) }
    }

    /// The current value of the 64-bit number `index`.
    pub fn number(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    /// The current value of byte `at`.
    pub fn byte(&self, at: usize) -> u8 {
        assert!(at < self.bytes);
        // SAFETY: inside the mapping.
        unsafe { self.start.add(at).read_volatile() }
    }

    /// The first byte, if the first `bytes` bytes are all equal, else None. Of many bytes it compares only a sample.
    pub fn value(&self, bytes: usize) -> Option<u8> {
        let first = self.byte(0);
        let step = (bytes / 4096).max(1) | 1;
        let mut all = (0..bytes).step_by(step).chain([bytes - 1]);
        all.all(|at| self.byte(at) == first).then_some(first)
    }

    /// Queues a copy of a sample's bytes to this memory.
    pub fn take(&self, stream: &CudaStream, sample: &Sample) {
        // SAFETY: the caller keeps the sample, or releases it on this stream, until the copy is done; only this test uses our memory.
        unsafe { stream.copy(self.address, sample.address(), sample.len()) }.unwrap();
    }
}

/// Stops a stream behind the work that is already queued, until the gate is dropped.
pub enum Gate {
    Number(&'static AtomicU64),
    Held(#[allow(dead_code, reason = "it is dropped")] Held<'static>),
}

impl Gpu {
    pub fn close(&self, stream: &CudaStream) -> Gate {
        match self.control {
            // Works also where streams cannot wait for numbers.
            Some(control) => Gate::Held(control.hold(stream.handle().0)),
            None => self.close_by_number(stream),
        }
    }

    /// Like `close`, also for a stream that is destroyed while the gate is closed.
    pub fn close_by_number(&self, stream: &CudaStream) -> Gate {
        self.close_handle(stream.handle())
    }

    /// Like `close_by_number`, for the default stream.
    pub fn close_default(&self) -> Gate {
        self.close_handle(Stream(0))
    }

    fn close_handle(&self, stream: Stream) -> Gate {
        static GATES: OnceLock<Pinned> = OnceLock::new();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let gates = GATES.get_or_init(|| Pinned::new(self, 4096));
        let index = NEXT.fetch_add(1, Ordering::Relaxed);
        let streams = ForeignStreams::default();
        let on = streams.enter(&self.context, stream).unwrap();
        // SAFETY: the word lies in `GATES`, which is registered and never freed.
        unsafe { on.wait_value(gates.address + index * 8, 1).unwrap() };
        Gate::Number(gates.word(index as usize))
    }
}

// SAFETY: the memory is never unmapped, and everything in it is accessed as atomics or volatile.
unsafe impl Sync for Pinned {}

impl Drop for Gate {
    fn drop(&mut self) {
        if let Gate::Number(number) = self {
            number.store(1, Ordering::Release);
        }
    }
}

/// A daemon whose GPU pool has room for `POOL_BLOCKS` messages.
pub fn small_pool() -> Daemon {
    let cap = (MESSAGE as usize * POOL_BLOCKS) >> 20;
    Daemon::start_with(&format!("[pool.cuda]\ncap = \"{cap}MiB\"\n"))
}

/// The node of a role's process, in the realm that the test named in `RGAPS_SOCKET`.
pub fn role_node(name: &str) -> Node {
    let config = rgaps::Config {
        socket: std::env::var_os("RGAPS_SOCKET").map(Into::into),
        autostart: false,
        ..rgaps::Config::default()
    };
    Node::builder(name).config(config).build().unwrap()
}

/// How many more messages of `MESSAGE` bytes the pool has room for.
pub fn room(publisher: &Publisher) -> usize {
    static IDLE: OnceLock<CudaStream> = OnceLock::new();
    let idle = IDLE.get_or_init(|| gpu().stream()).handle();
    let loans: Vec<_> = std::iter::from_fn(|| publisher.loan(MESSAGE).ok()).collect();
    let room = loans.len();
    loans.into_iter().for_each(|loan| loan.discard_on(idle));
    room
}

/// Publishes a message that a stream fills with `value`.
pub fn publish(publisher: &Publisher, stream: &CudaStream, value: u8) -> u64 {
    let loan = publisher.loan(MESSAGE).unwrap();
    // SAFETY: we hold the loan, so nobody else uses its bytes; `publish_on` orders readers behind this work.
    unsafe { stream.fill(loan.address(), value, loan.len()).unwrap() };
    loan.publish_on(stream.handle()).unwrap()
}

/// Like `publish`, and waits until the stream has written the bytes.
pub fn publish_done(publisher: &Publisher, stream: &CudaStream, value: u8) {
    publish(publisher, stream, value);
    crate::harness::until("our own work is done", || stream.is_idle().unwrap());
}

/// The value of a sample's bytes as the CPU reads them, if a selection of them are all equal, else None.
pub fn value_of(sample: &Sample) -> Option<u8> {
    let at = |offset| {
        let mut bytes = [0; 64];
        sample.read(offset, &mut bytes).unwrap();
        bytes
    };
    let first = at(0)[0];
    let step = sample.len() / 16 + 64;
    let mut places = (0..sample.len() - 64).step_by(step as usize);
    let same = places.all(|offset| at(offset) == [first; 64]);
    (same && at(sample.len() - 64) == [first; 64]).then_some(first)
}

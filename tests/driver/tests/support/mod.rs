//! A stand-in of a test's own, by the driver's symbols.
#![allow(dead_code, reason = "every test program uses a part of it")]

use rgaps_test_driver::TestDriver;
use std::ffi::c_int;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

pub const NON_BLOCKING: u32 = 1;

pub type OutCall = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
pub type CallNone = extern "C" fn() -> c_int;
pub type Call = extern "C" fn(usize) -> c_int;
pub type CallTwo = extern "C" fn(usize, usize) -> c_int;
pub type CallWait = extern "C" fn(usize, usize, u32) -> c_int;
pub type Fill = extern "C" fn(u64, u8, usize, usize) -> c_int;
pub type Copy = extern "C" fn(u64, u64, usize) -> c_int;
pub type CopyAsync = extern "C" fn(u64, u64, usize, usize) -> c_int;

/// A GPU with its context current and some memory, which the CPU can look into.
pub struct Gpu {
    pub control: TestDriver,
    pub memory: u64,
}

impl Gpu {
    pub fn new() -> Gpu {
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

    pub fn stream(&self, flags: u32) -> usize {
        let mut stream = 0;
        // SAFETY: the type is that of the driver function; the output is ours.
        let code = unsafe {
            self.control.function::<OutCall>(c"cuStreamCreate")(&mut stream, flags as c_int)
        };
        assert_eq!(code, 0);
        stream
    }

    pub fn fill(&self, offset: u64, value: u8, stream: usize) {
        // SAFETY: the type is that of the driver function.
        let fill = unsafe { self.control.function::<Fill>(c"cuMemsetD8Async") };
        assert_eq!(fill(self.memory.wrapping_add(offset), value, 16, stream), 0);
    }

    pub fn copy(&self, to: u64, from: u64, stream: usize) {
        // SAFETY: the type is that of the driver function.
        let copy = unsafe { self.control.function::<CopyAsync>(c"cuMemcpyDtoDAsync_v2") };
        assert_eq!(copy(self.memory + to, self.memory + from, 16, stream), 0);
    }

    pub fn call(&self, symbol: &std::ffi::CStr, argument: usize) -> c_int {
        // SAFETY: callers name functions that take one handle.
        unsafe { self.control.function::<Call>(symbol)(argument) }
    }

    pub fn peek(&self, offset: u64) -> u8 {
        // SAFETY: inside our allocation, which is host memory.
        unsafe { ((self.memory + offset) as *const u8).read_volatile() }
    }
}

pub type Register = extern "C" fn(u64, usize, u32) -> c_int;
pub type Number = extern "C" fn(usize, u64, u64, u32) -> c_int;

impl Gpu {
    /// Queues writing a number.
    pub fn write(&self, stream: usize, address: u64, value: u64) -> c_int {
        // SAFETY: the type is that of the driver function.
        let function = unsafe { self.control.function::<Number>(c"cuStreamWriteValue64_v2") };
        function(stream, address, value, 0)
    }

    /// Queues waiting for a number to reach a value.
    pub fn wait(&self, stream: usize, address: u64, value: u64) -> c_int {
        // SAFETY: the type is that of the driver function.
        let function = unsafe { self.control.function::<Number>(c"cuStreamWaitValue64_v2") };
        function(stream, address, value, 0)
    }

    pub fn register(&self, address: u64, bytes: usize, flags: u32) -> c_int {
        // SAFETY: the type is that of the driver function.
        let function = unsafe { self.control.function::<Register>(c"cuMemHostRegister_v2") };
        function(address, bytes, flags)
    }

    /// The driver's answer to whether a stream's work is done.
    pub fn query(&self, stream: usize) -> c_int {
        self.call(c"cuStreamQuery", stream)
    }
}

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn within_patience(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{PATIENCE:?} without: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A file that processes share, mapped as numbers for as long as the process lives.
pub fn shared_numbers(path: &std::path::Path) -> &'static [AtomicU64; 512] {
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .expect("the file can be made");
    file.set_len(4096).expect("and sized");
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new shared mapping of a file of that size, never unmapped; all zero or numbers.
    unsafe {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let at = libc::mmap(
            std::ptr::null_mut(),
            4096,
            protection,
            libc::MAP_SHARED,
            fd,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        &*at.cast()
    }
}

/// A test of this program in a process of its own, killed when it is dropped.
pub struct Child(std::process::Child);

impl Child {
    /// Runs `name`, which must be an ignored test.
    pub fn run(name: &str, environment: &[(&str, &str)]) -> Child {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--include-ignored", "--nocapture"]);
        command.envs(environment.iter().copied());
        command.stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::piped());
        Child(command.spawn().expect("this program starts"))
    }

    /// How it ended, and what it said.
    pub fn outcome(mut self) -> (std::process::ExitStatus, String) {
        let mut status = None;
        within_patience("the child's end", || {
            status = self.0.try_wait().expect("it is our child");
            status.is_some()
        });
        let mut text = String::new();
        let mut stderr = self.0.stderr.take().expect("it is piped");
        std::io::Read::read_to_string(&mut stderr, &mut text).expect("it is text");
        (status.expect("it ended"), text)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

//! A probe: can streams write numbers to host memory, and wait for numbers there?

use crate::context::Context;
use crate::error::CudaError;
use crate::foreign::ForeignStreams;
use crate::registered::Registered;
use crate::stream::CudaStream;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time limit for an operation that normally takes microseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Numbers whose two halves both differ, so that a half write shows.
const WRITTEN: u64 = 3 << 32 | 5;
const AWAITED: u64 = 4 << 32 | 1;

/// Registers a page of shared memory, and has a stream write a number there and wait for one. Fails with
/// the first step that does not work. The attributes that the driver reports are not enough: containers,
/// MPS and limits on locked memory can prevent these operations.
///
/// The page stays registered until the context ends, since unregistering it would wait for the user's work.
pub fn memory_operations_work(context: &Arc<Context>) -> Result<(), CudaError> {
    let page = Page::new().ok_or(CudaError::MemoryOperations("there is no memory for a page"))?;
    // SAFETY: the page is ours and is never unmapped once it is registered.
    let registered =
        unsafe { Registered::new(context.clone(), page.start.as_ptr().cast(), page.bytes)? };
    let page = std::mem::ManuallyDrop::new(page);
    let at = registered.device_address();
    registered.leave();
    let stream = CudaStream::new(context.clone())?;
    let streams = ForeignStreams::default();
    let on = streams.enter(context, stream.handle())?;
    on.id()?;
    let (written, awaited) = (page.word(0), page.word(1));
    let (at_written, at_awaited) = (at, at + 8);

    let outcome = (|| {
        // SAFETY: both addresses lie in the registered page, which is never unmapped; this function reads and writes
        // its words atomically.
        unsafe {
            on.write_value(at_written, WRITTEN)?;
            on.wait_value(at_written, WRITTEN)?;
            on.wait_value(at_awaited, AWAITED)?;
        }
        if !within_patience(|| Ok(written.load(Ordering::Acquire) == WRITTEN))? {
            return Err(CudaError::MemoryOperations(
                "a number that a stream wrote did not arrive",
            ));
        }
        if on.is_idle()? {
            return Err(CudaError::MemoryOperations(
                "a stream did not wait for a number",
            ));
        }
        Ok(())
    })();
    // Ends the stream's waits, also after a failure.
    awaited.store(AWAITED, Ordering::Release);
    written.store(WRITTEN, Ordering::Release);
    let ended = within_patience(|| on.is_idle());
    drop(on);
    if !matches!(ended, Ok(true)) {
        // Destroying the stream might wait forever for work that hangs, so the stream is leaked.
        std::mem::forget(stream);
    }
    outcome?;
    match ended? {
        true => Ok(()),
        false => Err(CudaError::MemoryOperations(
            "a stream kept waiting for a number that was written",
        )),
    }
}

fn within_patience(mut is_so: impl FnMut() -> Result<bool, CudaError>) -> Result<bool, CudaError> {
    let end = Instant::now() + PATIENCE;
    loop {
        if is_so()? {
            return Ok(true);
        }
        if Instant::now() > end {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// A shared anonymous page, like the shared memory in which streams use numbers later.
struct Page {
    start: NonNull<AtomicU64>,
    bytes: usize,
}

impl Page {
    fn new() -> Option<Page> {
        // SAFETY: sysconf only reads a constant of the system.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice, so it replaces none.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        NonNull::new(start.cast()).map(|start| Page { start, bytes })
    }

    fn word(&self, number: usize) -> &AtomicU64 {
        assert!(number < self.bytes / size_of::<AtomicU64>());
        // SAFETY: inside the page, which is aligned, zeroed and mapped while `self` lives.
        unsafe { self.start.add(number).as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping, and references to its words borrow `self`, so none is left. A registered page is in a
        // `ManuallyDrop` and never dropped.
        unsafe { libc::munmap(self.start.as_ptr().cast::<c_void>(), self.bytes) };
    }
}

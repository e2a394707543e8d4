//! Whether streams can write and wait for numbers in host memory, found out by doing it.

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

/// How long an operation may take that normally takes microseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Numbers that differ in both halves.
const WRITTEN: u64 = 3 << 32 | 5;
const AWAITED: u64 = 4 << 32 | 1;

/// Registers a page of shared memory, lets a stream write to it and wait for it, and says what of
/// that does not work. What the driver says it supports is not enough: containers, MPS and limits
/// on locked memory have a say in it.
///
/// Waits for no work but its own, and so leaves the page registered until the context ends.
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
        // SAFETY: both addresses are of the registered page, whose words are atomic; it stays.
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
    // Whatever came of it, the stream is let go on.
    awaited.store(AWAITED, Ordering::Release);
    written.store(WRITTEN, Ordering::Release);
    let ended = within_patience(|| on.is_idle());
    drop(on);
    if !matches!(ended, Ok(true)) {
        // Work that hangs might be waited for where the stream is destroyed.
        std::mem::forget(stream);
    }
    outcome?;
    match ended? {
        true => Ok(()),
        false => Err(CudaError::MemoryOperations(
            "a stream waits for a number that is there",
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

/// A page that could be shared, as those are in which the numbers are later.
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
        // SAFETY: a new mapping where the kernel likes.
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
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { libc::munmap(self.start.as_ptr().cast::<c_void>(), self.bytes) };
    }
}

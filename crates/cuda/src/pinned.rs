//! Host memory that this process allocates for copies from and to GPUs: staging buffers.

use crate::context::Context;
use crate::error::CudaError;
use crate::registered::Registered;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

/// Pages of host memory, registered with the driver where it allows that, and unmapped on drop.
pub struct PinnedBuffer {
    // Fields drop in this order: the registration before the pages.
    _registered: Option<Registered>,
    pages: Pages,
}

struct Pages {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and `drop` alone removes it.
unsafe impl Send for Pages {}
// SAFETY: address and length never change, and no method touches the bytes. Users of the bytes order their accesses by streams.
unsafe impl Sync for Pages {}

impl PinnedBuffer {
    /// Allocates `bytes` bytes, a multiple of the page size, and registers them for all GPUs of this process.
    pub fn new(context: Arc<Context>, bytes: u64) -> Result<PinnedBuffer, CudaError> {
        let (pages, registered) = PinnedBuffer::with_pages(context, bytes)?;
        Ok(PinnedBuffer {
            _registered: Some(registered?),
            pages,
        })
    }

    /// The same, but keeps the pages if the driver refuses to register them (for example due to a limit on locked memory):
    /// copies then go through the driver's own buffers.
    pub fn where_possible(context: Arc<Context>, bytes: u64) -> Result<PinnedBuffer, CudaError> {
        let (pages, registered) = PinnedBuffer::with_pages(context, bytes)?;
        if let Err(error) = &registered {
            tracing::warn!(
                %error,
                bytes,
                "host memory cannot be registered with the GPU's driver; copies are slower (see 'ulimit -l')"
            );
        }
        Ok(PinnedBuffer {
            _registered: registered.ok(),
            pages,
        })
    }

    fn with_pages(
        context: Arc<Context>,
        bytes: u64,
    ) -> Result<(Pages, Result<Registered, CudaError>), CudaError> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let bytes = bytes as usize;
        // SAFETY: a new mapping at an address of the kernel's choice, so it replaces none.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(CudaError::MemoryOperations(
                "there is no host memory for staging",
            ));
        }
        let pages = Pages { start, bytes };
        // SAFETY: the pages were mapped just now, readable and writable. `PinnedBuffer` drops the registration before the pages.
        let registered = unsafe { Registered::new(context, start, bytes) };
        Ok((pages, registered))
    }

    /// The address of its first byte, for the CPU and for copies of any GPU.
    pub fn address(&self) -> u64 {
        self.pages.start.addr() as u64
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.pages.bytes
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `with_pages` made the mapping. Ending the registration, which drops first, waited for the GPU's work on it;
        // the driver copies unregistered pages on the CPU, before the calls return.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer")
            .field("bytes", &self.pages.bytes)
            .finish_non_exhaustive()
    }
}

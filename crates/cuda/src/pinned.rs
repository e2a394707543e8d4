//! Host memory of our own that GPUs copy from and to.

use crate::context::Context;
use crate::error::CudaError;
use crate::registered::Registered;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

/// Pages of host memory that the driver knows, until this is dropped.
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
// SAFETY: address and length never change. What touches the bytes behind them is ordered by streams.
unsafe impl Sync for Pages {}

impl PinnedBuffer {
    /// `bytes` bytes, a multiple of the page size, known to all GPUs of this process.
    pub fn new(context: Arc<Context>, bytes: u64) -> Result<PinnedBuffer, CudaError> {
        let (pages, registered) = PinnedBuffer::with_pages(context, bytes)?;
        Ok(PinnedBuffer {
            _registered: Some(registered?),
            pages,
        })
    }

    /// The same, and pages all the same where the driver refuses to know them (a limit on locked memory, say): then copies
    /// go through its own buffers.
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
        // SAFETY: a new mapping where the kernel likes.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(CudaError::MemoryOperations(
                "there is no host memory for staging",
            ));
        }
        let pages = Pages { start, bytes };
        // SAFETY: the pages were mapped just now and stay so until after the registration.
        let registered = unsafe { Registered::new(context, start, bytes) };
        Ok((pages, registered))
    }

    /// Its first byte, for the CPU and for copies of any GPU.
    pub fn address(&self) -> u64 {
        self.pages.start.addr() as u64
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.pages.bytes
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses any more: the driver has waited for its work when
        // the registration ended.
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

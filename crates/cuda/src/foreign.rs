//! Work on streams that users created and named by handle.

use crate::abi::*;
use crate::context::{Context, Entered};
use crate::driver::{cu, cu_newer, Driver};
use crate::error::CudaError;
use rgaps_pool::Stream;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Opens streams that a user names by handle.
///
/// A handle is the address of an object of the driver. The driver dereferences it unchecked, so a wrong
/// one can crash the process. So we first check that the address is aligned and mapped.
#[derive(Debug, Default)]
pub struct ForeignStreams {
    /// The last handle that passed the check, so that messages on one stream do not repeat it. 0: none.
    /// Only a cache: threads that use several streams check more often.
    last_checked: AtomicU64,
}

/// A user's stream that captures no graph. Its context is current on this thread until this is dropped.
///
/// Only [`synchronize`](Self::synchronize) waits on the CPU, and queueing where the driver's queue is
/// full.
pub struct OnStream<'a> {
    driver: &'a Driver,
    raw: CUstream,
    _entered: Option<Entered<'a>>,
}

impl ForeignStreams {
    /// Enters the context of `stream`, which is `context` or another one of the user's. Fails with
    /// [`CudaError::Capturing`] if the stream captures a graph: queued work would not run, and asking
    /// about the stream's work would invalidate the capture.
    pub fn enter<'a>(
        &self,
        context: &'a Context,
        stream: Stream,
    ) -> Result<OnStream<'a>, CudaError> {
        let on = self.open(context, stream)?;
        match on.is_capturing()? {
            true => Err(CudaError::Capturing),
            false => Ok(on),
        }
    }

    /// Whether the stream captures a graph.
    pub fn is_capturing(&self, context: &Context, stream: Stream) -> Result<bool, CudaError> {
        self.open(context, stream)?.is_capturing()
    }

    /// Waits on the CPU until all work queued on `stream` so far has finished.
    pub fn synchronize(&self, context: &Context, stream: Stream) -> Result<(), CudaError> {
        self.enter(context, stream)?.synchronize()
    }

    fn open<'a>(&self, context: &'a Context, stream: Stream) -> Result<OnStream<'a>, CudaError> {
        let raw = stream.0 as CUstream;
        let entered = if raw > CU_STREAM_PER_THREAD {
            self.check_handle(stream.0)?;
            // SAFETY: the user promises a live stream for the length of this call; it is not a special handle, and
            // `check_handle` has found mapped memory there.
            Some(unsafe { context.enter_of(raw)? })
        } else if context.caller_is_on_device() {
            // The special handles mean a stream of the current context. If that is a context of this
            // GPU, the caller means it; otherwise he means the primary context, which we enter below.
            None
        } else {
            Some(context.enter()?)
        };
        Ok(OnStream {
            driver: context.driver(),
            raw,
            _entered: entered,
        })
    }

    fn check_handle(&self, handle: u64) -> Result<(), CudaError> {
        if self.last_checked.load(Ordering::Relaxed) == handle {
            return Ok(());
        }
        if handle % align_of::<usize>() as u64 != 0 || !is_mapped(handle) {
            return Err(CudaError::NotAStream(handle));
        }
        self.last_checked.store(handle, Ordering::Relaxed);
        Ok(())
    }
}

impl OnStream<'_> {
    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    fn is_capturing(&self) -> Result<bool, CudaError> {
        let mut capture: c_int = CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the out pointer is ours. The handle is special, or the user promises a live stream for the length of this
        // call, and `check_handle` has found mapped memory there.
        unsafe { cu!(self.driver, cuStreamIsCapturing(self.raw, &mut capture))? };
        Ok(capture != CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Whether all work queued so far has finished.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        // SAFETY: the user promises that the stream lives until this call returns.
        match unsafe { (self.driver.table().cuStreamQuery)(self.raw) } {
            CUDA_ERROR_NOT_READY => Ok(false),
            code => self.driver.check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Waits on the CPU until all work queued so far has finished.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the user promises that the stream lives until this call returns.
        unsafe { cu!(self.driver, cuStreamSynchronize(self.raw)) }
    }

    /// The driver's number of the stream, which no other stream of this process ever has. (The driver reuses
    /// handles.)
    pub fn id(&self) -> Result<u64, CudaError> {
        let mut id = 0;
        // SAFETY: the user promises that the stream lives until this call returns; the out pointer is ours.
        unsafe { cu_newer!(self.driver, cuStreamGetId(self.raw, &mut id))? };
        Ok(id)
    }

    /// Queues a write of `value` behind all work queued so far. Whoever reads the value, on the CPU or any
    /// GPU, also sees all that this work wrote to memory.
    ///
    /// # Safety
    /// `address`, a multiple of 8, is memory that GPUs of this process may write (see
    /// [`Registered`](crate::Registered)), until the work has finished; all who read it meanwhile use
    /// atomic loads.
    pub unsafe fn write_value(&self, address: u64, value: u64) -> Result<(), CudaError> {
        // SAFETY: the user promises that the stream lives until this call returns. GPUs may write the address
        // until the work has finished, as our caller promises.
        unsafe {
            cu_newer!(
                self.driver,
                cuStreamWriteValue64(self.raw, address, value, CU_STREAM_WRITE_VALUE_DEFAULT)
            )
        }
    }

    /// Queues waiting until the number at `address` is `value` or greater, in the cyclic order of
    /// 64-bit numbers. All work queued later waits, and sees all that the number's writer wrote before it.
    ///
    /// # Safety
    /// `address`, a multiple of 8, is memory that GPUs of this process may read until the wait has
    /// ended; all who write it meanwhile use atomic stores.
    pub unsafe fn wait_value(&self, address: u64, value: u64) -> Result<(), CudaError> {
        // SAFETY: the user promises that the stream lives until this call returns. GPUs may read the address
        // until the wait has ended, as our caller promises.
        unsafe {
            cu_newer!(
                self.driver,
                cuStreamWaitValue64(self.raw, address, value, CU_STREAM_WAIT_VALUE_GEQ)
            )
        }
    }

    /// Queues a copy between any two addresses, of the host or of a device.
    ///
    /// # Safety
    /// Both ranges are valid until the work has finished, and nothing else writes the source or
    /// touches the destination until then.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), CudaError> {
        // SAFETY: the user promises that the stream lives until this call returns. Our caller promises that both
        // ranges stay, and that the copy has them to itself, until the work has finished.
        unsafe {
            cu!(
                self.driver,
                cuMemcpyAsync(to, from, bytes as usize, self.raw)
            )
        }
    }
}

impl fmt::Debug for OnStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OnStream({:#x})", self.raw)
    }
}

/// Whether the address lies in a page that this process has mapped.
fn is_mapped(address: u64) -> bool {
    // SAFETY: sysconf only reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let mut resident = 0u8;
    // SAFETY: mincore looks the page up without touching it and writes one byte for one page.
    let code = unsafe {
        libc::mincore(
            (address / page * page) as usize as *mut c_void,
            1,
            &mut resident,
        )
    };
    code == 0
}

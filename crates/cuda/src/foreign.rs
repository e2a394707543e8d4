//! Streams that users hand to us.

use crate::abi::*;
use crate::context::{Context, Entered};
use crate::driver::{cu, cu_newer, Driver};
use crate::error::CudaError;
use rgaps_pool::Stream;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Streams that a user names by handle.
///
/// The driver follows a handle without looking at it, so a wrong one can end the process. What can
/// be seen from outside is checked first: a handle is the address of an object of the driver.
#[derive(Debug, Default)]
pub struct ForeignStreams {
    /// The last handle that was found to be an address, so that the check is made once and not on
    /// every message. A hint: a torn or stale value costs one more check.
    last_checked: AtomicU64,
}

/// A user's stream to work with: its context is current on this thread until this is dropped, and
/// it captures no graph.
///
/// Nothing here waits on the CPU but [`synchronize`](Self::synchronize), and what is queued where
/// the driver's queue is full.
pub struct OnStream<'a> {
    driver: &'a Driver,
    raw: CUstream,
    _entered: Option<Entered<'a>>,
}

impl ForeignStreams {
    /// Enters the context of `stream`, which is `context` or another one of the user's.
    /// [`CudaError::Capturing`] where it captures a graph: nothing queued would run, and asking
    /// about its work would spoil the capture.
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
            // SAFETY: the user, who gave the handle for this call, promises a live stream; it is no special one, and
            // `check_handle` has found memory there.
            Some(unsafe { context.enter_of(raw)? })
        } else if context.caller_is_on_device() {
            // The special handles mean a stream of the current context. Where the caller works in
            // a context of this GPU, that is the one that he means, and else the primary one.
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
        // SAFETY: the out pointer is ours. The handle is special, or the user promised a live stream when he gave it for
        // this call, and `check_handle` has found memory there.
        unsafe { cu!(self.driver, cuStreamIsCapturing(self.raw, &mut capture))? };
        Ok(capture != CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Whether all work queued so far has finished.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        // SAFETY: the stream is the user's, who gave it for this call and keeps it that long.
        match unsafe { (self.driver.table().cuStreamQuery)(self.raw) } {
            CUDA_ERROR_NOT_READY => Ok(false),
            code => self.driver.check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Waits on the CPU until it has.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is the user's, who gave it for this call and keeps it that long.
        unsafe { cu!(self.driver, cuStreamSynchronize(self.raw)) }
    }

    /// A number that no other stream of this process ever had or will have; handles are used again.
    pub fn id(&self) -> Result<u64, CudaError> {
        let mut id = 0;
        // SAFETY: the stream is the user's, who gave it for this call and keeps it that long; the out pointer is ours.
        unsafe { cu_newer!(self.driver, cuStreamGetId(self.raw, &mut id))? };
        Ok(id)
    }

    /// Queues writing `value` behind all work queued so far, and behind that work's effects on
    /// memory, for whoever reads the value, on the CPU or any GPU.
    ///
    /// # Safety
    /// `address`, a multiple of 8, is memory that GPUs of this process may write (see
    /// [`Registered`](crate::Registered)), until the work has finished; who reads it meanwhile
    /// does so by atomic loads.
    pub unsafe fn write_value(&self, address: u64, value: u64) -> Result<(), CudaError> {
        // SAFETY: the stream is the user's, who gave it for this call and keeps it that long. GPUs may write the address
        // until the work has finished, as our caller promises.
        unsafe {
            cu_newer!(
                self.driver,
                cuStreamWriteValue64(self.raw, address, value, CU_STREAM_WRITE_VALUE_DEFAULT)
            )
        }
    }

    /// Queues waiting until the number at `address` is `value` or greater, in the cyclic order of
    /// 64-bit numbers. All work queued later waits, and sees what was written before that number.
    ///
    /// # Safety
    /// `address`, a multiple of 8, is memory that GPUs of this process may read until the wait has
    /// ended; who writes it meanwhile does so by atomic stores.
    pub unsafe fn wait_value(&self, address: u64, value: u64) -> Result<(), CudaError> {
        // SAFETY: the stream is the user's, who gave it for this call and keeps it that long. GPUs may read the address
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
        // SAFETY: the stream is the user's, who gave it for this call and keeps it that long. Our caller promises that both
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

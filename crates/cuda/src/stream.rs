//! Streams that this crate creates. Users' streams are in `foreign`.

use crate::abi::*;
use crate::context::Context;
use crate::driver::cu;
use crate::error::CudaError;
use rgaps_pool::Stream;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// When the wait for a copy has failed, `finish` polls the stream: for at most this long, at this
/// interval, and until this many polls have failed.
const FINISH_WAIT: Duration = Duration::from_secs(10);
const FINISH_PAUSE: Duration = Duration::from_micros(100);
const FINISH_FAILURES: u32 = 1000;

/// A stream that this crate creates and destroys. Work on it does not wait for the default stream, nor the reverse.
pub struct CudaStream {
    context: Arc<Context>,
    raw: CUstream,
}

impl CudaStream {
    /// A new stream.
    pub fn new(context: Arc<Context>) -> Result<CudaStream, CudaError> {
        let mut raw: CUstream = 0;
        {
            let _entered = context.enter()?;
            // SAFETY: the out pointer is ours and the context is current.
            unsafe {
                cu!(
                    context.driver(),
                    cuStreamCreate(&mut raw, CU_STREAM_NON_BLOCKING)
                )?
            };
        }
        Ok(CudaStream { context, raw })
    }

    /// The handle, as publishers take it.
    pub fn handle(&self) -> Stream {
        Stream(self.raw as u64)
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Waits on the CPU until all queued work has finished.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _entered = self.context.enter()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { cu!(self.context.driver(), cuStreamSynchronize(self.raw)) }
    }

    /// Whether all queued work has finished.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        let _entered = self.context.enter()?;
        let driver = self.context.driver();
        // SAFETY: the stream lives as long as `self`.
        match unsafe { (driver.table().cuStreamQuery)(self.raw) } {
            CUDA_ERROR_NOT_READY => Ok(false),
            code => driver.check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Queues setting `bytes` bytes from `address` on to `value`.
    ///
    /// # Safety
    /// The range is device memory that this process may write, and nothing else reads or writes it
    /// until the work has finished.
    pub unsafe fn fill(&self, address: u64, value: u8, bytes: u64) -> Result<(), CudaError> {
        let _entered = self.context.enter()?;
        // SAFETY: the range is device memory that only this work touches until it has finished, as our caller promises; the
        // stream lives as long as `self`.
        unsafe {
            cu!(
                self.context.driver(),
                cuMemsetD8Async(address, value, bytes as usize, self.raw)
            )
        }
    }

    /// Queues setting `words` 32-bit words from `address` (a multiple of 4) on to `value`.
    ///
    /// # Safety
    /// The range is device memory that this process may write, and nothing else reads or writes it
    /// until the work has finished.
    pub unsafe fn fill_u32(&self, address: u64, value: u32, words: u64) -> Result<(), CudaError> {
        let _entered = self.context.enter()?;
        // SAFETY: the range is device memory that only this work touches until it has finished, as our caller promises; the
        // stream lives as long as `self`.
        unsafe {
            cu!(
                self.context.driver(),
                cuMemsetD32Async(address, value, words as usize, self.raw)
            )
        }
    }

    /// Queues a copy between any two addresses, of the host or of a device.
    ///
    /// # Safety
    /// Both ranges are valid until the work has finished, and nothing else writes the source or
    /// touches the destination until then.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), CudaError> {
        let _entered = self.context.enter()?;
        // SAFETY: both ranges stay, and the copy has them to itself, until the work has finished, as our caller promises; the
        // stream lives as long as `self`.
        unsafe {
            cu!(
                self.context.driver(),
                cuMemcpyAsync(to, from, bytes as usize, self.raw)
            )
        }
    }

    /// Copies from the host and waits.
    ///
    /// # Safety
    /// `to` is device memory that this process may write for `from.len()` bytes.
    pub(crate) unsafe fn write(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        // SAFETY: the slice can be read until the call returns, which is after its wait; our caller promises that `to` may be
        // written for as many bytes.
        unsafe { self.write_host(to, from.as_ptr().cast(), from.len()) }
    }

    /// Copies from a host address and waits.
    ///
    /// # Safety
    /// `from` is readable and `to` is writable device memory, for `bytes` bytes.
    unsafe fn write_host(
        &self,
        to: u64,
        from: *const c_void,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let driver = self.context.driver();
        let _entered = self.context.enter()?;
        // SAFETY: our caller promises both ranges until we return, which is after the wait. The wait is needed: from
        // pageable memory the driver's call returns when the bytes are staged. The stream lives as long as `self`.
        unsafe {
            cu!(driver, cuMemcpyHtoDAsync(to, from, bytes, self.raw))?;
        }
        self.finish()
    }

    /// Copies to the host and waits.
    ///
    /// # Safety
    /// `from` is device memory that this process may read for `to.len()` bytes.
    pub(crate) unsafe fn read(&self, to: &mut [u8], from: u64) -> Result<(), CudaError> {
        let driver = self.context.driver();
        let _entered = self.context.enter()?;
        // SAFETY: the slice is borrowed mutably until we return, which is after the wait; our caller promises that `from` is
        // readable for as many bytes. The stream lives as long as `self`.
        unsafe {
            cu!(
                driver,
                cuMemcpyDtoHAsync(to.as_mut_ptr().cast(), from, to.len(), self.raw)
            )?;
        }
        self.finish()
    }

    /// Copies from an address of the host or of any device, and waits.
    ///
    /// # Safety
    /// `from` is readable and `to` is writable device memory, for `bytes` bytes.
    pub(crate) unsafe fn write_from(
        &self,
        to: u64,
        from: u64,
        bytes: usize,
    ) -> Result<(), CudaError> {
        if self.is_host(from)? {
            // SAFETY: `from` is the host's, and our caller promises that it can be read and `to` written for `bytes` bytes.
            return unsafe { self.write_host(to, from as usize as *const c_void, bytes) };
        }
        let driver = self.context.driver();
        let _entered = self.context.enter()?;
        // SAFETY: our caller promises both ranges until we return, which is after `finish` has waited: a copy between devices
        // does not wait on the CPU by itself. The stream lives as long as `self`.
        unsafe {
            cu!(driver, cuMemcpyAsync(to, from, bytes, self.raw))?;
        }
        self.finish()
    }

    /// Waits for a copy. Our callers free or reuse its ranges when we return, and a failed wait does not end
    /// the copy: so after a failure we poll the stream until the copy has ended, and then return the error.
    fn finish(&self) -> Result<(), CudaError> {
        let Err(error) = self.synchronize() else {
            return Ok(());
        };
        let end = Instant::now() + FINISH_WAIT;
        let mut failures = 0;
        // The copy has ended if its context is lost.
        while !error.is_lost() && failures < FINISH_FAILURES {
            match self.is_idle() {
                Ok(true) => break,
                Ok(false) if Instant::now() < end => {}
                Err(error) if error.is_lost() => break,
                Err(_) if Instant::now() < end => failures += 1,
                _ => {
                    tracing::error!(%error, "a copy may still run on memory that its owner reuses");
                    break;
                }
            }
            std::thread::sleep(FINISH_PAUSE);
        }
        Err(error)
    }

    /// Whether an address is the host's. Memory that the driver does not know is ordinary host memory, also
    /// on systems whose GPUs can access that (HMM, ATS).
    fn is_host(&self, address: u64) -> Result<bool, CudaError> {
        let mut kind: u32 = 0;
        let driver = self.context.driver();
        let _entered = self.context.enter()?;
        // SAFETY: the attribute is a 32-bit number, like `kind`; the driver only looks the address up.
        let code = unsafe {
            (driver.table().cuPointerGetAttribute)(
                (&raw mut kind).cast(),
                CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                address,
            )
        };
        match code {
            CUDA_ERROR_INVALID_VALUE => Ok(true),
            code => {
                driver.check("cuPointerGetAttribute", code)?;
                Ok(kind == CU_MEMORYTYPE_HOST)
            }
        }
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // A failure here is ignored: a context that cannot be entered is lost, and its streams with it.
        let _entered = self.context.enter();
        // SAFETY: the handle came from cuStreamCreate and is destroyed here only.
        if let Err(error) = unsafe { cu!(self.context.driver(), cuStreamDestroy(self.raw)) } {
            tracing::debug!(%error, "stream not destroyed");
        }
    }
}

impl fmt::Debug for CudaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaStream({:#x})", self.raw)
    }
}

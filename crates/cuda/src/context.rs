//! The primary context of one GPU, retained while a [`Context`] exists.

use crate::abi::*;
use crate::device::Device;
use crate::driver::{cu, Driver};
use crate::error::CudaError;
use rgaps_layout::GpuUuid;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// Memory of a GPU, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceMemory {
    /// Memory that no process uses.
    pub free_bytes: u64,
    /// The GPU's whole memory.
    pub total_bytes: u64,
}

/// The primary context of one GPU: the one that the CUDA runtime, and so torch, uses in this
/// process too.
pub struct Context {
    driver: Arc<Driver>,
    device: Device,
    raw: CUcontext,
}

impl Context {
    /// Retains the primary context of the GPU `uuid`, and creates it where this process has none
    /// (which takes some hundred milliseconds and some hundred megabytes of GPU memory).
    pub fn retain(driver: Arc<Driver>, uuid: GpuUuid) -> Result<Arc<Context>, CudaError> {
        let device = driver.device(uuid)?;
        Context::retain_device(driver, device)
    }

    /// [`retain`](Self::retain) by ordinal, which only this process understands.
    pub(crate) fn retain_ordinal(
        driver: Arc<Driver>,
        ordinal: CUdevice,
    ) -> Result<Arc<Context>, CudaError> {
        let device = driver.describe(ordinal)?;
        Context::retain_device(driver, device)
    }

    fn retain_device(driver: Arc<Driver>, device: Device) -> Result<Arc<Context>, CudaError> {
        let mut raw: CUcontext = 0;
        // SAFETY: the out pointer is ours; the ordinal is one that the driver described in `Driver::describe`.
        unsafe { cu!(&driver, cuDevicePrimaryCtxRetain(&mut raw, device.ordinal))? };
        Ok(Arc::new(Context {
            driver,
            device,
            raw,
        }))
    }

    /// The driver it belongs to.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Its GPU.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The free and total memory of the GPU; memory that any process uses is not free.
    pub fn memory(&self) -> Result<DeviceMemory, CudaError> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: the out pointers are ours.
        unsafe { cu!(&self.driver, cuMemGetInfo(&mut free, &mut total))? };
        Ok(DeviceMemory {
            free_bytes: free as u64,
            total_bytes: total as u64,
        })
    }

    /// Whether the context is lost, for example since a kernel of this process failed. Asks the driver.
    pub fn is_lost(&self) -> bool {
        matches!(self.memory(), Err(error) if error.is_lost())
    }

    /// Waits on the CPU for all work of this process on the GPU.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _entered = self.enter()?;
        // SAFETY: no arguments; the context is current.
        unsafe { cu!(&self.driver, cuCtxSynchronize()) }
    }

    /// Makes the context current on this thread until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, CudaError> {
        // SAFETY: `raw` came from cuDevicePrimaryCtxRetain and is released only by our drop.
        unsafe { Entered::push(&self.driver, self.raw) }
    }

    /// Makes the stream's own context current, which may be another context than this one.
    ///
    /// # Safety
    /// `stream` is a live stream, and not one of the special handles (0 to [`CU_STREAM_PER_THREAD`]).
    pub(crate) unsafe fn enter_of(&self, stream: CUstream) -> Result<Entered<'_>, CudaError> {
        let mut raw: CUcontext = 0;
        // SAFETY: the out pointer is ours; our caller promises a live stream, whose context is alive while it is.
        unsafe {
            cu!(&self.driver, cuStreamGetCtx(stream, &mut raw))?;
            Entered::push(&self.driver, raw)
        }
    }

    /// Whether the context that is current on this thread, if any, is one of this GPU.
    pub(crate) fn caller_is_on_device(&self) -> bool {
        let mut current: CUcontext = 0;
        // cuCtxGetDevice fails without a current context, and a failure takes the driver most of a
        // microsecond. cuCtxGetCurrent returns 0 instead.
        // SAFETY: the out pointer is ours.
        let code = unsafe { (self.driver.table().cuCtxGetCurrent)(&mut current) };
        if code != CUDA_SUCCESS || current == 0 || current == self.raw {
            return current == self.raw;
        }
        let mut device: CUdevice = -1;
        // SAFETY: the out pointer is ours.
        let code = unsafe { (self.driver.table().cuCtxGetDevice)(&mut device) };
        code == CUDA_SUCCESS && device == self.device.ordinal
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: pairs with the one retain in `retain_device`. Every user of the context holds an Arc
        // of `self`, so none is left.
        let released = unsafe { cu!(&self.driver, cuDevicePrimaryCtxRelease(self.device.ordinal)) };
        if let Err(error) = released {
            tracing::debug!(%error, gpu = %self.device.uuid, "primary context not released");
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// A guard: a context is current on this thread until the guard is dropped. CUDA's stack of current
/// contexts belongs to the thread, so the guard cannot be sent to another one.
pub(crate) struct Entered<'a> {
    driver: &'a Driver,
    thread_bound: PhantomData<*const ()>,
}

impl Entered<'_> {
    /// # Safety
    /// `raw` is a live context.
    unsafe fn push(driver: &Driver, raw: CUcontext) -> Result<Entered<'_>, CudaError> {
        // SAFETY: our caller promises that `raw` is a context that lives; the call makes it current on this thread only.
        unsafe { cu!(driver, cuCtxPushCurrent(raw))? };
        Ok(Entered {
            driver,
            thread_bound: PhantomData,
        })
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let PhantomData = self.thread_bound;
        let mut popped: CUcontext = 0;
        // SAFETY: the out pointer is ours; `push` pushed the context on this same thread, since guards cannot move to another.
        let result = unsafe { cu!(self.driver, cuCtxPopCurrent(&mut popped)) };
        if let Err(error) = result {
            tracing::debug!(%error, "context not popped");
        }
    }
}

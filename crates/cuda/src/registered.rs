//! Host memory registered with the driver: pinned, and accessible for GPUs.

use crate::abi::*;
use crate::context::Context;
use crate::driver::cu;
use crate::error::CudaError;
use std::ffi::{c_uint, c_void};
use std::fmt;
use std::sync::Arc;

/// A range of host memory, pinned and mapped for all GPUs that this process uses, until this value
/// is dropped. The drop waits for the work that uses the range.
pub struct Registered {
    context: Arc<Context>,
    host: *mut c_void,
    bytes: usize,
    device: CUdeviceptr,
    /// Drop does not unregister the range: see [`leave`](Self::leave).
    is_left: bool,
}

// SAFETY: the pointer is only ever passed to the driver, which may be called from any thread.
unsafe impl Send for Registered {}
// SAFETY: its fields never change after `with`; the driver's functions may be called from several threads at a time.
unsafe impl Sync for Registered {}

impl Registered {
    /// Registers `bytes` bytes from `host` on, both multiples of the page size.
    ///
    /// # Safety
    /// The range is mapped, readable and writable, and stays so until this value is dropped.
    pub unsafe fn new(
        context: Arc<Context>,
        host: *mut c_void,
        bytes: usize,
    ) -> Result<Registered, CudaError> {
        // SAFETY: our caller promises a range that is mapped, readable and writable until the result is dropped, as flags 0
        // require.
        unsafe { Registered::with(context, host, bytes, 0) }
    }

    /// The host's address of its first byte.
    pub(crate) fn start(&self) -> u64 {
        self.host as u64
    }

    /// The host's address behind its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.start() + self.bytes as u64
    }

    /// Registers a range that this process may only read. The GPU's work may then only read it, too.
    ///
    /// # Safety
    /// The range is mapped, readable, and stays so until this value is dropped.
    pub(crate) unsafe fn to_read(
        context: Arc<Context>,
        host: *mut c_void,
        bytes: usize,
    ) -> Result<Registered, CudaError> {
        // SAFETY: our caller promises a range that is mapped and readable until the result is dropped, as this flag requires.
        unsafe { Registered::with(context, host, bytes, CU_MEMHOSTREGISTER_READ_ONLY) }
    }

    /// # Safety
    /// The range is mapped, accessible as the flags require, and stays so until this value is dropped.
    unsafe fn with(
        context: Arc<Context>,
        host: *mut c_void,
        bytes: usize,
        flags: c_uint,
    ) -> Result<Registered, CudaError> {
        let flags = flags | CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        {
            let _entered = context.enter()?;
            // SAFETY: our caller promises that the range stays mapped, with the access that the flags require, until the
            // registration ends with the returned value.
            unsafe { cu!(context.driver(), cuMemHostRegister(host, bytes, flags))? };
        }
        // From here on, dropping `registered` unregisters the range, also if the next call fails.
        let mut registered = Registered {
            context,
            host,
            bytes,
            device: 0,
            is_left: false,
        };
        let mut device: CUdeviceptr = 0;
        {
            let _entered = registered.context.enter()?;
            // SAFETY: the out pointer is ours; the range was just registered.
            unsafe {
                cu!(
                    registered.context.driver(),
                    cuMemHostGetDevicePointer(&mut device, host, 0)
                )?
            };
        }
        registered.device = device;
        Ok(registered)
    }

    /// The address at which work on a GPU finds the start of the range.
    pub fn device_address(&self) -> u64 {
        self.device
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Leaves the range registered until its context ends, since unregistering waits for all work in
    /// the context. The caller keeps the range mapped until then.
    pub(crate) fn leave(mut self) {
        self.is_left = true;
    }

    /// The context in which it was registered.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        // A failure here is ignored: a context that cannot be entered is lost, and its registrations with it.
        let _entered = self.context.enter();
        // SAFETY: `with` registered the range, and only this drop unregisters it.
        let result = unsafe { cu!(self.context.driver(), cuMemHostUnregister(self.host)) };
        if let Err(error) = result {
            tracing::debug!(%error, "host memory stays registered");
        }
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("host", &self.host)
            .field("bytes", &self.bytes)
            .field("device", &format_args!("{:#x}", self.device))
            .finish_non_exhaustive()
    }
}

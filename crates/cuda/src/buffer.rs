//! GPU memory that belongs to this process alone, for copies of messages.

use crate::abi::*;
use crate::context::Context;
use crate::driver::cu;
use crate::error::CudaError;
use crate::stream::CudaStream;
use std::fmt;
use std::sync::Arc;

/// The smallest allocation: the driver refuses to allocate 0 bytes.
const BYTES_MIN: usize = 1;

/// Device memory. Dropping it frees it, on any thread. The driver first waits for all work of this
/// process on the GPU, so work that uses the memory may still be queued at the drop.
pub struct DeviceBuffer {
    context: Arc<Context>,
    address: CUdeviceptr,
    bytes: u64,
}

impl DeviceBuffer {
    /// Allocates `bytes` bytes and copies them from `source`, an address of the host or of any GPU.
    /// Returns when the copy has finished.
    ///
    /// # Safety
    /// `source` is readable for `bytes` bytes, and work that writes there has finished.
    pub unsafe fn copy_of(
        context: Arc<Context>,
        source: u64,
        bytes: u64,
    ) -> Result<DeviceBuffer, CudaError> {
        let buffer = DeviceBuffer::new(context, bytes)?;
        if bytes > 0 {
            let stream = CudaStream::new(buffer.context.clone())?;
            // SAFETY: `new` just allocated the target with that length; our caller promises that the source can be read.
            unsafe { stream.write_from(buffer.address, source, bytes as usize)? };
        }
        Ok(buffer)
    }

    fn new(context: Arc<Context>, bytes: u64) -> Result<DeviceBuffer, CudaError> {
        let mut address: CUdeviceptr = 0;
        {
            let _entered = context.enter()?;
            let wanted = (bytes as usize).max(BYTES_MIN);
            // SAFETY: the out pointer is ours and the context is current.
            unsafe { cu!(context.driver(), cuMemAlloc(&mut address, wanted))? };
        }
        Ok(DeviceBuffer {
            context,
            address,
            bytes,
        })
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The context in which it was allocated.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Waits for all work of this process on the GPU, then copies the whole buffer to the host.
    pub fn read(&self) -> Result<Vec<u8>, CudaError> {
        self.context.synchronize()?;
        let mut bytes = vec![0; self.bytes as usize];
        self.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `bytes` from offset `at` of the buffer. Waits for its own copy only, not for other work.
    pub fn read_at(&self, at: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        assert!(at + bytes.len() as u64 <= self.bytes);
        if bytes.is_empty() {
            return Ok(());
        }
        let stream = CudaStream::new(self.context.clone())?;
        // SAFETY: the range was just found to lie in our own memory.
        unsafe { stream.read(bytes, self.address + at) }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // A failure here is ignored: a context that cannot be entered is lost, and its memory with it.
        let _entered = self.context.enter();
        // SAFETY: the address came from cuMemAlloc and is freed here only.
        if let Err(error) = unsafe { cu!(self.context.driver(), cuMemFree(self.address)) } {
            tracing::debug!(%error, "device memory not freed");
        }
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({:#x}, {})", self.address, self.bytes)
    }
}

//! GPU memory that network cards read and write directly (GPUDirect RDMA): a range is exported as a dma-buf, which the
//! kernel driver of a card imports. This does not need NVIDIA's kernel module nvidia-peermem.

use crate::abi::*;
use crate::context::Context;
use crate::device::Device;
use crate::error::CudaError;
use crate::mapping::CudaMapping;
use rgaps_pool::PoolError;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Whose work sees a card's writes to a GPU's memory once the card has reported them complete, without a flush.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WritesOrder {
    /// No GPU's work: a flush is needed.
    None,
    /// Work on the GPU that holds the memory.
    Owner,
    /// Work on any GPU.
    AllDevices,
}

impl WritesOrder {
    pub(crate) fn of(attribute: u32) -> WritesOrder {
        match attribute {
            CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES => WritesOrder::AllDevices,
            CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER => WritesOrder::Owner,
            _ => WritesOrder::None,
        }
    }
}

impl Device {
    /// Fails if network cards cannot read and write this GPU's pools. The error says what is lacking.
    pub fn require_direct(&self) -> Result<(), CudaError> {
        let lack = if !self.gpu_direct_rdma {
            "the GPU has no GPUDirect RDMA for memory that can be shared"
        } else if !self.dma_buf {
            "its memory cannot be exported as a dma-buf, which takes NVIDIA's open kernel modules and Linux 5.12"
        } else if self.writes_order < WritesOrder::AllDevices && !self.flushes_writes {
            "the writes of network cards are not kept in order and cannot be flushed"
        } else {
            return Ok(());
        };
        Err(CudaError::NoDirect {
            uuid: self.uuid,
            name: self.name.clone(),
            lack,
        })
    }
}

impl CudaMapping {
    /// Exports a range as a dma-buf, which keeps the memory alive. Both numbers are multiples of the host's page size.
    pub fn dmabuf(&self, offset: u64, bytes: u64) -> Result<OwnedFd, PoolError> {
        let address = self.address(offset, bytes)?;
        let context = self.context();
        let export = || {
            context.device().require_direct()?;
            context.dmabuf(address, bytes)
        };
        export().map_err(|error| error.into_pool(context.device().uuid))
    }
}

impl Context {
    fn dmabuf(&self, address: CUdeviceptr, bytes: u64) -> Result<OwnedFd, CudaError> {
        let driver = self.driver();
        let call = "cuMemGetHandleForAddressRange";
        let export = driver.table().cuMemGetHandleForAddressRange;
        let export = export.ok_or_else(|| driver.lacks(call))?;
        let _entered = self.enter()?;
        let mut fd: c_int = -1;
        // SAFETY: for this type of handle the driver writes an int to the out pointer; the range is only looked up.
        let code = unsafe {
            export(
                (&raw mut fd).cast(),
                address,
                bytes as usize,
                CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                0,
            )
        };
        driver.check(call, code)?;
        // SAFETY: the driver has just opened the descriptor for us, and nothing else in this process owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: sets a flag of a descriptor that we own, which must not leak into programs that this process starts.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        Ok(fd)
    }

    /// Makes writes of cards to this GPU's memory, which the cards have reported complete, visible to all work that is queued
    /// on any GPU after this call. Returns at once where the hardware keeps that order by itself.
    pub fn order_direct_writes(&self) -> Result<(), CudaError> {
        if self.device().writes_order == WritesOrder::AllDevices {
            return Ok(());
        }
        let driver = self.driver();
        let call = "cuFlushGPUDirectRDMAWrites";
        let flush = driver.table().cuFlushGPUDirectRDMAWrites;
        let flush = flush.ok_or_else(|| driver.lacks(call))?;
        let _entered = self.enter()?;
        // SAFETY: two numbers; the context is current.
        let code = unsafe {
            flush(
                CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES,
            )
        };
        driver.check(call, code)
    }
}

//! CUDA's virtual memory management: physical GPU memory, and the address range that it is mapped into.

use crate::abi::*;
use crate::device::Device;
use crate::driver::{cu, Driver};
use crate::error::CudaError;
use rgaps_pool::Access;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// The kind of memory that segments on `device` consist of: pinned, and exportable as a file descriptor.
pub(crate) fn properties(device: &Device, gpu_direct_rdma: bool) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_types: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: CUmemLocation {
            type_: CU_MEM_LOCATION_TYPE_DEVICE,
            id: device.ordinal,
        },
        win32_handle_meta_data: std::ptr::null_mut(),
        alloc_flags: CUmemAllocationFlags {
            gpu_direct_rdma_capable: gpu_direct_rdma.into(),
            ..CUmemAllocationFlags::default()
        },
    }
}

/// Sizes and addresses of mappings of `device` are multiples of this.
pub(crate) fn granularity(driver: &Driver, device: &Device) -> Result<u64, CudaError> {
    let wanted = properties(device, device.gpu_direct_rdma);
    let mut bytes = 0usize;
    // SAFETY: the out pointer and the properties are ours.
    unsafe {
        cu!(
            driver,
            cuMemGetAllocationGranularity(&mut bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM)
        )?;
    }
    Ok(bytes as u64)
}

/// A reference to physical memory. The driver frees the memory with its last reference, descriptor or
/// mapping in any process.
pub(crate) struct Allocation {
    driver: Arc<Driver>,
    raw: CUmemGenericAllocationHandle,
}

impl Allocation {
    /// New memory. Needs no context.
    pub(crate) fn create(
        driver: &Arc<Driver>,
        bytes: u64,
        wanted: &CUmemAllocationProp,
    ) -> Result<Allocation, CudaError> {
        let mut raw = 0;
        // SAFETY: the out pointer and the properties are ours.
        unsafe { cu!(driver, cuMemCreate(&mut raw, bytes as usize, wanted, 0))? };
        Ok(Allocation {
            driver: driver.clone(),
            raw,
        })
    }

    /// The memory behind a descriptor, which stays the caller's.
    pub(crate) fn import(
        driver: &Arc<Driver>,
        fd: BorrowedFd<'_>,
    ) -> Result<Allocation, CudaError> {
        let mut raw = 0;
        // The driver expects the number of the descriptor in a pointer argument.
        let number = fd.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the out pointer is ours; the descriptor is open for the length of the call.
        unsafe {
            cu!(
                driver,
                cuMemImportFromShareableHandle(
                    &mut raw,
                    number,
                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                )
            )?;
        }
        Ok(Allocation {
            driver: driver.clone(),
            raw,
        })
    }

    /// A descriptor for the memory, which keeps it alive by itself.
    pub(crate) fn export(&self) -> Result<OwnedFd, CudaError> {
        let mut fd: c_int = -1;
        // SAFETY: for this handle type the driver writes an int to the out pointer.
        unsafe {
            cu!(
                &self.driver,
                cuMemExportToShareableHandle(
                    (&raw mut fd).cast(),
                    self.raw,
                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                    0
                )
            )?;
        }
        // SAFETY: the driver has just opened the descriptor for us, and nothing else in this process owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // Programs that this process starts must not inherit the descriptor; whether the driver sets
        // the flag is not documented.
        // SAFETY: sets a flag of a descriptor that `fd` owns.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        Ok(fd)
    }

    /// The kind and the location of the memory.
    pub(crate) fn properties(&self) -> Result<CUmemAllocationProp, CudaError> {
        let mut found = CUmemAllocationProp {
            type_: 0,
            requested_handle_types: 0,
            location: CUmemLocation::default(),
            win32_handle_meta_data: std::ptr::null_mut(),
            alloc_flags: CUmemAllocationFlags::default(),
        };
        // SAFETY: the out pointer is ours and the handle is live.
        unsafe {
            cu!(
                &self.driver,
                cuMemGetAllocationPropertiesFromHandle(&mut found, self.raw)
            )?;
        }
        Ok(found)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: the handle came from one create or import, and only this drop releases it.
        if let Err(error) = unsafe { cu!(&self.driver, cuMemRelease(self.raw)) } {
            tracing::warn!(%error, "GPU memory handle not released");
        }
    }
}

/// Reserved addresses, with memory mapped from their start.
pub(crate) struct Reservation {
    driver: Arc<Driver>,
    base: CUdeviceptr,
    bytes: u64,
    /// Bytes of each mapping, in address order. The driver unmaps only whole mappings.
    mapped: Vec<u64>,
}

impl Reservation {
    /// Reserves `bytes` bytes of addresses. `bytes` and the first address are multiples of the
    /// granularity.
    pub(crate) fn new(
        driver: &Arc<Driver>,
        bytes: u64,
        granularity: u64,
    ) -> Result<Reservation, CudaError> {
        let mut base: CUdeviceptr = 0;
        let (size, alignment) = (bytes as usize, granularity as usize);
        // SAFETY: the out pointer is ours; address 0 leaves the choice to the driver.
        unsafe {
            cu!(
                driver,
                cuMemAddressReserve(&mut base, size, alignment, 0, 0)
            )?
        };
        Ok(Reservation {
            driver: driver.clone(),
            base,
            bytes,
            mapped: Vec::new(),
        })
    }

    pub(crate) fn base(&self) -> CUdeviceptr {
        self.base
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes mapped, from the start.
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped.iter().sum()
    }

    /// Maps `bytes` bytes of memory behind the earlier mappings; no device may access them until
    /// [`allow`](Self::allow). The mapping keeps the memory alive. The caller has checked that the bytes fit.
    pub(crate) fn map(&mut self, memory: &Allocation, bytes: u64) -> Result<(), CudaError> {
        let at = self.base + self.mapped();
        // SAFETY: the addresses lie in our reservation, behind all mappings; the handle lives as long as `memory`.
        unsafe { cu!(&self.driver, cuMemMap(at, bytes as usize, 0, memory.raw, 0))? };
        self.mapped.push(bytes);
        Ok(())
    }

    /// Lets `device` access the last mapping.
    pub(crate) fn allow(&self, device: &Device, access: Access) -> Result<(), CudaError> {
        let Some(last) = self.mapped.last() else {
            return Ok(());
        };
        let at = self.base + self.mapped() - last;
        let wanted = CUmemAccessDesc {
            location: CUmemLocation {
                type_: CU_MEM_LOCATION_TYPE_DEVICE,
                id: device.ordinal,
            },
            flags: match access {
                Access::ReadOnly => CU_MEM_ACCESS_FLAGS_PROT_READ,
                Access::ReadWrite => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            },
        };
        // SAFETY: the range is the last one that `map` mapped; the count of 1 matches the one description.
        unsafe { cu!(&self.driver, cuMemSetAccess(at, *last as usize, &wanted, 1)) }
    }

    /// Unmaps the last mapping. If the driver refuses, the mapping stays in the list, so that drop tries
    /// again.
    pub(crate) fn unmap_last(&mut self) -> Result<(), CudaError> {
        let Some(last) = self.mapped.pop() else {
            return Ok(());
        };
        let at = self.base + self.mapped();
        // SAFETY: exactly the range that `map` mapped. The owner of the reservation has waited for all
        // work that uses the range.
        let result = unsafe { cu!(&self.driver, cuMemUnmap(at, last as usize)) };
        if result.is_err() {
            self.mapped.push(last);
        }
        result
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        while !self.mapped.is_empty() {
            if let Err(error) = self.unmap_last() {
                // The driver cannot free the addresses while memory is mapped there.
                tracing::warn!(%error, "GPU memory not unmapped, its addresses stay reserved");
                return;
            }
        }
        // SAFETY: the whole range that `new` reserved; the loop above has unmapped everything in it.
        let freed = unsafe {
            cu!(
                &self.driver,
                cuMemAddressFree(self.base, self.bytes as usize)
            )
        };
        if let Err(error) = freed {
            tracing::warn!(%error, "reserved GPU addresses not freed");
        }
    }
}

//! Physical GPU memory by its handle, and the range of addresses that it is mapped into.

use crate::abi::*;
use crate::device::Device;
use crate::driver::{cu, Driver};
use crate::error::CudaError;
use rgaps_pool::Access;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// What segments of `device` are made of.
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

/// A reference to physical memory. The memory itself lives until the last reference, descriptor
/// and mapping of it, in all processes, is gone.
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
        // The driver takes the number of the descriptor in the place of a pointer.
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
        // SAFETY: the driver opened the descriptor for us; nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: sets a flag of a descriptor that we own. It must not leak into programs that
        // this process starts; whether the driver sets the flag is not documented.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        Ok(fd)
    }

    /// What the memory is.
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
        // SAFETY: the handle came from create or import, once, and is released here only.
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
    /// Sizes of what is mapped, in order. Each has to be unmapped as it was mapped.
    mapped: Vec<u64>,
}

impl Reservation {
    /// Reserves `bytes` bytes of addresses. They and the first address are multiples of the
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

    /// Maps `bytes` bytes of memory behind what is mapped; nobody may access them yet. The memory
    /// stays alive while it is mapped. The caller checked that they fit.
    pub(crate) fn map(&mut self, memory: &Allocation, bytes: u64) -> Result<(), CudaError> {
        let at = self.base + self.mapped();
        // SAFETY: the addresses are of our reservation and free; the handle is live.
        unsafe { cu!(&self.driver, cuMemMap(at, bytes as usize, 0, memory.raw, 0))? };
        self.mapped.push(bytes);
        Ok(())
    }

    /// Lets `device` access what was mapped last.
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
        // SAFETY: the range is the last one that `map` mapped; the one description is ours.
        unsafe { cu!(&self.driver, cuMemSetAccess(at, *last as usize, &wanted, 1)) }
    }

    /// Takes back what was mapped last. It stays in the list if the driver refuses, so that drop
    /// tries again.
    pub(crate) fn unmap_last(&mut self) -> Result<(), CudaError> {
        let Some(last) = self.mapped.pop() else {
            return Ok(());
        };
        let at = self.base + self.mapped();
        // SAFETY: exactly the range that `map` mapped. Whoever owns the reservation promises that
        // no work that uses it is queued any more.
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
                // The addresses cannot be given back while memory is mapped in them.
                tracing::warn!(%error, "GPU memory not unmapped, its addresses stay reserved");
                return;
            }
        }
        // SAFETY: the range as it was reserved, with nothing mapped in it.
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

//! What a device registers, found out by doing it. Nothing of it is used for a transfer.

use crate::device::Device;
use crate::error::VerbsError;
use crate::fabric::Access;
use crate::region::{Memory, Region};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Shared memory as large as the smallest lease.
const TRIAL_BYTES: usize = 2 << 20;
/// By which a peer would name the first byte of a segment that is tried.
const TRIAL_ADDRESS: u64 = 1 << 40;

/// What came of registering shared memory of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTrial {
    /// Mapped to read and write, for a peer to write.
    pub writable: Result<(), VerbsError>,
    /// Mapped to be read only, for the device to read.
    pub read_only: Result<(), VerbsError>,
}

/// What came of registering a segment of host memory that is a dma-buf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentTrial {
    /// By its descriptor.
    pub dma_buf: Result<(), VerbsError>,
    /// By the address of a mapping of it.
    pub address: Result<(), VerbsError>,
}

impl Device {
    /// Registers a segment of host memory in both ways, for a peer to write, and gives it back.
    pub fn try_segment(self: &Arc<Self>, segment: BorrowedFd<'_>, bytes: usize) -> SegmentTrial {
        let mapped = || -> Result<(), VerbsError> {
            let memory = Pages::of(segment, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
            Region::new(self, Arc::new(memory), Access::RemoteWrite).map(drop)
        };
        SegmentTrial {
            dma_buf: self.try_dmabuf(segment, TRIAL_ADDRESS, bytes),
            address: mapped(),
        }
    }

    /// Registers shared memory of the host, and gives it back.
    pub fn try_host(self: &Arc<Self>) -> HostTrial {
        let of = |protection, access| -> Result<(), VerbsError> {
            let memory = Arc::new(Pages::new(protection)?);
            Region::new(self, memory, access).map(drop)
        };
        HostTrial {
            writable: of(ProtFlags::READ | ProtFlags::WRITE, Access::RemoteWrite),
            read_only: of(ProtFlags::READ, Access::LocalRead),
        }
    }

    /// Registers memory of a dma-buf for a peer to write, from its beginning on, and gives it back.
    pub fn try_dmabuf(
        self: &Arc<Self>,
        dmabuf: BorrowedFd<'_>,
        address: u64,
        bytes: usize,
    ) -> Result<(), VerbsError> {
        let memory = Arc::new(TrialMemory { address, bytes });
        Region::of_dmabuf(self, dmabuf, 0, memory, Access::RemoteWrite).map(drop)
    }
}

/// A mapping of shared memory.
struct Pages {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and `drop` alone removes it.
unsafe impl Send for Pages {}
// SAFETY: the address never changes, and nobody follows it: `start` only passes it on to be registered.
unsafe impl Sync for Pages {}

impl Pages {
    /// Of a memfd of its own.
    fn new(protection: ProtFlags) -> Result<Self, VerbsError> {
        let memory =
            memfd_create("rgaps-trial", MemfdFlags::CLOEXEC).map_err(failed("memfd_create"))?;
        ftruncate(&memory, TRIAL_BYTES as u64).map_err(failed("ftruncate"))?;
        Self::of(memory.as_fd(), TRIAL_BYTES, protection)
    }

    fn of(memory: BorrowedFd<'_>, bytes: usize, protection: ProtFlags) -> Result<Self, VerbsError> {
        // SAFETY: a new mapping where the kernel likes.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED,
                memory,
                0,
            )
        };
        let start = start.map_err(failed("mmap"))?;
        Ok(Self { start, bytes })
    }
}

fn failed(call: &'static str) -> impl Fn(rustix::io::Errno) -> VerbsError {
    move |errno| VerbsError::Call {
        call,
        errno: errno.raw_os_error(),
    }
}

// SAFETY: mapped until it is dropped; its bytes are nobody's, and no key of its region gets out.
unsafe impl Memory for Pages {
    fn start(&self) -> *mut u8 {
        self.start.cast()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing is registered of any more. It cannot fail.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}

/// Memory that only has an address for the device.
struct TrialMemory {
    address: u64,
    bytes: usize,
}

// SAFETY: it is registered and given back within `try_dmabuf`: nothing is read or written there.
unsafe impl Memory for TrialMemory {
    fn start(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(self.address as usize)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

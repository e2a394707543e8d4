//! Finds out which memory a device can register, by registering some and giving it back. Nothing is transferred.

use crate::device::Device;
use crate::error::VerbsError;
use crate::fabric::Access;
use crate::region::{Memory, Region};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Bytes of shared memory that [`Device::try_host`] registers: as many as the smallest lease has.
const TRIAL_BYTES: usize = 2 << 20;
/// The address by which a peer would name the first byte of a segment.
const TRIAL_ADDRESS: u64 = 1 << 40;

/// The results of registering shared memory of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTrial {
    /// A mapping to read and write, registered for a peer to write.
    pub writable: Result<(), VerbsError>,
    /// A read-only mapping, registered for the device to read.
    pub read_only: Result<(), VerbsError>,
}

/// The results of registering a segment of host memory that is a dma-buf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentTrial {
    /// By its descriptor.
    pub dma_buf: Result<(), VerbsError>,
    /// By the address of a mapping of it.
    pub address: Result<(), VerbsError>,
}

impl Device {
    /// Registers a segment of host memory for a peer to write, as a dma-buf and by address, and gives it back.
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

// SAFETY: a mapping belongs to the process, not to a thread, and only `drop` removes it.
unsafe impl Send for Pages {}
// SAFETY: the address never changes, and nobody follows it: `start` only passes it on to be registered.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps a new memfd.
    fn new(protection: ProtFlags) -> Result<Self, VerbsError> {
        let memory =
            memfd_create("rgaps-trial", MemfdFlags::CLOEXEC).map_err(failed("memfd_create"))?;
        ftruncate(&memory, TRIAL_BYTES as u64).map_err(failed("ftruncate"))?;
        Self::of(memory.as_fd(), TRIAL_BYTES, protection)
    }

    fn of(memory: BorrowedFd<'_>, bytes: usize, protection: ProtFlags) -> Result<Self, VerbsError> {
        // SAFETY: the kernel chooses a free address for the new mapping, so it replaces none.
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

// SAFETY: the bytes stay mapped until `drop`. Nobody makes references to them, and no peer learns the key of their region.
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
        // SAFETY: `of` made the mapping, and only this removes it. Its region held it, so the registration has ended. It
        // cannot fail.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}

/// Memory of a dma-buf that has no address in this process: `address` is for the device only.
struct TrialMemory {
    address: u64,
    bytes: usize,
}

// SAFETY: `try_dmabuf` registers it and gives it back, and posts no work: no device or peer reads or writes there.
unsafe impl Memory for TrialMemory {
    fn start(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(self.address as usize)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

//! What a device registers, found out by doing it. Nothing of it is used for a transfer.

use crate::device::Device;
use crate::error::VerbsError;
use crate::fabric::Access;
use crate::region::{Memory, Region};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Shared memory as large as the smallest lease.
const TRIAL_BYTES: usize = 2 << 20;

/// What came of registering shared memory of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTrial {
    /// Mapped to read and write, for a peer to write.
    pub writable: Result<(), VerbsError>,
    /// Mapped to be read only, for the device to read.
    pub read_only: Result<(), VerbsError>,
}

impl Device {
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
        let memory = Arc::new(Elsewhere { address, bytes });
        Region::of_dmabuf(self, dmabuf, 0, memory, Access::RemoteWrite).map(drop)
    }
}

/// A mapping of a memfd.
struct Pages {
    start: *mut c_void,
    _memory: OwnedFd,
}

// SAFETY: a mapping belongs to the process, not to a thread, and `drop` alone removes it.
unsafe impl Send for Pages {}
// SAFETY: the address never changes, and nobody follows it: `start` only passes it on to be registered.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(protection: ProtFlags) -> Result<Self, VerbsError> {
        let failed = |call| {
            move |errno: rustix::io::Errno| VerbsError::Call {
                call,
                errno: errno.raw_os_error(),
            }
        };
        let memory =
            memfd_create("rgaps-trial", MemfdFlags::CLOEXEC).map_err(failed("memfd_create"))?;
        ftruncate(&memory, TRIAL_BYTES as u64).map_err(failed("ftruncate"))?;
        // SAFETY: a new mapping where the kernel likes.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                TRIAL_BYTES,
                protection,
                MapFlags::SHARED,
                &memory,
                0,
            )
        };
        Ok(Self {
            start: start.map_err(failed("mmap"))?,
            _memory: memory,
        })
    }
}

// SAFETY: mapped until it is dropped; its bytes are nobody's, and no key of its region gets out.
unsafe impl Memory for Pages {
    fn start(&self) -> *mut u8 {
        self.start.cast()
    }

    fn bytes(&self) -> usize {
        TRIAL_BYTES
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing is registered of any more. It cannot fail.
        let _ = unsafe { munmap(self.start, TRIAL_BYTES) };
    }
}

/// Memory that only has an address for the device.
struct Elsewhere {
    address: u64,
    bytes: usize,
}

// SAFETY: it is registered and given back within `try_dmabuf`: nothing is read or written there.
unsafe impl Memory for Elsewhere {
    fn start(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(self.address as usize)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

//! A whole file (mostly a sealed memfd) in this process's address space.

use crate::fork::ReservedInChildren;
use crate::memfd::inspect;
use crate::segment::Access;
use crate::PoolError;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// A sealed memfd, mapped whole at an address that the system chooses, until it is dropped.
///
/// Other processes may write its bytes at any time, so it hands out a pointer and never a
/// reference. Forked children do not inherit it, and core dumps leave it out.
#[derive(Debug)]
pub struct SharedMap {
    base: NonNull<u8>,
    bytes: usize,
    access: Access,
    /// None where forked children inherit it.
    in_children: Option<ReservedInChildren>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and only `drop` removes it, which needs
// the value itself.
unsafe impl Send for SharedMap {}
// SAFETY: nothing in it changes before `drop`: methods by `&self` only hand out the address and the length.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Maps the sealed memfd `fd` of exactly `bytes` bytes. Seals and size are checked first.
    pub fn new(fd: BorrowedFd<'_>, bytes: u64, access: Access) -> Result<Self, PoolError> {
        inspect(fd, bytes)?;
        let mut map = Self::map_unchecked(fd, bytes, access)?;
        map.keep_private();
        map.in_children = Some(ReservedInChildren::new(map.base, map.bytes));
        Ok(map)
    }

    /// Maps a file or dma-buf without checking it, and forked children inherit the mapping. The file cannot shrink: this
    /// process created it and has not shared it, or it belongs to this user alone.
    pub(crate) fn map_unchecked(
        fd: BorrowedFd<'_>,
        bytes: u64,
        access: Access,
    ) -> Result<Self, PoolError> {
        let length = usize::try_from(bytes)
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| {
                PoolError::Untrusted(format!("{bytes} bytes cannot be mapped in this process"))
            })?;
        // SAFETY: no address is given, so the call replaces no existing mapping. The file does not shrink
        // under the mapping: `inspect` has checked its seals, or no other user can reach it.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                protection(access),
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                0,
            )
        }
        .map_err(|e| PoolError::system("mmap", e, map_hint(bytes)))?;
        let base = NonNull::new(address.cast::<u8>()).expect("mmap gives no null address");
        Ok(SharedMap {
            base,
            bytes: length,
            access,
            in_children: None,
        })
    }

    fn keep_private(&self) {
        // SAFETY: the range is this value's mapping, which `new` made just now and has not handed out.
        unsafe { keep_private(self.base.as_ptr().cast(), self.bytes) }
    }

    /// Address of the first byte, aligned to a page.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes mapped.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// How this process may access the bytes.
    pub fn access(&self) -> Access {
        self.access
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // Before unmapping: another mapping may then use the addresses at once.
        self.in_children = None;
        // SAFETY: `base` and `bytes` are the mapping that `map_unchecked` made; nothing else
        // unmaps it, and users of `base` keep this value alive. In a forked child the range is
        // reserved (`fork`), so nothing of the child's own lies there.
        let result = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok(), "munmap of an own mapping: {result:?}");
    }
}

pub(crate) fn protection(access: Access) -> ProtFlags {
    match access {
        Access::ReadOnly => ProtFlags::READ,
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    }
}

/// Excludes a range from forked children and core dumps, if the kernel supports that.
///
/// # Safety
/// The range is mapped, and its mapping belongs to the caller.
pub(crate) unsafe fn keep_private(base: *mut c_void, bytes: usize) {
    for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
        // SAFETY: our caller promises that the range is mapped and its own; both advices only set flags of the mapping.
        if let Err(error) = unsafe { rustix::mm::madvise(base, bytes, advice) } {
            tracing::warn!(%error, ?advice, "madvise failed; forked children or core dumps will see shared memory");
        }
    }
}

pub(crate) fn map_hint(bytes: u64) -> String {
    format!("{bytes} bytes of address space are needed; raise ulimit -v or vm.max_map_count")
}

//! Detects in a forked child that a handle belongs to the parent process.

use super::ClientError;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// The word in the page of the process that made it. The kernel zeroes the page in a child.
const ORIGINAL: u32 = 0x7267_6170;

/// Tells with one load whether this process was forked from the one that made the guard: the load reads a page that the kernel
/// wipes in children (`MADV_WIPEONFORK`).
///
/// Each conductor has its own guard, so that a child can make new nodes.
#[derive(Clone, Debug)]
pub(crate) struct ForkGuard {
    page: Arc<Page>,
}

#[derive(Debug)]
struct Page {
    word: NonNull<AtomicU32>,
    bytes: usize,
}

// SAFETY: `new` mapped the page for this value alone, any thread may unmap it, and it is accessed only through an atomic.
unsafe impl Send for Page {}
// SAFETY: threads only load and store the atomic behind an address that never changes.
unsafe impl Sync for Page {}

impl ForkGuard {
    pub(crate) fn new() -> Result<ForkGuard, ClientError> {
        let bytes = rustix::param::page_size();
        // SAFETY: the kernel chooses the address, so no existing mapping changes.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(ClientError::system("mmap"))?;
        let word = NonNull::new(address.cast()).expect("mmap gives no null address");
        let page = Page { word, bytes };
        // SAFETY: the range is the mapping made above, which has no contents yet.
        unsafe { rustix::mm::madvise(address, bytes, Advice::LinuxWipeOnFork) }
            .map_err(ClientError::system("madvise(MADV_WIPEONFORK)"))?;
        page.word().store(ORIGINAL, Ordering::Relaxed);
        Ok(ForkGuard {
            page: Arc::new(page),
        })
    }

    /// Whether this process was forked from the one that made the guard.
    #[inline]
    pub(crate) fn is_child(&self) -> bool {
        // Relaxed: fork itself orders the wiping before anything in the child.
        self.page.word().load(Ordering::Relaxed) != ORIGINAL
    }

    /// Fails with [`ClientError::Forked`] in a child.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), ClientError> {
        if self.is_child() {
            return Err(ClientError::Forked);
        }
        Ok(())
    }
}

impl Page {
    #[inline]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: `word` is the start of a readable and writable page that lives as long as
        // `self`, in a child too; all accesses to it are atomic.
        unsafe { self.word.as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `new`, is unmapped only here, and the references that
        // `word` gave out have ended with `self`. A child has the page as well, wiped.
        let result = unsafe { rustix::mm::munmap(self.word.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok(), "munmap of an own page: {result:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one() {
        let guard = ForkGuard::new().unwrap();
        assert!(!guard.is_child() && guard.check().is_ok());
        // SAFETY: the child takes no lock: it only makes system calls and reads the page, then exits.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let code = match ForkGuard::new() {
                Ok(own) if guard.is_child() && !own.is_child() => 7,
                _ => 1,
            };
            // SAFETY: ends the child without running the parent's handlers.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: `status` is a local variable that lives during the call.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(libc::WEXITSTATUS(status), 7);
        assert!(!guard.is_child());
    }
}

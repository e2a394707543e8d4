//! Makes a forked child that uses its parent's shared memory fail with an explanation.
//!
//! A child does not inherit the mappings (`MADV_DONTFORK`): only the parent's holds keep a block's bytes, and the parent
//! may release them at any time, so a child that could read them would read bytes of other messages. But the child has
//! the parent's pointers, in arrays and tensors. So before `fork` returns in the child, we reserve each range there: the
//! child's own allocations cannot use those addresses, and an access is a fault whose handler prints what happened. The
//! handler then restores the previous one, so that Python's `faulthandler`, debuggers and core dumps still see the fault.
//!
//! Invariants: a range is in the table from its reservation until just before it is unmapped; the handlers make only
//! system calls, and touch only the statics of this module.

use rustix::mm::{MapFlags, ProtFlags};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Once;

/// Slots of the table. Ranges that find no free slot are not reserved in children.
const RANGES_MAX: usize = 1024;
/// The value of `base` while a slot's range is being written.
const CLAIMED: usize = 1;
/// Printed on standard error when a child accesses its parent's memory.
const MESSAGE: &[u8] = b"rgaps: this process was forked, and read or wrote shared memory of the process that it was \
forked from: an array or tensor over a sample or loan of the parent. Copy such arrays before the fork \
(array.copy()), or make a node and a subscriber in the child. It ends with SIGSEGV.\n";

struct Range {
    /// 0: the slot is free. Stored with Release after `bytes`.
    base: AtomicUsize,
    bytes: AtomicUsize,
    /// The range is a mapping of this process's parent, and only reserved here.
    is_inherited: AtomicBool,
}

static RANGES: [Range; RANGES_MAX] = [const {
    Range {
        base: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        is_inherited: AtomicBool::new(false),
    }
}; RANGES_MAX];

/// A range that is reserved in children forked while this value exists.
#[derive(Debug)]
pub(crate) struct ReservedInChildren {
    slot: Option<usize>,
}

impl ReservedInChildren {
    /// Enters a range into the table: a mapping of the caller that children do not inherit.
    pub(crate) fn new(base: NonNull<u8>, bytes: usize) -> ReservedInChildren {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| {
            // SAFETY: the C library drops the registration when it unloads this library; `in_child` makes only system calls.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            if failed != 0 {
                tracing::warn!(
                    "pthread_atfork failed ({failed}); forked children that crash will not explain it"
                );
            }
        });
        let claimed = |range: &Range| {
            let base = &range.base;
            base.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        };
        let slot = RANGES.iter().position(claimed);
        match slot {
            Some(slot) => {
                let range = &RANGES[slot];
                range.bytes.store(bytes, Ordering::Relaxed);
                range.is_inherited.store(false, Ordering::Relaxed);
                range.base.store(base.addr().get(), Ordering::Release);
            }
            None => tracing::debug!(
                "more than {RANGES_MAX} mappings: forked children do not reserve this one"
            ),
        }
        ReservedInChildren { slot }
    }
}

impl Drop for ReservedInChildren {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            RANGES[slot].base.store(0, Ordering::Release);
        }
    }
}

/// The action for SIGSEGV that our handler replaced.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written only by `in_child`, while the child has one thread, and before the handler that reads it is installed.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::zeroed()));
/// Whether our handler is installed in this process or was in its parent.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Reserves the parent's ranges and installs the handler. Runs in a child before `fork` returns there.
extern "C" fn in_child() {
    let mut any = false;
    for range in &RANGES {
        let base = range.base.load(Ordering::Acquire);
        if base <= CLAIMED || range.is_inherited.load(Ordering::Relaxed) {
            continue;
        }
        let (start, bytes) = (base as *mut c_void, range.bytes.load(Ordering::Relaxed));
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: FIXED_NOREPLACE replaces no existing mapping.
        let placed = unsafe { rustix::mm::mmap_anonymous(start, bytes, ProtFlags::empty(), flags) };
        // This fails if the child inherited the mapping, since the kernel does not know MADV_DONTFORK.
        let Ok(placed) = placed else { continue };
        if placed != start {
            // Linux before 4.17 does not know FIXED_NOREPLACE and takes the address as a hint.
            // SAFETY: the mapping was made just now.
            let _ = unsafe { rustix::mm::munmap(placed, bytes) };
            continue;
        }
        range.is_inherited.store(true, Ordering::Relaxed);
        any = true;
    }
    if any && !INSTALLED.swap(true, Ordering::Relaxed) {
        // SAFETY: the action is complete; its function makes only system calls. The child still has one thread, so no other
        // touches `PREVIOUS`.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGSEGV, &action, PREVIOUS.0.get().cast());
        }
    }
}

/// Prints [`MESSAGE`] if the fault is at a parent's memory, and restores the previous handler.
extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // Positive codes are faults; a signal that a process sent has another.
    let is_fault = code > 0;
    let inherited = |range: &Range| {
        let (base, bytes) = (
            range.base.load(Ordering::Acquire),
            range.bytes.load(Ordering::Relaxed),
        );
        range.is_inherited.load(Ordering::Relaxed)
            && (base..base.saturating_add(bytes)).contains(&address)
    };
    // SAFETY: system calls on statics of this module. `in_child` wrote `PREVIOUS` when it installed this handler.
    unsafe {
        if is_fault && RANGES.iter().any(inherited) {
            libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
        }
        libc::sigaction(libc::SIGSEGV, PREVIOUS.0.get().cast(), std::ptr::null_mut());
        // When this returns, a fault recurs and reaches the previous handler. A signal that was sent does not recur.
        if !is_fault {
            libc::raise(libc::SIGSEGV);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::segment::{Access, Mapping, SegmentSource};
    use crate::{HostConfig, HostMapping, HostSource};
    use rgaps_layout::SEGMENT_UNIT_BYTES;
    use rustix::mm::{MapFlags, ProtFlags};
    use std::io::Read;
    use std::os::fd::{AsFd, AsRawFd};

    /// Runs `child` in a forked process. Returns its wait status and its standard error.
    fn forked(child: impl FnOnce() -> i32) -> (i32, String) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        // SAFETY: the child makes system calls and touches memory of the test, then exits.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: `writer` is open, and the child has one thread: `_exit` ends it without the parent's handlers.
            unsafe {
                libc::dup2(writer.as_raw_fd(), libc::STDERR_FILENO);
                libc::_exit(child());
            }
        }
        drop(writer);
        let mut said = String::new();
        std::fs::File::from(reader)
            .read_to_string(&mut said)
            .unwrap();
        let mut status = 0;
        // SAFETY: `status` is ours.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        (status, said)
    }

    fn mapped() -> HostMapping {
        let mut source = HostSource::new(HostConfig::default());
        let segment = source.create(SEGMENT_UNIT_BYTES).unwrap();
        let mapping = HostMapping::new(4 * SEGMENT_UNIT_BYTES, Access::ReadWrite).unwrap();
        mapping.extend(segment.fd.as_fd(), segment.bytes).unwrap();
        mapping
    }

    fn read_at(address: u64) -> i32 {
        // SAFETY: none: this read is meant to fault. It runs in a child, which the fault ends.
        unsafe { std::ptr::with_exposed_provenance::<u8>(address as usize).read_volatile() }.into()
    }

    #[test]
    fn a_child_that_touches_its_parents_memory_is_told_why_it_ends() {
        let mapping = mapped();
        let (status, said) = forked(|| read_at(mapping.base() + 100));
        assert!(libc::WIFSIGNALED(status), "{status}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
        assert!(said.contains("rgaps: this process was forked"), "{said:?}");
        // Also in a child of a child.
        let (status, said) = forked(|| {
            let (status, _) = forked(|| 0);
            assert_eq!(status, 0);
            read_at(mapping.base())
        });
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
        assert!(said.contains("rgaps: this process was forked"), "{said:?}");
        // The parent can still use its mapping.
        mapping.write(0, b"here").unwrap();
    }

    #[test]
    fn another_fault_in_a_child_is_not_explained_by_the_fork() {
        let _mapping = mapped();
        let (status, said) = forked(|| read_at(8));
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
        assert_eq!(said, "");
    }

    #[test]
    fn nothing_of_a_childs_comes_to_lie_where_its_parents_pointers_point() {
        let mapping = mapped();
        let (status, _) = forked(|| {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
            let place = mapping.base() as *mut std::ffi::c_void;
            // SAFETY: FIXED_NOREPLACE replaces no existing mapping.
            let taken = unsafe { rustix::mm::mmap_anonymous(place, 4096, ProtFlags::READ, flags) };
            i32::from(taken.is_ok())
        });
        assert_eq!(status, 0, "the address was free");
        // A range that the parent unmapped before the fork is not reserved in the child.
        let base = mapping.base();
        drop(mapping);
        let (status, said) = forked(|| read_at(base));
        assert!(status == 0 || said.is_empty(), "{said}");
    }
}

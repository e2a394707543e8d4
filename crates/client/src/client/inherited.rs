//! Descriptors that a forked child must not keep.
//!
//! Close-on-exec is not enough: a child that never execs (Python's `multiprocessing`) would keep the parent's end of the session
//! and its lock on the registry after the parent's death, and the daemon would wait for the parent for ever. So a fork handler
//! closes these descriptors in the child.

use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::Once;

/// How many descriptors of a process are closed in its children. A child keeps any others.
const SLOTS: usize = 256;
const FREE: i32 = -1;
/// A thread has reserved the slot and is about to store its descriptor.
const TAKEN: i32 = -2;

static DESCRIPTORS: [AtomicI32; SLOTS] = [const { AtomicI32::new(FREE) }; SLOTS];
static HANDLER: Once = Once::new();

/// The owner of a descriptor that exists in this process only. It must not be dropped in a child,
/// where the number may stand for another file by then.
#[derive(Debug)]
pub(super) struct NotInherited<T: AsFd> {
    owner: T,
    slot: Option<usize>,
}

impl<T: AsFd> NotInherited<T> {
    pub(super) fn new(owner: T) -> Self {
        HANDLER.call_once(|| {
            // SAFETY: the handler only makes system calls and accesses atomics, which a child may do after a fork of threads. If
            // registering fails (out of memory), children keep the descriptors, as if there were more than SLOTS.
            unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
        });
        let slot = DESCRIPTORS.iter().position(|slot| {
            slot.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        if let Some(slot) = slot {
            DESCRIPTORS[slot].store(owner.as_fd().as_raw_fd(), Ordering::Release);
        }
        NotInherited { owner, slot }
    }
}

impl<T: AsFd> Deref for NotInherited<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.owner
    }
}

impl<T: AsFd> Drop for NotInherited<T> {
    fn drop(&mut self) {
        // Before the descriptor is closed: otherwise a child forked in between might close another file with the same number.
        if let Some(slot) = self.slot {
            DESCRIPTORS[slot].store(FREE, Ordering::Release);
        }
    }
}

extern "C" fn close_in_child() {
    for slot in &DESCRIPTORS {
        let fd = slot.swap(FREE, Ordering::AcqRel);
        if fd >= 0 {
            // SAFETY: the number was an open descriptor of a `NotInherited` when the process forked, and no `NotInherited` of the parent
            // is dropped in a child, so nothing else closes it.
            unsafe { libc::close(fd) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_does_not_have_it() {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let number = reader.as_raw_fd();
        let kept = NotInherited::new(reader);
        // SAFETY: the child only makes system calls, then exits.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: F_GETFD only queries a number, open or not, and `_exit` ends the child.
            unsafe {
                let closed = libc::fcntl(number, libc::F_GETFD) == -1;
                let other = libc::fcntl(writer.as_raw_fd(), libc::F_GETFD) != -1;
                libc::_exit(if closed && other { 7 } else { 1 });
            }
        }
        let mut status = 0;
        // SAFETY: `status` is a local variable that lives during the call.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(libc::WEXITSTATUS(status), 7);
        assert!(rustix::io::fcntl_getfd(kept.as_fd()).is_ok(), "still here");
        let slot = kept.slot.unwrap();
        drop(kept);
        assert_ne!(DESCRIPTORS[slot].load(Ordering::Relaxed), number);
    }
}

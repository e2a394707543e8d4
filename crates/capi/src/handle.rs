//! Handles: boxes that C holds, and the table of all live ones.
//!
//! The table holds a handle's address from `give` to `take`. So `take` refuses a handle that C destroys twice, before it
//! touches memory, unless a new handle has the same address.
//!
//! A forked child starts with an empty table. So it destroys none of its parent's handles, whose threads and descriptors it
//! lacks. It also never takes a lock of the inherited table, which another thread may have held during the fork.

use crate::status::{Code, Failure, Outcome};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Parts of the table, each with a lock of its own.
const SHARDS: usize = 16;

/// The number of forks between this process and its first ancestor that used the library.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// A kind of handle.
pub(crate) trait Object: Sized {
    /// The kind's name in error messages.
    const NAME: &'static str;

    /// The process that created the handle.
    fn birth(&self) -> &Birth;
}

/// Identifies the process that created a handle, by its `GENERATION`.
#[derive(Debug)]
pub(crate) struct Birth(u32);

impl Birth {
    pub(crate) fn now() -> Birth {
        watch_forks();
        Birth(GENERATION.load(Ordering::Relaxed))
    }

    fn check(&self, name: &str) -> Outcome {
        // Relaxed: fork itself orders the change before anything in the child.
        if self.0 == GENERATION.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(forked(name))
    }
}

fn forked(name: &str) -> Failure {
    Failure::new(
        Code::Forked,
        format!("this {name} was made before fork(); make a new one in the child process"),
    )
}

/// Makes a handle for C, and enters it into the table.
pub(crate) fn give<T: Object>(object: T) -> *mut T {
    let handle = Box::into_raw(Box::new(object));
    live().lock(handle as usize).insert(handle as usize);
    handle
}

/// Borrows a handle that C passes; fails for NULL and in a forked child.
///
/// # Safety
/// `handle` is NULL or lives until the function that C called returns.
pub(crate) unsafe fn borrow<'a, T: Object>(handle: *const T) -> Outcome<&'a T> {
    // SAFETY: our caller promises NULL, which `as_ref` answers, or a handle that lives until C's call returns.
    let Some(object) = (unsafe { handle.as_ref() }) else {
        return Err(Failure::argument(format!("the {} is NULL", T::NAME)));
    };
    object.birth().check(T::NAME)?;
    Ok(object)
}

/// Takes a handle back from C, so that the caller drops it; None for NULL.
///
/// # Safety
/// `handle` is NULL or a handle of this kind that C was given, and no other function uses it.
pub(crate) unsafe fn take<T: Object>(handle: *mut T) -> Outcome<Option<Box<T>>> {
    if handle.is_null() {
        return Ok(None);
    }
    if !live().lock(handle as usize).remove(&(handle as usize)) {
        if GENERATION.load(Ordering::Relaxed) > 0 {
            return Err(Failure::new(
                Code::Forked,
                format!(
                    "this {} was made before fork(), or is gone already",
                    T::NAME
                ),
            ));
        }
        return Err(Failure::new(
            Code::NotHeld,
            format!(
                "this {} is gone already: it was destroyed or released before",
                T::NAME
            ),
        ));
    }
    // SAFETY: the table had the address, so `give` made the box and nobody has taken it since. The caller promises that it
    // is of this kind.
    Ok(Some(unsafe { Box::from_raw(handle) }))
}

/// The addresses of all live handles, in shards.
struct Live([Mutex<HashSet<usize>>; SHARDS]);

static LIVE: AtomicPtr<Live> = AtomicPtr::new(std::ptr::null_mut());

impl Live {
    fn lock(&self, address: usize) -> MutexGuard<'_, HashSet<usize>> {
        // The allocator aligns boxes to at least 16 bytes, so the lower four bits say nothing.
        let shard = &self.0[(address >> 4) % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn live() -> &'static Live {
    watch_forks();
    let mut table = LIVE.load(Ordering::Acquire);
    if table.is_null() {
        let new = Box::into_raw(Box::new(Live(Default::default())));
        table = match LIVE.compare_exchange(
            std::ptr::null_mut(),
            new,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: `new` comes from `Box::into_raw` above, and the failed exchange published it to nobody.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
    }
    // SAFETY: LIVE points to a table that this function leaked, in this process or in one that it was forked from.
    unsafe { &*table }
}

/// Registers a fork handler that gives forked children an empty table and no default node.
fn watch_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    // A child inherits its parent's fork handlers, so one registration is enough for all generations.
    if WATCHED.load(Ordering::Acquire) || WATCHED.swap(true, Ordering::AcqRel) {
        return;
    }
    unsafe extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        LIVE.store(std::ptr::null_mut(), Ordering::Release);
        crate::node::forget_default();
    }
    // SAFETY: the handler only stores to atomics, which POSIX allows in the child of a process with threads. The
    // registration fails only without memory; the Rust library then still detects the fork by its own means.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing(Birth);

    impl Object for Thing {
        const NAME: &'static str = "thing";
        fn birth(&self) -> &Birth {
            &self.0
        }
    }

    #[test]
    fn a_handle_is_taken_once() {
        let handle = give(Thing(Birth::now()));
        // SAFETY: NULL, and a handle that `give` gave; after it was taken only its address is used.
        unsafe {
            assert!(borrow(handle).is_ok());
            assert!(take(handle).unwrap().is_some());
            assert_eq!(take(handle).err().unwrap().code, Code::NotHeld);
            assert!(take::<Thing>(std::ptr::null_mut()).unwrap().is_none());
            let null = borrow::<Thing>(std::ptr::null()).err().unwrap();
            assert_eq!(
                (null.code, null.message.as_str()),
                (Code::Argument, "the thing is NULL")
            );
        }
    }

    #[test]
    fn a_child_refuses_and_starts_anew() {
        let handle = give(Thing(Birth::now()));
        // The child must not wait for a lock that another thread held.
        let locked = live().lock(handle as usize);
        // SAFETY: the child uses memory and atomics only, then exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: `give` made it above, and the parent's copy of it is another process's.
            let refused = unsafe {
                borrow(handle).err().map(|f| f.code) == Some(Code::Forked)
                    && take(handle).err().map(|f| f.code) == Some(Code::Forked)
            };
            let own = give(Thing(Birth::now()));
            // SAFETY: `_exit` has no conditions; it ends the child without running the parent's handlers.
            unsafe {
                let works = borrow(own).is_ok() && matches!(take(own), Ok(Some(_)));
                libc::_exit(if refused && works { 7 } else { 1 });
            }
        }
        drop(locked);
        let mut status = 0;
        // SAFETY: `status` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7);
        // SAFETY: `give` made it above, and nothing uses it any more.
        unsafe { assert!(take(handle).unwrap().is_some()) };
    }
}

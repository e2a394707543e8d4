//! Handles: boxes that C holds, and which of them live.
//!
//! A handle's address is in a table from its making to its end, so one that is destroyed twice is
//! found out before it is touched (unless its address has been given to another of its kind since).
//!
//! A forked child starts with an empty table: it destroys none of its parent's handles, whose
//! threads and descriptors it does not have, and its copy of the table's locks is never touched,
//! which another thread may have held when the process forked.

use crate::status::{Code, Failure, Outcome};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Parts of the table, each with a lock of its own.
const SHARDS: usize = 16;

/// How often this process was forked, from its first ancestor that used the library.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// A kind of handle.
pub(crate) trait Object: Sized {
    /// What messages call it.
    const NAME: &'static str;

    /// In which process it was made.
    fn birth(&self) -> &Birth;
}

/// Says in which process a handle was made.
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

/// Hands a new handle to C.
pub(crate) fn give<T: Object>(object: T) -> *mut T {
    let handle = Box::into_raw(Box::new(object));
    live().lock(handle as usize).insert(handle as usize);
    handle
}

/// The handle that C passes.
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

/// Takes a handle back from C. The caller drops it; none for NULL.
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
    // SAFETY: the table had the address, so the box is one that `give` made and nobody has taken;
    // that it is of this kind is the caller's promise.
    Ok(Some(unsafe { Box::from_raw(handle) }))
}

/// Addresses of the handles that live.
struct Live([Mutex<HashSet<usize>>; SHARDS]);

static LIVE: AtomicPtr<Live> = AtomicPtr::new(std::ptr::null_mut());

impl Live {
    fn lock(&self, address: usize) -> MutexGuard<'_, HashSet<usize>> {
        // Boxes lie at multiples of 16 at least.
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
            Err(theirs) => {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(new) });
                theirs
            }
        };
    }
    // SAFETY: what LIVE points to was made here and is never freed; a child leaves its parent's.
    unsafe { &*table }
}

/// Has forked children start anew.
fn watch_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    // A child inherits its parent's handlers, so once is enough for all generations.
    if WATCHED.load(Ordering::Acquire) || WATCHED.swap(true, Ordering::AcqRel) {
        return;
    }
    unsafe extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        LIVE.store(std::ptr::null_mut(), Ordering::Release);
        crate::node::forget_default();
    }
    // SAFETY: the handler only stores to atomics, which is allowed in the child of a process with
    // threads. It can fail for want of memory: then the Rust library still refuses in children,
    // which has other means to know.
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

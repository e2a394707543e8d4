//! Atomics, futexes and the clock: those of `core` and Linux, or, in models (`--cfg loom`), those of loom.
//!
//! Code of protocols between processes uses this crate, so that models run the same lines that ship.

#![warn(clippy::too_many_lines)]

pub mod atomic;
mod cache;
mod clock;
mod futex;

pub use cache::{demote, prefetch_for_write};
pub use clock::{monotonic_ns, to_wall, wall_ns, wall_offset_ns};
pub use futex::{futex_wait, futex_wait_any, futex_wake_all, Wake, WAIT_ANY_MAX};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a thread panicked while it held the lock. Use it only for data that is consistent after each
/// statement under the lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells the processor that this is a spin loop, and a model that other threads must run.
#[inline(always)]
pub fn spin_hint() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

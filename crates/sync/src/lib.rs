//! Atomics, futexes and the clock, as `core` and Linux give them, or as loom models them.
//!
//! Code that other processes take part in is written against this crate, so that a model
//! (`--cfg loom`) runs the very lines that ship.

#![warn(clippy::too_many_lines)]

pub mod atomic;
mod cache;
mod clock;
mod futex;

pub use cache::{demote, prefetch_for_write};
pub use clock::{monotonic_ns, to_wall, wall_ns, wall_offset_ns};
pub use futex::{futex_wait, futex_wait_any, futex_wake_all, Wake, WAIT_ANY_MAX};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also if a thread panicked that had it: for what is right after each statement under the lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells the processor that this is a spin loop (and the model that others must run).
#[inline(always)]
pub fn spin_hint() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

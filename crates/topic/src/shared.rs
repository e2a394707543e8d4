//! Words in a mapped control segment.

use crate::Storage;
use rgaps_sync::atomic::{AtomicU128, AtomicU32, AtomicU64};

/// A control segment that is mapped read-write into this process.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    base: *mut u8,
    len: u64,
}

// SAFETY: every access goes through atomics, which any thread may use; the mapping outlives all
// copies by the contract of `Shared::new`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// # Safety
    /// `base` is aligned to a page and mapped read-write for `len` bytes until the last copy of
    /// the result is gone, and no Rust reference but to atomics points into it.
    pub const unsafe fn new(base: *mut u8, len: u64) -> Shared {
        Shared { base, len }
    }

    #[inline(always)]
    fn at<T>(&self, at: u64) -> *const T {
        // Checked in release too: one compare against a register is cheaper than the alternative.
        assert!(at < self.len && self.len - at >= size_of::<T>() as u64);
        debug_assert_eq!(at as usize % align_of::<T>(), 0);
        // SAFETY: the offset was just found to lie inside the mapping.
        unsafe { self.base.add(at as usize) }.cast()
    }
}

impl Storage for Shared {
    fn len(&self) -> u64 {
        self.len
    }
    #[inline(always)]
    fn u32(&self, at: u64) -> &AtomicU32 {
        // SAFETY: in bounds and aligned (`at`), mapped by the contract of `new`, and atomics may
        // change under a shared reference, also by another process.
        unsafe { &*self.at(at) }
    }
    #[inline(always)]
    fn u64(&self, at: u64) -> &AtomicU64 {
        // SAFETY: as for `u32`.
        unsafe { &*self.at(at) }
    }
    #[inline(always)]
    fn u128(&self, at: u64) -> &AtomicU128 {
        // SAFETY: as for `u32`.
        unsafe { &*self.at(at) }
    }
}

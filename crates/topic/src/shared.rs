//! [`Shared`]: the words of a mapped control segment.

use crate::Storage;
use rgaps_sync::atomic::{AtomicU128, AtomicU32, AtomicU64};

/// A control segment that is mapped read-write into this process.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    base: *mut u8,
    len: u64,
}

// SAFETY: every access goes through atomics, which any thread may use. The caller of `Shared::new` promised that the mapping outlives
// all copies.
unsafe impl Send for Shared {}
// SAFETY: its state is an address and a length, which never change, and `word` returns references only to atomics.
unsafe impl Sync for Shared {}

/// An atomic word.
trait Word {}
impl Word for AtomicU32 {}
impl Word for AtomicU64 {}
impl Word for AtomicU128 {}

impl Shared {
    /// The control segment at `base`, `len` bytes long.
    ///
    /// # Safety
    /// `base` is aligned to a page and mapped read-write for `len` bytes until the last copy of the result is dropped, and no Rust
    /// reference except to atomics points into it.
    pub const unsafe fn new(base: *mut u8, len: u64) -> Shared {
        Shared { base, len }
    }

    #[inline(always)]
    fn word<T: Word>(&self, at: u64) -> &T {
        // Checked in release too: one compare against a register is cheaper than the alternative.
        assert!(at < self.len && self.len - at >= size_of::<T>() as u64);
        debug_assert_eq!(at as usize % align_of::<T>(), 0);
        // SAFETY: the word lies inside the mapping, which was just checked and stays by the contract of `new`. It is
        // aligned: tables and regions begin at multiples of 64 bytes from `base` (`TopicView::new`, `RegionView::new`,
        // layout's constants), and layout asserts the offset of each word in them. It is an atomic, so others may
        // change it under a shared reference, also other processes.
        unsafe { &*self.base.add(at as usize).cast() }
    }
}

impl Storage for Shared {
    fn len(&self) -> u64 {
        self.len
    }
    #[inline(always)]
    fn u32(&self, at: u64) -> &AtomicU32 {
        self.word(at)
    }
    #[inline(always)]
    fn u64(&self, at: u64) -> &AtomicU64 {
        self.word(at)
    }
    #[inline(always)]
    fn u128(&self, at: u64) -> &AtomicU128 {
        self.word(at)
    }
}

//! [`Storage`]: the memory of the shared words, real or of a model.

use rgaps_sync::atomic::{AtomicU128, AtomicU32, AtomicU64};

/// Words at offsets: a mapped control segment, or a model's cells.
///
/// Offsets come from a view that has checked that its structure lies within [`len`](Self::len).
pub trait Storage: Clone {
    /// Length in bytes.
    fn len(&self) -> u64;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The 32-bit word at `at`, a multiple of 4.
    fn u32(&self, at: u64) -> &AtomicU32;
    /// The 64-bit word at `at`, a multiple of 8.
    fn u64(&self, at: u64) -> &AtomicU64;
    /// The 128-bit word at `at`, a multiple of 16.
    fn u128(&self, at: u64) -> &AtomicU128;
}

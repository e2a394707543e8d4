//! Atomic integers of 32, 64 and 128 bits.

pub use core::sync::atomic::Ordering;

#[cfg(not(loom))]
pub use core::sync::atomic::{fence, AtomicU32, AtomicU64};
#[cfg(loom)]
pub use loom::sync::atomic::{fence, AtomicU32, AtomicU64};

#[cfg(not(loom))]
pub use portable_atomic::AtomicU128;

/// Whether 128-bit compare-and-swap is one instruction here. Where it is not, it would be
/// emulated by a lock that other processes do not see, and nothing that shares memory may start.
pub fn has_lock_free_u128() -> bool {
    #[cfg(not(loom))]
    return AtomicU128::is_lock_free();
    #[cfg(loom)]
    return true;
}

/// loom has no 128-bit atomic: this one is a mutex around the value, which the model explores as
/// a single step. It orders at least as strongly as the acquire-release operations that we use.
#[cfg(loom)]
#[derive(Debug, Default)]
pub struct AtomicU128(loom::sync::Mutex<u128>);

#[cfg(loom)]
#[allow(missing_docs)]
impl AtomicU128 {
    pub fn new(value: u128) -> Self {
        AtomicU128(loom::sync::Mutex::new(value))
    }
    pub fn load(&self, _: Ordering) -> u128 {
        *self.0.lock().unwrap()
    }
    pub fn store(&self, value: u128, _: Ordering) {
        *self.0.lock().unwrap() = value;
    }
    pub fn compare_exchange(
        &self,
        current: u128,
        new: u128,
        _: Ordering,
        _: Ordering,
    ) -> Result<u128, u128> {
        let mut value = self.0.lock().unwrap();
        if *value == current {
            *value = new;
            Ok(current)
        } else {
            Err(*value)
        }
    }
    pub fn compare_exchange_weak(
        &self,
        current: u128,
        new: u128,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u128, u128> {
        self.compare_exchange(current, new, success, failure)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_platform_has_the_wide_compare_and_swap() {
        assert!(has_lock_free_u128());
        let word = AtomicU128::new(7);
        assert_eq!(
            word.compare_exchange(7, 1 << 100, Ordering::AcqRel, Ordering::Acquire),
            Ok(7)
        );
        assert_eq!(word.load(Ordering::Acquire), 1 << 100);
    }
}

//! Atomic integers of 32, 64 and 128 bits.

pub use core::sync::atomic::Ordering;

#[cfg(not(loom))]
pub use core::sync::atomic::{fence, AtomicU32, AtomicU64};
#[cfg(loom)]
pub use loom::sync::atomic::{fence, AtomicU32, AtomicU64};

#[cfg(not(loom))]
pub use portable_atomic::AtomicU128;

/// Whether 128-bit compare-and-swap is lock-free on this processor. If not, it is emulated by a lock that other
/// processes do not see: then no program that shares memory may start.
pub fn has_lock_free_u128() -> bool {
    #[cfg(not(loom))]
    return AtomicU128::is_lock_free();
    #[cfg(loom)]
    return true;
}

/// loom has no 128-bit atomic. This one folds the value into one of 64 bits, so that loom explores the orderings that
/// the code asks for. It keeps the 28 lowest and the 4 highest bits of each half; a model that uses others panics.
#[cfg(loom)]
#[derive(Debug)]
pub struct AtomicU128(AtomicU64);

#[cfg(loom)]
mod folded {
    use super::{AtomicU128, AtomicU64, Ordering};

    const LOW: u64 = (1 << 28) - 1;
    const HIGH: u64 = 0b1111 << 60;

    fn fold_half(half: u64) -> u64 {
        assert_eq!(half & !(LOW | HIGH), 0, "a model's values have to be small");
        half & LOW | half >> 32 & !LOW
    }

    fn unfold_half(folded: u64) -> u64 {
        folded & LOW | (folded & !LOW) << 32
    }

    fn fold(value: u128) -> u64 {
        fold_half((value >> 64) as u64) << 32 | fold_half(value as u64)
    }

    fn unfold(folded: u64) -> u128 {
        let low = unfold_half(folded & u64::from(u32::MAX));
        u128::from(unfold_half(folded >> 32)) << 64 | u128::from(low)
    }

    #[allow(missing_docs)]
    impl AtomicU128 {
        pub fn new(value: u128) -> Self {
            AtomicU128(AtomicU64::new(fold(value)))
        }
        pub fn load(&self, order: Ordering) -> u128 {
            unfold(self.0.load(order))
        }
        pub fn store(&self, value: u128, order: Ordering) {
            self.0.store(fold(value), order)
        }
        pub fn compare_exchange(
            &self,
            current: u128,
            new: u128,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u128, u128> {
            self.0
                .compare_exchange(fold(current), fold(new), success, failure)
                .map(unfold)
                .map_err(unfold)
        }
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

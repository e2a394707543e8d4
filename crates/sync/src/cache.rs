//! Hints to the processor about a cache line that another core has, or will soon want.
//!
//! They change nothing but timing, and do nothing where the processor has no such hint, and in models.

#[cfg(all(
    not(loom),
    not(miri),
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
use std::arch::asm;

/// Begins to fetch the cache line of `word` for a write that follows soon.
#[inline(always)]
pub fn prefetch_for_write<T>(word: &T) {
    // SAFETY: a prefetch of any address does nothing that a program can see. Processors without
    // the instruction treat its code as a no-op.
    #[cfg(all(not(loom), not(miri), target_arch = "x86_64"))]
    unsafe {
        asm!("prefetchw [{}]", in(reg) word, options(nostack, preserves_flags, readonly));
    }
    // SAFETY: a prefetch of any address does nothing that a program can see.
    #[cfg(all(not(loom), not(miri), target_arch = "aarch64"))]
    unsafe {
        asm!("prfm pstl1keep, [{}]", in(reg) word, options(nostack, preserves_flags, readonly));
    }
    let _ = word;
}

/// Moves the cache line of `word` to the cache that all cores share, since another core will want it next (CLDEMOTE; Intel,
/// from Sapphire Rapids on).
#[inline(always)]
pub fn demote<T>(word: &T) {
    // SAFETY: the line is valid memory, and the instruction only moves it between caches.
    // Processors without it treat its code (0f 1c /0) as a no-op.
    #[cfg(all(not(loom), not(miri), target_arch = "x86_64"))]
    unsafe {
        asm!(".byte 0x0f, 0x1c, 0x07", in("rdi") word, options(nostack, preserves_flags, readonly));
    }
    let _ = word;
}

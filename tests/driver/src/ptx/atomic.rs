//! Atomic operations on memory.

use super::alu::{float, signed, unsigned};
use super::instruction::Instruction;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What an atomic operation writes.
pub(super) fn changed(of: &Instruction, old: u64, [a, b]: [u64; 2]) -> u64 {
    let bytes = of.kind.bytes;
    let result = match () {
        () if of.has("add") && of.kind.is_float() && bytes == 4 => {
            u64::from((f32::from_bits(old as u32) + f32::from_bits(a as u32)).to_bits())
        }
        () if of.has("add") && of.kind.is_float() => (float(old, 8) + float(a, 8)).to_bits(),
        () if of.has("add") => old.wrapping_add(a),
        () if of.has("exch") => a,
        () if of.has("cas") => match unsigned(old, bytes) == unsigned(a, bytes) {
            true => b,
            false => old,
        },
        () if of.has("and") => old & a,
        () if of.has("or") => old | a,
        () if of.has("xor") => old ^ a,
        () if of.has("inc") => match unsigned(old, bytes) >= unsigned(a, bytes) {
            true => 0,
            false => old + 1,
        },
        () if of.has("dec") => match unsigned(old, bytes) {
            old if old == 0 || old > unsigned(a, bytes) => a,
            old => old - 1,
        },
        () if of.kind.is_signed() => {
            let (old, a) = (signed(old, bytes), signed(a, bytes));
            (if of.has("min") {
                old.min(a)
            } else {
                old.max(a)
            }) as u64
        }
        () => {
            let (old, a) = (unsigned(old, bytes), unsigned(a, bytes));
            if of.has("min") {
                old.min(a)
            } else {
                old.max(a)
            }
        }
    };
    unsigned(result, bytes)
}

/// # Safety
/// The address is that of a number of 4 or 8 bytes, aligned and writable.
pub(super) unsafe fn exchange(address: u64, bytes: usize, change: impl Fn(u64) -> u64) -> u64 {
    // SAFETY: aligned and writable, as the caller promises; whoever else uses it meanwhile does so by atomic operations.
    unsafe {
        if bytes == 8 {
            let number = AtomicU64::from_ptr(address as *mut u64);
            let update = |old| Some(change(old));
            return number
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, update)
                .unwrap_or(0);
        }
        let number = AtomicU32::from_ptr(address as *mut u32);
        let update = |old: u32| Some(change(old.into()) as u32);
        number
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, update)
            .unwrap_or(0)
            .into()
    }
}

//! Handles of math libraries. This process mints them, and keeps the pointer mode, the stream and so on of each.

use crate::{session, thread};
use rgaps_remoting::math::table;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Slots of a handle; the first is the pointer mode.
const SLOTS: usize = 5;

#[derive(Clone, Copy)]
pub(super) struct Handle {
    pub(super) kind: u8,
    pub(super) slots: [u64; SLOTS],
    /// Equal for descriptors that the program has set to the same; 0 for main handles.
    pub(super) content: u64,
    /// A GPU of the server that has it.
    pub(super) device: u16,
}

/// All handles, by number.
pub(super) fn handles() -> MutexGuard<'static, HashMap<u64, Handle>> {
    static HANDLES: OnceLock<Mutex<HashMap<u64, Handle>>> = OnceLock::new();
    HANDLES
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// A handle that has just been made.
pub(super) fn made(kind: u8, mode: u64) -> Handle {
    let mut slots = [0; SLOTS];
    slots[0] = mode;
    Handle {
        kind,
        slots,
        content: 0,
        device: thread::device(),
    }
}

/// Whether handles of a type are C's int: those of cuFFT.
pub(super) fn is_short(kind: u8) -> bool {
    table().handles.get(usize::from(kind)) == Some(&"cufft")
}

/// A new number.
pub(super) fn mint(kind: u8) -> u64 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    match is_short(kind) {
        true => u64::from(NEXT.fetch_add(1, Ordering::Relaxed)),
        false => session::mint(),
    }
}

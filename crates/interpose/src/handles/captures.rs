//! Numbers of captures: each has one that no other has.

use crate::session;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

fn numbers() -> MutexGuard<'static, HashMap<u64, u64>> {
    static NUMBERS: OnceLock<Mutex<HashMap<u64, u64>>> = OnceLock::new();
    NUMBERS
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// A stream begins to record.
pub(crate) fn begun(stream: u64) {
    numbers().insert(stream, session::mint());
}

/// The number of the capture of a stream that records. One that joined a capture has a number of its own here.
pub(crate) fn number(stream: u64) -> u64 {
    *numbers().entry(stream).or_insert_with(session::mint)
}

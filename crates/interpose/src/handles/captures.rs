//! Captures: each has a number that no other has, and the handle that its graph will have.

use crate::session;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// A capture.
#[derive(Clone, Copy)]
pub(crate) struct Capture {
    pub(crate) number: u64,
    /// The server knows it when the capture has ended.
    pub(crate) graph: u64,
}

impl Capture {
    fn new() -> Capture {
        Capture {
            number: session::mint(),
            graph: session::mint(),
        }
    }
}

fn captures() -> MutexGuard<'static, HashMap<u64, Capture>> {
    static CAPTURES: OnceLock<Mutex<HashMap<u64, Capture>>> = OnceLock::new();
    CAPTURES
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// A stream begins to record.
pub(crate) fn begun(stream: u64) {
    captures().insert(stream, Capture::new());
}

/// The capture of a stream that records. One that joined a capture has one of its own here.
pub(crate) fn of(stream: u64) -> Capture {
    *captures().entry(stream).or_insert_with(Capture::new)
}

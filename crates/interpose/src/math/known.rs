//! A cache of the results of pure functions, so that a repeated call does not wait: PyTorch asks for the heuristic of each product with a
//! bias.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Most results in the cache. A full cache is emptied.
const RESULTS_MAX: usize = 4096;

fn results() -> MutexGuard<'static, HashMap<Vec<u8>, Vec<u8>>> {
    static RESULTS: OnceLock<Mutex<HashMap<Vec<u8>, Vec<u8>>>> = OnceLock::new();
    RESULTS
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// The bytes that an equal call gave, if they are kept.
pub(super) fn find(key: &[u8]) -> Option<Vec<u8>> {
    results().get(key).cloned()
}

/// Keeps the bytes that a call gave.
pub(super) fn keep(key: Vec<u8>, bytes: Vec<u8>) {
    let mut results = results();
    if results.len() >= RESULTS_MAX {
        results.clear();
    }
    results.insert(key, bytes);
}

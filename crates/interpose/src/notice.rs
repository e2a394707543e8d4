//! Notices for the program's user, on standard error.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Prints a text, once in the life of the process.
pub(crate) fn once(text: &str) {
    static SEEN: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if seen
        .get_or_insert_with(HashSet::new)
        .insert(text.to_owned())
    {
        // In one write, so that lines of several threads do not mix; a closed standard error ends no program.
        use std::io::Write;
        let _ = std::io::stderr().write_all(format!("rgaps: {text}\n").as_bytes());
    }
}

/// Prints once that a function is not forwarded.
pub(crate) fn unsupported(name: &str) {
    once(&format!(
        "{name} is not forwarded to the GPU server; it fails with 'not supported'"
    ));
}

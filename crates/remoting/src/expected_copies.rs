//! Which answers bring bytes that nobody waits for (see `async_copy`).

use crate::call::Answer;
use std::collections::{BTreeMap, HashMap};

/// Where the bytes of an answer belong that nobody waits for.
pub(crate) struct ExpectedCopy {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    pub(crate) thread: u16,
}

/// The copies of a connection whose bytes are still expected.
#[derive(Default)]
pub(crate) struct ExpectedCopies {
    pub(crate) expected: BTreeMap<u64, ExpectedCopy>,
    /// By the program's threads, the first error that the thread has still to learn.
    errors: HashMap<u16, i32>,
    pub(crate) has_reader: bool,
}

impl ExpectedCopies {
    /// Whether any answer is expected.
    pub(crate) fn is_empty(&self) -> bool {
        self.expected.is_empty()
    }

    /// Takes the answer, if it is a copy's.
    pub(crate) fn take(&mut self, request: u64, answer: &Answer) -> bool {
        let Some(copy) = self.expected.remove(&request) else {
            return false;
        };
        let code = match answer.deferred {
            0 => answer.code,
            code => code,
        };
        if code != 0 {
            self.errors.entry(copy.thread).or_insert(code);
        }
        true
    }

    /// The error that a thread is to be told.
    pub(crate) fn error(&mut self, thread: u16) -> Option<i32> {
        self.errors.remove(&thread)
    }

    /// Nothing comes any more.
    pub(crate) fn lose(&mut self) {
        self.expected.clear();
    }

    pub(crate) fn touches(&self, start: usize, bytes: usize) -> bool {
        self.expected
            .values()
            .any(|copy| copy.start < start.saturating_add(bytes) && start < copy.start + copy.bytes)
    }
}

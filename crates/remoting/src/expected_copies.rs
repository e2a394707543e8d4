//! The answers that will bring bytes for which no caller waits (see `async_copy`).

use crate::call::CallAnswer;
use std::collections::{BTreeMap, HashMap};

/// Where the bytes of such an answer are written, and which thread made the call.
pub(crate) struct ExpectedCopy {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    pub(crate) thread: u16,
}

/// The copies of a connection whose bytes are still expected.
#[derive(Default)]
pub(crate) struct ExpectedCopies {
    pub(crate) expected: BTreeMap<u64, ExpectedCopy>,
    /// The first error of such calls that each thread of the program has still to learn.
    errors: HashMap<u16, i32>,
    pub(crate) has_reader: bool,
}

impl ExpectedCopies {
    /// Whether any answer is expected.
    pub(crate) fn is_empty(&self) -> bool {
        self.expected.is_empty()
    }

    /// Notes an answer, if it is one of these. Returns whether it is.
    pub(crate) fn take(&mut self, request: u64, answer: &CallAnswer) -> bool {
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

    /// Takes the error that a thread has still to learn.
    pub(crate) fn error(&mut self, thread: u16) -> Option<i32> {
        self.errors.remove(&thread)
    }

    /// Call when the connection is lost: no more answers come.
    pub(crate) fn lose(&mut self) {
        self.expected.clear();
    }

    pub(crate) fn touches(&self, start: usize, bytes: usize) -> bool {
        self.expected
            .values()
            .any(|copy| copy.start < start.saturating_add(bytes) && start < copy.start + copy.bytes)
    }
}

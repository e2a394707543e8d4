//! Which answers bring bytes that nobody waits for (see `landing`).

use crate::call::Answer;
use std::collections::{BTreeMap, HashMap};

/// Where the bytes of an answer belong that nobody waits for.
pub(crate) struct Landing {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    pub(crate) lane: u16,
}

/// The landings of a connection.
#[derive(Default)]
pub(crate) struct Landings {
    pub(crate) expected: BTreeMap<u64, Landing>,
    /// The first error of each lane that nobody was told yet.
    errors: HashMap<u16, i32>,
    pub(crate) has_reader: bool,
}

impl Landings {
    /// Whether any answer is expected.
    pub(crate) fn is_empty(&self) -> bool {
        self.expected.is_empty()
    }

    /// Takes the answer, if it is a landing's.
    pub(crate) fn take(&mut self, request: u64, answer: &Answer) -> bool {
        let Some(landing) = self.expected.remove(&request) else {
            return false;
        };
        let code = match answer.deferred {
            0 => answer.code,
            code => code,
        };
        if code != 0 {
            self.errors.entry(landing.lane).or_insert(code);
        }
        true
    }

    /// The error that a lane is to be told.
    pub(crate) fn error(&mut self, lane: u16) -> Option<i32> {
        self.errors.remove(&lane)
    }

    /// Nothing comes any more.
    pub(crate) fn lose(&mut self) {
        self.expected.clear();
    }

    pub(crate) fn touches(&self, start: usize, bytes: usize) -> bool {
        self.expected.values().any(|landing| {
            landing.start < start.saturating_add(bytes) && start < landing.start + landing.bytes
        })
    }
}

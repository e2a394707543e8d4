//! What came of it.

use serde::Serialize;
use std::collections::BTreeMap;

/// Failures of a class that are told in words, for each topic or host; there may be millions.
const TOLD_MAX: u64 = 6;

/// The last line of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Tally {
    pub minutes: f64,
    pub kills: u64,
    pub cuts: u64,
    /// Messages that subscribers received.
    pub messages: u64,
    pub bytes: u64,
    /// Messages whose bytes or order were wrong.
    pub corrupt: u64,
    /// Messages that no `missed` told of, and those that it told of though they were not missed.
    pub lost_untold: u64,
    pub duplicate: u64,
    /// Members, links and daemons that did not go on, or ended though nobody killed them.
    pub stuck: u64,
    pub leaked_bytes: u64,
    pub leaked_fds: u64,
    /// Kinds of members that this machine cannot run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<&'static str>,
}

impl Tally {
    pub fn is_clean(&self) -> bool {
        let wrong = self.corrupt + self.lost_untold + self.duplicate + self.stuck;
        wrong + self.leaked_bytes + self.leaked_fds == 0
    }
}

/// The tally, and the first failures in words.
#[derive(Debug, Default)]
pub struct Report {
    pub tally: Tally,
    pub failures: Vec<String>,
    /// How many there are, of each class and topic or host.
    pub told: BTreeMap<(&'static str, String), u64>,
}

impl Report {
    pub fn corrupt(&mut self, place: &str, what: String) {
        self.tally.corrupt += 1;
        self.tell("corrupt", place, what);
    }

    pub fn lost(&mut self, place: &str, count: u64, what: String) {
        self.tally.lost_untold += count;
        self.tell("lost_untold", place, what);
    }

    pub fn duplicate(&mut self, place: &str, what: String) {
        self.tally.duplicate += 1;
        self.tell("duplicate", place, what);
    }

    pub fn stuck(&mut self, place: &str, what: String) {
        self.tally.stuck += 1;
        self.tell("stuck", place, what);
    }

    pub fn leaked_bytes(&mut self, place: &str, bytes: u64, what: String) {
        self.tally.leaked_bytes += bytes;
        self.tell("leaked_bytes", place, what);
    }

    pub fn leaked_fds(&mut self, place: &str, count: u64, what: String) {
        self.tally.leaked_fds += count;
        self.tell("leaked_fds", place, what);
    }

    fn tell(&mut self, class: &'static str, place: &str, what: String) {
        let told = self.told.entry((class, place.to_owned())).or_default();
        *told += 1;
        if *told <= TOLD_MAX {
            self.failures.push(format!("{class}: {place}: {what}"));
        }
    }
}

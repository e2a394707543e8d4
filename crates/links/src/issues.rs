//! Counts messages that were lost or refused between this host and another, by topics: for `rgaps peers` and the log.

use crate::lock;
use crate::wire::clip;
use rgaps_client::PeerTopic;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How many topics are remembered for a host. Messages of further topics are not counted here.
const MAX_TOPICS: usize = 1024;
/// Least time between two log lines about missed messages of a topic: a fast publisher may lose many.
const SAY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct TopicIssues(Mutex<BTreeMap<String, TopicIssue>>);

#[derive(Default)]
struct TopicIssue {
    row: PeerTopic,
    /// How many messages were missed since the last log line about missed messages.
    unsaid: u64,
    /// When that line was logged. None: never.
    logged: Option<Instant>,
}

impl TopicIssues {
    fn note(&self, topic: &str, change: impl FnOnce(&mut TopicIssue)) {
        let mut issues = lock(&self.0);
        if !issues.contains_key(topic) && issues.len() >= MAX_TOPICS {
            return;
        }
        let note = issues.entry(topic.to_owned()).or_default();
        note.row.topic = topic.to_owned();
        change(note);
    }

    pub fn gave_up(&self, topic: &str, messages: u64) {
        self.note(topic, |note| note.row.gave_up += messages);
    }

    /// Counts messages of the other host that never came. If a log line is due, logs and returns how many there were since the last one.
    pub fn missed(&self, topic: &str, messages: u64) -> Option<u64> {
        let mut unsaid = None;
        self.note(topic, |note| {
            note.row.missed += messages;
            note.unsaid += messages;
            if note.logged.is_none_or(|logged| logged.elapsed() >= SAY) {
                note.logged = Some(Instant::now());
                unsaid = Some(std::mem::take(&mut note.unsaid));
            }
        });
        if let Some(missed) = unsaid {
            tracing::warn!(topic, missed, "messages of another host were lost");
        }
        unsaid
    }

    /// Counts messages of a topic that were refused, and records why. Returns whether the reason is new.
    pub fn refused(&self, topic: &str, times: u64, why: &str) -> bool {
        let why = clip(why);
        let mut is_new = false;
        self.note(topic, |TopicIssue { row, .. }| {
            row.refused += times;
            is_new = row.why != why;
            row.why = why;
        });
        is_new
    }

    /// Like [`refused`](Self::refused). If the reason is new, also logs it after `what`, which names the consequence.
    pub fn warn_refused(&self, topic: &str, times: u64, what: &str, why: &str) {
        if self.refused(topic, times, why) {
            tracing::warn!(topic, "{what}: {why}");
        }
    }

    pub fn allowed(&self, topic: &str) {
        let mut issues = lock(&self.0);
        if let Some(note) = issues.get_mut(topic) {
            note.row.why.clear();
        }
    }

    /// The rows of at most so many topics, those with the most messages first.
    pub fn rows(&self, most: usize) -> Vec<PeerTopic> {
        let issues = lock(&self.0);
        let lost = |row: &PeerTopic| row.gave_up + row.missed + row.refused;
        let mut rows: Vec<PeerTopic> = issues
            .values()
            .map(|note| &note.row)
            .filter(|row| lost(row) > 0 || !row.why.is_empty())
            .cloned()
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(lost(row)));
        rows.truncate(most);
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_most_comes_first_and_reasons_go() {
        let issues = TopicIssues::default();
        assert_eq!(issues.rows(8), []);
        issues.gave_up("a", 2);
        assert_eq!(issues.missed("b", 2), Some(2));
        assert_eq!(issues.missed("b", 1), None, "so soon");
        assert!(issues.refused("c", 0, "a rule"));
        assert!(!issues.refused("c", 1, "a rule"));
        issues.gave_up("a", 2);
        let rows = issues.rows(8);
        let names: Vec<&str> = rows.iter().map(|row| row.topic.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(
            (rows[0].gave_up, rows[1].missed, rows[2].refused),
            (4, 3, 1)
        );
        assert_eq!(rows[2].why, "a rule");
        issues.allowed("c");
        assert_eq!(issues.rows(8)[2].why, "");
        assert_eq!(issues.rows(1).len(), 1);
        (0..2 * MAX_TOPICS).for_each(|topic| issues.gave_up(&topic.to_string(), 1));
        assert!(issues.rows(usize::MAX).len() <= MAX_TOPICS);
    }
}

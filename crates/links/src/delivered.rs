//! Delivered positions, in a file beside the socket: the next life of the links does not publish again what this one has published.
//!
//! The file begins with a word for its form. Records follow, each of a cache line, with these words ([`Word`]):
//!
//! - `Incarnation`: the publisher on the other host. 0: the record is free.
//! - `Next`: messages below this sequence were published here or counted as missed.
//! - `Publisher`, `Before`, `Begun`: the landing's publisher, how many messages it had published, and the sequence of the message that it
//!   was about to publish then. They count only if `Begun` is not below `Next`.
//! - `Topic`: the topic's number. `Unwanted`: 1 if the topic had no subscriber here since the last message: then no message before
//!   the next one counts as missed.
//!
//! `Begun` is stored before a message is published, `Next` after it, each as a single word, so a kill between any two stores leaves a
//! correct record. The daemon counts the messages of publishers that died: its count says whether the message in `Begun` was published.

use crate::keys::number_of;
use crate::lock;
use anyhow::Context;
use rgaps_pool::WordFile;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How many publishers the file remembers.
const RECORDS: usize = 4096;
const RECORD_WORDS: usize = 8;
/// The form of the file: "rgaps" and its version.
const FORM: u64 = u64::from_le_bytes(*b"rgaps\0\0\x03");

#[derive(Clone, Copy)]
enum Word {
    Incarnation,
    Next,
    Publisher,
    Before,
    Begun,
    Topic,
    Unwanted,
}

/// The file of delivered positions.
pub struct DeliveredFile {
    file: Arc<WordFile>,
    /// By records, when each was looked up last, as a number that rises with each look-up. 0: never.
    used: Mutex<Vec<u64>>,
}

/// The record of one publisher.
pub struct DeliveredRecord {
    file: Arc<WordFile>,
    record: usize,
}

fn word(file: &WordFile, record: usize, word: Word) -> &AtomicU64 {
    &file.words()[(1 + record) * RECORD_WORDS + word as usize]
}

impl DeliveredFile {
    /// Opens or creates the file. `departed`: how many messages publishers of former links had published.
    pub fn open(path: &Path, departed: &HashMap<u64, u64>) -> anyhow::Result<DeliveredFile> {
        let file = WordFile::open(path, (1 + RECORDS) * RECORD_WORDS)
            .with_context(|| path.display().to_string())?;
        let words = file.words();
        if words[0].load(Ordering::Relaxed) != FORM {
            words
                .iter()
                .for_each(|word| word.store(0, Ordering::Relaxed));
            words[0].store(FORM, Ordering::Relaxed);
        }
        for record in 0..RECORDS {
            let word = |at| word(&file, record, at).load(Ordering::Relaxed);
            // If the message in `Begun` was published, `Next` has to be the sequence after it.
            let open = word(Word::Next)..u64::MAX;
            let begun = Some(word(Word::Begun)).filter(|begun| open.contains(begun));
            let count = departed.get(&word(Word::Publisher));
            let was = count.is_some_and(|count| *count > word(Word::Before));
            if let Some(begun) = begun.filter(|_| was && word(Word::Incarnation) != 0) {
                self::word(&file, record, Word::Next).store(begun + 1, Ordering::Release);
            }
        }
        Ok(DeliveredFile {
            file: Arc::new(file),
            used: Mutex::new(vec![0; RECORDS]),
        })
    }

    /// Marks the records of all topics but these as unwanted: they have no subscriber here.
    pub fn forget_unwanted(&self, wanted: &BTreeSet<u64>) {
        for record in 0..RECORDS {
            let word = |at| word(&self.file, record, at);
            if !wanted.contains(&word(Word::Topic).load(Ordering::Acquire)) {
                word(Word::Unwanted).store(1, Ordering::Release);
            }
        }
    }

    /// A publisher's record, and the sequence below which everything was published or counted as missed.
    pub fn mark(&self, incarnation: u64, topic: &str) -> (DeliveredRecord, u64) {
        let mut used = lock(&self.used);
        let of =
            |record: usize| word(&self.file, record, Word::Incarnation).load(Ordering::Relaxed);
        let known = (0..RECORDS).find(|record| of(*record) == incarnation);
        // A free record, or else the one that was looked up the longest time ago.
        let other = || (0..RECORDS).min_by_key(|record| (of(*record) != 0, used[*record]));
        let record = known.or_else(other).expect("there are records");
        used[record] = 1 + used.iter().max().expect("there are records");
        let mark = DeliveredRecord {
            file: self.file.clone(),
            record,
        };
        if known.is_none() {
            mark.claim(incarnation, number_of(topic));
        }
        let next = mark.word(Word::Next).load(Ordering::Acquire);
        (mark, next)
    }
}

impl DeliveredRecord {
    /// Gives the record to this publisher.
    fn claim(&self, incarnation: u64, topic: u64) {
        // The record is free until all of its words are right.
        for (at, value) in [
            (Word::Incarnation, 0),
            (Word::Begun, u64::MAX),
            (Word::Next, 0),
            (Word::Topic, topic),
            (Word::Unwanted, 0),
            (Word::Incarnation, incarnation),
        ] {
            self.word(at).store(value, Ordering::Release);
        }
    }

    /// Whether the topic had no subscriber here at some time after the last message.
    pub fn is_restarted(&self) -> bool {
        self.word(Word::Unwanted).load(Ordering::Acquire) != 0
    }

    /// Call at the first message after the topic got a subscriber: missed messages count again.
    pub fn resume(&self) {
        self.word(Word::Unwanted).store(0, Ordering::Release);
    }

    /// Records that exactly the messages below `next` were published or counted as missed.
    pub fn set(&self, next: u64) {
        self.word(Word::Next).store(next, Ordering::Release);
    }

    /// Records that message `next` is about to be published, by a publisher that has published `before` messages.
    pub fn begin(&self, next: u64, publisher: u64, before: u64) {
        self.word(Word::Begun).store(u64::MAX, Ordering::Release);
        self.word(Word::Publisher)
            .store(publisher, Ordering::Release);
        self.word(Word::Before).store(before, Ordering::Release);
        self.word(Word::Begun).store(next, Ordering::Release);
    }

    fn word(&self, at: Word) -> &AtomicU64 {
        word(&self.file, self.record, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> anyhow::Result<DeliveredFile> {
        DeliveredFile::open(path, &HashMap::new())
    }

    #[test]
    fn the_daemon_knows_whether_the_last_one_was_published() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("committed");
        open(&path).unwrap().mark(11, "t").0.begin(5, 77, 3);
        let next = |departed: &[(u64, u64)]| {
            let departed = departed.iter().copied().collect();
            DeliveredFile::open(&path, &departed)
                .unwrap()
                .mark(11, "t")
                .1
        };
        assert_eq!(next(&[]), 0);
        assert_eq!(next(&[(77, 3)]), 0);
        assert_eq!(next(&[(78, 4)]), 0);
        assert_eq!(next(&[(77, 4)]), 6);
        // The next life knows it, too, whatever the daemon remembers then.
        assert_eq!(next(&[]), 6);
        open(&path).unwrap().mark(11, "t").0.set(6);
        assert_eq!(next(&[(77, 4)]), 6);
    }

    #[test]
    fn what_was_published_is_known_to_the_next_life() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("committed");
        let first = open(&path).unwrap();
        let (a, next) = first.mark(11, "t");
        assert_eq!(next, 0);
        let (b, _) = first.mark(12, "t");
        a.set(5);
        b.set(9);
        a.set(6);
        assert_eq!(first.mark(11, "t").1, 6);
        drop((first, a, b));
        let second = open(&path).unwrap();
        assert_eq!((second.mark(11, "t").1, second.mark(12, "t").1), (6, 9));
        assert_eq!(second.mark(13, "t").1, 0);
    }

    #[test]
    fn what_is_missed_is_still_to_be_counted_after_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("committed");
        let committed = open(&path).unwrap();
        committed.mark(11, "t").0.set(5);
        // Message 9 is being published, which would report 5 to 8 as missed: the kill prevents the report.
        committed.mark(11, "t").0.begin(9, 77, 3);
        assert_eq!(open(&path).unwrap().mark(11, "t").1, 5);
        let departed = HashMap::from([(77, 4)]);
        let next = DeliveredFile::open(&path, &departed)
            .unwrap()
            .mark(11, "t")
            .1;
        assert_eq!(next, 10, "it was published");
    }

    #[test]
    fn what_nobody_subscribed_to_is_not_missed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("committed");
        let committed = open(&path).unwrap();
        let (t, u) = (committed.mark(11, "t").0, committed.mark(12, "u").0);
        assert!(!t.is_restarted() && !u.is_restarted());
        committed.forget_unwanted(&BTreeSet::from([number_of("u")]));
        assert!(t.is_restarted() && !u.is_restarted());
        // The next life of the links, which does not know the topic yet, reads it from the file.
        let next = open(&path).unwrap();
        assert!(next.mark(11, "t").0.is_restarted());
        next.forget_unwanted(&BTreeSet::from([number_of("t")]));
        assert!(next.mark(12, "u").0.is_restarted());
        t.resume();
        assert!(!t.is_restarted());
    }

    #[test]
    fn a_file_of_another_form_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("committed");
        let bytes = (1 + RECORDS) * RECORD_WORDS * 8;
        for previous in [vec![1; 21], vec![0xff; bytes], vec![3; 2 * bytes]] {
            std::fs::write(&path, previous).unwrap();
            assert_eq!(open(&path).unwrap().mark(3, "t").1, 0);
            open(&path).unwrap().mark(3, "t").0.set(4);
            assert_eq!(open(&path).unwrap().mark(3, "t").1, 4);
        }
    }

    #[test]
    fn a_kill_between_any_two_stores_leaves_what_is_right() {
        // Message 5 is being published: all states that the words go through, and what the next life makes of them.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("committed");
        let committed = open(&path).unwrap();
        let (mark, _) = committed.mark(11, "t");
        mark.begin(4, 77, 3);
        mark.set(5);
        let file = &committed.file;
        let states: [(Word, u64, u64, u64); 5] = [
            // What is stored, how many messages the daemon counted then, and the next one.
            (Word::Begun, u64::MAX, 4, 5),
            (Word::Publisher, 77, 4, 5),
            (Word::Before, 4, 4, 5),
            (Word::Begun, 5, 4, 5),
            (Word::Next, 6, 5, 6),
        ];
        for (at, stored, published, expected) in states {
            word(file, mark.record, at).store(stored, Ordering::Relaxed);
            let departed = HashMap::from([(77, published)]);
            let next = DeliveredFile::open(&path, &departed)
                .unwrap()
                .mark(11, "t")
                .1;
            assert_eq!(next, expected, "{stored}");
        }
        // The message was published, and not yet reported.
        word(file, mark.record, Word::Next).store(5, Ordering::Relaxed);
        let departed = HashMap::from([(77, 5)]);
        assert_eq!(
            DeliveredFile::open(&path, &departed)
                .unwrap()
                .mark(11, "t")
                .1,
            6
        );
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let dir = tempfile::tempdir().unwrap();
        let committed = open(&dir.path().join("committed")).unwrap();
        for incarnation in 1..=RECORDS as u64 {
            committed.mark(incarnation, "t").0.set(1);
        }
        committed.mark(1, "t");
        committed.mark(RECORDS as u64 + 1, "t").0.set(1);
        let next = |incarnation| committed.mark(incarnation, "t").1;
        assert_eq!((next(1), next(3), next(2)), (1, 1, 0));
    }
}

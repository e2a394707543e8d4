//! How far each publisher's messages were published here, in a file beside the socket, so that what a
//! former life of the links had published is not published again.
//!
//! The file has a word that names its form, then records of a cache line: the publisher's incarnation; the sequence
//! below which everything was published; the publisher that stands for it here, how many messages that one had published,
//! and the sequence that was to be published then. The last three count only if that sequence is the record's next one. They
//! are stored before a message is published, the next sequence after: a single word, so that a kill between any two stores
//! leaves a record that is right. A kill between them also leaves open whether the message was published; the daemon
//! knows, for it counts what publishers that died had published.

use anyhow::Context;
use rgaps_pool::WordFile;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Publishers that are remembered.
const RECORDS: usize = 4096;
const RECORD_WORDS: usize = 8;
/// The form of the file: "rgaps" and its version.
const FORM: u64 = u64::from_le_bytes(*b"rgaps\0\0\x02");

/// Words of a record.
#[derive(Clone, Copy)]
enum Word {
    Incarnation,
    Next,
    Publisher,
    Before,
    Begun,
}

/// The file, and what it says.
#[derive(Clone)]
pub struct Committed(Arc<Inner>);

struct Inner {
    file: WordFile,
    index: Mutex<Index>,
}

#[derive(Default)]
struct Index {
    /// Incarnations to records, next sequences, and when they were looked for last.
    known: BTreeMap<u64, Known>,
    clock: u64,
}

#[derive(Clone, Copy)]
struct Known {
    record: usize,
    next: u64,
    used: u64,
}

/// One publisher's record.
pub struct Mark {
    committed: Committed,
    incarnation: u64,
    record: usize,
}

fn word(file: &WordFile, record: usize, word: Word) -> &AtomicU64 {
    &file.words()[(1 + record) * RECORD_WORDS + word as usize]
}

impl Committed {
    /// The file at `path`, made if it is not there. `departed`: how many messages publishers of former
    /// links had published.
    pub fn open(path: &Path, departed: &HashMap<u64, u64>) -> anyhow::Result<Committed> {
        let file = WordFile::open(path, (1 + RECORDS) * RECORD_WORDS)
            .with_context(|| path.display().to_string())?;
        let words = file.words();
        if words[0].load(Ordering::Relaxed) != FORM {
            words
                .iter()
                .for_each(|word| word.store(0, Ordering::Relaxed));
            words[0].store(FORM, Ordering::Relaxed);
        }
        let mut index = Index::default();
        for record in 0..RECORDS {
            let word = |at| word(&file, record, at).load(Ordering::Relaxed);
            let (incarnation, next) = (word(Word::Incarnation), word(Word::Next));
            if incarnation == 0 {
                continue;
            }
            // Whether the one that was being published was published.
            let begun = word(Word::Begun) == next;
            let count = departed.get(&word(Word::Publisher)).filter(|_| begun);
            let was = count.is_some_and(|count| *count > word(Word::Before));
            let known = Known {
                record,
                next: next.saturating_add(u64::from(was)),
                used: 0,
            };
            index.known.insert(incarnation, known);
        }
        Ok(Committed(Arc::new(Inner {
            file,
            index: Mutex::new(index),
        })))
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.0.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A publisher's record, and the sequence below which everything was published.
    pub fn mark(&self, incarnation: u64) -> (Mark, u64) {
        let mut index = self.index();
        index.clock += 1;
        let clock = index.clock;
        let known = index.known.get_mut(&incarnation).map(|known| {
            known.used = clock;
            *known
        });
        let known = known.unwrap_or_else(|| {
            let record = if index.known.len() < RECORDS {
                let taken: std::collections::BTreeSet<usize> =
                    index.known.values().map(|known| known.record).collect();
                (0..RECORDS).find(|record| !taken.contains(record))
            } else {
                let oldest = index.known.iter().min_by_key(|(_, known)| known.used);
                let oldest = oldest.map(|(incarnation, known)| (*incarnation, known.record));
                oldest.map(|(incarnation, record)| {
                    index.known.remove(&incarnation);
                    record
                })
            };
            let known = Known {
                record: record.unwrap_or(0),
                next: 0,
                used: clock,
            };
            index.known.insert(incarnation, known);
            known
        });
        let mark = Mark {
            committed: self.clone(),
            incarnation,
            record: known.record,
        };
        mark.claim(known.next);
        (mark, known.next)
    }
}

impl Mark {
    /// The record is this publisher's from now on.
    fn claim(&self, next: u64) {
        if self.word(Word::Incarnation).load(Ordering::Relaxed) != self.incarnation {
            // Nobody's, until all of it is right.
            self.word(Word::Incarnation).store(0, Ordering::Release);
            self.word(Word::Begun).store(u64::MAX, Ordering::Release);
            self.word(Word::Next).store(next, Ordering::Release);
            self.word(Word::Incarnation)
                .store(self.incarnation, Ordering::Release);
        }
    }

    /// Everything below `next` is published, and nothing else.
    pub fn set(&self, next: u64) {
        self.word(Word::Next).store(next, Ordering::Release);
        if let Some(known) = self.committed.index().known.get_mut(&self.incarnation) {
            known.next = next;
        }
    }

    /// Message `next` is about to be published, by a publisher that has published `before` messages.
    pub fn begin(&self, next: u64, publisher: u64, before: u64) {
        self.word(Word::Begun).store(u64::MAX, Ordering::Release);
        self.word(Word::Publisher)
            .store(publisher, Ordering::Release);
        self.word(Word::Before).store(before, Ordering::Release);
        self.word(Word::Next).store(next, Ordering::Release);
        self.word(Word::Begun).store(next, Ordering::Release);
    }

    fn word(&self, at: Word) -> &AtomicU64 {
        word(&self.committed.0.file, self.record, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> anyhow::Result<Committed> {
        Committed::open(path, &HashMap::new())
    }

    #[test]
    fn the_daemon_knows_whether_the_last_one_was_published() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("committed");
        open(&path).unwrap().mark(11).0.begin(5, 77, 3);
        let next = |departed: &[(u64, u64)]| {
            let departed = departed.iter().copied().collect();
            Committed::open(&path, &departed).unwrap().mark(11).1
        };
        assert_eq!(next(&[]), 5);
        assert_eq!(next(&[(77, 3)]), 5);
        assert_eq!(next(&[(77, 4)]), 6);
        assert_eq!(next(&[(78, 4)]), 5);
        open(&path).unwrap().mark(11).0.set(6);
        assert_eq!(next(&[(77, 4)]), 6);
    }

    #[test]
    fn what_was_published_is_known_to_the_next_life() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("committed");
        let first = open(&path).unwrap();
        let (a, next) = first.mark(11);
        assert_eq!(next, 0);
        let (b, _) = first.mark(12);
        a.set(5);
        b.set(9);
        a.set(6);
        assert_eq!(first.mark(11).1, 6);
        drop((first, a, b));
        let second = open(&path).unwrap();
        assert_eq!((second.mark(11).1, second.mark(12).1), (6, 9));
        assert_eq!(second.mark(13).1, 0);
    }

    #[test]
    fn a_file_of_another_form_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("committed");
        let bytes = (1 + RECORDS) * RECORD_WORDS * 8;
        for former in [vec![1; 21], vec![0xff; bytes], vec![3; 2 * bytes]] {
            std::fs::write(&path, former).unwrap();
            assert_eq!(open(&path).unwrap().mark(3).1, 0);
            open(&path).unwrap().mark(3).0.set(4);
            assert_eq!(open(&path).unwrap().mark(3).1, 4);
        }
    }

    #[test]
    fn a_kill_between_any_two_stores_leaves_what_is_right() {
        // Message 5 is being published: all states that the words go through, and what the next life makes of them.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("committed");
        let committed = open(&path).unwrap();
        let (mark, _) = committed.mark(11);
        mark.begin(4, 77, 3);
        mark.set(5);
        let file = &committed.0.file;
        let states: [(Word, u64, u64, u64); 6] = [
            // What is stored, how many messages the daemon counted then, and the next one.
            (Word::Begun, u64::MAX, 4, 5),
            (Word::Publisher, 77, 4, 5),
            (Word::Before, 4, 4, 5),
            (Word::Next, 5, 4, 5),
            (Word::Begun, 5, 4, 5),
            (Word::Next, 6, 5, 6),
        ];
        for (at, stored, published, expected) in states {
            word(file, mark.record, at).store(stored, Ordering::Relaxed);
            let departed = HashMap::from([(77, published)]);
            let next = Committed::open(&path, &departed).unwrap().mark(11).1;
            assert_eq!(next, expected, "{stored}");
        }
        // Published, and not yet told.
        word(file, mark.record, Word::Next).store(5, Ordering::Relaxed);
        let departed = HashMap::from([(77, 5)]);
        assert_eq!(Committed::open(&path, &departed).unwrap().mark(11).1, 6);
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let dir = tempfile::tempdir().unwrap();
        let committed = open(&dir.path().join("committed")).unwrap();
        for incarnation in 1..=RECORDS as u64 {
            committed.mark(incarnation).0.set(1);
        }
        committed.mark(1);
        committed.mark(RECORDS as u64 + 1).0.set(1);
        let index = committed.index();
        assert_eq!(index.known.len(), RECORDS);
        assert!(index.known.contains_key(&1) && !index.known.contains_key(&2));
    }
}

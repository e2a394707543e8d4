//! How far each publisher's messages were published here, in a file beside the socket, so that what a
//! former life of the links had published is not published again.
//!
//! A record is 32 bytes: the publisher's incarnation; the next sequence; the publisher that stands for it here, plus
//! how many messages that one had published, while the next one is being published, else zeros. It is written
//! before a message is published and after. A kill between the two leaves open whether it was; the daemon
//! knows, for it counts what publishers that died had published.

use anyhow::Context;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Publishers that are remembered.
const RECORDS: usize = 4096;
const RECORD_BYTES: usize = 32;

/// The file, and what it says.
#[derive(Clone)]
pub struct Committed(Arc<Inner>);

struct Inner {
    file: File,
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

impl Committed {
    /// The file at `path`, made if it is not there. `departed`: how many messages publishers of former
    /// links had published.
    pub fn open(path: &Path, departed: &HashMap<u64, u64>) -> anyhow::Result<Committed> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .with_context(|| path.display().to_string())?;
        let mut bytes = vec![0; RECORDS * RECORD_BYTES];
        let length = file
            .metadata()
            .with_context(|| path.display().to_string())?
            .len();
        let there = (length as usize).min(bytes.len()) / RECORD_BYTES * RECORD_BYTES;
        file.read_exact_at(&mut bytes[..there], 0)
            .with_context(|| path.display().to_string())?;
        let mut index = Index::default();
        for (record, fields) in bytes[..there].chunks_exact(RECORD_BYTES).enumerate() {
            let number = |at: usize| {
                let mut number = [0; 8];
                number.copy_from_slice(&fields[at..at + 8]);
                u64::from_le_bytes(number)
            };
            let (incarnation, next) = (number(0), number(8));
            let (publisher, before) = (number(16), number(24));
            if incarnation == 0 {
                continue;
            }
            // Whether the one that was being published was published.
            let count = departed.get(&publisher).filter(|_| publisher != 0);
            let was = count.is_some_and(|count| *count > before);
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
        (mark, known.next)
    }
}

impl Mark {
    /// Everything below `next` is published, and nothing else.
    pub fn set(&self, next: u64) {
        self.write(next, 0, 0);
        if let Some(known) = self.committed.index().known.get_mut(&self.incarnation) {
            known.next = next;
        }
    }

    /// Message `next` is about to be published, by a publisher that has published `before` messages.
    pub fn begin(&self, next: u64, publisher: u64, before: u64) {
        self.write(next, publisher, before);
    }

    fn write(&self, next: u64, publisher: u64, before: u64) {
        let mut fields = [0; RECORD_BYTES];
        let numbers = [self.incarnation, next, publisher, before];
        for (field, number) in fields.chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        let at = (self.record * RECORD_BYTES) as u64;
        if let Err(error) = self.committed.0.file.write_all_at(&fields, at) {
            tracing::error!(%error, "what was published is not written down");
        }
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
    fn a_file_that_is_short_or_long_is_read_as_far_as_it_makes_sense() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("committed");
        std::fs::write(&path, [1; 21]).unwrap();
        assert_eq!(open(&path).unwrap().mark(3).1, 0);
        std::fs::write(&path, vec![0xff; 2 * RECORDS * RECORD_BYTES]).unwrap();
        open(&path).unwrap();
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

//! What a subscriber received: a file of records, one per message, which outlives the subscriber.
//!
//! A record is written with one call right after a message is received. A subscriber that is killed between the two
//! leaves out its last message, which nobody asks for then.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

const WORDS: usize = 7;
const BYTES: usize = WORDS * 8;

/// What happened to a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// When it joined, this publisher of its host had published between so many messages and so many.
    Joined {
        publisher: u32,
        done: u64,
        begun: u64,
    },
    /// It has joined; messages come next.
    Ready,
    Message(Message),
}

/// A message that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub content: Content,
    /// The publisher and its number, of the message's tag.
    pub publisher: u32,
    pub sequence: u64,
    /// How many the sample says were missed before it.
    pub missed: u64,
    /// How many its subscriber had missed in all by then.
    pub missed_in_all: u64,
    /// The publisher on this host that it came from: the publisher itself, or one of the links.
    pub from: u64,
    pub bytes: u64,
}

/// What a message's bytes were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Whole,
    Wrong,
    /// Its publisher, or a host, died before it was complete, and the sample says so.
    Aborted,
}

impl Record {
    fn words(self) -> [u64; WORDS] {
        match self {
            Record::Joined {
                publisher,
                done,
                begun,
            } => [1, publisher.into(), done, begun, 0, 0, 0],
            Record::Ready => [2, 0, 0, 0, 0, 0, 0],
            Record::Message(message) => [
                3 + message.content as u64,
                message.publisher.into(),
                message.sequence,
                message.missed,
                message.from,
                message.bytes,
                message.missed_in_all,
            ],
        }
    }

    fn from_words(words: [u64; WORDS]) -> Option<Record> {
        let [kind, publisher, sequence, missed, from, bytes, missed_in_all] = words;
        let publisher = u32::try_from(publisher).ok()?;
        let content = match kind {
            1 => {
                return Some(Record::Joined {
                    publisher,
                    done: sequence,
                    begun: missed,
                })
            }
            2 => return Some(Record::Ready),
            3 => Content::Whole,
            4 => Content::Wrong,
            5 => Content::Aborted,
            _ => return None,
        };
        Some(Record::Message(Message {
            content,
            publisher,
            sequence,
            missed,
            missed_in_all,
            from,
            bytes,
        }))
    }
}

fn path(folder: &Path, subscriber: u32) -> PathBuf {
    folder.join(format!("subscriber-{subscriber}"))
}

/// The subscriber's end.
pub struct Writer(File);

impl Writer {
    pub fn create(folder: &Path, subscriber: u32) -> std::io::Result<Writer> {
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true);
        Ok(Writer(file.open(path(folder, subscriber))?))
    }

    pub fn write(&mut self, record: Record) -> std::io::Result<()> {
        let mut bytes = [0; BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(record.words()) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.0.write_all(&bytes)
    }
}

/// The checker's end: reads what is new.
pub struct Reader {
    path: PathBuf,
    file: Option<File>,
    rest: Vec<u8>,
}

impl Reader {
    pub fn new(folder: &Path, subscriber: u32) -> Reader {
        Reader {
            path: path(folder, subscriber),
            file: None,
            rest: Vec::new(),
        }
    }

    /// The records that are new, and those that cannot be read as `None`.
    pub fn read(&mut self) -> std::io::Result<Vec<Option<Record>>> {
        if self.file.is_none() {
            // A subscriber that has not begun has no file.
            self.file = File::open(&self.path).ok();
        }
        let Some(file) = &mut self.file else {
            return Ok(Vec::new());
        };
        file.read_to_end(&mut self.rest)?;
        let whole = self.rest.len() / BYTES * BYTES;
        let rest = self.rest.split_off(whole);
        let records = std::mem::replace(&mut self.rest, rest);
        Ok(records.chunks_exact(BYTES).map(parse).collect())
    }
}

fn parse(bytes: &[u8]) -> Option<Record> {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    Record::from_words(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written_while_the_file_grows() {
        let folder = tempfile::tempdir().unwrap();
        let mut reader = Reader::new(folder.path(), 7);
        assert!(reader.read().unwrap().is_empty());
        let mut writer = Writer::create(folder.path(), 7).unwrap();
        let message = |content| {
            Record::Message(Message {
                content,
                publisher: 3,
                sequence: 9,
                missed: 2,
                missed_in_all: 9,
                from: 77,
                bytes: 1000,
            })
        };
        let joined = Record::Joined {
            publisher: 3,
            done: 1,
            begun: 2,
        };
        let records = [
            joined,
            Record::Ready,
            message(Content::Whole),
            message(Content::Wrong),
            message(Content::Aborted),
        ];
        for record in records {
            writer.write(record).unwrap();
            assert_eq!(reader.read().unwrap(), [Some(record)]);
        }
    }
}

//! Iterates over the messages of a recording in the order of publishing, over all topics.
//!
//! It merges chunks by time. Chunks are nearly in order, so it reads a chunk only when that may hold the next message, and few
//! chunks are in memory at a time.

use crate::channel::Channel;
use crate::chunk::{read_chunk, Raw};
use crate::error::{NoTopic, ReadError};
use crate::message::Message;
use crate::recording::Recording;
use rgaps_session::{explain, pattern_matches};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

/// Which messages of a recording to read.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Topics and patterns. Empty: all topics.
    pub topics: Vec<String>,
    /// Messages published from this time on: nanoseconds since 1970. From transient-local publishers also older ones, which a late
    /// joiner would get.
    pub from_ns: u64,
    /// Whether to leave out messages that the file repeats from earlier files.
    pub without_repeated: bool,
}

impl Selection {
    /// Whether the selection includes this topic.
    pub fn has(&self, topic: &str) -> bool {
        let mut topics = self.topics.iter();
        self.topics.is_empty() || topics.any(|pattern| pattern_matches(pattern, topic))
    }

    /// Fails if none of these channels belongs to a selected topic.
    pub fn check<'a>(&self, channels: impl Iterator<Item = &'a Channel>) -> Result<(), NoTopic> {
        let known: BTreeSet<_> = channels.map(|channel| channel.topic.as_str()).collect();
        if self.topics.is_empty() || known.iter().any(|topic| self.has(topic)) {
            return Ok(());
        }
        Err(NoTopic {
            patterns: self.topics.join(", "),
            known: Vec::from_iter(known).join(", "),
        })
    }
}

/// An iterator over messages. A damaged chunk or message is an error, and the next call goes on after it.
pub struct Messages {
    recording: Arc<Recording>,
    selected: BTreeSet<u16>,
    from_ns: u64,
    without_repeated: bool,
    /// The next chunk to read.
    next: usize,
    /// Messages of chunks that were read, the earliest first.
    waiting: BinaryHeap<Reverse<Waiting>>,
    failed: VecDeque<ReadError>,
}

/// A message of a chunk that was read. `order`: its log time, then its position in the file.
struct Waiting {
    order: (u64, u64, usize),
    raw: Raw,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order.cmp(&other.order)
    }
}

impl Recording {
    /// All messages, in the order of publishing over all topics.
    pub fn messages(self: &Arc<Self>) -> Messages {
        self.select(&Selection::default())
    }

    /// Some of the messages, in the order of publishing.
    pub fn select(self: &Arc<Self>, selection: &Selection) -> Messages {
        Messages::new(self.clone(), selection)
    }
}

impl Messages {
    fn new(recording: Arc<Recording>, selection: &Selection) -> Messages {
        let channels = recording.channels.iter();
        let selected = channels.filter(|(_, channel)| selection.has(&channel.topic));
        Messages {
            selected: selected.map(|(id, _)| *id).collect(),
            recording,
            from_ns: selection.from_ns,
            without_repeated: selection.without_repeated,
            next: 0,
            waiting: BinaryHeap::new(),
            failed: VecDeque::new(),
        }
    }

    /// Reads all chunks that may hold a message earlier than the waiting ones.
    fn read_ahead(&mut self) {
        while let Some(range) = self.recording.chunks.get(self.next).copied() {
            let earliest = self.waiting.peek().map(|Reverse(first)| first.order.0);
            if earliest.is_some_and(|earliest| earliest < range.start_ns) {
                return;
            }
            self.next += 1;
            let may_have_kept = self.recording.has_transient_local();
            let is_too_early = range.end_ns < self.from_ns && !may_have_kept;
            if is_too_early || range.repeats && self.without_repeated {
                continue;
            }
            match read_chunk(&self.recording.file, range, |_| Ok(())) {
                Ok(messages) => {
                    for (index, raw) in messages.into_iter().enumerate() {
                        self.keep(raw, range.at, index);
                    }
                }
                Err(error) => self.failed.push_back(ReadError::Chunk {
                    path: self.recording.path.clone(),
                    at: range.at,
                    bytes: range.bytes,
                    reason: explain(&error),
                }),
            }
        }
    }

    fn keep(&mut self, raw: Raw, at: u64, index: usize) {
        let id = raw.header.channel_id;
        let is_wanted = self.selected.contains(&id)
            && (raw.header.log_time >= self.from_ns
                || self.recording.channels[&id].transient_local);
        if is_wanted {
            let order = (raw.header.log_time, at, index);
            self.waiting.push(Reverse(Waiting { order, raw }));
        }
    }
}

impl Iterator for Messages {
    type Item = Result<Message, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read_ahead();
        if let Some(error) = self.failed.pop_front() {
            return Some(Err(error));
        }
        let Reverse(Waiting { raw, .. }) = self.waiting.pop()?;
        let channel = self.recording.channels[&raw.header.channel_id].clone();
        let (log_ns, publish_ns) = (raw.header.log_time, raw.header.publish_time);
        Some(Message::decode(
            channel,
            log_ns,
            publish_ns,
            raw.header.sequence,
            raw.data,
        ))
    }
}

impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Messages")
            .field("path", &self.recording.path)
            .field("chunks_read", &self.next)
            .finish_non_exhaustive()
    }
}

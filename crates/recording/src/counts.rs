//! The counters of a recorder.

use rgaps_sync::lock;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

/// Why the recorder dropped a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The publisher overwrote the message before the recorder read it, or the message never reached this host.
    Missed,
    /// The disk was slower than the publishers, and the queue was full.
    QueueFull,
    /// A write failed: the disk is full, or broken.
    WriteFailed,
    /// The GPU work that writes the message did not finish, or the message could not be read.
    Unreadable,
    /// The recording is a bag of ROS 2, and the message is none of ROS 2.
    NotRos2,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 5] = [
        Reason::Missed,
        Reason::QueueFull,
        Reason::WriteFailed,
        Reason::Unreadable,
        Reason::NotRos2,
    ];

    /// The name in files and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Missed => "missed",
            Reason::QueueFull => "queue_full",
            Reason::WriteFailed => "write_failed",
            Reason::Unreadable => "unreadable",
            Reason::NotRos2 => "not_ros2",
        }
    }

    /// Explains the reason to a user.
    pub fn explain(self) -> &'static str {
        match self {
            Reason::Missed => "overwritten by their publishers before the recorder read them",
            Reason::QueueFull => "the disk was too slow and the queue full",
            Reason::WriteFailed => "a write to the disk failed",
            Reason::Unreadable => "they could not be read: their GPU work did not finish",
            Reason::NotRos2 => "they are no messages of ROS 2, and --ros2 was given",
        }
    }
}

/// The counters of a [`Recorder`](crate::Recorder).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Topics that the recorder reads.
    pub topics: u64,
    /// Messages in whole chunks of files.
    pub recorded: u64,
    /// Messages that are not in the recording.
    pub dropped: u64,
    /// The same by reason, without reasons that dropped nothing.
    pub dropped_by: BTreeMap<&'static str, u64>,
    /// For a bag of ROS 2: the topics with messages that are none of ROS 2, and why the first of them is none.
    pub not_ros2: BTreeMap<String, String>,
    /// With [`keep`](crate::Options::keep): messages that the recorder discarded before their time because the queue was full.
    pub pushed_out: u64,
    /// Files that the recorder began.
    pub files: u64,
    /// Bytes of all files.
    pub file_bytes: u64,
    /// Messages that wait to be written, or are kept.
    pub queue_messages: u64,
    /// Their bytes.
    pub queue_bytes: u64,
}

/// The counters while the recorder runs. Each counter has one writer.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) topics: AtomicU64,
    pub(crate) recorded: AtomicU64,
    dropped: [AtomicU64; Reason::ALL.len()],
    not_ros2: Mutex<BTreeMap<String, String>>,
    pub(crate) pushed_out: AtomicU64,
    pub(crate) files: AtomicU64,
    /// Bytes of files that are complete, and of the one that is being written.
    pub(crate) complete_bytes: AtomicU64,
    pub(crate) open_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn count_dropped(&self, reason: Reason, messages: u64) {
        // Relaxed, here and below: nobody reads other memory because of these numbers.
        self.dropped[reason as usize].fetch_add(messages, Ordering::Relaxed);
    }

    pub(crate) fn drop_not_ros2(&self, topic: &str, why: String) {
        self.count_dropped(Reason::NotRos2, 1);
        lock(&self.not_ros2).entry(topic.to_owned()).or_insert(why);
    }

    /// Dropped messages by the name of the reason, without reasons that dropped nothing.
    pub(crate) fn dropped_by(&self) -> BTreeMap<&'static str, u64> {
        let all = Reason::ALL.into_iter().zip(&self.dropped);
        all.map(|(reason, count)| (reason.name(), count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    pub(crate) fn read(&self, (queue_messages, queue_bytes): (u64, u64)) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let dropped_by = self.dropped_by();
        Counts {
            topics: of(&self.topics),
            recorded: of(&self.recorded),
            dropped: dropped_by.values().sum(),
            dropped_by,
            not_ros2: lock(&self.not_ros2).clone(),
            pushed_out: of(&self.pushed_out),
            files: of(&self.files),
            file_bytes: of(&self.complete_bytes) + of(&self.open_bytes),
            queue_messages,
            queue_bytes,
        }
    }
}

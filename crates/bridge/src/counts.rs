//! The counters of a bridge.

use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why the bridge dropped a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Outgoing: its publisher overwrote the message before the bridge read it.
    Missed,
    /// Outgoing: the GPU work that writes the message did not finish, or the message could not be read.
    Unreadable,
    /// Outgoing: the dialect cannot encode the message, or Zenoh did not take it.
    NotSent,
    /// Incoming: messages came faster than the bridge could publish them, and the queue was full.
    QueueFull,
    /// Incoming: the dialect cannot decode the message.
    Invalid,
    /// Incoming: the pool had no memory for the message.
    PoolFull,
    /// Incoming: reliable subscribers did not make room in time.
    BackPressured,
    /// Incoming: the topic cannot be published.
    NoTopic,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 8] = [
        Reason::Missed,
        Reason::Unreadable,
        Reason::NotSent,
        Reason::QueueFull,
        Reason::Invalid,
        Reason::PoolFull,
        Reason::BackPressured,
        Reason::NoTopic,
    ];

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Missed => "missed",
            Reason::Unreadable => "unreadable",
            Reason::NotSent => "not_sent",
            Reason::QueueFull => "queue_full",
            Reason::Invalid => "invalid",
            Reason::PoolFull => "pool_full",
            Reason::BackPressured => "back_pressured",
            Reason::NoTopic => "no_topic",
        }
    }

    /// Explains the reason to a user.
    pub fn explain(self) -> &'static str {
        match self {
            Reason::Missed => "overwritten by their publishers before the bridge read them",
            Reason::Unreadable => "they could not be read: their GPU work did not finish",
            Reason::NotSent => "they could not be sent",
            Reason::QueueFull => {
                "they came faster than they could be published, and the queue was full"
            }
            Reason::Invalid => "they could not be decoded",
            Reason::PoolFull => "the pool had no memory for them",
            Reason::BackPressured => "reliable subscribers did not make room for them in time",
            Reason::NoTopic => "their topics cannot be published",
        }
    }
}

/// The counters of a [`Bridge`](crate::Bridge).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Zenoh nodes that the bridge is connected to.
    pub peers: u64,
    /// Topics that somebody on the other side subscribes to.
    pub topics_out: u64,
    /// Topics with messages from the other side.
    pub topics_in: u64,
    /// Messages that left rgaps.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Messages that were published here.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Outgoing messages that a bridge had brought from the other side, so this one did not send them back.
    pub not_returned: u64,
    /// Messages that did not cross.
    pub dropped: u64,
    /// The same by reason, without reasons that dropped nothing.
    pub dropped_by: BTreeMap<&'static str, u64>,
}

/// The counters while the bridge runs.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) topics_out: AtomicU64,
    pub(crate) topics_in: AtomicU64,
    sent: AtomicU64,
    sent_bytes: AtomicU64,
    received: AtomicU64,
    received_bytes: AtomicU64,
    not_returned: AtomicU64,
    dropped: [AtomicU64; Reason::ALL.len()],
}

impl Counters {
    // Relaxed, here and below: nobody reads other memory because of these numbers.

    pub(crate) fn count_sent(&self, bytes: u64) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_received(&self, bytes: u64) {
        self.received.fetch_add(1, Ordering::Relaxed);
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_not_returned(&self) {
        self.not_returned.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_dropped(&self, reason: Reason, messages: u64) {
        self.dropped[reason as usize].fetch_add(messages, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, peers: u64) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let all = Reason::ALL.into_iter().zip(&self.dropped);
        let dropped_by: BTreeMap<_, _> = all
            .map(|(reason, count)| (reason.name(), of(count)))
            .filter(|(_, count)| *count > 0)
            .collect();
        Counts {
            peers,
            topics_out: of(&self.topics_out),
            topics_in: of(&self.topics_in),
            sent: of(&self.sent),
            sent_bytes: of(&self.sent_bytes),
            received: of(&self.received),
            received_bytes: of(&self.received_bytes),
            not_returned: of(&self.not_returned),
            dropped: dropped_by.values().sum(),
            dropped_by,
        }
    }
}

//! Quality of service: what publishers offer and what subscribers request.

use rgaps_session::History;
use std::time::Duration;

/// The quality of service that a publisher offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherQos {
    /// How many messages the publisher keeps, for subscribers that lag and (if transient-local) for late joiners.
    /// 1 to 32768 messages. Default: the last 16.
    pub history: History,
    /// Whether reliable subscribers may read this publisher, and so back-pressure it. Default: true.
    pub reliable: bool,
    /// Whether late joiners get the history, even after the publisher has closed or died. Default: false.
    pub transient_local: bool,
    /// How long a publish waits for slow reliable subscribers before `slow_reader` applies. Default: 1 s.
    pub deadline: Duration,
    /// What a publish does after the deadline. Default: it fails.
    pub slow_reader: SlowReaderPolicy,
    /// How long a loan waits for free memory when the pool is at its cap. Default: 0, it fails at once.
    pub loan_timeout: Duration,
    /// How many loans may be open at once. Default: 64.
    pub max_loans: u32,
}

impl Default for PublisherQos {
    fn default() -> Self {
        PublisherQos {
            history: History::KeepLast(16),
            reliable: true,
            transient_local: false,
            deadline: Duration::from_secs(1),
            slow_reader: SlowReaderPolicy::Fail,
            loan_timeout: Duration::ZERO,
            max_loans: 64,
        }
    }
}

/// What a publisher does when a reliable subscriber has made no room within the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowReaderPolicy {
    /// Publishing fails with [`PublishError::BackPressured`](crate::PublishError::BackPressured).
    #[default]
    Fail,
    /// The publisher continues without the slow subscriber: messages that it has not read are lost for it, and its next
    /// sample says how many it missed. Once it has read everything published, the publisher waits for it again.
    Drop,
}

/// How long a publish waits for reliable subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Until the publisher's deadline; then its [`SlowReaderPolicy`] decides.
    Deadline,
    /// Not at all: the caller waits by itself. The error names no subscriber.
    Try,
    /// Not at all: the caller has already waited for the deadline, and the policy decides.
    Over,
}

/// The quality of service that a subscriber requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberQos {
    /// Whether publishers wait for this subscriber when their history is full, so that it misses no message. Default: false
    /// (best effort).
    pub reliable: bool,
    /// Which earlier messages it gets first. Default: none (volatile).
    pub late: Late,
    /// The length of the subscriber's own queue, 1 to 32768 messages over all publishers. If more are waiting, it skips
    /// the oldest and counts them as missed. With 1 it always reads the newest message. Default: `None`, the queue is every
    /// message that the publishers keep. A reliable subscriber with a depth back-pressures a publisher only for the newest
    /// `depth` messages of that publisher; so a publisher that keeps at least as many never waits for it.
    pub depth: Option<u32>,
    /// How many samples it may hold at once, 1 to 4096. Default: 64.
    pub max_held: u32,
    /// How long a receive spins before it sleeps. Spinning is faster and uses CPU time. Default: 20 us.
    pub spin: Duration,
}

/// Which earlier messages a late joiner gets.
///
/// They come from the history of the topic's transient-local publishers, including those that have closed or died, in
/// the order of publishing over all publishers, before any message that is published after it joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Nothing: volatile.
    Nothing,
    /// The newest message of the topic: the latest value.
    Latest,
    /// The newest `n` messages of the topic.
    Last(u32),
    /// All messages that the publishers keep.
    AllKept,
}

impl Default for SubscriberQos {
    fn default() -> Self {
        SubscriberQos {
            reliable: false,
            late: Late::Nothing,
            depth: None,
            max_held: rgaps_layout::DEFAULT_HELD,
            spin: Duration::from_micros(20),
        }
    }
}

//! Quality of service, in the field's words.

use rgaps_session::History;
use std::time::Duration;

/// What a publisher offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherQos {
    /// What is kept for subscribers that lag, and for late joiners. Default: the last 16.
    pub history: History,
    /// Reliable subscribers may hold this publisher back. Default: yes.
    pub reliable: bool,
    /// The history is kept for late joiners, also after the publisher left. Default: no.
    pub transient_local: bool,
    /// How long a publish waits for reliable subscribers at most. Default: 1 s.
    pub deadline: Duration,
    /// What becomes of a publish when the deadline is over. Default: it fails.
    pub slow_reader: SlowReaderPolicy,
    /// How long a loan waits for memory at most. Default: not at all.
    pub loan_timeout: Duration,
    /// Loans that may be open at once. Default: 64.
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

/// What a publisher does about a reliable subscriber that has not read on within the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowReaderPolicy {
    /// Publishing fails with [`PublishError::BackPressured`](crate::PublishError::BackPressured).
    #[default]
    Fail,
    /// The publisher goes on without it: messages that it has not read are dropped for it, and it is told how many
    /// it missed. Once it has read all that is published, the publisher waits for it again.
    Drop,
}

/// How long a publish waits for reliable subscribers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Until the publisher's deadline; then its [`SlowReaderPolicy`] decides.
    Deadline,
    /// Not at all: the caller waits. The error names nobody.
    Try,
    /// Not at all: the caller has waited for the deadline, and the policy decides.
    Over,
}

/// What a subscriber asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberQos {
    /// Hold publishers back rather than miss a message. Default: no (best effort).
    pub reliable: bool,
    /// What it gets of what was published before it joined. Default: nothing (volatile).
    pub late: Late,
    /// The subscriber's own queue: of the messages that wait for it, over all publishers, the newest so many, at
    /// most 32768. The oldest of the others are skipped and counted as missed. 1 reads the newest message. Default:
    /// none, then all that publishers keep waits. A reliable subscriber with a depth holds a publisher back for its
    /// newest `depth` messages only, thus never one that keeps as many.
    pub depth: Option<u32>,
    /// Samples that it may hold at once. Default: 64.
    pub max_held: u32,
    /// How long it spins before it sleeps, waiting for a message. Default: 20 us.
    pub spin: Duration,
}

/// What a late joiner gets of what was published before: of the history that the topic's transient-local
/// publishers keep, also those that have closed or died. It comes in the order of publishing, whoever
/// published it, before anything that is published after joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Nothing: volatile.
    Nothing,
    /// The newest message of the topic: the latest value.
    Latest,
    /// The newest `n` messages of the topic.
    Last(u32),
    /// All that is kept.
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

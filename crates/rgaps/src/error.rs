//! What goes wrong, per operation.

use crate::{ClientError, HeaderError, Loan, PartsError};
use rgaps_layout::MAX_ATTACHMENT_BYTES;
use rgaps_pool::PoolError;
use std::fmt;
use std::time::Duration;

/// A publisher, subscriber, wait set or node cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The daemon or the memory says no.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// An argument is out of its limits.
    #[error("{0}")]
    Argument(String),
    /// 128-bit compare-and-swap is not lock-free here, so nothing can be shared safely.
    #[error("this processor has no lock-free 128-bit compare-and-swap (x86-64 needs cmpxchg16b); rgaps cannot run here")]
    Processor,
}

/// A loan cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoanError {
    /// The pool is at its cap, and nothing came back in time.
    #[error("no memory for {bytes} bytes on topic '{topic}': {reason}; raise pool.{domain}.cap in rgaps.toml, keep less history, or let subscribers release samples")]
    PoolFull {
        /// Topic.
        topic: String,
        /// Bytes wanted.
        bytes: u64,
        /// `host` or `cuda`.
        domain: &'static str,
        /// The daemon's words.
        reason: String,
    },
    /// The message can never fit.
    #[error(
        "{bytes} bytes are more than a message on topic '{topic}' can have ({limit}); {advice}"
    )]
    TooLarge {
        /// Topic.
        topic: String,
        /// Bytes wanted.
        bytes: u64,
        /// Most there can be.
        limit: u64,
        /// What to do.
        advice: &'static str,
    },
    /// All blocks of the publisher are in use.
    #[error("all {limit} blocks of the publisher on topic '{topic}' are in use by loans, history and held samples; release samples or keep less history")]
    NoBlocks {
        /// Topic.
        topic: String,
        /// How many there are.
        limit: u32,
    },
    /// Too many loans are open.
    #[error("{limit} loans are open on topic '{topic}'; publish or drop one, or raise max_loans")]
    TooManyLoans {
        /// Topic.
        topic: String,
        /// How many there may be.
        limit: u32,
    },
    /// The attachment is longer than a message can carry.
    #[error("an attachment of {bytes} bytes is longer than the {MAX_ATTACHMENT_BYTES} that a message can carry; put large data into the message, or into a part of it")]
    Attachment {
        /// Bytes that it has.
        bytes: usize,
    },
    /// The header cannot be written.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The parts cannot be.
    #[error(transparent)]
    Parts(#[from] PartsError),
    /// The daemon or the memory says no.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Copying into the loan failed.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// An argument is out of its limits.
    #[error("{0}")]
    Argument(String),
}

/// A reliable subscriber that holds a publisher back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowReader {
    /// Its slot in the topic, as in [`SubscriberRow`](crate::SubscriberRow).
    pub slot: u32,
    /// Its process's name and number; empty and 0 where the daemon did not say.
    pub client: String,
    /// Its process's number.
    pub pid: u32,
    /// Of the process with the links: hosts that have subscribers, one of which is slow.
    pub hosts: Vec<String>,
}

impl fmt::Display for SlowReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.client.as_str() {
            "" => write!(f, "reliable subscriber {}", self.slot)?,
            client => write!(f, "reliable subscriber '{client}' (process {})", self.pid)?,
        }
        match self.hosts.join("', '").as_str() {
            "" => Ok(()),
            hosts => write!(f, ", for subscribers on host '{hosts}',"),
        }
    }
}

fn who(readers: &[SlowReader]) -> String {
    if readers.is_empty() {
        return "a reliable subscriber".to_owned();
    }
    let readers: Vec<String> = readers.iter().map(SlowReader::to_string).collect();
    readers.join(" and ")
}

/// A message was not published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// Reliable subscribers did not read on within the deadline. Nothing was published.
    #[error("topic '{topic}' is back-pressured: {} did not read on within {waited:?}. Nothing was published. Read faster, keep more history, wait longer (deadline), subscribe with a depth or best effort, or publish with slow_reader=drop; see 'rgaps topic info {topic}'", who(.readers))]
    BackPressured {
        /// Topic.
        topic: String,
        /// Who holds the publisher back.
        readers: Vec<SlowReader>,
        /// How long it was waited for them.
        waited: Duration,
    },
    /// The loan's holder word was changed by someone else; the block is given up.
    #[error(
        "the loan on topic '{0}' was taken away: another member of the realm breaks the protocol"
    )]
    LoanLost(String),
    /// The message is not of the type that its publisher has declared.
    #[error("the message is {message}, and this publisher of topic '{topic}' declares {declared}: publish a tensor of that type, or declare another type or none")]
    TypeMismatch {
        /// Topic.
        topic: String,
        /// What the message is.
        message: String,
        /// What was declared.
        declared: String,
    },
    /// An argument is out of its limits.
    #[error("{0}")]
    Argument(String),
    /// There was no memory for a copy in the domain of some subscribers.
    #[error("no copy for the subscribers of another domain: {0}")]
    Elsewhere(#[source] Box<LoanError>),
    /// Waiting for the stream failed; the bytes may not be there, so nothing was published.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The handle belongs to the process that this one was forked from.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// A loan that was not published, and why. Publish it again, or drop it.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unpublished {
    /// Why.
    #[source]
    pub error: PublishError,
    /// The loan, with what was written to it; none if it was lost.
    pub loan: Option<Box<Loan>>,
}

/// A message could not be put into a topic.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// There was no loan.
    #[error(transparent)]
    Loan(#[from] LoanError),
    /// It was not published.
    #[error(transparent)]
    Publish(#[from] PublishError),
}

impl From<Unpublished> for PutError {
    fn from(unpublished: Unpublished) -> Self {
        PutError::Publish(unpublished.error)
    }
}

/// A message could not be received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// Nothing came in time.
    #[error("no message on topic '{0}' within the time-out")]
    TimedOut(String),
    /// The subscriber holds as many samples as it may.
    #[error("{limit} samples of topic '{topic}' are held; drop some, or raise max_held (at most {most})", most = rgaps_layout::MAX_HELD)]
    TooManyHeld {
        /// Topic.
        topic: String,
        /// How many it may hold.
        limit: u32,
    },
    /// A publisher announced bytes that are not in its pool; the message is skipped.
    #[error(
        "a publisher of topic '{topic}' breaks the protocol: {reason}; the message is skipped"
    )]
    Untrusted {
        /// Topic.
        topic: String,
        /// How.
        reason: String,
    },
    /// The work that was to write the message never finished: its publisher died, or lost its CUDA
    /// context. What the block holds is anything.
    #[error("message {sequence} on topic '{topic}' was never finished: its publisher died or lost its GPU context; drop the sample and take the next")]
    Aborted {
        /// Topic.
        topic: String,
        /// The message's number among its publisher's.
        sequence: u64,
    },
    /// The work that writes the message did not finish in time.
    #[error("message {sequence} on topic '{topic}' was not finished in time: work on its publisher's GPU still runs; synchronize() with a longer time-out waits for it")]
    Unfinished {
        /// Topic.
        topic: String,
        /// The message's number among its publisher's.
        sequence: u64,
    },
    /// The message has no such part.
    #[error("message {sequence} on topic '{topic}': {source}")]
    Parts {
        /// Topic.
        topic: String,
        /// The message's number among its publisher's.
        sequence: u64,
        /// Which there are.
        source: PartsError,
    },
    /// The daemon or the memory says no.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Reading the bytes failed.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

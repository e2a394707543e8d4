//! One error type per operation. Each message says what happened, why, and what to do.

use crate::{ClientError, HeaderError, Loan, PartsError};
use rgaps_device::DeviceError;
use rgaps_layout::{Domain, MAX_ATTACHMENT_BYTES};
use rgaps_pool::PoolError;
use std::fmt;
use std::time::Duration;

/// Creating a node, publisher, subscriber or wait set failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The daemon refused, could not be reached, or its memory could not be mapped.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// An argument is outside its limits.
    #[error("{0}")]
    Argument(String),
    /// A device topic cannot be made, opened or forwarded.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The operating system could not create a thread or a file descriptor.
    #[error("the system gave no thread or descriptor: {0}; raise the limits of the process (ulimit -u, ulimit -n)")]
    Thread(String),
    /// The processor has no lock-free 128-bit compare-and-swap, which the shared memory needs.
    #[error("this processor has no lock-free 128-bit compare-and-swap (x86-64 needs cmpxchg16b); rgaps cannot run here")]
    Processor,
}

/// No block was loaned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoanError {
    /// The pool is at its cap, and no memory was returned within the publisher's `loan_timeout`.
    #[error("no memory for {bytes} bytes on topic '{topic}': {reason}; release samples at the subscribers, keep less history, or raise pool.{domain}.cap in rgaps.toml, then run 'rgaps down' and restart the programs")]
    PoolFull {
        /// Topic.
        topic: String,
        /// Bytes that the loan asked for.
        bytes: u64,
        /// `host` or `cuda`.
        domain: &'static str,
        /// The daemon's explanation.
        reason: String,
    },
    /// The message is larger than the pool's cap, or than the history's limit of bytes, so waiting does not help.
    #[error(
        "a message of {bytes} bytes for topic '{topic}' is over the limit of {limit} bytes; {advice}"
    )]
    TooLarge {
        /// Topic.
        topic: String,
        /// Bytes that the loan asked for.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
        /// What to do.
        advice: &'static str,
    },
    /// Loans, history and held samples use every block of the publisher.
    #[error("loans, history and held samples use all {limit} blocks of the publisher on topic '{topic}'; release samples, or keep less history")]
    NoBlocks {
        /// Topic.
        topic: String,
        /// Blocks of this publisher.
        limit: u32,
    },
    /// The publisher has `max_loans` open loans.
    #[error("{limit} loans are open on topic '{topic}', which is the limit; publish or drop one, or raise max_loans")]
    TooManyLoans {
        /// Topic.
        topic: String,
        /// The limit (`max_loans`).
        limit: u32,
    },
    /// The attachment is longer than a message can carry.
    #[error("an attachment of {bytes} bytes is over the limit of {MAX_ATTACHMENT_BYTES} bytes; put large data into the message, or into a part of it")]
    Attachment {
        /// Length of the attachment in bytes.
        bytes: usize,
    },
    /// The header cannot be encoded.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The parts are invalid.
    #[error(transparent)]
    Parts(#[from] PartsError),
    /// The daemon refused, could not be reached, or its memory could not be mapped.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Copying into the loan failed.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// An argument is outside its limits.
    #[error("{0}")]
    Argument(String),
}

/// A reliable subscriber that back-pressures a publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowReader {
    /// Its slot in the topic, as in [`SubscriberRow`](crate::SubscriberRow).
    pub slot: u32,
    /// The name of its node; empty if the daemon did not answer.
    pub client: String,
    /// Its process ID; 0 if the daemon did not answer.
    pub pid: u32,
    /// Set if the subscriber is `rgaps-links`: the hosts whose subscribers it serves. One of them is slow.
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

/// Publishing failed; subscribers get nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The history is full of messages that reliable subscribers have not read, and those made no room within the
    /// deadline. Nothing was published.
    #[error("topic '{topic}' is back-pressured: {} did not make room within {waited:?}. Nothing was published. Read faster, keep more history, wait longer (deadline), subscribe with a depth or best effort, or publish with slow_reader=drop; see 'rgaps topic info {topic}'", who(.readers))]
    BackPressured {
        /// Topic.
        topic: String,
        /// The subscribers that are too slow.
        readers: Vec<SlowReader>,
        /// How long the publisher waited for them.
        waited: Duration,
    },
    /// Another process changed the loan's holder word, so this publisher cannot use the block. The text is the topic.
    #[error(
        "the loan on topic '{0}' was taken away: another process of the realm violates the protocol; restart \
         processes with another version of rgaps, then take a new loan"
    )]
    LoanLost(String),
    /// The message is not of the type that its publisher declares.
    #[error("the message is {message}, but this publisher of topic '{topic}' declares {declared}; publish a tensor of that type, or declare another type or none")]
    TypeMismatch {
        /// Topic.
        topic: String,
        /// The type of the message.
        message: String,
        /// The type that the publisher declares.
        declared: String,
    },
    /// An argument is outside its limits.
    #[error("{0}")]
    Argument(String),
    /// There was no memory for a replica in the domain of some subscribers.
    #[error(
        "no memory for a replica in the domain of some subscribers, so nothing was published: {0}"
    )]
    Replica(#[source] Box<LoanError>),
    /// Waiting for the CUDA stream failed. The bytes may be incomplete, so nothing was published.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The handle belongs to the process that this one was forked from.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Publishing failed; this holds the error and gives the loan back. Publish it again, or drop it.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unpublished {
    /// Why publishing failed.
    #[source]
    pub error: PublishError,
    /// The loan with its contents; `None` after [`PublishError::LoanLost`], and in a forked child.
    pub loan: Option<Box<Loan>>,
}

/// [`Publisher::put`](crate::Publisher::put) failed; subscribers get nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// No block was loaned.
    #[error(transparent)]
    Loan(#[from] LoanError),
    /// The block was not published.
    #[error(transparent)]
    Publish(#[from] PublishError),
}

impl From<Unpublished> for PutError {
    fn from(unpublished: Unpublished) -> Self {
        PutError::Publish(unpublished.error)
    }
}

/// A message could not be received or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// No message arrived before the time-out. The text is the topic.
    #[error("no message on topic '{0}' within the time-out")]
    TimedOut(String),
    /// The subscriber holds `max_held` samples.
    #[error("{limit} samples of topic '{topic}' are held, which is the limit; drop some, or raise max_held (at most {most})", most = rgaps_layout::MAX_HELD)]
    TooManyHeld {
        /// Topic.
        topic: String,
        /// The limit (`max_held`).
        limit: u32,
    },
    /// A publisher described a message that cannot be valid, for example bytes outside its pool. The message is
    /// skipped.
    #[error(
        "a publisher of topic '{topic}' violates the protocol: {reason}; the message is skipped; run the same \
         version of rgaps in all processes"
    )]
    Untrusted {
        /// Topic.
        topic: String,
        /// What is wrong with the message.
        reason: String,
    },
    /// The bytes of the message are in another domain, so this process's CPU cannot address them.
    #[error("message {sequence} on topic '{topic}' is in {domain}, so it has no host bytes; use address(), or copy it with read()")]
    NotOnHost {
        /// Topic.
        topic: String,
        /// The message's sequence number at its publisher.
        sequence: u64,
        /// Where the bytes are.
        domain: Domain,
    },
    /// The message is aborted: its publisher died or lost its CUDA context before the GPU work that writes the
    /// message finished. The contents of the block are undefined.
    #[error("message {sequence} on topic '{topic}' is aborted: its publisher died or lost its GPU context before the message was complete; drop the sample and receive the next one")]
    Aborted {
        /// Topic.
        topic: String,
        /// The message's sequence number at its publisher.
        sequence: u64,
    },
    /// The GPU work that writes the message did not finish before the time-out. The sample stays valid.
    #[error("message {sequence} on topic '{topic}' is unfinished: its publisher's GPU is still writing it; call synchronize() with a longer time-out")]
    Unfinished {
        /// Topic.
        topic: String,
        /// The message's sequence number at its publisher.
        sequence: u64,
    },
    /// The message has no such part.
    #[error("message {sequence} on topic '{topic}': {source}")]
    Parts {
        /// Topic.
        topic: String,
        /// The message's sequence number at its publisher.
        sequence: u64,
        /// The part that is missing, and the parts that exist.
        source: PartsError,
    },
    /// The daemon refused, could not be reached, or its memory could not be mapped.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Reading the bytes failed.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

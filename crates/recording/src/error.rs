//! Errors of recording, reading and replaying.

use mcap::McapError;
use rgaps::{ClientError, LoanError, OpenError, PublishError, RecvError};
use std::io::ErrorKind;
use std::path::PathBuf;

/// A recording that cannot begin or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The file exists.
    #[error("{} exists already, and a recording overwrites no file; choose another name with -o", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The folder does not exist.
    #[error("{} cannot be created, since its folder does not exist; create the folder, or choose another with -o", path.display())]
    NoFolder {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be created.
    #[error("{} cannot be created; choose another name with -o", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
    /// The options name no topic and no pattern.
    #[error("nothing to record: name a topic or a pattern, such as 'camera/*' or '**'")]
    NoPattern,
    /// A thread cannot be started.
    #[error("a thread of the recorder cannot be started")]
    Thread(#[source] std::io::Error),
    /// A topic cannot be read.
    #[error("topic '{topic}' cannot be recorded")]
    Topic {
        /// The topic.
        topic: String,
        /// Why.
        #[source]
        error: Box<OpenError>,
    },
    /// The daemon does not answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A message cannot be received.
    #[error(transparent)]
    Recv(#[from] RecvError),
}

impl RecordError {
    pub(crate) fn creating(path: PathBuf, error: McapError) -> RecordError {
        let error = from_mcap(error);
        match error.kind() {
            ErrorKind::AlreadyExists => RecordError::Exists { path },
            ErrorKind::NotFound => RecordError::NoFolder { path },
            _ => RecordError::Create { path, error },
        }
    }
}

/// The system's error, without the text that the crate `mcap` adds to it.
fn from_mcap(error: McapError) -> std::io::Error {
    match error {
        McapError::Io(error) => error,
        other => std::io::Error::other(other),
    }
}

/// A recording that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be opened or read.
    #[error("{} cannot be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
    /// The folder has no MCAP files.
    #[error("folder {} has no files with the ending .mcap; 'ros2 bag convert' makes them of bags in SQLite or in compressed files", path.display())]
    NoFiles {
        /// The folder.
        path: PathBuf,
    },
    /// The file is not MCAP.
    #[error("{} is not an MCAP file: {found}", path.display())]
    NotMcap {
        /// The file.
        path: PathBuf,
        /// What the file is instead.
        found: &'static str,
    },
    /// The index at the end of the file is damaged.
    #[error("the index of {} is damaged", path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        error: McapError,
    },
    /// A finished file has messages outside of chunks, which have no index.
    #[error("{} has no chunks; 'mcap recover' writes a copy that has", path.display())]
    NoChunks {
        /// The file.
        path: PathBuf,
    },
    /// A chunk is damaged. The next message comes from the chunk after it.
    #[error("a chunk of {} bytes at byte {at} of {} is damaged: {reason}", bytes, path.display())]
    Chunk {
        /// The file.
        path: PathBuf,
        /// Where the chunk begins.
        at: u64,
        /// Its length.
        bytes: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A message is damaged, or its bytes do not match its channel. The next message follows it.
    #[error("a message of topic '{topic}' is damaged: {reason}")]
    Message {
        /// The topic.
        topic: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// The recording has no topic that the caller selected.
#[derive(Debug, thiserror::Error)]
#[error("the recording has no topic that matches {patterns}; it has: {known}")]
pub struct NoTopic {
    /// The caller's topics and patterns.
    pub patterns: String,
    /// The topics of the recording.
    pub known: String,
}

/// A replay that cannot begin or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A topic cannot be published.
    #[error("topic '{topic}' cannot be published")]
    Topic {
        /// The topic.
        topic: String,
        /// Why.
        #[source]
        error: Box<OpenError>,
    },
    /// No memory for a message.
    #[error("no memory for a message of topic '{topic}'")]
    Loan {
        /// The topic.
        topic: String,
        /// Why.
        #[source]
        error: LoanError,
    },
    /// A message cannot be published.
    #[error("a message of topic '{topic}' cannot be published")]
    Publish {
        /// The topic.
        topic: String,
        /// Why.
        #[source]
        error: Box<PublishError>,
    },
    /// The recording has no topic that the options select.
    #[error(transparent)]
    NoTopic(#[from] NoTopic),
    /// A thread cannot be started.
    #[error("the thread that reads ahead cannot be started")]
    Thread(#[source] std::io::Error),
    /// The daemon does not answer.
    #[error(transparent)]
    Client(#[from] ClientError),
}

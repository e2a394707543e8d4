//! What goes wrong between a node and its daemon.

use rgaps_pool::PoolError;
use rgaps_session::{LaunchError, Refusal};

/// What goes wrong between a node and its daemon.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No daemon was found or started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The daemon said no, and why.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The daemon went away and none has come in its place in time. What was joined goes on.
    #[error("the daemon went away and did not come back in time ({reason}); try again later")]
    Gone {
        /// How it was noticed, and how the last attempt to find another ended.
        reason: String,
    },
    /// The daemon was stopped on purpose. What was joined goes on; nothing new can be had.
    #[error("the daemon was stopped; start it with 'rgaps up', then try again")]
    Stopped,
    /// The daemon does not answer.
    #[error("the daemon did not answer within {seconds} s; see 'rgaps status' and its log")]
    NoAnswer {
        /// How long it was waited for.
        seconds: u64,
    },
    /// The memory that this member is in was lost with the daemon that served it: messages go on
    /// among those who have it, nobody else can join.
    #[error("the topic's memory was lost with its daemon ({reason}); join again for new memory")]
    ZoneLost {
        /// How.
        reason: String,
    },
    /// Memory cannot be mapped.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The daemon answered what it must not.
    #[error("the daemon breaks the protocol: {0}; is it of another version?")]
    Protocol(String),
    /// A system call failed.
    #[error("{call} failed: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The node belongs to the process that this one was forked from.
    #[error("this node was made before fork(); make a new one in the child process")]
    Forked,
    /// The node's own thread has ended.
    #[error("the node is closed")]
    Closed,
}

/// A daemon that answers what it must not.
pub(crate) fn broken(what: &str) -> ClientError {
    ClientError::Protocol(what.to_owned())
}

impl ClientError {
    pub(crate) fn system(call: &'static str) -> impl Fn(rustix::io::Errno) -> ClientError {
        move |errno| ClientError::System {
            call,
            source: errno.into(),
        }
    }
}

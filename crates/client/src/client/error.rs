//! Errors between a node and its daemon.

use rgaps_pool::PoolError;
use rgaps_session::{LaunchError, Refusal};

/// A node's request to its daemon failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There is no daemon, and none could be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The daemon refused the request; the [`Refusal`] says why.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The daemon died, and no other replaced it within 10 s. Publishers and subscribers that exist continue.
    #[error("the daemon went away and did not come back in time ({reason}); try again later")]
    DaemonLost {
        /// How the session ended, and how the last attempt to find another daemon failed.
        reason: String,
    },
    /// A user stopped the daemon. Publishers and subscribers that exist continue; new ones cannot be created.
    #[error("the daemon was stopped; start it with 'rgaps up', then try again")]
    Stopped,
    /// The daemon runs but did not answer a request in time. The request may still take effect.
    #[error("the daemon did not answer within {seconds} s: {advice}")]
    NoAnswer {
        /// How long this process waited, in seconds.
        seconds: u64,
        /// Why, if that is known, and what to do.
        advice: String,
    },
    /// A new daemon could not take over the shared memory of the previous one. Publishers and subscribers that use this
    /// memory continue to exchange messages; no others can join them.
    #[error("the topic's memory was lost with its daemon ({reason}); join again for new memory")]
    ZoneLost {
        /// Why the memory could not be taken over.
        reason: String,
    },
    /// Memory could not be mapped.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The daemon sent an invalid answer, most likely because it has another version.
    #[error("the daemon violates the protocol: {0}; if it has another version, restart it with 'rgaps down' and 'rgaps up'")]
    Protocol(String),
    /// An argument is outside its limits.
    #[error("{0}")]
    Argument(String),
    /// A system call failed.
    #[error("{call} failed: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The node was created before `fork`, by the parent process.
    #[error("this node was made before fork(); make a new one in the child process")]
    Forked,
    /// The node's background thread has ended.
    #[error("the node is closed")]
    Closed,
}

/// The error for a protocol violation by the daemon.
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

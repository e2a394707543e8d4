//! What can go wrong.

use std::net::SocketAddr;

/// Characters of a token, at least. A shorter one could be guessed.
pub const TOKEN_MIN: usize = 16;

/// A server that cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// Another program listens there.
    #[error("port {} is in use at {}; choose another one with --listen", address.port(), address.ip())]
    InUse {
        /// Where.
        address: SocketAddr,
    },
    /// The system does not let it listen.
    #[error("cannot listen at {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
    /// Anybody who reaches the address could look.
    #[error(
        "whoever reaches {} could see all topics; require a token with --token-file or --token, or listen at 127.0.0.1", address.ip()
    )]
    NoToken {
        /// Where it should listen.
        address: SocketAddr,
    },
    /// The token could be guessed.
    #[error(
        "the token is shorter than {TOKEN_MIN} characters and could be guessed; 'openssl rand -hex 16' prints a good one"
    )]
    ShortToken,
    /// A thread cannot be started.
    #[error("a thread of the server cannot be started")]
    Thread(#[source] std::io::Error),
}

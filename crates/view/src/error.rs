//! Errors of starting a server.

use std::net::SocketAddr;

/// Least characters of a token. A shorter token could be guessed.
pub const TOKEN_MIN: usize = 16;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// Another program listens at the address.
    #[error("port {} is in use at {}; choose another one with --listen", address.port(), address.ip())]
    InUse {
        /// Where.
        address: SocketAddr,
    },
    /// The system refuses to listen at the address.
    #[error("cannot listen at {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The system's error.
        #[source]
        error: std::io::Error,
    },
    /// The address is not loopback, and there is no token, so every host that reaches it could see all topics.
    #[error(
        "whoever reaches {} could see all topics; require a token with --token-file or --token, or listen at 127.0.0.1", address.ip()
    )]
    NoToken {
        /// The address of the options.
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

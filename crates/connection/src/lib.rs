//! TCP connections between hosts: whether they must be encrypted ([`Security`]), who the other end is ([`Tls`]), and how many strangers
//! may be in their handshake ([`Handshakes`]). Lanes of links and remote GPUs use this crate; it knows neither.

#![warn(clippy::too_many_lines)]
#![forbid(unsafe_code)]

mod connection;
mod handshakes;
mod security;
mod tls;

pub use connection::{Connection, Wait};
pub use handshakes::{Handshake, Handshakes};
pub use security::{Security, SecurityError, TlsStream};
pub use tls::{Tls, TlsError, TlsFiles};

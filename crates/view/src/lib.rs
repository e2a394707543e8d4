//! Looking at a realm: what `rgaps top` shows, and a server for browsers and for Foxglove.
//!
//! A person who looks must not slow the system that is looked at. So the server subscribes to a topic only while somebody looks at
//! it, as an observer of its newest message. It polls at the rate of `--rate` and asks for no wake-up, so its publishers ring no
//! doorbell for it. It copies only messages that it sends, down-sampled to `--max-bytes`. A client that reads slowly gets fewer
//! messages: the server keeps one message for each subscription, and a newer one replaces it.
//!
//! - [`Server`] listens on one port. It answers WebSocket clients by the protocol of Foxglove, and HTTP requests of a small page
//!   that it brings along. Messages have the schemas of recordings (crate `recording`).
//! - [`overview`] compares what the daemon tells at two moments; `rgaps top` and the page show the result.
//!
//! One thread receives (`watch`), one asks the daemon (`look`), each connection has one of its own. They share the table of
//! channels and clients (`hub`).
//! `docs/decisions/0050-view.md` has the reasons.
#![warn(clippy::too_many_lines)]
#![forbid(unsafe_code)]

mod access;
mod client;
mod error;
mod http;
mod hub;
mod look;
mod options;
mod outbox;
pub mod overview;
mod owner;
mod protocol;
mod server;
mod state;
mod thumbnail;
mod watch;

pub use error::{ViewError, TOKEN_MIN};
pub use options::{Options, PORT};
pub use server::Server;

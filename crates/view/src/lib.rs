//! Views of a realm: the figures of `rgaps top`, and a server for browsers and for Foxglove.
//!
//! A viewer must not slow down the system. So the server subscribes to a topic only while a client looks at it, as an observer of
//! its newest message. It polls at the rate of `--rate` and never sleeps on a doorbell, so publishers ring none for it. It copies
//! only messages that it sends, down-sampled to `--max-bytes`. A client that reads slowly gets fewer messages: the server keeps one
//! message for each subscription, and a newer one replaces it.
//!
//! - [`Server`] listens on one port. It speaks Foxglove's protocol with WebSocket clients, and serves a small page over HTTP.
//!   Messages have the schemas of recordings (crate `recording`).
//! - [`overview`] compares two states of the daemon; `rgaps top` and the page show the difference.
//!
//! One thread receives messages (`watch`), one asks the daemon (`look`), and each connection has a thread of its own. They share the
//! table of channels and clients (`hub`).
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

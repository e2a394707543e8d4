//! Between hosts: what travels over a link, and the books that keep it bounded. Knows neither topics
//! nor pools; no I/O is done here but by the lanes.
//!
//! A *link* joins two hosts; a *lane* is one connection of it, and a link has several. A lane writes into
//! memory that the peer registered once (by offset), and then notifies it, as RDMA's WRITE_WITH_IMM does:
//! a notification names a slot, never "the next one", so nothing relies on the order of arrival between
//! lanes. Small messages go eagerly into a ring that the receiver has for each lane ([`cursors`]); large
//! ones are granted their landing place first. Who may put how much in flight is in [`credits`], what
//! travels is in [`frame`], what the ends do with it in [`Sender`] and [`Receiver`]. See `docs/decisions/0015-links.md`.
// Frames are passed on and not kept; a box would allocate on a message's way.
#![allow(clippy::large_enum_variant, clippy::result_large_err)]

mod batch;
mod connection;
#[cfg(test)]
mod counts_tests;
pub mod credits;
mod driver;
mod endpoint;
mod entries;
pub mod frame;
mod greetings;
mod hello;
mod lane;
pub mod link;
pub mod machine;
mod memory;
mod owner;
mod payload;
mod places;
mod rate;
mod rdma;
mod receiver;
mod running;
mod sender;
mod tls;
mod wire;

pub use rgaps_verbs::cursors;

pub use driver::Sent;
pub use endpoint::{Endpoint, EndpointConfig, EndpointCounts, EndpointError, Link, Security};
pub use hello::HelloError;
pub use lane::{LaneEnd, LaneKind, LaneStatus};
pub use owner::{Event, OnCard, Owner, Place, Room};
pub use payload::Payload;
pub use rate::Rate;
pub use rdma::{Rdma, RdmaError, Registered, Registrar};
pub use receiver::{Places, Receiver, ReceiverConfig};
pub use running::{LinkConfig, LinkCounts, LinkStatus, Peer, RdmaCounts};
pub use sender::{Offered, Sender, SenderConfig};

pub use tls::{Tls, TlsError, TlsFiles};

pub use frame::{DecodeError, Flow, Frame, LaneKey, Meta, Wish};

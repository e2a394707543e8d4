//! Links between hosts: their frames, flow control and connections. This crate knows neither topics nor pools.
//!
//! A *link* joins two hosts; a *lane* is one connection of it, and a link has several. [`machine::LinkMachine`] is both ends of a link
//! without I/O: flows, windows, grants, receive buffers. [`LinkRuntime`] runs it, with lanes over TCP, TLS and RDMA.
//! A large message is requested, and its chunks are written straight into the receive buffer that was granted, through several lanes
//! at once; an RDMA lane writes them by itself and then notifies the receiver. A notification names its chunk, so nothing relies on
//! the order of arrival between lanes. Small messages need no grant: each flow has a window.
//! See `docs/decisions/0038-house.md` and `docs/decisions/0015-links.md`.

#![warn(clippy::too_many_lines)]
// Frames move from function to function; a box would cost an allocation for each message.
#![allow(clippy::large_enum_variant, clippy::result_large_err)]

mod credits;
pub mod machine;
mod payload;
mod rdma;
mod runtime;

pub use machine::frame::{Description, LaneKey, RdmaMode};
pub use machine::{FlowEvent, FlowId, FlowReceiver, OpenReply};
pub use payload::Payload;
pub use rdma::{Rdma, RdmaError, Registered, Registrar};
pub use rgaps_layout::LaneEnd;
pub use runtime::{
    Endpoint, EndpointConfig, EndpointError, LaneKind, LaneStatus, Link, LinkConfig, LinkCounts,
    LinkEvent, LinkRuntime, LinkStatus, LinkUser, Peer,
};

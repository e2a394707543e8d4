//! Routes between hosts, and the delivery of messages over them from end to end.
//!
//! The origin of a message alone decides how it travels: it names the tree of hosts that the message takes, and hosts between only
//! forward to the children that are named there. So whatever hosts believe of the network, no message circles. The origin keeps
//! a message until every final host has confirmed it; a host between keeps nothing that must survive it.
//!
//! | piece | where | for what |
//! |---|---|---|
//! | [`PathTable`] | every host | path vectors: which hosts are reached, and through which others; the graph |
//! | [`Channels`], [`InterestTable`] | every host | control messages between any two hosts; what each host wants |
//! | [`Delivery`] | the origin, per publisher | numbers and keeps messages; decides about flows and trees |
//! | [`build()`] | the origin | builds a tree over the graph |
//! | [`Transit`] | hosts below the origin, per flow | forwards to children, acknowledges, reports what breaks |
//! | [`Positions`] | final hosts | delivers each number once and in order; confirms it |
//!
//! Every piece has one owner and shares nothing. Its user calls it with what happened, then asks it what is to be done. The
//! simulation in `tests/sim/node.rs` shows how they are put together.
//!
//! Not here yet: trees for best-effort hosts, on which each host may skip messages.
//!
//! The crate does no I/O. It knows hosts, publishers and numbers, and no sockets, pools or types; its user passes time in. See
//! decision 0038.
#![forbid(unsafe_code)]

mod build;
mod channel;
mod delivery;
mod graph;
mod ids;
mod interest;
mod paths;
mod position;
mod transit;
mod tree;

pub use build::{
    build, chunk_bytes, cost_bytes, limited, shortest, Load, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN,
};
pub use channel::{
    ChannelEnd, ChannelEvent, Channels, ControlMessage, Datagram, Hop, Segment, CHANNEL_WINDOW,
    RESEND_AFTER,
};
pub use delivery::{Delivery, FlowCommand, GivenUp};
pub use graph::Graph;
pub use ids::{FlowName, HostId, Life, Publisher, Time};
pub use interest::{HostInterest, InterestTable, Wants, MAX_TOPICS};
pub use paths::{Path, PathError, PathTable, MAX_HOPS, MAX_PATHS, SETTLE_AFTER, WITHDRAW_AFTER};
pub use position::{Offer, Positions};
pub use transit::{FlowDescription, FlowError, FlowId, Transit};
pub use tree::{Tree, MAX_TREE_HOSTS};

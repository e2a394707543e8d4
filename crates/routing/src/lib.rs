//! Routes between hosts, and the delivery of messages over them from end to end.
//!
//! The origin of a message alone decides how it travels: it names the tree of hosts that the message takes, and hosts between only
//! forward to the children that are named there. So whatever hosts believe of the network, no message circles. The origin keeps
//! a message until every final host has confirmed it; a host between keeps nothing that must survive it.
//!
//! | piece | where | for what |
//! |---|---|---|
//! | [`Router`] | every host | puts together what each host needs to reach others, and to be reached |
//! | [`PathTable`] | in `Router` | path vectors: which hosts are reached, and through which others; the graph |
//! | control channels | in `Router` | messages in order between any two hosts: what each host wants, how far flows are |
//! | [`Delivery`] | the origin, per publisher | knows what is confirmed, what is to be retained, and what each flow has to send |
//! | [`StreamHealth`] | the origin, per stream | decides when another stream replaces it |
//! | [`TransitFlow`] | hosts between, per flow | decides in what order messages go on, and how the children's flows end |
//! | [`build()`] | the origin | builds a tree over the graph |
//!
//! Every piece has one owner and shares nothing. Its user calls it with what happened, then asks it what is to be done. Links and the
//! simulation (`tests/all/sim`) run the same code.
//!
//! Which flows there are, the origin's user decides: links by rules, quotas and refusals, the simulation by the graph alone. A final host
//! delivers what is not below its position; its user keeps that.
//!
//! The crate does no I/O. It knows hosts, publishers and numbers, and no sockets, pools or types; its user passes time in. See
//! decision 0038.
#![warn(clippy::too_many_lines)]
#![forbid(unsafe_code)]

mod build;
mod channel;
mod delivery;
mod graph;
mod ids;
mod interest;
mod paths;
mod router;
mod stream;
mod transit;
mod tree;

pub use build::{
    build, chunk_bytes, cost_bytes, limited, shortest, Load, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN,
};
pub use channel::{
    ChannelEnd, ChannelEvent, Channels, ControlMessage, Datagram, Hop, Segment, CHANNEL_WINDOW,
    RESEND_AFTER,
};
pub use delivery::Delivery;
pub use graph::Graph;
pub use ids::{FlowName, HostId, Life, Publisher, StreamId, Time};
pub use interest::{HostInterest, Wants, MAX_TOPICS};
pub use paths::{Path, PathError, PathTable, MAX_HOPS, MAX_PATHS, SETTLE_AFTER, WITHDRAW_AFTER};
pub use router::{Received, Router, RouterFrame};
pub use stream::{StreamHealth, BROKEN_LIMIT};
pub use transit::{TransitAction, TransitFlow};
pub use tree::{Tree, MAX_TREE_HOSTS};

//! The client of the daemon: nodes, publishers and subscribers, with the memory, streams and connection behind them.
//!
//! The crate `rgaps` exports and explains the part that users see. Two modules add methods to the same types, as traits:
//! [`links`] for the process that carries topics to other hosts, [`bindings`] for other languages. The traits
//! are `doc(hidden)`, since rustdoc would list them with the types that `rgaps` exports.

#![warn(clippy::too_many_lines)]

mod beside;
pub mod bindings;
mod bridge;
mod client;
mod deferred_release;
mod error;
mod header;
mod holds;
pub mod links;
mod listener;
mod loan;
mod matched;
mod node;
mod parts;
mod pending;
mod publisher;
mod qos;
mod readiness;
mod reading;
mod sample;
mod subscriber;
pub mod tensor;
mod wait_set;

pub use bridge::{Bridge, BridgeFigures, Direction};
pub use client::ClientError;
pub use error::{LoanError, OpenError, PublishError, PutError, RecvError, SlowReader, Unpublished};
pub use header::{Header, HeaderError, Value, HEADER_DEPTH_MAX};
pub use listener::Listener;
pub use loan::Loan;
pub use matched::Matched;
pub use node::{Node, NodeBuilder};
pub use parts::{Part, PartSpec, Parts, PartsError};
pub use publisher::{Publisher, PublisherBuilder};
pub use qos::{Late, PublisherQos, SlowReaderPolicy, SubscriberQos};
pub use rgaps_device::{DeviceError, DeviceTopic, Geometry as DeviceGeometry, Role as DeviceRole};
pub use rgaps_layout::{
    DType, Domain, GpuUuid, TensorType, TensorTypeError, MAX_ATTACHMENT_BYTES, MAX_MESSAGE_PARTS,
    MAX_PART_NAME,
};
pub use rgaps_pool::{PoolError, Stream};
pub use rgaps_session::{
    BlockSum, ClientRow, Config, DeviceRow, DeviceSeatRow, Forgotten, Histogram, History,
    KeptHistory, LaneEnd, LinkFigures, LinksFailure, LinksInfo, LinksState, MemoryUses,
    MismatchRow, MpsInfo, MpsState, NotReached, PathKind, PeerRow, PeerState, PeerTopic, PeersInfo,
    PoolRow, PublisherRow, RdmaFigures, Refusal, RefusalCode, RemoteRow, Stage, Status,
    SubscriberRow, TopicInfo, TopicRow, TraceFigures,
};
pub use rgaps_topic::Tensor;
pub use sample::Sample;
pub use subscriber::{Subscriber, SubscriberBuilder};
pub use wait_set::{Token, WaitSet};

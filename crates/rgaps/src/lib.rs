//! Publish and subscribe messages in host and GPU memory without copies.
//!
//! ```no_run
//! use rgaps::{Node, PublisherQos, SubscriberQos};
//!
//! let node = Node::new("example")?;
//! let subscriber = node.subscriber("greetings").create()?;
//! let publisher = node.publisher("greetings").create()?;
//!
//! let mut loan = publisher.loan(5)?;            // a block of the topic's pool
//! loan.as_mut_slice()?.copy_from_slice(b"hello");
//! loan.publish()?;                              // its descriptor goes to all subscribers
//!
//! let sample = subscriber.recv()?;              // the same bytes, mapped read-only
//! assert_eq!(sample.as_slice()?, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Node`] is a process's connection to the daemon of its host; it starts the daemon if none runs. The daemon hands
//! out memory and matches publishers with subscribers. Messages do not pass through it.
//!
//! Every handle may be used from any thread. After `fork`, the child must create a node of its own: all handles of the
//! parent return [`ClientError::Forked`] there.
//!
//! Units: sizes are bytes, times of messages are nanoseconds, all other times are [`Duration`](std::time::Duration)s.

mod client;
mod error;
mod header;
mod holds;
mod letting;
mod listener;
mod loan;
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

pub use client::ClientError;
pub use error::{LoanError, OpenError, PublishError, PutError, RecvError, SlowReader, Unpublished};
pub use header::{Header, HeaderError, Value, HEADER_DEPTH_MAX};
pub use listener::Listener;
pub use loan::Loan;
pub use node::{Node, NodeBuilder};
pub use parts::{Part, PartSpec, Parts, PartsError};
pub use publisher::{Publisher, PublisherBuilder};
#[doc(hidden)]
pub use qos::Patience;
pub use qos::{Late, PublisherQos, SlowReaderPolicy, SubscriberQos};
pub use rgaps_layout::{
    DType, Domain, GpuUuid, TensorType, TensorTypeError, MAX_ATTACHMENT_BYTES, MAX_MESSAGE_PARTS,
    MAX_PART_NAME,
};
pub use rgaps_pool::{PoolError, Stream};
pub use rgaps_session::{
    BlockSum, ClientRow, Config, Forgotten, Histogram, History, KeptHistory, LaneEnd, LinkFigures,
    LinksFailure, LinksInfo, LinksState, MemoryUses, MismatchRow, MpsInfo, MpsState, PathKind,
    PeerRow, PeerState, PeerTopic, PeersInfo, PoolRow, PublisherRow, RdmaFigures, Refusal,
    RefusalCode, RemoteRow, Stage, Status, SubscriberRow, TopicInfo, TopicRow, TraceFigures,
};
pub use rgaps_topic::Tensor;
pub use sample::Sample;
pub use subscriber::{Subscriber, SubscriberBuilder};
pub use wait_set::{Token, WaitSet};

/// The protocol's crates, for benchmarks and tests that need what is underneath.
#[doc(hidden)]
pub mod internal {
    #[cfg(feature = "crash-steps")]
    pub use rgaps_topic::set_crash_hook;
}

/// Requests that only `rgaps-links`, the process with the links to other hosts, may send.
#[doc(hidden)]
pub mod links {
    pub use crate::client::{GpuRange, HostMemory, MappedRange};
    pub use crate::node::Interest;
    pub use crate::publisher::EarlyCopies;
    pub use rgaps_layout::{MetadataLengths, MAX_METADATA_BYTES};
    pub use rgaps_session::{
        CameOver, Demand, Direction, InterestPublisher, InterestRow, LandIn, LandingRule, Links,
        LinksTls, LogFormat, Offer, Quota, Rdma, Traces, Watermark, HISTOGRAM_BUCKETS,
        LINKS_CLIENT, MAX_REMOTE_HOSTS,
    };
    pub use rgaps_topic::Metadata;
}

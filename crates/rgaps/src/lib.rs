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

#![warn(clippy::too_many_lines)]
#![forbid(unsafe_code)]

// What every program uses.
#[doc(inline)]
pub use rgaps_client::{
    Listener, Loan, Matched, Node, NodeBuilder, Publisher, PublisherBuilder, Sample, Subscriber,
    SubscriberBuilder, Token, WaitSet,
};

// Quality of service.
#[doc(inline)]
pub use rgaps_client::{History, Late, PathKind, PublisherQos, SlowReaderPolicy, SubscriberQos};

// Where bytes are, and what they are.
#[doc(inline)]
pub use rgaps_client::{tensor, DType, Domain, GpuUuid, Stream, Tensor, TensorType};

// Device topics: kernels that publish and receive.
#[doc(inline)]
pub use rgaps_client::{
    Bridge, BridgeFigures, DeviceError, DeviceGeometry, DeviceRole, DeviceTopic, Direction,
};

// What travels beside a message.
#[doc(inline)]
pub use rgaps_client::{
    Header, Part, PartSpec, Parts, Value, HEADER_DEPTH_MAX, MAX_ATTACHMENT_BYTES,
    MAX_MESSAGE_PARTS, MAX_PART_NAME,
};

// Errors.
#[doc(inline)]
pub use rgaps_client::{
    ClientError, HeaderError, LoanError, OpenError, PartsError, PoolError, PublishError, PutError,
    RecvError, Refusal, RefusalCode, SlowReader, TensorTypeError, Unpublished,
};

// What a node answers about the daemon, topics, memory and links, and the configuration.
#[doc(inline)]
pub use rgaps_client::{
    BlockSum, ClientRow, Config, DeviceRow, DeviceSeatRow, Forgotten, Histogram, KeptHistory,
    LaneEnd, LinkFigures, LinksFailure, LinksInfo, LinksState, MemoryUses, MismatchRow, MpsInfo,
    MpsState, NotReached, PeerRow, PeerState, PeerTopic, PeersInfo, PoolRow, PublisherRow,
    RdmaFigures, RemoteRow, Stage, Status, SubscriberRow, TopicInfo, TopicRow, TraceFigures,
};

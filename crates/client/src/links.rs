//! Methods for `rgaps-links`, the process that carries topics to other hosts.
//!
//! It is a client with additional rights: it tells the daemon what the links do, publishes the messages of publishers on other
//! hosts, starts copies of messages that still arrive, and registers memory with network cards. The daemon grants the
//! requests of [`LinksNode`] to no other process. The crate `rgaps` does not export this module.

pub use crate::bindings::{SetMetadata, WithMetadata};
pub use crate::client::{GpuRange, HostMemory, MappedRange};
pub use crate::publisher::StreamingCopy;
pub use rgaps_layout::{MetadataLengths, MAX_METADATA_BYTES};
pub use rgaps_session::{
    ArrivalPath, Demand, Direction, InterestPublisher, InterestRow, LandIn, LandingRule, Links,
    LinksTls, LogFormat, Offer, Quota, Rdma, Traces, Watermark, HISTOGRAM_BUCKETS, LINKS_CLIENT,
    MAX_REMOTE_HOSTS,
};
pub use rgaps_topic::Metadata;

use crate::{ClientError, LinkFigures, LoanError, PeersInfo, Publisher, RemoteRow, Subscriber};
use std::sync::Arc;

/// The publishers and subscribers of this host, without those of `rgaps-links`.
#[derive(Clone, Debug)]
pub struct Interest {
    /// Changes whenever a member of a topic joins or leaves.
    pub version: u64,
    /// A random number that changes with every daemon.
    pub daemon: u64,
    /// One row per topic and member; `None` if nothing has changed since the version that the caller named.
    pub rows: Option<Vec<InterestRow>>,
    /// Only in the first answer: the publishers of earlier `rgaps-links` processes, by incarnation, and how many messages each
    /// published.
    pub departed: Vec<(u64, u64)>,
}

/// Requests of a [`Node`](crate::Node) that the daemon answers to `rgaps-links` only.
#[doc(hidden)]
pub trait LinksNode {
    /// The publishers and subscribers of this host, if they have changed since version `known`.
    fn interest(&self, known: u64) -> Result<Interest, ClientError>;

    /// Tells the daemon for which hosts' subscribers this subscriber of the links reads.
    fn stands_for(&self, subscriber: &Subscriber, hosts: Vec<RemoteRow>)
        -> Result<(), ClientError>;

    /// Tells the daemon over what path the messages of a remote publisher reach this host now.
    fn comes_over(&self, publisher: &Publisher, over: ArrivalPath) -> Result<(), ClientError>;

    /// Tells the daemon to or from which hosts a topic is not carried, and why.
    fn unserved(&self, topic: &str, hosts: Vec<RemoteRow>) -> Result<(), ClientError>;

    /// Tells the daemon the state of the links to other hosts.
    fn set_peers(&self, peers: PeersInfo) -> Result<(), ClientError>;

    /// Tells the daemon the counters and histograms of the link to a host.
    fn set_figures(&self, figures: LinkFigures) -> Result<(), ClientError>;
}

/// Further settings of a [`NodeBuilder`](crate::NodeBuilder).
#[doc(hidden)]
pub trait LinksNodeBuilder {
    /// Sets the observer of host memory that this node maps.
    fn host_memory(self, watch: Arc<dyn HostMemory>) -> Self;
}

/// Further settings of a [`PublisherBuilder`](crate::PublisherBuilder).
#[doc(hidden)]
pub trait LinksPublisherBuilder {
    /// The path over which the messages of a remote publisher reach this host.
    fn arrives_over(self, over: ArrivalPath) -> Self;
}

/// Further methods of a [`Publisher`] that represents a publisher on another host.
#[doc(hidden)]
pub trait LinksPublisher {
    /// Marks all messages published so far as history of the other host's publisher. Messages after this call are live.
    fn end_history(&self);

    /// Sets whether publishing wakes no subscriber, for a caller that publishes several messages and then calls
    /// [`ring`](Self::ring).
    fn set_quiet(&self, is_quiet: bool);

    /// Wakes subscribers that sleep and have unread messages.
    fn ring(&self);
}

/// Further settings of a [`SubscriberBuilder`](crate::SubscriberBuilder).
#[doc(hidden)]
pub trait LinksSubscriberBuilder {
    /// Makes the subscriber take the history of publishers on other hosts as it arrives, to send it on.
    fn of_links(self) -> Self;
}

/// Further methods of a [`Subscriber`] whose messages go to other hosts.
#[doc(hidden)]
pub trait LinksSubscriber {
    /// The publishers that have history, by [`Sample::publisher_id`](crate::Sample::publisher_id), each with a sequence number:
    /// messages below it are history for a subscriber that joins now.
    fn histories(&self) -> Vec<(u64, u64)>;
}

/// Further methods of a [`Loan`](crate::Loan) for a message that arrives from another host.
#[doc(hidden)]
pub trait LinksLoan {
    /// Sets when the message was published on its own host, converted to this host's clock.
    fn set_publish_ns(&mut self, publish_ns: u64);

    /// Gives a loan on a GPU a staging buffer in host memory, to be filled through [`filled`](Self::filled) and copied to
    /// the GPU. False if no buffer is free and `may_wait` is false.
    fn stage(&mut self, may_wait: bool) -> Result<bool, LoanError>;

    /// The host bytes to fill: those of a loan in host memory, or of the staging buffer of a loan on a GPU.
    fn filled(&mut self) -> Result<&mut [u8], LoanError>;

    /// Starts copies to GPUs while the loan is still being filled. Each range passed to [`StreamingCopy::arrived`] is copied
    /// at once, the rest when the loan is published. For a loan in host memory these are the replicas for subscribers
    /// that read on GPUs; for a loan with a staging buffer ([`stage`](Self::stage)), the loan's own bytes. None for a loan on a
    /// GPU without a staging buffer.
    fn begin_streaming_copy(&mut self) -> Option<StreamingCopy>;

    /// Sets how many messages of the other host's publisher before this one never reached this host: a running sum.
    fn set_missed_so_far(&mut self, missed: u64);
}

//! Device topics: memory in which GPU kernels publish messages to kernels of other processes, without a CPU.
//!
//! This crate is the host's part. It makes the memory of a topic and maps it ([`DeviceTopic`]), gives seats to subscribers,
//! and stops kernels that wait. The protocol itself runs in the kernels: `rgaps/device.cuh`, of which every access is model-checked.
//! The host takes part in it only to forward between device topics and ordinary ones ([`HostSubscriber`], [`HostPublisher`]).
//! `rgaps-layout` has the words that both share; `docs/decisions/0046-device-topics.md` says why each order is enough.
//!
//! A topic is three segments, each a file descriptor that travels between processes:
//!
//! | segment | where | who writes |
//! |---|---|---|
//! | control | host memory | hosts: seats, stop, eviction. Kernels read it, and seldom |
//! | ring | the topic's domain | the publisher's kernel; subscribers map it for reading only |
//! | words | the topic's domain | all kernels: holder words, and each subscriber its seat |
//!
//! The memory lives while any process has a descriptor or a mapping of it.

#![warn(clippy::too_many_lines)]

mod geometry;
mod memory;
mod publisher;
mod seats;
mod subscriber;
mod tensor;
mod topic;

pub use geometry::Geometry;
pub use publisher::{Full, HostPublisher};
pub use seats::SeatState;
pub use subscriber::{HostSubscriber, Waiting};
pub use tensor::{Outcome, TensorPublisher, TensorSubscriber};
pub use topic::{DeviceTopic, Role};

/// Why a device topic cannot be made, opened or joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Memory could not be made or mapped, or a descriptor is not what it should be.
    #[error(transparent)]
    Pool(#[from] rgaps_pool::PoolError),
    /// Sizes that a topic cannot have.
    #[error("{0}")]
    Argument(String),
    /// All seats are taken.
    #[error("all {0} seats of the topic are taken; a subscriber has to leave first")]
    NoSeat(u32),
    /// The host evicted the subscriber.
    #[error("the subscriber in seat {0} of the device topic was evicted; it misses messages")]
    Evicted(u32),
    /// The topic's memory holds what no peer may write.
    #[error("a process violates the protocol of the device topic: {0}")]
    Corrupt(String),
    /// Another process is the bridge between the topic and an ordinary one.
    #[error("another process forwards messages of this device topic; one at a time does")]
    Bridged,
    /// The lock that makes a process the only bridge could not be asked for.
    #[error("the device topic cannot be locked: {0}")]
    Lock(std::io::Error),
}

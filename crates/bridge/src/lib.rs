//! Carries topics to and from Zenoh. A bridge runs in a process of its own, since Zenoh brings a runtime: `rgaps-links bridge`, of
//! the program that contains Zenoh anyway.
//!
//! ```text
//! publisher -> ring -> subscriber of the bridge --dialect--> Zenoh       (outgoing: one thread)
//! Zenoh -> queue --dialect--> publisher of the bridge -> ring -> subscribers   (incoming: a thread for each rule)
//! ```
//! A `Dialect` translates messages in both directions; the rest is the same for all systems. `Plain` is Zenoh alone, with its keys,
//! encodings and attachments; `Ros2` is ROS 2 over Zenoh.
//!
//! Invariants:
//! - The bridge reads a topic only while somebody on the other side subscribes to its key.
//! - No message loops. Zenoh delivers no session its own messages, the bridge ignores messages of its own publishers, and the bridge
//!   marks each message from the other side in its header, so that no other bridge sends it back. Exception: `Plain` cannot mark a
//!   message whose attachment is no header.
//! - An incoming message is copied once, from Zenoh's buffers into the loan. For an outgoing one, Zenoh reads the publisher's block.
//! - A callback of Zenoh never waits. A message without room in the queue is dropped and counted with its reason.
#![warn(clippy::too_many_lines)]
#![forbid(unsafe_code)]

mod bridge;
mod counts;
mod dialect;
mod error;
mod history;
mod incoming;
mod network;
mod outgoing;
mod plain;
mod program;
mod queue;
mod ros2;
mod shared;

pub use bridge::Bridge;
pub use counts::{Counts, Reason};
pub use error::BridgeError;
pub use network::close as close_session;
pub use program::{run, Arguments};
pub use ros2::{ros2_topics, RosTopic};

//! Carries topics to and from Zenoh. It is a process of its own, since Zenoh brings a runtime: the program `rgaps-links`, which has
//! Zenoh anyway, as `rgaps-links bridge`.
//!
//! ```text
//! publisher -> ring -> subscriber of the bridge --dialect--> Zenoh       (outgoing: one thread)
//! Zenoh -> queue --dialect--> publisher of the bridge -> ring -> subscribers   (incoming: a thread for each rule)
//! ```
//! A `Dialect` says what a message becomes on the other side, and what one from there becomes here; the rest is the same for
//! all. `Plain` is Zenoh alone: keys, encodings, attachments; `Ros2` is ROS 2 over Zenoh.
//!
//! Invariants:
//! - The bridge reads a topic only while somebody on the other side subscribes to its key.
//! - Messages do not go round. Zenoh does not hand a session its own messages, the bridge ignores those of its own publishers,
//!   and a message that came from the other side says so in its header, so no bridge sends it back.
//! - A message is copied once on its way in: from Zenoh's buffers into the loan. On its way out, Zenoh reads the publisher's
//!   block.
//! - A callback of Zenoh never waits. What has no room is dropped and counted with the reason.
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

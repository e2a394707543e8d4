//! Recordings of topics in [MCAP](https://mcap.dev) files: writing them, reading them, publishing them again.
//!
//! A recording is for more programs than rgaps. So the file is of a format that Foxglove, Rerun and ROS 2's tools read,
//! written and read with the field's crate, and an image in it is a `foxglove.RawImage`. What only rgaps knows of a message
//! (tag, attachment, element type, shape, parts) lies in a further field, so a message that is replayed equals the
//! original byte for byte. `docs/decisions/0049-recordings.md` has the reasons.
//!
//! - A [`Recorder`] receives in one thread and writes in another. No publisher waits for the disk; what has no room in the
//!   queue between the two threads is counted, with the reason.
//! - A [`Recording`] is a file that is read. One whose recorder was killed is readable up to its last whole chunk.
//! - A [`Replay`] publishes recordings again, in their time.
//!
//! Invariants: a file grows by whole chunks; the bytes of a message are copied once from the sample to the queue, and
//! never between the chunk and who reads it.
#![forbid(unsafe_code)]

mod channel;
mod chunk;
mod clock;
mod counts;
mod encode;
mod error;
mod file;
mod info;
mod message;
mod messages;
mod options;
mod queue;
mod receive;
mod recorder;
mod recording;
mod replay;
mod schema;
mod write;

pub use channel::Channel;
pub use counts::{Counts, Reason};
pub use error::{ReadError, RecordError, ReplayError};
pub use info::{Info, TopicInfo};
pub use message::Message;
pub use messages::{Messages, Selection};
pub use options::{Compression, Options};
pub use recorder::Recorder;
pub use recording::{Missing, Recording};
pub use replay::{Replay, ReplayOptions, Replayed};
pub use rgaps_layout::PartEntry;
pub use write::Failure;

//! Recordings of topics in [MCAP](https://mcap.dev) files: this crate writes, reads and replays them.
//!
//! Foxglove, Rerun and ROS 2's tools can read a recording: the crate `mcap` writes the file, an image in it is a
//! `foxglove.RawImage`, and a message that came from ROS 2 as CDR stays CDR. An extra field holds what only rgaps knows of a
//! message (tag, attachment, element type, shape, parts), so a replayed message equals the original byte for byte.
//! `docs/decisions/0049-recordings.md` has the reasons.
//!
//! - A [`Recorder`] receives in one thread and writes in another. No publisher waits for the disk; the recorder drops messages
//!   that have no room in the queue between the two threads, and counts them by reason.
//! - A [`Recording`] reads a file. If its recorder was killed, the file is readable up to its last whole chunk.
//! - A [`Replay`] publishes the messages of recordings again, at their time.
//! - [`encode_within`] encodes a message for live viewers (crate `view`), with the same schemas.
//!
//! Invariants: a file grows by whole chunks. A recorder copies the bytes of a message once, from the sample to the queue; a
//! reader gets them as a slice of the chunk, without a copy.
#![warn(clippy::too_many_lines)]
#![forbid(unsafe_code)]

mod channel;
mod chunk;
mod clock;
mod counts;
mod encode;
mod entry;
mod error;
mod file;
mod info;
mod jpeg;
mod latest;
mod message;
mod messages;
mod options;
mod queue;
mod receive;
mod recorder;
mod recording;
mod replay;
mod schema;
mod shown;
mod write;

pub use channel::{metadata_of, Channel};
pub use clock::WallClock;
pub use counts::{Counts, Reason};
pub use encode::{describe, Encoded, Image};
pub use error::{NoTopic, ReadError, RecordError, ReplayError};
pub use info::{Info, RecordedTopic};
pub use message::Message;
pub use messages::{Messages, Selection};
pub use options::{Compression, Options};
pub use recorder::Recorder;
pub use recording::{files_of, Missing, Recording};
pub use replay::{Replay, ReplayOptions, Replayed};
pub use rgaps_layout::PartEntry;
pub use schema::SchemaKind;
pub use shown::encode_within;
pub use write::Failure;

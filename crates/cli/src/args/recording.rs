//! `rgaps record`, `rgaps replay` and `rgaps info`.

use crate::completion;
use crate::units::{frequency, period, seconds};
use clap::{Args, ValueEnum, ValueHint};
use clap_complete::engine::ArgValueCompleter;
use rgaps_session::ByteSize;
use std::path::PathBuf;
use std::time::Duration;

/// How chunks of a recording are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compression {
    /// Not at all: the fastest.
    None,
    /// LZ4: fast.
    Lz4,
    /// Zstandard: small.
    Zstd,
}

#[derive(Args)]
pub struct Record {
    /// Topics or patterns. In a pattern * matches any characters of one part of a name, ** any number of parts. Topics
    /// that appear later are included.
    #[arg(required = true, value_name = "PATTERN", add = ArgValueCompleter::new(completion::topics))]
    pub patterns: Vec<String>,
    /// Write this file, which must not exist. [default: rgaps-DATE.mcap in this folder]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// How to compress.
    #[arg(long, value_enum, default_value = "none")]
    pub compression: Compression,
    /// Write a bag of ROS 2: messages in CDR and nothing else. Messages that are none of ROS 2 are left out and counted.
    #[arg(long, conflicts_with = "jpeg")]
    pub ros2: bool,
    /// Write images of 8 bits as JPEG (foxglove.CompressedImage), of QUALITY 1 to 100. It changes pixels, and one core compresses.
    #[arg(long, value_name = "QUALITY", num_args = 0..=1, require_equals = true, default_missing_value = "90",
        value_parser = clap::value_parser!(u8).range(1..=100))]
    pub jpeg: Option<u8>,
    /// End a chunk after this many bytes, or after a second. Programs can read only whole chunks.
    #[arg(long, value_name = "BYTES", default_value = "4MiB")]
    pub chunk: ByteSize,
    /// Limit the memory of messages that wait for the disk; with --keep, of the kept messages.
    #[arg(long, value_name = "BYTES", default_value = "512MiB")]
    pub queue: ByteSize,
    /// Begin a new file when the file has this many bytes. Files are numbered: NAME-0000.mcap.
    #[arg(long, value_name = "BYTES")]
    pub split_size: Option<ByteSize>,
    /// Begin a new file after this time.
    #[arg(long, value_name = "SECONDS", value_parser = period)]
    pub split_time: Option<Duration>,
    /// Keep the messages of the last SECONDS in memory, and write them to a new file each time the command gets the signal
    /// SIGUSR1.
    #[arg(long, value_name = "SECONDS", value_parser = period, conflicts_with_all = ["split_size", "split_time"])]
    pub keep: Option<Duration>,
    /// Miss no message: publishers wait when the disk is too slow.
    #[arg(long)]
    pub reliable: bool,
    /// Stop after this time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Stop after this many messages. Not with --keep.
    #[arg(long, value_name = "N", conflicts_with = "keep")]
    pub count: Option<u64>,
    /// Seconds between two lines of progress. 0: none.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    pub every: Duration,
}

#[derive(Args)]
pub struct Replay {
    /// The recording, or the folder of a bag of ROS 2. Several files are the parts of one recording.
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// Play this many times as fast as it was recorded.
    #[arg(long, value_name = "FACTOR", value_parser = frequency, default_value = "1")]
    pub rate: f64,
    /// Restart when the recording ends.
    #[arg(long = "loop")]
    pub repeat: bool,
    /// Begin at this time of the recording. First publish what transient-local publishers had published before.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "0")]
    pub start: Duration,
    /// Replay only these topics or patterns. Give the option several times, or separate them by commas.
    #[arg(long, value_name = "PATTERN,...", value_delimiter = ',')]
    pub topics: Vec<String>,
    /// Publish from this domain: host, cuda (the first GPU), cuda:N or cuda:GPU-<uuid>. [default: the topic's
    /// domain, or host for a new topic]
    #[arg(long)]
    pub domain: Option<String>,
    /// First wait until each topic has N subscribers.
    #[arg(long, value_name = "N", default_value = "0")]
    pub wait_subscribers: u32,
}

#[derive(Args)]
pub struct Info {
    /// The recordings, or folders of bags of ROS 2.
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
}

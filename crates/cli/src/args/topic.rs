//! `rgaps topic`.

use super::examples;
use crate::completion;
use crate::topic::{meta, shape, Shape};
use crate::units::{frequency, period, seconds};
use clap::{Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use rgaps::{DType, Value};
use rgaps_session::ByteSize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Subcommand)]
pub enum Topic {
    /// List topics.
    ///
    /// TYPE is the type that publishers declare; a topic without one is `untyped`, and its messages are plain bytes or arrays
    /// of any type. MESSAGES and BYTES PUBLISHED count what its publishers have published since the topic exists.
    ///
    /// Topics of other hosts are listed only while a process of this host subscribes to them, by their exact names.
    #[command(after_help = examples::LIST)]
    List {
        /// Topics or patterns. In a pattern * matches any characters of one part of a name, ** any number of parts.
        /// [default: all topics]
        #[arg(value_name = "TOPIC", add = ArgValueCompleter::new(completion::topics))]
        topics: Vec<String>,
    },
    /// Show a topic: its publishers and subscribers, their quality of service, and the path that messages take.
    ///
    /// MISSED counts messages that the subscriber did not get, also those that it misses on purpose (`depth`,
    /// `keep="latest"`). LAG is how many messages it has still to read. HELD are samples that it has not released.
    #[command(after_help = examples::INFO)]
    Info {
        /// The topic, or a pattern as in `rgaps topic list`, which shows one topic after the other.
        #[arg(add = ArgValueCompleter::new(completion::topics))]
        topic: String,
    },
    /// Measure the rate of messages.
    #[command(after_help = examples::HZ)]
    Hz(Watch),
    /// Measure the bytes per second.
    #[command(after_help = examples::BW)]
    Bw(Watch),
    /// Measure the time from the publish call until this command receives the message.
    ///
    /// Reads the newest message each time; MISSED counts the others. A clock that was set back gives negative times.
    #[command(after_help = examples::DELAY)]
    Delay(Delay),
    /// Print the messages of a topic.
    ///
    /// Prints the newest message each time, and when it exits, how many messages it missed. With --all, --late, --reliable
    /// or --format raw it prints every message. With these options, and with --depth, it says before a message how many it missed.
    #[command(after_help = examples::ECHO)]
    Echo(Echo),
    /// Publish messages.
    ///
    /// Without --text, --file or --size, standard input is the message, up to its end (Ctrl-D in a terminal); with --lines, each of
    /// its lines is one.
    #[command(after_help = examples::PUB)]
    Pub(Publish),
    /// Drop the history that publishers left behind when they exited.
    ///
    /// Publishers that still run keep theirs. A topic without members disappears. Without this command, newer messages
    /// replace such history, or the end of the daemon drops it.
    #[command(after_help = examples::FORGET)]
    Forget {
        /// The topic.
        #[arg(add = ArgValueCompleter::new(completion::topics))]
        topic: String,
    },
}

#[derive(Args)]
pub struct Watch {
    /// Topics or patterns. In a pattern * matches any characters of one part of a name, ** any number of parts. Topics
    /// that appear later are included.
    #[arg(required = true, value_name = "TOPIC", add = ArgValueCompleter::new(completion::topics))]
    pub topics: Vec<String>,
    /// Exit after N messages, counted over all topics.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Exit after this time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Fail with exit code 5 when no message arrives for this time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Seconds between two reports.
    #[arg(long, value_name = "SECONDS", value_parser = period, default_value = "1")]
    pub every: Duration,
    /// Compute the figures over the last N messages.
    #[arg(long, value_name = "N", default_value = "10000", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub window: u32,
    #[command(flatten)]
    pub reads: ReadIn,
}

#[derive(Args)]
pub struct Delay {
    #[command(flatten)]
    pub watch: Watch,
    #[command(flatten)]
    pub queue: Queue,
}

/// Which of the waiting messages a command reads.
#[derive(Args)]
pub struct Queue {
    /// Read every message that publishers keep, not only the newest.
    #[arg(long)]
    pub all: bool,
    /// Read the newest N of the messages that wait, and miss older ones. [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "all", value_parser = clap::value_parser!(u32).range(1..=32_768))]
    pub depth: Option<u32>,
}

impl Queue {
    /// The depth for the subscriber: how many of the waiting messages it reads. None: every message.
    pub fn depth(&self, every_message: bool) -> Option<u32> {
        match self.depth {
            None if self.all || every_message => None,
            None => Some(1),
            depth => depth,
        }
    }
}

/// How `topic echo` prints the bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Arrays as numbers, other bytes as text if they are text, otherwise as hex.
    Auto,
    /// As numbers: minimum, maximum, mean and the first values of each array. Plain bytes are an array of uint8.
    Numbers,
    /// As text.
    Text,
    /// As hex.
    Hex,
    /// One line per message, without its bytes.
    Summary,
    /// The bytes themselves and nothing else.
    Raw,
}

/// Whether `topic echo` draws images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Thumbnail {
    /// In colour or grey, whichever the terminal supports; none if the output is not a terminal.
    Auto,
    /// In 24-bit colour.
    Color,
    /// In characters from dark to bright.
    Grey,
    /// No images.
    None,
}

#[derive(Args)]
pub struct Echo {
    /// The topic.
    #[arg(add = ArgValueCompleter::new(completion::topics))]
    pub topic: String,
    /// How to print the bytes.
    #[arg(long, value_enum, default_value = "auto")]
    pub format: Format,
    /// Save messages as files, by the end of the name: .png (images of uint8 or uint16), .npy (arrays) or .raw (the
    /// bytes). {sequence} in the name becomes the message's number, %d or %06d counts the files, {part} becomes the name
    /// of a part. Without {part}, the parts of a message are saved as NAME-part.END. Without {sequence} and %d, one message
    /// is saved. Not together with --format.
    #[arg(long, value_name = "FILE", conflicts_with = "format")]
    pub save: Option<PathBuf>,
    /// Draw a small image of arrays with the shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4).
    #[arg(long, value_enum, default_value = "auto", value_name = "STYLE")]
    pub thumbnail: Thumbnail,
    /// Print the first N values of an array.
    #[arg(long, value_name = "N", default_value = "8")]
    pub values: u32,
    /// Print at most this many bytes of a message as text or hex.
    #[arg(long, value_name = "BYTES", default_value = "1KiB")]
    pub max_bytes: ByteSize,
    /// Exit after N messages.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Fail with exit code 5 when no message arrives for this time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    #[command(flatten)]
    pub queue: Queue,
    /// Subscribe reliably: reliable publishers wait for this command rather than overwrite a message.
    #[arg(long)]
    pub reliable: bool,
    /// Start with messages that transient-local publishers have kept, also those that exited: `latest` (the newest one),
    /// `all`, or a number N (the newest N). They come in the order of publishing.
    #[arg(long, value_name = "WHICH", value_parser = late)]
    pub late: Option<rgaps::Late>,
    /// Read only messages of this type.
    #[arg(
        long = "type",
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub type_name: String,
    #[command(flatten)]
    pub reads: ReadIn,
}

#[derive(Args)]
pub struct ReadIn {
    /// Read in this domain: host, cuda (the first GPU), cuda:N or cuda:GPU-<uuid>. [default: where the messages are]
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<String>,
    /// Refuse paths that are slower than this one: tcp, rdma, gpudirect, pinned, peer or zero_copy.
    #[arg(long, value_name = "PATH")]
    pub require: Option<rgaps::PathKind>,
}

#[derive(Args)]
pub struct Publish {
    /// The topic.
    #[arg(add = ArgValueCompleter::new(completion::topics))]
    pub topic: String,
    #[command(flatten)]
    pub source: Source,
    /// With standard input or --file: publish each line as a message.
    #[arg(long, conflicts_with_all = ["text", "size", "ffmpeg", "v4l2"])]
    pub lines: bool,
    /// An option of ffmpeg for its input, such as framerate=30, video_size=1280x720 or rtsp_transport=tcp. Repeat it for several.
    #[arg(long, value_name = "KEY=VALUE", value_parser = ffmpeg_option)]
    pub ffmpeg_option: Vec<(String, String)>,
    /// With --file: publish the bytes of a .npy, .png or .jpg file as they are.
    #[arg(long, requires = "file")]
    pub raw: bool,
    /// Element type of the messages, for example uint8 or float32.
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["ffmpeg", "v4l2"])]
    pub dtype: Option<DType>,
    /// Shape of the messages, for example 480,640,3. [default: one dimension]
    #[arg(long, value_name = "N,...", value_parser = shape, requires = "dtype")]
    pub shape: Option<Shape>,
    /// A number that travels with each message; its meaning is yours.
    #[arg(long, value_name = "N", default_value = "0")]
    pub tag: u64,
    /// A key of the header. Numbers, true and false keep their type. Give the option several times for several keys.
    #[arg(long, value_name = "KEY=VALUE", value_parser = meta)]
    pub meta: Vec<(String, Value)>,
    /// The frame id in the header: the sensor or the coordinate frame.
    #[arg(long, value_name = "NAME")]
    pub frame_id: Option<String>,
    /// Set the capture time in the header to the time of publishing.
    #[arg(long)]
    pub capture_now: bool,
    /// Publish this many messages per second. Without --count, until Ctrl-C.
    #[arg(long, value_name = "HZ", value_parser = frequency)]
    pub rate: Option<f64>,
    /// Publish N messages. [default: 1; with --lines, one per line]
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// First wait until the topic has N subscribers.
    #[arg(long, value_name = "N", default_value = "0")]
    pub wait_subscribers: u32,
    /// Wait at most this long for subscribers, for memory, and for reliable subscribers to read.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "10")]
    pub timeout: Duration,
    /// If a reliable subscriber makes no room for this time, continue without it instead of failing. It misses messages until
    /// it has read all that is published. [default: fail after --timeout]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "best_effort")]
    pub slow_reader: Option<Duration>,
    /// Publish from this domain: host, cuda (the first GPU), cuda:N or cuda:GPU-<uuid>. [default: the topic's
    /// domain, or host for a new topic]
    #[arg(long)]
    pub domain: Option<String>,
    /// Refuse paths that are slower than this one: tcp, rdma, gpudirect, pinned, peer or zero_copy.
    #[arg(long, value_name = "PATH")]
    pub require: Option<rgaps::PathKind>,
    /// Keep the last N messages.
    #[arg(long, value_name = "N", default_value = "16")]
    pub keep_last: u32,
    /// Keep the history for late joiners, also after this command exits.
    #[arg(long)]
    pub transient_local: bool,
    /// Publish as best effort: never wait for subscribers.
    #[arg(long)]
    pub best_effort: bool,
    /// The type name of the messages. [default: from --dtype and --shape or the file, for example uint8[480,640,3]]
    #[arg(
        long = "type",
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub type_name: String,
}

/// Where the bytes come from. Without one of these options: standard input.
#[derive(Args)]
#[group(multiple = false)]
pub struct Source {
    /// Publish this text.
    #[arg(long)]
    pub text: Option<String>,
    /// Publish the content of this file. The array of a .npy, .png or .jpg file is published with its type and shape.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Publish generated messages of this size. Each has different bytes.
    #[arg(long, value_name = "BYTES")]
    pub size: Option<ByteSize>,
    /// Publish the pictures of a video as arrays (H, W, 3) of type rgb8: a file or an address that the program `ffmpeg` reads. A
    /// file is read at its own speed. The header has the time at which each picture came.
    #[arg(long, value_name = "INPUT")]
    pub ffmpeg: Option<OsString>,
    /// The same for a camera of this host, such as /dev/video0.
    #[arg(long, value_name = "DEVICE")]
    pub v4l2: Option<OsString>,
}

/// Parses `framerate=30`. An option without a value is `name=` or `name`.
fn ffmpeg_option(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    match key.is_empty() || key.starts_with('-') {
        true => Err("write KEY=VALUE without a dash, such as framerate=30".to_owned()),
        false => Ok((key.to_owned(), value.to_owned())),
    }
}

fn late(text: &str) -> Result<rgaps::Late, String> {
    match text {
        "latest" => Ok(rgaps::Late::Latest),
        "all" => Ok(rgaps::Late::AllKept),
        number => match number.parse() {
            Ok(0) => Ok(rgaps::Late::Nothing),
            Err(_) => Err("write 'latest', 'all' or a number".to_owned()),
            Ok(n) => Ok(rgaps::Late::Last(n)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_is_a_word_or_a_number() {
        assert_eq!(late("latest"), Ok(rgaps::Late::Latest));
        assert_eq!(late("all"), Ok(rgaps::Late::AllKept));
        assert_eq!(late("3"), Ok(rgaps::Late::Last(3)));
        assert_eq!(late("0"), Ok(rgaps::Late::Nothing));
        for wrong in ["", "-1", "none"] {
            assert!(late(wrong).is_err(), "{wrong}");
        }
    }
}

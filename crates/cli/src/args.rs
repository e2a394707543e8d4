//! What can be written on the command line.

use crate::units::{frequency, period, seconds};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use rgaps_session::ByteSize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const EXIT_CODES: &str = "\
Exit codes:
  0  done; also when Ctrl-C or a closed pipe ends a command that goes on until then
  1  failed
  2  wrong usage or configuration
  3  no daemon runs, or it went away
  4  no such topic
  5  not in time: no message, no subscriber, or reliable subscribers that did not read on
  6  refused: permission, type, quality of service, a limit, a full pool
  130  ended at once by a second Ctrl-C

Configuration: rgaps.toml in ., ~/.config/rgaps or /etc/rgaps; RGAPS_* variables over it.
Logs: RUST_LOG, for example RUST_LOG=rgaps=debug.";

/// Publish and subscribe messages in host and GPU memory without copies.
#[derive(Parser)]
#[command(name = "rgaps", version, about, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

/// Understood by every command.
#[derive(Args)]
pub struct Common {
    /// Print JSON: one document, or one line per message or report where there are many.
    #[arg(long, global = true)]
    pub json: bool,
    /// The realm: which daemon of this user or host.
    #[arg(long, global = true, value_name = "NAME")]
    pub realm: Option<String>,
    /// The daemon's socket.
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The configuration file, instead of rgaps.toml in the usual places.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Start the daemon and keep it also when nobody needs it.
    Up(Up),
    /// Stop the daemon. Publishers and subscribers that are there go on among themselves.
    Down,
    /// Show how the daemon is and who its clients are.
    Status,
    /// Print what processes need in their environment to use the realm's MPS: eval "$(rgaps env)".
    Env,
    /// Run a command in the environment of the realm's MPS. Its exit code is the command's.
    Run(Run),
    /// Find out by trying what this machine can do, and say what to do about what it cannot.
    Doctor(Doctor),
    /// Look at topics, listen to them, publish to them.
    #[command(subcommand)]
    Topic(Topic),
    /// Watch topics, links, pools and clients live. With --json: one document per interval.
    Top(Top),
    /// List the pools of shared memory.
    Pool,
    /// List the other hosts of the realm, and how the links with them are.
    Peers,
    /// Measure what rgaps does on this machine, each figure beside its floor.
    #[command(subcommand)]
    Bench(Bench),
    /// What a benchmark's processes run.
    #[command(hide = true)]
    BenchMember {
        /// As the benchmark wrote them.
        orders: String,
    },
    /// Print a shell's completion script: source <(rgaps completion bash).
    Completion {
        /// The shell.
        shell: Shell,
    },
}

#[derive(Args)]
pub struct Up {
    /// Run the daemon in this terminal, with its log, instead of in the background.
    #[arg(long)]
    pub foreground: bool,
    /// Have the daemon run CUDA's Multi-Process Service (MPS) for its clients, or use one that is there.
    #[arg(long)]
    pub mps: bool,
}

#[derive(Args)]
pub struct Top {
    /// Look so often.
    #[arg(long, value_name = "SECONDS", value_parser = period, default_value = "1")]
    pub interval: Duration,
    /// End after so many reports.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
}

#[derive(Args)]
pub struct Doctor {
    /// Measure how long it takes from one process's kernel to another's on each GPU, without MPS and
    /// under it. Takes some seconds, and starts an MPS for them if there is none.
    #[arg(long)]
    pub handover: bool,
}

#[derive(Args)]
pub struct Run {
    /// The command and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

#[derive(Subcommand)]
pub enum Topic {
    /// List all topics.
    List,
    /// Show one topic with its publishers and subscribers.
    Info {
        /// The topic.
        topic: String,
    },
    /// Measure how often messages come.
    Hz(Watch),
    /// Measure how many bytes come.
    Bw(Watch),
    /// Measure how long messages take from publish to here.
    Delay(Watch),
    /// Print messages, or write their bytes to a file.
    Echo(Echo),
    /// Publish messages.
    Pub(Publish),
    /// Drop the history of publishers that are gone. A topic without members goes, with its type.
    Forget {
        /// The topic.
        topic: String,
    },
}

#[derive(Args)]
pub struct Watch {
    /// The topic.
    pub topic: String,
    /// End after so many messages.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// End after so long.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Give up (exit code 5) when no message comes for so long.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Report so often.
    #[arg(long, value_name = "SECONDS", value_parser = period, default_value = "1")]
    pub every: Duration,
    /// Look at the last so many messages.
    #[arg(long, value_name = "N", default_value = "10000", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub window: u32,
    #[command(flatten)]
    pub place: ReadIn,
}

/// How `topic echo` shows a message's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text where the bytes are text, else hex.
    Auto,
    /// As text.
    Text,
    /// As hex.
    Hex,
    /// A line about the message, without its bytes.
    Summary,
    /// The bytes themselves and nothing else.
    Raw,
}

#[derive(Args)]
pub struct Echo {
    /// The topic.
    pub topic: String,
    /// How to show the bytes.
    #[arg(long, value_enum, default_value = "auto")]
    pub format: Format,
    /// Append the bytes to this file, and print a line about each message.
    #[arg(long, value_name = "FILE", conflicts_with = "format")]
    pub output: Option<PathBuf>,
    /// Show at most so many bytes of a message as text or hex.
    #[arg(long, value_name = "BYTES", default_value = "1KiB")]
    pub max_bytes: ByteSize,
    /// End after so many messages.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Give up (exit code 5) when no message comes for so long.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Hold publishers back rather than miss a message.
    #[arg(long)]
    pub reliable: bool,
    /// Start with what transient-local publishers kept, also those that are gone: the `latest` message, `all`,
    /// or the newest N, in the order of publishing.
    #[arg(long, value_name = "WHAT", value_parser = late)]
    pub late: Option<rgaps::Late>,
    /// Join only if the topic's messages are of this type.
    #[arg(
        long = "type",
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub type_name: String,
    #[command(flatten)]
    pub place: ReadIn,
}

#[derive(Args)]
pub struct ReadIn {
    /// Where to read: host, cuda (the first GPU) or cuda:GPU-<uuid>. Default: where the messages are.
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<String>,
    /// Refuse slower paths than this one: tcp, rdma, gpudirect, pinned, peer or zero_copy.
    #[arg(long, value_name = "PATH")]
    pub require: Option<rgaps::PathKind>,
}

#[derive(Args)]
pub struct Publish {
    /// The topic.
    pub topic: String,
    #[command(flatten)]
    pub source: Source,
    /// With standard input or --file: each line is a message.
    #[arg(long, conflicts_with_all = ["text", "size"])]
    pub lines: bool,
    /// So many messages per second. Without --count: until Ctrl-C.
    #[arg(long, value_name = "HZ", value_parser = frequency)]
    pub rate: Option<f64>,
    /// So many messages. Default: one, or with --lines one per line.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Wait for so many subscribers first.
    #[arg(long, value_name = "N", default_value = "0")]
    pub wait_subscribers: u32,
    /// Wait for subscribers, for memory and for reliable subscribers at most so long.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "10")]
    pub timeout: Duration,
    /// Where the messages live: host, cuda (the first GPU) or cuda:GPU-<uuid>. Default: where
    /// the topic's do.
    #[arg(long)]
    pub domain: Option<String>,
    /// Refuse slower paths than this one: tcp, rdma, gpudirect, pinned, peer or zero_copy.
    #[arg(long, value_name = "PATH")]
    pub require: Option<rgaps::PathKind>,
    /// Keep the last N messages.
    #[arg(long, value_name = "N", default_value = "16")]
    pub keep_last: u32,
    /// Keep the history for late joiners, also after this command has ended.
    #[arg(long)]
    pub transient_local: bool,
    /// Do not let subscribers hold this publisher back.
    #[arg(long)]
    pub best_effort: bool,
    /// The type of the messages.
    #[arg(
        long = "type",
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub type_name: String,
}

/// Where the bytes come from; standard input unless one is named.
#[derive(Args)]
#[group(multiple = false)]
pub struct Source {
    /// Publish this text.
    #[arg(long)]
    pub text: Option<String>,
    /// Publish this file's bytes.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Publish so many bytes, different in every message.
    #[arg(long, value_name = "BYTES")]
    pub size: Option<ByteSize>,
}

#[derive(Subcommand)]
pub enum Bench {
    /// From the publish call to the handler, beside a bare hop of 64 bytes.
    Latency {
        /// Where the messages live: host, cuda (the first GPU) or cuda:GPU-<uuid>.
        #[arg(long, default_value = "host")]
        domain: String,
        /// Bytes of a message.
        #[arg(long, value_name = "BYTES", default_value = "4KiB")]
        size: ByteSize,
        /// Subscribers, a process each.
        #[arg(long, value_name = "K", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=60))]
        subscribers: u32,
        /// Messages that are timed.
        #[arg(long, value_name = "M", default_value = "20000", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
        messages: u32,
        /// How subscribers wait.
        #[arg(long, value_enum, default_value = "block")]
        wait: BenchWait,
        /// In GPU memory, also with a kernel in flight that takes so long.
        #[arg(long, value_name = "US", default_value = "1000", value_parser = clap::value_parser!(u64).range(1..=100_000))]
        kernel_us: u64,
        /// The publisher sleeps so long before each message and each hop, as one does between frames.
        #[arg(long, value_name = "US", default_value = "0", value_parser = clap::value_parser!(u64).range(0..=100_000))]
        pause_us: u64,
    },
    /// From the end of a publisher's kernel to the begin of a subscriber's, in two processes.
    Handoff {
        /// The GPUs of publisher and subscriber as this process counts them; one is both.
        #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1..=2, default_value = "0")]
        gpus: Vec<usize>,
        /// Bytes of a message; may be given several times.
        #[arg(long, value_name = "BYTES", default_values = ["4KiB", "4MiB"])]
        size: Vec<ByteSize>,
        /// How long the publisher's kernel takes before it writes, one length after the other.
        #[arg(long, value_name = "US,...", value_delimiter = ',', default_value = "0,200", value_parser = clap::value_parser!(u64).range(0..=100_000))]
        kernel_us: Vec<u64>,
        /// Messages each way that are timed, of each size and length.
        #[arg(long, value_name = "M", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        messages: u32,
        /// How subscribers wait.
        #[arg(long, value_enum, default_value = "poll")]
        wait: BenchWait,
    },
    /// Messages published in one domain and read in another by several processes, beside a bare copy.
    Spread {
        /// Where they are published: host, cuda (the first GPU), cuda:N or cuda:GPU-<uuid>.
        #[arg(long, default_value = "cuda:0")]
        from: String,
        /// Where they are read.
        #[arg(long, default_value = "cuda:1")]
        to: String,
        /// How they get to another GPU.
        #[arg(long, value_enum, default_value = "copy")]
        peer: BenchPeer,
        /// Processes that read.
        #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=60))]
        readers: u32,
        /// Bytes of a message.
        #[arg(long, value_name = "BYTES", default_value = "64MiB")]
        size: ByteSize,
        /// Messages that are timed.
        #[arg(long, value_name = "M", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        messages: u32,
    },
    /// Loan and release by several processes at once, beside one allocator under a lock.
    Alloc {
        /// How many processes, one count after the other.
        #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u32).range(1..=32))]
        processes: Vec<u32>,
        /// Loans and releases of each process.
        #[arg(long, value_name = "N", default_value = "20000", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
        operations: u32,
    },
    /// What each further subscriber costs the publisher, and how far apart they hear.
    Fanout {
        /// Where the messages live.
        #[arg(long, default_value = "host")]
        domain: String,
        /// How many subscribers, one count after the other.
        #[arg(long, value_name = "K,...", value_delimiter = ',', default_value = "1,2,4,8,16,32", value_parser = clap::value_parser!(u32).range(1..=60))]
        subscribers: Vec<u32>,
        /// Bytes of a message.
        #[arg(long, value_name = "BYTES", default_value = "64KiB")]
        size: ByteSize,
        /// Messages per count, awake and sleeping.
        #[arg(long, value_name = "M", default_value = "500", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        messages: u32,
    },
    /// The time from each of several publishers to one subscriber.
    Fanin {
        /// Where the messages live.
        #[arg(long, default_value = "host")]
        domain: String,
        /// How many publishers, one count after the other.
        #[arg(long, value_name = "P,...", value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = clap::value_parser!(u32).range(1..=16))]
        publishers: Vec<u32>,
        /// Bytes of a message.
        #[arg(long, value_name = "BYTES", default_value = "64KiB")]
        size: ByteSize,
        /// Messages of each publisher.
        #[arg(long, value_name = "M", default_value = "500", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        messages: u32,
        /// How the subscriber waits.
        #[arg(long, value_enum, default_value = "block")]
        wait: BenchWait,
    },
    /// Messages per second from one publisher to one subscriber, both looking all the time.
    Throughput {
        /// Where the messages live.
        #[arg(long, default_value = "host")]
        domain: String,
        /// Bytes of a message.
        #[arg(long, value_name = "BYTES", default_value = "64")]
        size: ByteSize,
        /// Messages of each of the runs.
        #[arg(long, value_name = "M", default_value = "500000", value_parser = clap::value_parser!(u64).range(1..))]
        messages: u64,
    },
    /// What an idle topic takes, and what the daemon does.
    Memory {
        /// Topics to make.
        #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u64).range(1..=1000))]
        topics: u64,
    },
    /// Topics between two hosts on this machine, beside the same hops without rgaps and bare TCP.
    Link {
        /// What carries them.
        #[arg(long, value_enum, default_value = "tcp")]
        transport: BenchTransport,
        /// Where messages are published, and read unless --to says otherwise: host, cuda (the first GPU), cuda:N or
        /// cuda:GPU-<uuid>.
        #[arg(long, default_value = "host")]
        domain: String,
        /// Where they are read, such as the other host's GPU.
        #[arg(long, value_name = "DOMAIN")]
        to: Option<String>,
        /// Bytes of a message.
        #[arg(long, value_name = "BYTES", default_value = "64MiB")]
        size: ByteSize,
        /// Subscribers of each topic, a process each.
        #[arg(long, value_name = "K", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=40))]
        subscribers: u32,
        /// Connections.
        #[arg(long, value_name = "L", default_value = "2", value_parser = clap::value_parser!(u32).range(1..=8))]
        lanes: u32,
        /// Topics that messages are published on at once.
        #[arg(long, value_name = "T", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=40))]
        topics: u32,
        /// Encrypted, with certificates made for the run.
        #[arg(long)]
        tls: bool,
        /// Messages that are timed one by one, rounded up to whole rounds.
        #[arg(long, value_name = "M", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        messages: u32,
        /// How subscribers wait.
        #[arg(long, value_enum, default_value = "block")]
        wait: BenchWait,
        /// Two network namespaces with a cable between them, which only root can make; or loopback.
        #[arg(long, value_enum, default_value = "auto")]
        namespaces: BenchNamespaces,
        /// Also without rgaps: pinned memory and one stage after the other, as RGAPS has it; and pageable
        /// memory, a Unix socket, one connection and a copy for each subscriber, as its baseline has it.
        #[arg(long)]
        baseline: bool,
    },
    /// Copies between a GPU and host memory that is pinned, or pageable.
    Copies {
        /// The GPU: cuda (the first), cuda:N or cuda:GPU-<uuid>.
        #[arg(long, default_value = "cuda")]
        domain: String,
        /// Bytes of a copy; may be given several times.
        #[arg(long, value_name = "BYTES", default_values = ["64KiB", "1MiB", "4MiB", "16MiB", "64MiB", "256MiB", "1GiB"])]
        size: Vec<ByteSize>,
        /// Copies of each kind that are timed.
        #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=100_000))]
        count: u32,
    },
    /// Messages between two marks, for a look at the system calls between them.
    #[command(hide = true)]
    Path {
        /// Bytes of a message.
        #[arg(long, default_value = "4KiB")]
        size: ByteSize,
        /// Messages.
        #[arg(long, default_value = "2000")]
        messages: u64,
    },
}

/// How a benchmark's receivers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchWait {
    /// By looking all the time.
    Poll,
    /// Asleep.
    Block,
}

/// How a benchmark's messages get to another GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchPeer {
    /// By size, as without a benchmark.
    Auto,
    /// Copied once for all readers.
    Copy,
    /// Read where they are.
    Map,
}

/// What carries a benchmark's messages between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchTransport {
    /// TCP.
    Tcp,
    /// RDMA, on the cards of this machine, with both hosts at loopback.
    Rdma,
}

/// Whether a benchmark's hosts are network namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchNamespaces {
    /// If they can be made.
    Auto,
    /// They have to be.
    Yes,
    /// At loopback.
    No,
}

fn late(text: &str) -> Result<rgaps::Late, String> {
    match text {
        "latest" => Ok(rgaps::Late::Latest),
        "all" => Ok(rgaps::Late::AllKept),
        number => match number.parse() {
            Ok(0) | Err(_) => Err("write 'latest', 'all' or a number above 0".to_owned()),
            Ok(n) => Ok(rgaps::Late::Last(n)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn late_is_a_word_or_a_number() {
        assert_eq!(late("latest"), Ok(rgaps::Late::Latest));
        assert_eq!(late("all"), Ok(rgaps::Late::AllKept));
        assert_eq!(late("3"), Ok(rgaps::Late::Last(3)));
        for wrong in ["", "0", "-1", "none"] {
            assert!(late(wrong).is_err(), "{wrong}");
        }
    }
}

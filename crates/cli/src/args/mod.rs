//! The command line: commands, options and their help.
//!
//! `rgaps reference` turns these definitions into the reference page of the site, so help texts are written once.
//! Examples are in [`examples`]; a test parses each of them.

mod bench;
mod bridge;
mod dmaplane;
mod examples;
mod gpu;
mod recording;
mod topic;
mod view;

pub use bench::{
    Bench, BenchAlloc, BenchCopies, BenchFanin, BenchFanout, BenchHandoff, BenchLatency, BenchLink,
    BenchMemory, BenchNamespaces, BenchPath, BenchPeer, BenchSpread, BenchThroughput,
    BenchTransport, BenchWait,
};
pub use bridge::{Bridge, BridgeNetwork, BridgeZenoh};
pub use dmaplane::{Dmaplane, DmaplaneBench};
pub use gpu::{Gpu, GpuBackend, GpuRun, GpuServe, GpuServer, GpuTop};
pub use recording::{Compression, Info, Record, Replay};
pub use topic::{Echo, Format, Publish, ReadIn, Thumbnail, Topic, Watch};
pub use view::View;

use crate::units::period;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Publish and subscribe to messages in host and GPU memory without copies.
#[derive(Parser)]
#[command(name = "rgaps", version, after_help = examples::RGAPS)]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

/// Parses the command line of this process. Prints the error or the help and exits if there is nothing to run.
pub fn parse() -> Cli {
    let words = std::env::args_os();
    parse_from(words).unwrap_or_else(|error| error.exit())
}

fn parse_from(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = take_negative_numbers(Cli::command());
    let mut matches = command
        .try_get_matches_from_mut(words)
        .map_err(|error| suggest_topic(error, &command))?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Makes `-1` the value of the option before it, so that the option's own parser rejects it. Otherwise clap takes `-1` for an
/// unknown option and advises to write `--` before it, which would turn all options behind it into names of topics.
fn take_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let takes = !arg.is_positional() && arg.get_action().takes_values();
        arg.allow_negative_numbers(takes)
    });
    command.mut_subcommands(take_negative_numbers)
}

/// Suggests `rgaps topic echo` for `rgaps echo`.
fn suggest_topic(mut error: clap::Error, command: &clap::Command) -> clap::Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let topic = command.find_subcommand("topic");
    let meant = topic.is_some_and(|topic| topic.find_subcommand(word).is_some());
    if meant && error.kind() == ErrorKind::InvalidSubcommand {
        let tip = StyledStr::from(format!("did you mean 'rgaps topic {word}'?"));
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// Every command takes these options.
#[derive(Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Common {
    /// Print JSON: one document per line. Commands that report repeatedly print one line per report or message.
    #[arg(long, global = true)]
    pub json: bool,
    /// Use the daemon of this realm. Each realm has its own daemon and topics.
    #[arg(long, global = true, value_name = "NAME")]
    pub realm: Option<String>,
    /// Use the daemon at this Unix socket.
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Read this configuration file instead of searching for rgaps.toml.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Look for topics below this name, unless their names begin with /.
    #[arg(long, global = true, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Use topic TO instead of topic FROM, as in ROS 2: camera:=front/camera. Repeat it for several topics.
    #[arg(long, global = true, value_name = "FROM:=TO")]
    pub remap: Vec<String>,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant)] // the process has one value of this type
pub enum Command {
    /// Start the daemon, and keep it running when no process uses it.
    ///
    /// Publishers and subscribers start a daemon when none runs, so this command is optional. The daemon that they start
    /// leaves some time after its last client; after this command it stays until `rgaps down`, whoever started it.
    #[command(after_help = examples::UP)]
    Up(Up),
    /// Stop the daemon.
    ///
    /// Publishers and subscribers that have joined continue to exchange messages, and the next daemon takes them over. Until then
    /// a publisher that needs more memory, because its messages grow or its history fills, fails with DaemonUnavailable.
    #[command(after_help = examples::DOWN)]
    Down,
    /// Show the state of the daemon and list its clients.
    ///
    /// A zone is the topics of one access rule. The daemon closes the session of a client that violates the protocol: that client
    /// has a bug, or is of another version.
    #[command(after_help = examples::STATUS)]
    Status,
    /// Print the environment variables with which processes share GPUs through CUDA's Multi-Process Service (MPS).
    ///
    /// Without MPS this command prints no variables.
    #[command(after_help = examples::ENV)]
    Env,
    /// Run a command with the variables of `rgaps env`, so that it shares GPUs through MPS. The exit code is that of the command.
    #[command(after_help = examples::RUN)]
    Run(Run),
    /// Test what this machine supports, and print how to fix what is missing.
    #[command(after_help = examples::DOCTOR)]
    Doctor(Doctor),
    /// List topics, read their messages, publish to them.
    #[command(subcommand, after_help = examples::TOPIC)]
    Topic(Topic),
    /// Record topics to an MCAP file.
    ///
    /// Foxglove, Rerun and the `mcap` tools read the file. Publishers do not wait for the disk: a message that has no room in
    /// the queue of this command is dropped and counted. A file can be read up to its last whole chunk at any time, also
    /// after a crash.
    #[command(after_help = examples::RECORD)]
    Record(Record),
    /// Publish the messages of a recording again, at their time.
    ///
    /// Each publisher that was recorded gets a publisher with its type and its quality of service.
    #[command(after_help = examples::REPLAY)]
    Replay(Replay),
    /// Show what is in a recording, and what is missing in one that was not finished.
    #[command(after_help = examples::FILE_INFO)]
    Info(Info),
    /// Show topics in a browser, and in Foxglove.
    ///
    /// Listens on 127.0.0.1 until Ctrl-C. A browser shows who publishes and subscribes what, rates, links, pools, and a small
    /// picture of each image topic. Foxglove, or another program that speaks its WebSocket protocol, connects to the same port.
    /// Looking slows no publisher: each topic is read only while somebody looks at it, and only its newest message, at most as
    /// often and as large as the options say.
    #[command(after_help = examples::VIEW)]
    View(View),
    /// Carry topics to and from Zenoh and ROS 2.
    #[command(subcommand, after_help = examples::BRIDGE)]
    Bridge(Bridge),
    /// Show rates of topics and links, and use of pools, live. Press q to quit.
    ///
    /// MISSED of a topic counts messages that subscribers on this host did not get, also those that a subscriber misses on
    /// purpose (`depth`, `keep="latest"`). MISSED of a host is the sum of SKIPPED, GIVEN UP and MISSED of `rgaps peers`.
    #[command(after_help = examples::TOP)]
    Top(Top),
    /// List the pools of shared memory: their size, how much is leased, and where the memory is.
    #[command(after_help = examples::POOL)]
    Pool,
    /// List the other hosts of the realm and the links to them.
    ///
    /// The first table has a line for each host. STATE is `joining` (known, not linked yet), `linked`, `through` (linked through
    /// another host), `lost` (was linked) or `refused`. LANES are the connections that carry messages. TOPICS OUT and IN count the
    /// topics that are sent to the host and received from it. SENT and RECEIVED are their messages and bytes. During an
    /// outage SENT still grows: it counts messages that the link has taken, and keeps for the host. HOW is what messages
    /// cross over; if RDMA could be expected, also why they do not use it. The second table has the reason for each host
    /// without a link.
    ///
    /// WIRE OUT and WIRE IN are the bytes on the network, with headers and retransmissions. They begin at 0 again when the
    /// link is made anew, as after a restart of `rgaps-links` or a long outage. The times are the median and the 99th percentile, rounded up to a power of two:
    /// WIRE, for messages that were sent there, from their first byte on the network until the other host has them; TOTAL,
    /// for messages that came from there, from the publish call on that host until they are published here. A message
    /// that waited for the end of an outage has its whole length in TOTAL. TOTAL includes the difference of the two hosts' clocks.
    ///
    /// CONNECTS counts how often the link came up. These counters say what was missed, by whom: SKIPPED and GIVEN UP count
    /// messages that this host did not send to the other one, SKIPPED because the link had no room for messages of best-effort
    /// subscribers, GIVEN UP because an outage was too long (links.outage_ms, links.outage_max). MISSED counts messages of the other host that
    /// did not arrive here. Subscribers see them in `sample.missed`. RESENT counts messages that were sent again after a
    /// connection was lost; DUPLICATES, messages that arrived twice, the second of which was dropped. VIOLATIONS counts
    /// how often the other host broke the protocol between hosts, because it has a bug or is hostile; the link then closes all its lanes.
    #[command(after_help = examples::PEERS)]
    Peers,
    /// Show and measure what the kernel module dmaplane does on this machine.
    #[command(subcommand, after_help = examples::DMAPLANE)]
    Dmaplane(Dmaplane),
    /// Run CUDA programs on the GPUs of other hosts.
    #[command(subcommand, after_help = examples::GPU)]
    Gpu(Gpu),
    /// Measure latency, throughput and memory use on this machine.
    ///
    /// Each benchmark prints its result beside a floor: the same work done by the bare primitive, without rgaps.
    #[command(subcommand, after_help = examples::BENCH)]
    Bench(Bench),
    /// A process of a benchmark.
    #[command(hide = true)]
    BenchMember {
        /// What the benchmark asks of it.
        orders: String,
    },
    /// Print a completion script for a shell. It completes commands, options and the names of topics.
    #[command(after_help = examples::COMPLETION)]
    Completion {
        /// The shell.
        shell: Shell,
    },
    /// Print the reference of all commands as Markdown.
    #[command(hide = true)]
    Reference,
}

#[derive(Args)]
pub struct Up {
    /// Run the daemon in this terminal and print its log, instead of in the background.
    #[arg(long)]
    pub foreground: bool,
    /// Let the daemon start CUDA's Multi-Process Service (MPS) for its clients. If an MPS runs already, use it.
    #[arg(long)]
    pub mps: bool,
}

#[derive(Args)]
pub struct Top {
    /// Seconds between two updates.
    #[arg(long, value_name = "SECONDS", value_parser = period, default_value = "1")]
    pub interval: Duration,
    /// Exit after N updates.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
}

#[derive(Args)]
pub struct Doctor {
    /// Also measure the time from a kernel of one process to a kernel of another on each GPU, with and without MPS.
    /// This takes some seconds. If no MPS runs, one is started for the measurement.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        take_negative_numbers(Cli::command()).debug_assert();
    }

    fn refused(line: &str) -> String {
        let words = line.split_whitespace().map(OsString::from);
        match parse_from(words) {
            Ok(_) => panic!("'{line}' is taken"),
            Err(error) => error.render().to_string(),
        }
    }

    #[test]
    fn a_negative_number_is_the_value_of_its_option() {
        for (line, expected) in [
            (
                "rgaps topic hz t --duration -1",
                "'-1' is not a time in seconds",
            ),
            (
                "rgaps topic echo t --timeout -0.5",
                "'-0.5' is not a time in seconds",
            ),
            ("rgaps topic pub t --rate -3", "'-3' is not a rate above 0"),
            (
                "rgaps topic echo t --count -1",
                "invalid value '-1' for '--count <N>'",
            ),
            (
                "rgaps bench latency --messages -1",
                "invalid value '-1' for '--messages <M>'",
            ),
        ] {
            let text = refused(line);
            assert!(
                text.contains(expected) && !text.contains("'-- "),
                "{line}: {text}"
            );
        }
        let words = "rgaps topic pub t --text -1".split_whitespace();
        assert!(parse_from(words.map(OsString::from)).is_ok());
    }

    #[test]
    fn a_command_of_topic_is_suggested_where_topic_is_missing() {
        let text = refused("rgaps echo camera");
        assert!(
            text.contains("tip: did you mean 'rgaps topic echo'?"),
            "{text}"
        );
        assert!(!refused("rgaps nonsense").contains("rgaps topic"));
        assert!(refused("rgaps stats").contains("'status'"));
    }
}

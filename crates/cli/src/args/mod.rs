//! The command line: commands, options and their help.
//!
//! `rgaps reference` turns these definitions into the reference page of the site, so help texts are written once.
//! Examples are in [`examples`]; a test parses each of them.

mod bench;
mod examples;
mod topic;

pub use bench::{
    Bench, BenchAlloc, BenchCopies, BenchFanin, BenchFanout, BenchHandoff, BenchLatency, BenchLink,
    BenchMemory, BenchNamespaces, BenchPath, BenchPeer, BenchSpread, BenchThroughput,
    BenchTransport, BenchWait,
};
pub use topic::{Echo, Format, Publish, ReadIn, Thumbnail, Topic, Watch};

use crate::units::period;
use clap::{Args, Parser, Subcommand};
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
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant)] // there is one, which lives as long as the process
pub enum Command {
    /// Start the daemon, and keep it running when no process uses it.
    ///
    /// Publishers and subscribers start a daemon when none runs, so this command is optional. The daemon that they start
    /// leaves some time after its last client; one started here stays until `rgaps down`.
    #[command(after_help = examples::UP)]
    Up(Up),
    /// Stop the daemon.
    ///
    /// Publishers and subscribers that have joined continue to exchange messages. The next daemon takes them over.
    #[command(after_help = examples::DOWN)]
    Down,
    /// Show the state of the daemon and list its clients.
    #[command(after_help = examples::STATUS)]
    Status,
    /// Print the environment variables that a process needs to use the realm's MPS.
    ///
    /// MPS is CUDA's Multi-Process Service. Without MPS this command prints no variables.
    #[command(after_help = examples::ENV)]
    Env,
    /// Run a command with the environment variables of the realm's MPS. The exit code is that of the command.
    #[command(after_help = examples::RUN)]
    Run(Run),
    /// Test what this machine supports, and print how to fix what is missing.
    #[command(after_help = examples::DOCTOR)]
    Doctor(Doctor),
    /// List topics, read their messages, publish to them.
    #[command(subcommand, after_help = examples::TOPIC)]
    Topic(Topic),
    /// Show rates of topics and links, and use of pools, live. Press q to quit.
    #[command(after_help = examples::TOP)]
    Top(Top),
    /// List the pools of shared memory: their size, how much is leased, and where the memory is.
    #[command(after_help = examples::POOL)]
    Pool,
    /// List the other hosts of the realm and the links to them.
    #[command(after_help = examples::PEERS)]
    Peers,
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
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}

//! The crash test. A supervisor starts a daemon, publishers and subscribers, kills them with
//! SIGKILL at random times and at every step of a commit, and checks that nothing is leaked,
//! changed, lost or stuck.
//!
//! The processes are this program again, built with the hooks of the feature `crash-steps`. The
//! daemon is the engine and reactor that `rgapsd` is made of.

mod actor;
mod board;
mod checker;
mod daemon;
mod domain;
mod episode;
mod gpu;
mod holders;
mod pattern;
mod places;
mod publisher;
mod raw;
mod report;
mod steps;
mod subscriber;
mod supervisor;
mod topics;

use anyhow::Context;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Kills publishers, subscribers and the daemon, and checks what is left. The last line is JSON.
#[derive(Parser)]
struct Arguments {
    /// How many processes to kill.
    #[arg(long, default_value_t = 1000)]
    kills: u64,
    /// Of the schedule: the same seed kills in the same order at the same steps.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where messages live: host, cuda (the first GPU) or cuda:GPU-...
    #[arg(long, default_value = "host")]
    domain: String,
    /// Where about half of the subscribers read, if not there: messages are copied for them.
    #[arg(long)]
    across: Option<String>,
    /// Keeps the folder with the logs.
    #[arg(long)]
    keep: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// The processes that the supervisor starts.
#[derive(Subcommand)]
enum Part {
    /// A publisher or subscriber.
    #[command(hide = true)]
    Actor { spec: String },
    /// The daemon.
    #[command(hide = true)]
    Daemon {
        socket: PathBuf,
        board: i32,
        fate: Option<String>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rgaps-chaos: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<bool> {
    match arguments.part {
        None => {
            domain::choose(&arguments.domain, arguments.across.as_deref())?;
            supervisor::run(arguments.kills, arguments.seed, arguments.keep)
        }
        Some(Part::Actor { spec }) => {
            let spec = serde_json::from_str(&spec).context("an actor's specification")?;
            actor::run(&spec).map(|()| true)
        }
        Some(Part::Daemon {
            socket,
            board,
            fate,
        }) => {
            let fate = fate
                .map(|fate| serde_json::from_str(&fate))
                .transpose()
                .context("a daemon's fate")?;
            daemon::run(&socket, board, fate).map(|()| true)
        }
    }
}

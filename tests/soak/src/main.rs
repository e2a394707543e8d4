//! The soak: hosts on this machine, each with its daemon and links, and publishers and subscribers of every kind as
//! processes of their own. A seeded schedule disturbs them for a given time. Then it stops, all members finish, and one
//! checker looks at every byte, the order, the counts, pools and descriptors.
//!
//! The crash test (`tests/chaos`) kills at each step of a commit, on one host; this test runs whole programs, as they ship.
#![forbid(unsafe_code)]

mod board;
mod checker;
mod disk;
mod flood;
mod host;
mod journal;
mod memory;
mod network;
#[path = "../../chaos/src/pattern.rs"]
mod pattern;
mod programs;
mod publisher;
mod report;
mod subscriber;
mod supervisor;
mod topics;
mod trouble;

use anyhow::Context;
use board::Spec;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Disturbs publishers, subscribers, daemons and links, and checks every message. The last line is JSON.
#[derive(Parser)]
struct Arguments {
    /// How long to disturb them.
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Of the schedule: the same seed makes the same decisions in the same order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many hosts, 1 to 3.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3))]
    hosts: u64,
    /// Disturbs in this way only.
    #[arg(long, value_enum)]
    only: Option<trouble::Kind>,
    /// Keeps the folder with journals and logs.
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
    Member { spec: String },
    /// Strangers that take up connections.
    #[command(hide = true)]
    Flood { flood: String },
    /// Another program, which ends with the supervisor.
    #[command(hide = true)]
    Become {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rgaps-soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<bool> {
    match arguments.part {
        None => supervisor::run(&arguments),
        Some(Part::Member { spec }) => {
            die_with_parent();
            let spec: Spec = serde_json::from_str(&spec).context("a member's specification")?;
            match spec.publishes {
                true => publisher::run(&spec)?,
                false => subscriber::run(&spec)?,
            }
            Ok(true)
        }
        Some(Part::Flood { flood }) => {
            die_with_parent();
            flood::run(&serde_json::from_str(&flood).context("a flood")?);
            Ok(true)
        }
        Some(Part::Become { program }) => {
            die_with_parent();
            let [program, arguments @ ..] = &program[..] else {
                anyhow::bail!("no program is named");
            };
            Err(Command::new(program).args(arguments).exec().into())
        }
    }
}

/// Has the kernel kill this process, also as another program, when its parent is gone.
fn die_with_parent() {
    let signal = Some(rustix::process::Signal::KILL);
    let _ = rustix::process::set_parent_process_death_signal(signal);
}

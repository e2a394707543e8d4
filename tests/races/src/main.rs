//! The race test. A publisher's kernels write late, subscribers' kernels read at once or late, and
//! each byte is checked on the GPU: whatever is not waited for is read too early, or overwritten
//! too early. Each [scenario](plan::Scenario) also runs with its one wait left out, by this program
//! and not by the library, and that must be caught, so that the test is known to see what it is
//! for.
//!
//! Publishers and subscribers are processes of their own: this program again.

mod daemon;
mod gpu;
mod plan;
mod publisher;
mod subscriber;
mod supervisor;

use anyhow::Context;
use clap::{Parser, Subcommand};
use plan::{Across, Scenario, Spec};
use std::process::ExitCode;

/// Kernels that write late and read late, and every byte checked. The last line is JSON.
#[derive(Parser)]
struct Arguments {
    /// Messages of each run.
    #[arg(long, default_value_t = 200)]
    messages: u64,
    /// Messages of each run with a wait left out.
    #[arg(long, default_value_t = 40)]
    skip_messages: u64,
    /// GPUs that take part, each with a publisher and a subscriber, all at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=8))]
    gpus: u64,
    /// Has each subscriber read on the next GPU than its publisher's.
    #[arg(long)]
    across: Option<Across>,
    /// How long a slow kernel takes.
    #[arg(long, default_value_t = 50.0)]
    kernel_ms: f64,
    /// Bytes of a message.
    #[arg(long, default_value_t = 1 << 20)]
    bytes: u64,
    /// Of the patterns.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these scenarios.
    #[arg(long)]
    scenario: Vec<Scenario>,
    /// Runs nothing with a wait left out.
    #[arg(long)]
    no_skips: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// The processes that the supervisor starts.
#[derive(Subcommand)]
enum Part {
    #[command(hide = true)]
    Publisher { spec: String },
    #[command(hide = true)]
    Subscriber { spec: String },
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rgaps-races: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<bool> {
    let spec = |text: &str| serde_json::from_str::<Spec>(text).context("a specification");
    match &arguments.part {
        Some(Part::Publisher { spec: text }) => publisher::run(&spec(text)?).map(|()| true),
        Some(Part::Subscriber { spec: text }) => subscriber::run(&spec(text)?).map(|()| true),
        None => supervisor::run(&arguments),
    }
}

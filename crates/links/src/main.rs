//! The process with a host's links to other hosts. The daemon starts it if `links.enabled` is set, and it ends with the
//! daemon. `rgaps bridge` starts this program as a bridge, so that no other program contains Zenoh.
#![warn(clippy::too_many_lines)]
#![forbid(unsafe_code)]

use anyhow::Context;
use clap::{Parser, Subcommand};
use rgaps_client::Config;
use rgaps_links::LinksConductor;
use rgaps_session::{end_with_parent, on_own_stack, print_error, start_log};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

/// Carries the topics of a host to and from other hosts. The daemon starts it if `links.enabled` is true, and restarts it
/// when it ends; do not start it by hand.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Read this configuration file instead of searching for rgaps.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// End when the process that started this one ends.
    #[arg(long)]
    with_parent: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Carries topics to and from another system. `rgaps bridge` starts it; do not start it by hand.
    Bridge(rgaps_bridge::Arguments),
}

fn main() -> ExitCode {
    on_own_stack(|| match run() {
        Ok(code) => code,
        Err(error) => {
            print_error(format_args!("rgaps-links: {error:#}"));
            ExitCode::FAILURE
        }
    })
}

fn run() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if arguments.with_parent && !end_with_parent().context("asking for the parent's end")? {
        return Ok(ExitCode::SUCCESS);
    }
    let config = Config::load(arguments.config.as_deref())?;
    if let Some(Command::Bridge(bridge)) = &arguments.command {
        return Ok(rgaps_bridge::run(bridge, config));
    }
    // Of Zenoh's log lines, only errors interest users of rgaps.
    start_log(&format!("zenoh=error,{}", config.log), config.log_format)
        .with_context(|| format!("log = {:?} is no filter", config.log))?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, stop.clone()).context("a signal cannot be handled")?;
    }
    LinksConductor::start(config)?.run(&stop)?.leave_empty();
    Ok(ExitCode::SUCCESS)
}

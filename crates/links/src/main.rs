//! The process with a host's links to other hosts. The daemon starts it where `links.enabled` is set, and
//! it ends with the daemon.
#![forbid(unsafe_code)]

use anyhow::Context;
use clap::Parser;
use rgaps::links::LogFormat;
use rgaps::Config;
use rgaps_links::Coordinator;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use tracing_subscriber::EnvFilter;

/// Carries the topics of a host to and from other hosts. The daemon starts it where rgaps.toml says
/// `links.enabled = true`; there is no reason to start it by hand.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// Reads this configuration instead of rgaps.toml in the usual places.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Ends when the process that started it does.
    #[arg(long)]
    with_parent: bool,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rgaps-links: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if arguments.with_parent {
        let parent = rustix::process::getppid();
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
            .context("asking for the parent's end")?;
        if rustix::process::getppid() != parent {
            return Ok(());
        }
    }
    let config = Config::load(arguments.config.as_deref())?;
    // Zenoh says much that is of no interest to those who only use it.
    let filter = EnvFilter::try_from_default_env()
        .or_else(|_| EnvFilter::try_new(format!("zenoh=error,{}", config.log)));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter.with_context(|| format!("log = {:?} is no filter", config.log))?)
        .with_writer(std::io::stderr)
        .with_ansi(false);
    match config.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, stop.clone()).context("a signal cannot be handled")?;
    }
    Coordinator::start(config)?.run(&stop)
}

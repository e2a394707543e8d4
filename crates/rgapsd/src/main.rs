//! The program `rgapsd`, the daemon of a host or user. `rgaps-engine` has its logic; this file starts and ends it.
#![warn(clippy::too_many_lines)]
#![forbid(unsafe_code)]

mod metrics;
mod notify;
mod program;

use anyhow::{bail, Context};
use clap::Parser;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use program::Program;
use rgaps_engine::{snapshots, state_path, Engine, Reactor, Setup, SnapshotAsker, SystemSources};
use rgaps_mps::{leave_environment, Keeper, MpsDirectory};
use rgaps_session::{
    on_own_stack, print_error, split_warning, start_log, Argument, Config, DaemonLock, Environment,
    Ready, SessionListener, DAEMON_FILES_MIN,
};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long the daemon waits for MPS to run before it serves clients.
const MPS_START_LIMIT: Duration = Duration::from_secs(12);

/// Serves the clients of one realm, until `rgaps down`, SIGTERM, or a minute without clients. The first client starts it;
/// `rgaps up` or a systemd unit may.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Read this configuration file instead of searching for rgaps.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Listen at this Unix socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Serve this realm.
    #[arg(long, value_name = "NAME")]
    realm: Option<String>,
    /// Accepted, without effect: the daemon always runs in the foreground. To start one in the background, use `rgaps up`.
    #[arg(long)]
    foreground: bool,
    /// Keep running without clients.
    #[arg(long)]
    no_idle_exit: bool,
    /// Start CUDA's Multi-Process Service (MPS) for clients, or use one that runs already.
    #[arg(long)]
    mps: bool,
}

fn main() -> ExitCode {
    // In the first thread, so that all later ones inherit it.
    let signals = block_signals();
    on_own_stack(|| serve(signals))
}

fn serve(signals: nix::Result<OwnedFd>) -> ExitCode {
    let mut ready = Ready::from_env();
    // Changing the environment is safe here: the only other thread is the first one, which waits. CUDA is not loaded yet.
    let inherited_mps = leave_environment();
    match run(&mut ready, signals, inherited_mps) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // To the process that waits for the daemon to be ready, and to standard error.
            let text = rgaps_session::explain(error.as_ref());
            ready.failed(&text);
            print_error(format_args!("rgapsd: {text}"));
            ExitCode::FAILURE
        }
    }
}

fn run(
    ready: &mut Ready,
    signals: nix::Result<OwnedFd>,
    inherited_mps: Option<PathBuf>,
) -> anyhow::Result<()> {
    let config = configure(Arguments::parse())?;
    start_log(&config.log, config.log_format)
        .with_context(|| format!("log = {:?} is not a filter", config.log))?;
    if !rgaps_sync::atomic::has_lock_free_u128() {
        bail!("this processor has no lock-free 128-bit compare-and-swap, which rgaps needs; on a virtual machine, choose a CPU model with cmpxchg16b");
    }
    let signals = signals.context("blocking signals failed")?;
    raise_file_limit()?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let socket = config.socket_path();
    config.prepare_socket_folder()?;
    let _lock = DaemonLock::take(&DaemonLock::path_for(&socket), &config.realm)?;
    let mps = Keeper::new(MpsDirectory::of(&socket), config.cuda.mps, inherited_mps);
    let mut engine = Engine::new(
        Setup {
            sources: Box::new(SystemSources::new(&config)),
            socket: socket.clone(),
            state_file: Some(state_path(&socket)),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config: config.clone(),
        },
        Instant::now(),
    )?;
    if config.cuda.mps {
        mps.wait(MPS_START_LIMIT);
    }
    engine.set_mps(Box::new(mps));
    let listener = SessionListener::bind(&socket, config.socket_mode.0, &_lock)?;
    let child_config = Config {
        socket: Some(socket.clone()),
        ..config.clone()
    };
    let links = Program::links(&child_config)?;
    let gpu_server = Program::gpu_server(&child_config)?;
    if let Some(links) = &links {
        engine.watch_links(links.failure());
    }
    let (asker, source) = snapshots(config.metrics.topics_max as usize)?;
    let metrics = start_metrics(&config, asker, &mut engine);
    let mut reactor = Reactor::new(engine, listener, signals)?;
    reactor.serve_snapshots(source)?;
    tracing::info!(socket = %socket.display(), realm = config.realm, version = env!("CARGO_PKG_VERSION"), "ready");
    ready.ready();
    notify::ready();
    if let Some(warning) = split_warning(&config) {
        tracing::warn!("{warning}");
    }
    let outcome = reactor.run();
    drop((links, gpu_server, metrics));
    outcome?;
    Ok(())
}

/// Serves metrics, if they are configured. A failure, such as a port that is taken, is only a warning in `status`.
fn start_metrics(
    config: &Config,
    asker: SnapshotAsker,
    engine: &mut Engine,
) -> Option<metrics::Server> {
    metrics::Server::start(&config.metrics, asker).unwrap_or_else(|error| {
        let address = config.metrics.listen.map(|address| address.to_string());
        let trouble = format!(
            "serving metrics at {} failed: {error}; set metrics.listen to another address",
            address.unwrap_or_default()
        );
        tracing::error!("{trouble}");
        engine.add_trouble(trouble);
        None
    })
}

fn configure(arguments: Arguments) -> anyhow::Result<Config> {
    let mut environment = Environment::current();
    if let Some(realm) = &arguments.realm {
        let argument = Argument::text("--realm", "realm", realm);
        environment.arguments.push(argument);
    }
    let mut config = Config::load_from(arguments.config.as_deref(), &environment)?;
    if let Some(socket) = arguments.socket {
        config.socket = Some(std::path::absolute(socket).context("--socket")?);
    }
    if arguments.no_idle_exit {
        config.idle_exit_ms = 0;
    }
    config.cuda.mps |= arguments.mps;
    if config.gpu.serve {
        // The server's clients are no clients of the daemon, so the daemon would take itself for idle.
        config.idle_exit_ms = 0;
    }
    Ok(config)
}

/// Blocks SIGTERM and SIGINT. Returns a descriptor that becomes readable when one arrives.
fn block_signals() -> nix::Result<OwnedFd> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block()?;
    let fd = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    Ok(fd.into())
}

/// Raises the limit of open files to the hard limit, since a client takes two descriptors and a segment one.
fn raise_file_limit() -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "raising the limit of open files failed; it stays at {:?}", limit.current);
    }
    match getrlimit(Resource::Nofile).current {
        Some(files) if files < DAEMON_FILES_MIN => bail!(
            "the limit of open files is {files}, and the daemon needs {DAEMON_FILES_MIN} or more: raise it (ulimit -Hn), or \
             run 'rgaps up' where it is higher"
        ),
        _ => Ok(()),
    }
}

//! The daemon's process: what `rgapsd` is made of, with hooks at its steps.

use crate::board::Board;
use crate::domain::on_gpu;
use crate::steps::{arm, Fate, Role};
use anyhow::Context;
use rgaps_engine::{state_path, Engine, Reactor, Setup, SystemSources};
use rgaps_session::{ByteSize, Config, CudaUse, DaemonLock, SessionListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

/// Most bytes of the pool.
pub const POOL_BYTES: u64 = 512 << 20;

/// The configuration of daemon and clients.
pub fn config(socket: &Path) -> Config {
    let mut config = Config {
        socket: Some(socket.to_owned()),
        autostart: false,
        idle_exit_ms: 0,
        recovery_ms: 1_000,
        log: "info".to_owned(),
        ..Config::default()
    };
    config.pool.host.cap = Some(ByteSize(POOL_BYTES));
    config.pool.host.segment = ByteSize(32 << 20);
    config.pool.cuda.cap = Some(ByteSize(POOL_BYTES));
    config.pool.cuda.segment = ByteSize(32 << 20);
    if !on_gpu() {
        config.pool.cuda.enabled = CudaUse::Off;
    }
    config
}

/// Serves until it is killed.
pub fn run(socket: &Path, board: i32, fate: Option<Fate>) -> anyhow::Result<()> {
    crate::actor::die_with_parent();
    // SAFETY: the supervisor, our parent, made the board and left the descriptor to us.
    let board = unsafe { Board::map(board) }?;
    arm(&board.steps, Role::Daemon, fate);
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .with_ansi(false)
        .init();
    let config = config(socket);
    let lock = DaemonLock::take(&DaemonLock::path_for(socket), &config.realm)?;
    let engine = Engine::new(
        Setup {
            sources: Box::new(SystemSources::new(&config)),
            socket: socket.to_owned(),
            state_file: Some(state_path(socket)),
            version: "chaos".to_owned(),
            config: config.clone(),
        },
        Instant::now(),
    )?;
    let listener = SessionListener::bind(socket, config.socket_mode.0, &lock)?;
    // Never readable: only a signal ends this daemon.
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    let never: OwnedFd = rustix::event::eventfd(0, flags).context("eventfd")?;
    Reactor::new(engine, listener, never)?.run()?;
    Ok(())
}

//! The daemon: a thread of the supervisor's, made of what `rgapsd` is made of.

use crate::plan::Across;
use anyhow::Context;
use rgaps_engine::{Engine, Reactor, Setup, SystemSources};
use rgaps_session::{ByteSize, Config, DaemonLock, PeerUse, SessionListener};
use rustix::event::{eventfd, EventfdFlags};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Instant;

/// Small, so that what is let go of is used again soon.
const POOL_BYTES_MIN: u64 = 64 << 20;
const POOL_MESSAGES: u64 = 32;

/// The configuration of daemon and clients, for messages of so many bytes.
pub fn config(socket: &Path, message_bytes: u64, across: Option<Across>) -> Config {
    let cap = (POOL_MESSAGES * message_bytes).max(POOL_BYTES_MIN);
    let mut config = Config {
        socket: Some(socket.to_owned()),
        autostart: false,
        idle_exit_ms: 0,
        log: "warn".to_owned(),
        ..Config::default()
    };
    config.pool.cuda.cap = Some(ByteSize(cap.next_multiple_of(32 << 20)));
    config.pool.cuda.segment = ByteSize(32 << 20);
    config.pool.cuda.peer = match across {
        Some(Across::Copy) => PeerUse::Copy,
        Some(Across::Map) => PeerUse::Map,
        None => PeerUse::Auto,
    };
    config
}

/// A daemon in a folder of its own, until it is dropped.
pub struct Daemon {
    folder: tempfile::TempDir,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    pub fn start(message_bytes: u64) -> anyhow::Result<Daemon> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("rgaps.sock");
        let config = config(&socket, message_bytes, None);
        let lock = DaemonLock::take(&DaemonLock::path_for(&socket), &config.realm)?;
        let engine = Engine::new(
            Setup {
                sources: Box::new(SystemSources::new(&config)),
                socket: socket.clone(),
                state_file: None,
                version: "races".to_owned(),
                config: config.clone(),
            },
            Instant::now(),
        )?;
        let listener = SessionListener::bind(&socket, config.socket_mode.0, &lock)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).context("eventfd")?;
        let reactor = Reactor::new(engine, listener, stop.try_clone()?)?;
        let thread = std::thread::Builder::new()
            .name("daemon".to_owned())
            .spawn(move || {
                let _lock = lock;
                if let Err(error) = reactor.run() {
                    eprintln!("rgaps-races: the daemon ended: {error}");
                }
            })?;
        Ok(Daemon {
            folder,
            stop,
            thread: Some(thread),
        })
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("rgaps.sock")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let told = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if told.is_ok() {
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }
}

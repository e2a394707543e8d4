//! `up` and `down`.

use crate::args::{Common, Up};
use crate::output::Output;
use crate::status::describe_history;
use crate::{links, mps, session, units};
use anyhow::Context;
use rgaps::{ClientError, KeptHistory, LinksInfo, LinksState, MpsInfo, Node};
use rgaps_session::{RefusalCode, LINKS_CLIENT};
use serde::Serialize;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

#[derive(Serialize)]
struct Running {
    started: bool,
    pid: u32,
    socket: String,
    version: String,
    idle_exit_ms: Option<u64>,
    mps: MpsInfo,
    links: LinksInfo,
}

pub fn up(common: &Common, up: &Up, output: &mut Output) -> anyhow::Result<()> {
    let mut config = session::config(common)?;
    if up.foreground {
        return foreground(common, up.mps);
    }
    config.cuda.mps |= up.mps;
    let wants_mps = config.cuda.mps;
    config.idle_exit_ms = 0;
    config.autostart = true;
    let started = rgaps_session::connect(&config)?.is_none();
    let socket = config.socket_path();
    let folder = socket.parent().unwrap_or(Path::new("/"));
    let has_folder = folder.exists();
    let node = Node::builder("rgaps-up").config(config.clone()).build()?;
    let mut status = links::settled(&node)?;
    let links_failure = links::failure(&config, &status.links);
    let kept = status.idle_exit_ms.is_some() && keep(&node)?;
    if kept {
        status.idle_exit_ms = None;
    }
    let running = Running {
        started,
        pid: status.pid,
        socket: status.socket,
        version: status.version,
        idle_exit_ms: status.idle_exit_ms,
        mps: node.mps()?,
        links: status.links,
    };
    output.put(&running, |to| {
        let how = if started { "started" } else { "is running already" };
        writeln!(to, "rgapsd {} {how}: process {}, {}", running.version, running.pid, running.socket)?;
        if config.socket.is_some() && !has_folder {
            writeln!(to, "The folder of the configured socket, '{}', did not exist; created it.", folder.display())?;
        }
        if wants_mps {
            writeln!(to, "MPS: {}", mps::describe(&running.mps))?;
        }
        if running.links.state != LinksState::Off && links_failure.is_none() {
            writeln!(to, "links to other hosts: {}", links::describe(&running.links))?;
        }
        match (kept, running.idle_exit_ms) {
            (true, _) => writeln!(to, "A client started this daemon; from now on it stays until 'rgaps down'.")?,
            (false, Some(ms)) => writeln!(
                to,
                "Another user's client started this daemon, and it stops {} after its last client. Only that user and root can \
                 keep it: 'rgaps up' as one of them.",
                units::span(ms)
            )?,
            (false, None) => {}
        }
        Ok(())
    })?;
    if wants_mps {
        mps::check(&running.mps)?;
    }
    // The daemon runs and serves this host, but without the links that the configuration asks for.
    links_failure.map_or(Ok(()), |failure| Err(failure.into()))
}

/// Asks the daemon, which a client started, to stay when it has no clients. False: the daemon is another user's and refuses.
fn keep(node: &Node) -> anyhow::Result<bool> {
    match node.keep_daemon() {
        Ok(()) => Ok(true),
        Err(ClientError::Refused(refusal)) if refusal.code == RefusalCode::NotPermitted => {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Replaces this process by the daemon.
fn foreground(common: &Common, mps: bool) -> anyhow::Result<()> {
    let program = rgaps_session::find_daemon(&[])?;
    let mut command = Command::new(&program);
    command.args(["--foreground", "--no-idle-exit"]);
    if mps {
        command.arg("--mps");
    }
    if let Some(config) = &common.config {
        command.arg("--config").arg(config);
    }
    if let Some(socket) = &common.socket {
        command.arg("--socket").arg(socket);
    }
    if let Some(realm) = &common.realm {
        command.arg("--realm").arg(realm);
    }
    // `exec` returns only if it fails.
    let error = command.exec();
    Err(error).with_context(|| format!("starting '{}' failed", program.display()))
}

#[derive(Serialize)]
struct Stopped {
    stopped: bool,
    pid: u32,
    /// History of closed or dead publishers. It is lost unless one of `clients` hands it to the next daemon.
    dropped: KeptHistory,
    clients: usize,
}

pub fn down(common: &Common, output: &mut Output) -> anyhow::Result<()> {
    // A mistake in the configuration is no reason to leave a daemon running.
    let (config, invalid) = session::config_or_address(common)?;
    if let Some(error) = invalid {
        rgaps_session::print_error(format_args!("rgaps: the configuration is not valid ({error}); stopping the daemon of realm '{}' at '{}' anyway",
            config.realm,
            config.socket_path().display()));
    }
    let node = session::look_to_stop(config)?;
    let status = node.status()?;
    let own = std::process::id();
    let clients = node.clients()?.into_iter().filter(|row| row.pid != own);
    // The links end with the daemon.
    let clients = clients.filter(|row| row.name != LINKS_CLIENT).count();
    node.stop_daemon()?;
    let stopped = Stopped {
        stopped: true,
        pid: status.pid,
        dropped: status.kept,
        clients,
    };
    output.put(&stopped, |to| {
        write!(to, "process {} has stopped", stopped.pid)?;
        if stopped.dropped.messages > 0 {
            let history = describe_history(&stopped.dropped);
            match stopped.clients {
                0 => write!(to, "; lost with it: {history}")?,
                1 => write!(to, "; lost unless the client that still runs hands it to the next daemon: {history}")?,
                clients => write!(
                    to,
                    "; lost unless one of the {clients} clients that still run hands it to the next daemon: {history}"
                )?,
            }
        }
        writeln!(to)
    })
}

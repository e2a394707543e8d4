//! The commands of the daemon's child processes (the links to other hosts, the server of this host's GPUs), and of
//! `rgaps bridge`.

use crate::config::{INLINE_VARIABLE, LINKS_PROGRAM_VARIABLE};
use crate::launch::{find_program, list_paths, unblock_signals};
use crate::{Config, ConfigError, LinksFailure};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The program with the links to other hosts: the one that `RGAPS_LINKS_PROGRAM` names, or `rgaps-links` beside this program or
/// on the `PATH`.
pub fn find_links() -> Result<PathBuf, LinksFailure> {
    find_program(Some(LINKS_PROGRAM_VARIABLE), "rgaps-links", &[]).map_err(|searched| {
        match std::env::var_os(LINKS_PROGRAM_VARIABLE) {
            Some(_) => LinksFailure {
                advice: format!(
                    "set {LINKS_PROGRAM_VARIABLE} to the program rgaps-links, or unset it, then 'rgaps down' and \
                     'rgaps up'"
                ),
                reason: format!("{LINKS_PROGRAM_VARIABLE} names {}, which cannot be run", list_paths(&searched)),
            },
            None => LinksFailure {
                advice: format!(
                    "install rgaps-links beside rgapsd, or set {LINKS_PROGRAM_VARIABLE} to its path, then \
                     'rgaps down' and 'rgaps up'"
                ),
                reason: format!("the program 'rgaps-links' was not found in {}", list_paths(&searched)),
            },
        }
    })
}

/// The command with which a daemon of this configuration starts `rgaps-links`. The process receives all signals, and ends
/// with its parent.
pub fn links_command(config: &Config) -> Result<Command, LinksFailure> {
    let mut command = Command::new(find_links()?);
    command.arg("--with-parent");
    as_child(command, config)
}

/// The command with which a daemon of this configuration starts the server of this host's GPUs, which ends with its parent, too.
pub fn gpu_server_command(config: &Config) -> Result<Command, LinksFailure> {
    let program = find_program(None, "rgaps", &[]).map_err(|searched| LinksFailure {
        advice: "install the program rgaps beside rgapsd".to_owned(),
        reason: format!(
            "the program 'rgaps' was not found in {}",
            list_paths(&searched)
        ),
    })?;
    let mut command = Command::new(program);
    command.args(["gpu", "serve", "--with-parent"]);
    as_child(command, config)
}

/// The command that `rgaps bridge` executes, with this configuration.
pub fn bridge_command(config: &Config) -> Result<Command, BridgeProgramError> {
    let program = find_program(Some(LINKS_PROGRAM_VARIABLE), "rgaps-links", &[]);
    let mut command = Command::new(program.map_err(BridgeProgramError::NotFound)?);
    command
        .arg("bridge")
        .env(INLINE_VARIABLE, config.to_inline()?);
    Ok(command)
}

/// The program of `rgaps bridge` cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum BridgeProgramError {
    /// It was not found.
    #[error(
        "a bridge needs the program 'rgaps-links', which was not found in {}; install it beside rgaps, or set \
         {LINKS_PROGRAM_VARIABLE} to its path",
        list_paths(.0)
    )]
    NotFound(Vec<PathBuf>),
    /// The configuration cannot be handed over.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Passes the daemon's configuration to a command, and unblocks its signals.
fn as_child(mut command: Command, config: &Config) -> Result<Command, LinksFailure> {
    let inline = config.to_inline().map_err(|error| LinksFailure {
        advice: "correct the daemon's configuration".to_owned(),
        reason: error.to_string(),
    })?;
    command
        // This configuration includes the environment's settings; a process with an inline configuration ignores those.
        .env(INLINE_VARIABLE, inline)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    unblock_signals(&mut command);
    Ok(command)
}

/// Makes the kernel end this process when its parent ends. False: the parent has ended already.
pub fn end_with_parent() -> std::io::Result<bool> {
    use rustix::process::{getppid, set_parent_process_death_signal, Signal};
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(getppid() == parent)
}

//! `env` and `run`: the environment in which processes use the realm's MPS.

use crate::args::{Common, Run};
use crate::output::Output;
use crate::{session, units};
use anyhow::{bail, Context};
use rgaps::{MpsInfo, MpsState, Node};
use rgaps_session::{MpsControl, MPS_LOG_VARIABLE, MPS_PIPE_VARIABLE};
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Why processes cannot use the realm's MPS.
#[derive(Debug, thiserror::Error)]
pub enum NoMps {
    /// The MPS does not run, or takes no clients. Holds the reason.
    #[error("processes cannot use the realm's MPS: {0}")]
    NotRunning(String),
    /// The daemon was started without MPS.
    #[error("the running daemon was started without MPS; run 'rgaps down', then 'rgaps up --mps'")]
    NotWanted,
    /// The MPS serves another user. Holds its folder.
    #[error(
        "the MPS at '{0}' cannot be reached by this user: MPS serves the processes of one user, that of \
         the daemon; use a realm of your own (RGAPS_REALM), or run as that user"
    )]
    AnotherUsers(String),
}

#[derive(Serialize)]
struct Environment {
    state: MpsState,
    variables: BTreeMap<&'static str, String>,
}

/// Describes the state of MPS for people.
pub fn describe(info: &MpsInfo) -> String {
    let folder = info.pipe_directory.as_deref().unwrap_or_default();
    let control = match info.control_pid {
        Some(pid) => format!("control process {pid}, '{folder}'"),
        None => format!("'{folder}'"),
    };
    let mut text = match info.state {
        MpsState::Off => "off".to_owned(),
        MpsState::Starting => "starting".to_owned(),
        MpsState::Own => format!("the daemon's own: {control}"),
        MpsState::Foreign => format!("not the daemon's, it was running already: {control}"),
        MpsState::Draining => format!("the previous daemon's, ending: {control}"),
        MpsState::Failed => "not running".to_owned(),
    };
    if info.restarts > 0 {
        text += &format!(
            "; restarted {}",
            units::counted(info.restarts.into(), "time")
        );
    }
    if info.quarantined > 0 {
        text += &format!(
            "; {} in quarantine",
            units::counted(info.quarantined.into(), "dead client")
        );
    }
    if let Some(reason) = &info.reason {
        text += &format!("; {reason}");
    }
    text
}

/// Fails if processes cannot use the MPS. The caller knows that MPS is wanted.
pub fn check(info: &MpsInfo) -> Result<(), NoMps> {
    match info.state {
        MpsState::Off => Err(NoMps::NotWanted),
        MpsState::Own | MpsState::Foreign => match &info.pipe_directory {
            Some(directory) if !MpsControl::at(directory).has_socket() => {
                Err(NoMps::AnotherUsers(directory.clone()))
            }
            _ => Ok(()),
        },
        _ => Err(NoMps::NotRunning(describe(info))),
    }
}

/// The variables that processes need to use the MPS. Empty without MPS.
fn environment(node: &Node) -> anyhow::Result<Environment> {
    let info = node.mps()?;
    let mut variables = BTreeMap::new();
    if info.state != MpsState::Off {
        check(&info)?;
        variables.extend(info.pipe_directory.map(|value| (MPS_PIPE_VARIABLE, value)));
        variables.extend(info.log_directory.map(|value| (MPS_LOG_VARIABLE, value)));
    }
    Ok(Environment {
        state: info.state,
        variables,
    })
}

/// Connects to the daemon. Starts one only if the configuration wants MPS.
fn daemon(common: &Common) -> anyhow::Result<Node> {
    match session::config(common)?.cuda.mps {
        true => session::join(common),
        false => session::look(common),
    }
}

pub fn env(common: &Common, output: &mut Output) -> anyhow::Result<()> {
    let environment = environment(&daemon(common)?)?;
    output.put(&environment, |to| {
        for (name, value) in &environment.variables {
            writeln!(to, "export {name}={}", quoted(value))?;
        }
        if environment.variables.is_empty() {
            writeln!(
                to,
                "# MPS is off in this realm; there are no variables to set"
            )?;
        }
        Ok(())
    })
}

pub fn run(common: &Common, run: &Run) -> anyhow::Result<()> {
    let config = session::config(common)?;
    let variables = if !config.cuda.mps && rgaps_session::connect(&config)?.is_none() {
        rgaps_session::print_error(format_args!(
            "rgaps: no daemon is running, so there is no MPS; 'rgaps up --mps' starts both"
        ));
        BTreeMap::new()
    } else {
        environment(&daemon(common)?)?.variables
    };
    let Some((program, arguments)) = run.command.split_first() else {
        bail!("no command given; write rgaps run -- COMMAND");
    };
    // `exec` returns only if it fails. Otherwise the command decides the exit code.
    let error = Command::new(program).args(arguments).envs(variables).exec();
    Err(error).with_context(|| format!("starting '{}' failed", program.to_string_lossy()))
}

/// Quotes a value for a POSIX shell.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_reads_is_what_was_meant() {
        for value in ["/plain", "/with space", "it's; $(false) \"x\" \\ `y`\nz"] {
            let script = format!("printf %s {}", quoted(value));
            let read = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(read.stdout).unwrap(), value);
        }
    }

    #[test]
    fn an_mps_that_cannot_be_used_is_refused() {
        let info = |state, directory: Option<&str>| MpsInfo {
            state,
            pipe_directory: directory.map(str::to_owned),
            reason: Some("because".to_owned()),
            ..MpsInfo::default()
        };
        let refused = |info| check(&info).unwrap_err().to_string();
        assert!(refused(info(MpsState::Failed, None)).contains("because"));
        assert!(refused(info(MpsState::Draining, Some("/x"))).contains("because"));
        assert!(refused(info(MpsState::Own, Some("/not/there"))).contains("one user"));
        assert!(refused(info(MpsState::Off, None)).contains("rgaps up --mps"));
    }
}

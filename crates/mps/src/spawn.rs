//! Starts NVIDIA's control daemon, and waits until it answers.

use crate::directory::{MpsDirectory, Process};
use rgaps_session::{
    unblock_signals, MpsControl, MpsError, MPS_CONTROL_PROGRAM, MPS_LOG_VARIABLE, MPS_PIPE_VARIABLE,
};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a control daemon may take until it answers.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(10);
/// How long a control daemon may take to answer a question.
pub(crate) const ASK_LIMIT: Duration = Duration::from_secs(2);
/// The pause between two looks whether a control daemon answers or has ended.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How much of a control daemon's output an error quotes.
const TAIL_BYTES: usize = 600;

/// Why a start failed.
pub(crate) enum StartError {
    /// Another attempt may succeed.
    Again(String),
    /// No other attempt will succeed.
    Never(String),
}

/// Starts a control daemon in `directory`. Returns when it answers.
pub(crate) fn start_control(directory: &MpsDirectory) -> Result<(Process, Child), StartError> {
    let mut child = start_program(directory)?;
    let started = await_answer(directory, &mut child);
    if started.is_err() {
        // No record names it, so no successor would find it.
        let _ = child.kill();
        let _ = child.wait();
    }
    started.map(|process| (process, child))
}

fn unusable(directory: &MpsDirectory, error: std::io::Error) -> StartError {
    StartError::Never(format!(
        "'{}' cannot be used: {error}",
        directory.pipes().display()
    ))
}

fn start_program(directory: &MpsDirectory) -> Result<Child, StartError> {
    let unusable = |error| unusable(directory, error);
    directory.prepare().map_err(unusable)?;
    directory.remove_record();
    let output = std::fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(directory.output())
        .map_err(unusable)?;
    let errors = output.try_clone().map_err(unusable)?;
    let mut program = Command::new(MPS_CONTROL_PROGRAM);
    unblock_signals(&mut program);
    program
        .arg("-f")
        .env(MPS_PIPE_VARIABLE, directory.pipes())
        .env(MPS_LOG_VARIABLE, directory.logs())
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        // Ctrl-C in the daemon's terminal is for the daemon.
        .process_group(0)
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => StartError::Never(MpsError::NoProgram.to_string()),
            _ => StartError::Again(MpsError::Spawn(error).to_string()),
        })
}

/// Records the process for a successor, and waits until it answers.
fn await_answer(directory: &MpsDirectory, child: &mut Child) -> Result<Process, StartError> {
    let process = Process::of(child.id());
    if let Some(process) = process {
        let recorded = directory.write_record(process);
        recorded.map_err(|error| unusable(directory, error))?;
    }
    let control = MpsControl::at(directory.pipes());
    let deadline = Instant::now() + START_LIMIT;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Err(StartError::Again(format!(
                "the MPS control daemon ended at once ({status}): {}",
                output_tail(directory)
            )));
        }
        let late = Instant::now() >= deadline;
        match control.ask("get_server_list", ASK_LIMIT) {
            Ok(_) => break,
            Err(error) if late => return Err(StartError::Again(error.to_string())),
            Err(_) => std::thread::sleep(LOOK_AGAIN),
        }
    }
    let process = process.filter(|process| process.lives());
    process.ok_or_else(|| StartError::Again("MPS's control daemon ended at once".to_owned()))
}

/// The end of what the control daemon printed.
fn output_tail(directory: &MpsDirectory) -> String {
    let text = std::fs::read(directory.output()).unwrap_or_default();
    let tail = &text[text.len().saturating_sub(TAIL_BYTES)..];
    let tail = String::from_utf8_lossy(tail).trim().to_owned();
    match tail.is_empty() {
        true => format!("see '{}'", directory.logs().display()),
        false => tail,
    }
}

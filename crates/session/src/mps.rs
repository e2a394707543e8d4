//! Sends commands to an MPS control daemon. NVIDIA's program `nvidia-cuda-mps-control` reads commands from its standard input and
//! passes them to the daemon of `CUDA_MPS_PIPE_DIRECTORY`.
//!
//! That program may hang with its daemon, so every command has a time limit, after which the program is killed. Answers are parsed
//! strictly: an answer that is not a list of numbers proves nothing.

use crate::unblock_signals;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::pipe::PipeFlags;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The environment variable with the directory through which processes find their MPS.
pub const MPS_PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// The environment variable with the directory to which MPS logs.
pub const MPS_LOG_VARIABLE: &str = "CUDA_MPS_LOG_DIRECTORY";
/// Where the CUDA driver looks when the variable is not set.
pub const MPS_DEFAULT_PIPE_DIRECTORY: &str = "/tmp/nvidia-mps";
/// NVIDIA's program, which is searched on the `PATH`.
pub const MPS_CONTROL_PROGRAM: &str = "nvidia-cuda-mps-control";
/// Longest directory whose sockets have names that fit a Unix address (107 bytes), with room for
/// "/control_privileged" and what a later MPS may add.
pub const MPS_PIPE_PATH_MAX: usize = 84;
/// The most clients of one MPS on a GPU by NVIDIA's documentation: since Volta, and before.
pub const MPS_CLIENTS_MAX: (u32, u32) = (48, 16);

/// How many bytes of an answer are kept.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// How many bytes of the file with the process ID are read.
const PID_BYTES_MAX: usize = 32;
/// How many characters of an answer an error quotes.
const QUOTED_CHARS_MAX: usize = 200;
/// How often to check whether a program that closed its output has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A command to an MPS control daemon failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MpsError {
    /// NVIDIA's program is not on the `PATH`.
    #[error(
        "the program '{MPS_CONTROL_PROGRAM}' is not on the PATH; install the package of the NVIDIA driver that \
         contains it (nvidia-compute-utils), or mount it into the container"
    )]
    NoProgram,
    /// The program cannot be run.
    #[error("running '{MPS_CONTROL_PROGRAM}' failed: {0}")]
    Spawn(std::io::Error),
    /// No control daemon runs there, or it refuses the command.
    #[error("the MPS control daemon at '{}' refuses '{command}' ({status}): {answer}", directory.display())]
    Refused {
        /// The pipe directory.
        directory: PathBuf,
        /// The command.
        command: String,
        /// How the program ended.
        status: ExitStatus,
        /// Its answer.
        answer: String,
    },
    /// No answer in time.
    #[error(
        "the MPS control daemon at '{}' did not answer '{command}' within {} ms; see its log, and end it if it \
         hangs", directory.display(), limit.as_millis()
    )]
    NoAnswer {
        /// The pipe directory.
        directory: PathBuf,
        /// The command.
        command: String,
        /// The time limit.
        limit: Duration,
    },
    /// The answer is not a list of processes.
    #[error("the MPS control daemon at '{}' answers '{command}' with something that is not a list of processes: {answer}", directory.display())]
    Unclear {
        /// The pipe directory.
        directory: PathBuf,
        /// The command.
        command: String,
        /// Its answer.
        answer: String,
    },
}

/// An MPS server and its clients, by the process IDs that MPS reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpsServer {
    /// The server.
    pub pid: u32,
    /// Its clients.
    pub clients: Vec<u32>,
}

/// The MPS control daemon of a pipe directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MpsControl {
    directory: PathBuf,
}

impl MpsControl {
    /// The control daemon of this pipe directory. Does not check that it runs.
    pub fn at(directory: impl Into<PathBuf>) -> MpsControl {
        MpsControl {
            directory: directory.into(),
        }
    }

    /// The control daemon that this process's CUDA driver would use: that of `CUDA_MPS_PIPE_DIRECTORY`, or else of the default
    /// directory. None: the directory has no socket of a control daemon.
    pub fn of_this_process() -> Option<MpsControl> {
        let named = std::env::var_os(MPS_PIPE_VARIABLE).map(PathBuf::from);
        let directory = named.unwrap_or_else(|| PathBuf::from(MPS_DEFAULT_PIPE_DIRECTORY));
        Some(MpsControl::at(directory)).filter(MpsControl::has_socket)
    }

    /// The pipe directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether the directory has the socket of a control daemon, which may be dead.
    pub fn has_socket(&self) -> bool {
        self.directory.is_absolute() && self.directory.join("control").exists()
    }

    /// The process ID that the control daemon wrote into its file, in its own PID namespace. Reads only a regular file, and only
    /// its first bytes, since anyone can have created it.
    pub fn recorded_pid(&self) -> Option<u32> {
        let path = self.directory.join(format!("{MPS_CONTROL_PROGRAM}.pid"));
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file).ok()?.st_mode);
        if kind != FileType::RegularFile {
            return None;
        }
        let mut bytes = [0; PID_BYTES_MAX];
        let count = rustix::io::read(&file, &mut bytes).ok()?;
        std::str::from_utf8(&bytes[..count])
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// Whether a control daemon answers.
    pub fn answers(&self, limit: Duration) -> bool {
        self.ask("get_server_list", limit).is_ok()
    }

    /// All servers with their clients. Fails if a server ends meanwhile; then ask again.
    pub fn servers(&self, limit: Duration) -> Result<Vec<MpsServer>, MpsError> {
        let pids = self.list("get_server_list", limit)?;
        let servers = pids.into_iter().map(|pid| {
            let clients = self.list(&format!("get_client_list {pid}"), limit)?;
            Ok(MpsServer { pid, clients })
        });
        servers.collect()
    }

    /// Ends a client's GPU work and contexts. Its process, if it lives, continues.
    pub fn terminate(&self, server: u32, client: u32, limit: Duration) -> Result<(), MpsError> {
        self.ask(&format!("terminate_client {server} {client}"), limit)
            .map(drop)
    }

    fn list(&self, command: &str, limit: Duration) -> Result<Vec<u32>, MpsError> {
        let answer = self.ask(command, limit)?;
        let lines = answer
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        lines
            .map(|line| {
                line.parse().map_err(|_| MpsError::Unclear {
                    directory: self.directory.clone(),
                    command: command.to_owned(),
                    answer: quoted(&answer),
                })
            })
            .collect()
    }

    /// Passes a command to the control daemon, and returns the answer. Kills NVIDIA's program after `limit`.
    pub fn ask(&self, command: &str, limit: Duration) -> Result<String, MpsError> {
        let deadline = Instant::now() + limit;
        let no_answer = || MpsError::NoAnswer {
            directory: self.directory.clone(),
            command: command.to_owned(),
            limit,
        };
        let (mut child, output) = self.pass_on(command)?;
        let asked = read_all(&output, deadline).map(|answer| (answer, wait(&mut child, deadline)));
        match asked {
            Ok((answer, Ok(Some(status)))) if status.success() => Ok(answer),
            Ok((answer, Ok(Some(status)))) => Err(MpsError::Refused {
                directory: self.directory.clone(),
                command: command.to_owned(),
                status,
                answer: quoted(&answer),
            }),
            Ok((_, Ok(None))) | Err(None) => {
                end(&mut child);
                Err(no_answer())
            }
            Ok((_, Err(error))) | Err(Some(error)) => {
                end(&mut child);
                Err(MpsError::Spawn(error))
            }
        }
    }

    /// Makes the control daemon accept no more clients, and end after its last client. Returns NVIDIA's program, which ends at the
    /// same time; the caller need not wait for it.
    pub fn quit_when_idle(&self) -> Result<Child, MpsError> {
        let mut program = self.program();
        program.stdout(Stdio::null()).stderr(Stdio::null());
        // In a process group of its own, so that Ctrl-C does not end it with us.
        program.process_group(0);
        start(&mut program, "quit")
    }

    fn pass_on(&self, command: &str) -> Result<(Child, OwnedFd), MpsError> {
        let failed = |error: rustix::io::Errno| MpsError::Spawn(error.into());
        let (output, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
        let errors = writer.try_clone().map_err(MpsError::Spawn)?;
        let mut program = self.program();
        program.stdout(writer).stderr(errors);
        let child = start(&mut program, command)?;
        // Dropping `program` closes our copies of the pipe's writing end, so that we see the end of the output.
        Ok((child, output))
    }

    fn program(&self) -> Command {
        let mut program = Command::new(MPS_CONTROL_PROGRAM);
        program.env(MPS_PIPE_VARIABLE, &self.directory);
        unblock_signals(&mut program);
        program
    }
}

/// Starts the program, and writes a command to its standard input.
fn start(program: &mut Command, command: &str) -> Result<Child, MpsError> {
    let spawned = program.stdin(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => MpsError::NoProgram,
        _ => MpsError::Spawn(error),
    })?;
    if let Some(mut input) = child.stdin.take() {
        // The command fits the pipe's buffer, so this does not block. If the program ended without reading it, its output says
        // why.
        let _ = input.write_all(format!("{command}\n").as_bytes());
    }
    Ok(child)
}

fn quoted(answer: &str) -> String {
    let answer = answer.trim();
    match answer.is_empty() {
        true => "(nothing)".to_owned(),
        false => answer.chars().take(QUOTED_CHARS_MAX).collect(),
    }
}

fn end(child: &mut Child) {
    // Fails if the program has ended already. Waiting reaps it in either case.
    let _ = child.kill();
    let _ = child.wait();
}

/// Waits for the exit status; None at the deadline.
fn wait(child: &mut Child, deadline: Instant) -> std::io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Reads the output until its end. `Err(None)`: the deadline has passed.
fn read_all(from: &OwnedFd, deadline: Instant) -> Result<String, Option<std::io::Error>> {
    let mut answer = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs() as _,
            tv_nsec: left.subsec_nanos() as _,
        };
        let mut polled = [PollFd::from_borrowed_fd(from.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&timeout)) {
            Ok(0) => return Err(None),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(Some(errno.into())),
        }
        let mut bytes = [0u8; 4096];
        match rustix::io::read(from, &mut bytes) {
            Ok(0) => return Ok(String::from_utf8_lossy(&answer).into_owned()),
            // Bytes beyond the limit are read and dropped: no valid list is that long.
            Ok(count) if answer.len() < ANSWER_BYTES_MAX => {
                answer.extend_from_slice(&bytes[..count])
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Some(errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_a_control_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let control = MpsControl::at(folder.path());
        assert!(!control.has_socket());
        assert_eq!(control.recorded_pid(), None);
        std::fs::write(folder.path().join("nvidia-cuda-mps-control.pid"), "12\n").unwrap();
        assert_eq!(control.recorded_pid(), Some(12));
        let pid_file = folder.path().join("nvidia-cuda-mps-control.pid");
        std::fs::remove_file(&pid_file).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &pid_file).unwrap();
        assert_eq!(control.recorded_pid(), None, "not a regular file");
        assert!(!MpsControl::at("relative").has_socket());
    }

    #[test]
    fn what_is_quoted_is_short_and_something() {
        assert_eq!(quoted(" \n"), "(nothing)");
        assert_eq!(quoted(&"x".repeat(5000)).len(), QUOTED_CHARS_MAX);
    }
}

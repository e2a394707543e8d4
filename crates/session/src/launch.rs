//! Finding the daemon, or starting one.
//!
//! Ten clients that start at once start one daemon: the client that takes the start lock looks again for a daemon,
//! starts one, and holds the lock until the daemon is ready.

use crate::config::{prepare_folder, INLINE_VARIABLE};
use crate::lock::{with_suffix, writing_advice, StartLock};
use crate::mps::MPS_PIPE_VARIABLE;
use crate::ready::{READY_VARIABLE, READY_WORD};
use crate::{Config, ConfigError, DaemonLock, LockError, SessionSocket, SocketError};
use rustix::event::{PollFd, PollFlags};
use rustix::pipe::PipeFlags;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The environment variable with the path of the program `rgapsd`.
const DAEMON_VARIABLE: &str = "RGAPS_DAEMON";
/// How long a daemon may take until it is ready. Loading a GPU's driver takes seconds.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a client looks for the daemon while another one starts it.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// A client that starts a daemon renames a log that is longer than this.
const LOG_BYTES_MAX: u64 = 4 << 20;
/// How many bytes of the end of a log an error message quotes.
const LOG_TAIL_BYTES: usize = 2048;
/// Longest reason that a daemon gives for not starting.
const REASON_BYTES_MAX: usize = 4096;
/// The environment variables that a daemon inherits, besides `RGAPS_*` and `LC_*`. Of `CUDA_*`, it inherits only the directory of
/// MPS: the daemon serves other clients, too, on all GPUs.
const INHERITED: [&str; 10] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "TZ",
    "TMPDIR",
    // Containers name the folder of the driver's libraries by it.
    "LD_LIBRARY_PATH",
    // For the daemon's information only; the daemon does not use MPS itself.
    MPS_PIPE_VARIABLE,
    "RUST_BACKTRACE",
];

/// There is no daemon to talk to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No daemon is running, and `autostart` is off.
    #[error(
        "no daemon answers at {}; start one with 'rgaps up', or set autostart = true \
         so that clients start it",
        list_paths(tried)
    )]
    NoDaemon {
        /// Where it was looked for.
        tried: Vec<PathBuf>,
    },
    /// The daemon belongs to another user, who does not let this one connect.
    #[error(
        "this user may not use the daemon's socket '{}'; ask its owner for access \
         (socket_mode in rgaps.toml), or use a realm of your own (RGAPS_REALM)", path.display()
    )]
    NotPermitted {
        /// Its socket.
        path: PathBuf,
    },
    /// The program `rgapsd` was not found.
    #[error(
        "no daemon is running, and the program 'rgapsd' was not found in {}; install rgaps, put rgapsd \
         on the PATH, or set RGAPS_DAEMON to its path",
        list_paths(searched)
    )]
    NotFound {
        /// Where it was looked for.
        searched: Vec<PathBuf>,
    },
    /// `RGAPS_DAEMON` names no program.
    #[error(
        "no daemon is running, and RGAPS_DAEMON names '{}', which {problem}; set it to the path of the program \
         rgapsd, or unset it",
        program.display()
    )]
    WrongVariable {
        /// What the variable names.
        program: PathBuf,
        /// Why it cannot be run.
        problem: &'static str,
    },
    /// The program cannot be started.
    #[error("starting '{}' failed: {source}; check that RGAPS_DAEMON or the PATH names an executable", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The daemon started, and ended before it was ready.
    #[error("the daemon did not start: {reason}")]
    Failed {
        /// The daemon's reason, or the end of its log.
        reason: String,
    },
    /// The daemon was not ready in time.
    #[error("no daemon was ready within {} s: {reason}", START_TIMEOUT.as_secs())]
    NotReady {
        /// What the client waited for, and where to look.
        reason: String,
    },
    /// A file beside the socket cannot be used.
    #[error(
        "'{}' cannot be used: {source}; {}",
        path.display(),
        writing_advice(source, "set RGAPS_SOCKET to a path in a folder that this user can write")
    )]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another failure of the socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// Paths for people: `'/a', '/b'`.
pub fn list_paths(paths: &[PathBuf]) -> String {
    let quoted: Vec<String> = paths
        .iter()
        .map(|path| format!("'{}'", path.display()))
        .collect();
    quoted.join(", ")
}

/// Connects to the daemon of the configuration's realm, if one answers.
pub fn connect(config: &Config) -> Result<Option<SessionSocket>, LaunchError> {
    let mut refused = None;
    for (index, path) in config.socket_candidates().iter().enumerate() {
        let chosen = index == 0 && config.socket.is_none();
        if !prepare_folder(path, chosen, false)? {
            continue;
        }
        match SessionSocket::connect(path) {
            Ok(channel) => return Ok(Some(channel)),
            Err(error) => match error.errno() {
                Some(libc::ENOENT | libc::ECONNREFUSED | libc::ENOTDIR) => {}
                // The system's daemon refuses this user: then act as if there were none.
                Some(libc::EACCES | libc::EPERM) if index > 0 => {}
                Some(libc::EACCES | libc::EPERM) => {
                    refused = Some(LaunchError::NotPermitted { path: path.clone() });
                }
                _ => return Err(error.into()),
            },
        }
    }
    refused.map_or(Ok(None), Err)
}

/// Connects to the daemon of the configuration's realm. If none answers and `autostart` is on, starts one; looks for the
/// program in `bin_dirs` before `PATH`.
///
/// The daemon may end before the client's first packet: then connect again.
pub fn connect_or_start(
    config: &Config,
    bin_dirs: &[PathBuf],
) -> Result<SessionSocket, LaunchError> {
    if let Some(channel) = connect(config)? {
        return Ok(channel);
    }
    if !config.autostart {
        return Err(LaunchError::NoDaemon {
            tried: config.socket_candidates(),
        });
    }
    let socket = config.socket_path();
    prepare_folder(&socket, config.socket.is_none(), true)?;
    let deadline = Instant::now() + START_TIMEOUT;
    let _lock = loop {
        let lock = StartLock::try_take(&socket).map_err(|source| LaunchError::File {
            path: with_suffix(&socket, ".lock"),
            source,
        })?;
        // Look again under the lock: its last holder may just have started the daemon.
        if let Some(channel) = connect(config)? {
            return Ok(channel);
        }
        if let Some(lock) = lock {
            break lock;
        }
        pause(
            deadline,
            "another process is starting the daemon, and takes too long",
        )?;
    };
    loop {
        if let Some(channel) = wait_for_leaving_daemon(config, &socket, deadline)? {
            return Ok(channel);
        }
        let log_path = start(config, &socket, bin_dirs, deadline)?;
        if let Some(channel) = connect(config)? {
            return Ok(channel);
        }
        // For example, this process was stopped for longer than `idle_exit_ms`, after which the idle daemon ended.
        let reason = format!(
            "it said that it was ready, but nothing answers at '{}'; see its log '{}'",
            socket.display(),
            log_path.display()
        );
        pause(deadline, &reason)?;
    }
}

fn pause(deadline: Instant, reason: &str) -> Result<(), LaunchError> {
    if Instant::now() >= deadline {
        return Err(LaunchError::NotReady {
            reason: reason.to_owned(),
        });
    }
    std::thread::sleep(LOOK_AGAIN);
    Ok(())
}

/// A daemon that is about to end has closed its socket but still holds its lock; a daemon that is starting holds the lock
/// and has no socket yet. Waits until the former has ended or the latter answers.
fn wait_for_leaving_daemon(
    config: &Config,
    socket: &Path,
    deadline: Instant,
) -> Result<Option<SessionSocket>, LaunchError> {
    let path = DaemonLock::path_for(socket);
    loop {
        match DaemonLock::probe(&path) {
            Ok(()) => return Ok(None),
            Err(LockError::AlreadyRunning { pid }) => {
                let who = pid.map_or("a process".to_owned(), |pid| format!("process {pid}"));
                let reason = format!(
                    "{who} serves '{}' but does not answer there; stop it, then try again",
                    socket.display()
                );
                pause(deadline, &reason)?;
            }
            Err(LockError::System { path, source }) => {
                return Err(LaunchError::File { path, source })
            }
        }
        if let Some(channel) = connect(config)? {
            return Ok(Some(channel));
        }
    }
}

/// Starts a daemon, and waits until it is ready. Returns the path of its log.
fn start(
    config: &Config,
    socket: &Path,
    bin_dirs: &[PathBuf],
    deadline: Instant,
) -> Result<PathBuf, LaunchError> {
    let program = find_daemon(bin_dirs)?;
    let log_path = socket.with_file_name(format!("{}.log", config.realm));
    let (log, log_start) = open_log(&log_path).map_err(|source| LaunchError::File {
        path: log_path.clone(),
        source,
    })?;
    let spawn_error = |source| LaunchError::Spawn {
        program: program.clone(),
        source,
    };
    let (reader, lower) =
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|errno| spawn_error(errno.into()))?;
    // At least 3: the daemon's standard descriptors replace 0 to 2 (ours may be closed, so the pipe may have such a number).
    let writer =
        rustix::io::fcntl_dupfd_cloexec(&lower, 3).map_err(|errno| spawn_error(errno.into()))?;
    drop(lower);
    let for_daemon = Config {
        socket: Some(socket.to_owned()),
        ..config.clone()
    };
    let mut command = Command::new(&program);
    command
        .env_clear()
        .envs(scrubbed(std::env::vars_os()))
        .env(INLINE_VARIABLE, for_daemon.to_inline()?)
        .env(READY_VARIABLE, writer.as_raw_fd().to_string())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(spawn_error)?)
        .stderr(log);
    detach(&mut command, writer.as_raw_fd());
    // The process that `spawn` starts has ended when `spawn` returns; the daemon is its orphaned child.
    let mut parent = command.spawn().map_err(spawn_error)?;
    drop(writer);
    // Only reaps it: it ended by `_exit(0)`.
    let _ = parent.wait();
    drop(command);

    check_ready(read_word(&reader, deadline), &log_path, log_start)?;
    Ok(log_path)
}

/// Checks the daemon's word: ready, or the reason why it failed, or nothing.
fn check_ready(
    word: std::io::Result<Vec<u8>>,
    log_path: &Path,
    log_start: u64,
) -> Result<(), LaunchError> {
    let reason = match word {
        Ok(word) if word == READY_WORD => return Ok(()),
        Ok(word) if word.is_empty() => log_tail(log_path, log_start),
        Ok(word) => String::from_utf8_lossy(&word).into(),
        Err(source) => {
            let reason = format!("{source}; see its log '{}'", log_path.display());
            return Err(LaunchError::NotReady { reason });
        }
    };
    Err(LaunchError::Failed { reason })
}

/// The daemon's program: the one that `RGAPS_DAEMON` names, or `rgapsd` in `bin_dirs`, beside this program or on the `PATH`.
pub fn find_daemon(bin_dirs: &[PathBuf]) -> Result<PathBuf, LaunchError> {
    find_program(Some(DAEMON_VARIABLE), "rgapsd", bin_dirs).map_err(|searched| {
        match std::env::var_os(DAEMON_VARIABLE).map(PathBuf::from) {
            Some(program) => LaunchError::WrongVariable {
                problem: match program.metadata() {
                    Err(_) => "does not exist",
                    Ok(found) if found.is_dir() => "is a folder",
                    Ok(_) => "is not executable",
                },
                program,
            },
            None => LaunchError::NotFound { searched },
        }
    })
}

/// Finds a program: the one that `variable` names, or `name` in `bin_dirs`, beside this program or on the `PATH`. The error lists
/// the paths that were searched.
pub(crate) fn find_program(
    variable: Option<&str>,
    name: &str,
    bin_dirs: &[PathBuf],
) -> Result<PathBuf, Vec<PathBuf>> {
    if let Some(named) = variable.and_then(std::env::var_os) {
        let path = PathBuf::from(named);
        return match std::path::absolute(&path) {
            Ok(absolute) if is_program(&path) => Ok(absolute),
            _ => Err(vec![path]),
        };
    }
    let mut folders = bin_dirs.to_vec();
    if let Some(folder) = std::env::current_exe()
        .ok()
        .as_deref()
        .and_then(Path::parent)
    {
        folders.push(folder.to_owned());
        // cargo puts tests and examples into folders below that of the programs.
        if folder.ends_with("deps") || folder.ends_with("examples") {
            folders.extend(folder.parent().map(Path::to_owned));
        }
    }
    folders.extend(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    ));
    // The daemon runs in `/`, so a relative path would not lead to it.
    folders.retain(|folder| folder.is_absolute());
    let program = folders
        .iter()
        .map(|folder| folder.join(name))
        .find(|path| is_program(path));
    program.ok_or(folders)
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

fn scrubbed(
    all: impl Iterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    all.filter(|(name, _)| {
        name.to_str().is_some_and(|name| {
            INHERITED.contains(&name) || name.starts_with("LC_") || name.starts_with("RGAPS_")
        })
    })
}

/// Opens the log for appending, and returns its current length, too. Renames a log that is too long.
fn open_log(path: &Path) -> std::io::Result<(File, u64)> {
    if std::fs::symlink_metadata(path).is_ok_and(|there| there.len() > LOG_BYTES_MAX) {
        std::fs::rename(path, with_suffix(path, ".old"))?;
    }
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    let length = log.metadata()?.len();
    Ok((log, length))
}

fn log_tail(path: &Path, from: u64) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let new = text.get(from as usize..).unwrap_or_default();
    let tail = String::from_utf8_lossy(&new[new.len().saturating_sub(LOG_TAIL_BYTES)..]);
    if tail.trim().is_empty() {
        format!("it ended without a word; see its log '{}'", path.display())
    } else {
        format!(
            "its log '{}' ends with:\n{}",
            path.display(),
            tail.trim_end()
        )
    }
}

/// Makes the command's process a daemon: it is detached from our terminal and from us, and inherits only the standard descriptors
/// and `keep`.
fn detach(command: &mut Command, keep: RawFd) {
    let make_daemon = move || {
        // SAFETY: only system calls, in a forked child with one thread that is about to exec. `_exit` runs no exit handlers of the
        // parent process.
        unsafe {
            if libc::setsid() < 0 {
                return Err(std::io::Error::last_os_error());
            }
            match libc::fork() {
                -1 => return Err(std::io::Error::last_os_error()),
                0 => {}
                _ => libc::_exit(0),
            }
            libc::umask(0o077);
        }
        close_on_exec(keep)
    };
    // SAFETY: the closure makes only async-signal-safe system calls and allocates nothing, as is required between fork and exec
    // in a process with several threads.
    unsafe { command.pre_exec(make_daemon) };
}

/// Unblocks all signals in the command's process. A daemon blocks some, and its children would inherit the mask.
pub fn unblock_signals(command: &mut Command) {
    let unblock = || Ok(nix::sys::signal::SigSet::empty().thread_set_mask()?);
    // SAFETY: the closure makes one async-signal-safe system call and allocates nothing, as is required between fork and exec in a
    // process with several threads.
    unsafe { command.pre_exec(unblock) };
}

/// Marks all descriptors above the standard ones except `keep` as close-on-exec. They are not closed here, since the standard
/// library reports errors of exec through one of them.
fn close_on_exec(keep: RawFd) -> std::io::Result<()> {
    // SAFETY: these calls only change flags of descriptors, in a process that is about to exec. For a number that is not open they
    // fail without effect.
    unsafe {
        let flag = libc::CLOSE_RANGE_CLOEXEC;
        if libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, flag) != 0 {
            // A kernel before 5.11 lacks this flag: mark the descriptors one by one.
            let mut limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            for fd in 3..limit.rlim_cur.min(1 << 20) as RawFd {
                libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
        if libc::fcntl(keep, libc::F_SETFD, 0) != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Reads the daemon's word, until it is [`READY_WORD`] or the daemon closes the pipe.
fn read_word(pipe: &OwnedFd, deadline: Instant) -> std::io::Result<Vec<u8>> {
    let mut word = Vec::new();
    while word != READY_WORD && word.len() < REASON_BYTES_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = rustix::event::Timespec {
            tv_sec: left.as_secs() as _,
            tv_nsec: left.subsec_nanos() as _,
        };
        let mut polled = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&timeout)) {
            Ok(0) => {
                return Err(std::io::Error::new(
                    std::io::ErrorKind::TimedOut,
                    "the daemon was started but did not say that it is ready",
                ))
            }
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        let mut bytes = [0u8; 512];
        match rustix::io::read(pipe, &mut bytes) {
            Ok(0) => break,
            Ok(count) => word.extend_from_slice(&bytes[..count]),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_scrubbed() {
        let all = [
            "PATH",
            "CUDA_VISIBLE_DEVICES",
            "RGAPS_REALM",
            "LC_ALL",
            "SECRET",
            "LD_PRELOAD",
        ];
        let all = all
            .iter()
            .map(|name| (OsString::from(name), OsString::from("x")));
        let left: Vec<OsString> = scrubbed(all).map(|(name, _)| name).collect();
        assert_eq!(left, ["PATH", "RGAPS_REALM", "LC_ALL"]);
    }

    #[test]
    fn a_long_log_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.log");
        std::fs::write(&path, "one\n").unwrap();
        let (_, length) = open_log(&path).unwrap();
        assert_eq!(length, 4);
        std::fs::write(&path, "one\ntwo\n").unwrap();
        assert!(log_tail(&path, 4).ends_with("two") && !log_tail(&path, 4).contains("one"));
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(LOG_BYTES_MAX + 1)
            .unwrap();
        assert_eq!(open_log(&path).unwrap().1, 0);
        assert!(folder.path().join("r.log.old").exists());
    }
}

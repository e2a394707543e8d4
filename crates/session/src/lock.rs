//! Locks by `flock`. The kernel releases them when their process ends, however it ends.

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a daemon tries to take its lock. A client that probes the lock holds it for a moment.
const TAKE_TRIES: u32 = 5;
/// How long a daemon waits between two tries.
const TAKE_PAUSE: Duration = Duration::from_millis(20);

/// How many bytes of a lock file are read: a process ID and the name of a realm.
const HOLDER_BYTES_MAX: u64 = 256;

/// A daemon's lock could not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another daemon serves this socket.
    #[error("a daemon is running already{}", pid.map(|pid| format!(" (process {pid})")).unwrap_or_default())]
    AlreadyRunning {
        /// Its process, as it wrote into the lock file, in its own PID namespace. None: the file cannot be read.
        pid: Option<u32>,
    },
    /// The lock file cannot be opened or locked.
    #[error(
        "writing the lock file '{}' failed: {source}; {}",
        path.display(),
        writing_advice(source, "check that its folder exists and is writable")
    )]
    System {
        /// The lock file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Advice for a file beside the socket that cannot be written; `otherwise` if the disk is not full.
pub(crate) fn writing_advice(error: &std::io::Error, otherwise: &'static str) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "free space on the disk of the socket's folder, or set RGAPS_SOCKET to a path on another one"
        }
        _ => otherwise,
    }
}

/// The lock of a daemon, which it holds for life. The holder alone may listen at the socket's path.
///
/// The file stays when the lock ends. If it were removed, two daemons could lock two files of the same name.
#[derive(Debug)]
pub struct DaemonLock {
    _file: File,
    /// A shared lock on the folder, which stops systemd-tmpfiles from removing old files in it (tmpfiles.d(5), "Age"). None: it
    /// could not be taken.
    _folder: Option<File>,
}

impl DaemonLock {
    /// The lock file of a daemon that listens at `socket`.
    pub fn path_for(socket: &Path) -> PathBuf {
        with_suffix(socket, ".daemon.lock")
    }

    /// Takes the lock for a daemon of `realm`, or says who has it. Waits for 100 ms at most, since a client that probes the lock
    /// ([`probe`](Self::probe)) holds it for a moment.
    pub fn take(path: &Path, realm: &str) -> Result<DaemonLock, LockError> {
        let mut tries_left = TAKE_TRIES;
        let mut file = loop {
            tries_left -= 1;
            match lock(path) {
                Err(LockError::AlreadyRunning { .. }) if tries_left > 0 => {
                    std::thread::sleep(TAKE_PAUSE);
                }
                other => break other?,
            }
        };
        let system = |source| LockError::System {
            path: path.to_owned(),
            source,
        };
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| write!(file, "{}\n{realm}\n", std::process::id()))
            .map_err(system)?;
        Ok(DaemonLock {
            _file: file,
            _folder: path.parent().and_then(|folder| share(folder).ok()),
        })
    }

    /// The process and the realm that the daemon at `socket` wrote into its lock file. None if the file is not this user's.
    pub(crate) fn holder(socket: &Path) -> Option<(u32, String)> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::open(Self::path_for(socket), flags, Mode::empty()).ok()?;
        let mut file = File::from(file);
        let about = file.metadata().ok()?;
        if !about.is_file() || about.uid() != rustix::process::geteuid().as_raw() {
            return None;
        }
        read_holder(&mut file)
    }

    /// Fails unless the lock is free. Takes it for a moment to find out.
    pub(crate) fn probe(path: &Path) -> Result<(), LockError> {
        lock(path).map(drop)
    }
}

fn lock(path: &Path) -> Result<File, LockError> {
    let system = |source| LockError::System {
        path: path.to_owned(),
        source,
    };
    let mut file = open(path).map_err(system)?;
    if try_lock(&file).map_err(system)? {
        return Ok(file);
    }
    // For the error message only; None if the file cannot be read.
    let pid = read_holder(&mut file).map(|(pid, _)| pid);
    Err(LockError::AlreadyRunning { pid })
}

/// The process and the realm that a daemon wrote into its lock file.
fn read_holder(file: &mut File) -> Option<(u32, String)> {
    let mut text = String::new();
    let mut start = Read::by_ref(file).take(HOLDER_BYTES_MAX);
    start.read_to_string(&mut text).ok()?;
    let mut lines = text.lines();
    let pid = lines.next()?.trim().parse().ok()?;
    Some((pid, lines.next().unwrap_or_default().to_owned()))
}

/// A shared lock on a folder.
fn share(folder: &Path) -> std::io::Result<File> {
    let file = File::open(folder)?;
    let lock = || rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
    rustix::io::retry_on_intr(lock)?;
    Ok(file)
}

/// The lock that a client holds while it starts a daemon.
#[derive(Debug)]
pub(crate) struct StartLock {
    _file: File,
}

impl StartLock {
    /// Takes the lock; None while another client has it.
    pub(crate) fn try_take(socket: &Path) -> std::io::Result<Option<StartLock>> {
        let file = open(&with_suffix(socket, ".lock"))?;
        Ok(try_lock(&file)?.then_some(StartLock { _file: file }))
    }
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn open(path: &Path) -> std::io::Result<File> {
    // NOFOLLOW: in a shared folder, another user's link could make us overwrite a file of ours.
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(File::from(rustix::fs::open(
        path,
        flags,
        Mode::RUSR | Mode::WUSR,
    )?))
}

fn try_lock(file: &File) -> std::io::Result<bool> {
    let lock = || rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
    match rustix::io::retry_on_intr(lock) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_daemon_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = DaemonLock::path_for(&folder.path().join("r.sock"));
        let held = DaemonLock::take(&path, "lab").unwrap();
        let holder = DaemonLock::holder(&folder.path().join("r.sock"));
        assert_eq!(holder, Some((std::process::id(), "lab".to_owned())));
        match DaemonLock::take(&path, "lab") {
            Err(LockError::AlreadyRunning { pid }) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        drop(held);
        DaemonLock::take(&path, "lab").unwrap();
    }

    #[test]
    fn a_folder_with_daemons_is_locked_against_removal_of_what_is_old() {
        let folder = tempfile::tempdir().unwrap();
        let lock = |name: &str| DaemonLock::path_for(&folder.path().join(name));
        let one = DaemonLock::take(&lock("one.sock"), "lab").unwrap();
        let other = DaemonLock::take(&lock("other.sock"), "lab").unwrap();
        // systemd-tmpfiles takes this lock before it removes anything in a folder.
        let opened = File::open(folder.path()).unwrap();
        assert!(!try_lock(&opened).unwrap());
        drop(one);
        assert!(!try_lock(&opened).unwrap(), "the other is still there");
        drop(other);
        assert!(try_lock(&opened).unwrap());
    }

    #[test]
    fn a_full_disk_is_told_from_a_folder_that_cannot_be_written() {
        for (errno, advice) in [
            (Errno::NOSPC, "free space"),
            (Errno::DQUOT, "free space"),
            (Errno::ROFS, "exists and is writable"),
        ] {
            let failed = LockError::System {
                path: "/x/r.sock.daemon.lock".into(),
                source: errno.into(),
            };
            assert!(failed.to_string().contains(advice), "{failed}");
        }
    }

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        let path = folder.path().join("r.sock.daemon.lock");
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert!(matches!(
            DaemonLock::take(&path, "lab"),
            Err(LockError::System { .. })
        ));
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    }
}

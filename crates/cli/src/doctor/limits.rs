//! Limits of this process and permissions of files.

use super::Check;
use crate::units;
use rgaps::Config;
use rustix::process::{getrlimit, Resource};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// The name of the check of the socket's folder and its disk.
const SOCKET_FOLDER: &str = "socket folder";
/// Space that a daemon's log and state file may take.
const SPACE_MIN: u64 = 8 << 20;
/// Enough file descriptors for a client with many segments.
const FILES_MIN: u64 = 1024;

pub fn checks(config: &Config) -> Vec<Check> {
    vec![open_files(), file_size(), dev_shm(), socket_folder(config)]
}

fn shown(limit: Option<u64>, unit: fn(u64) -> String) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), unit)
}

/// The hard limit of open files, to which a daemon that starts here can raise its own limit.
pub fn open_files_max() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

fn open_files() -> Check {
    let limit = getrlimit(Resource::Nofile);
    let found = format!(
        "{} now, {} at most (the daemon raises its own limit)",
        shown(limit.current, |n| n.to_string()),
        shown(limit.maximum, |n| n.to_string())
    );
    match limit.maximum {
        Some(most) if most < FILES_MIN => Check::lack(
            "open files",
            found,
            format!(
                "set ulimit -Hn to {FILES_MIN} or more; the daemon uses two per client and one per segment"
            ),
        ),
        _ => Check::ok("open files", found),
    }
}

/// Checks the limit of locked memory. Memory that network cards or GPUs register is locked; processes with CAP_IPC_LOCK have no limit.
pub fn locked_memory(config: &Config, has_cards: bool) -> Check {
    const NAME: &str = "locked memory";
    let limit = getrlimit(Resource::Memlock);
    let shown = shown(limit.current, units::bytes);
    if super::rdma::may_lock_all() {
        return Check::ok(
            NAME,
            format!("{shown}, but not limited, since this process has CAP_IPC_LOCK"),
        );
    }
    let needed = config.pool.host.cap_bytes();
    match limit.current {
        Some(limit) if has_cards && limit < needed => Check::lack(
            NAME,
            shown,
            format!(
                "network cards lock the memory that they access, up to the pool's {}; run 'ulimit -l unlimited' where the \
                 daemon starts, or set LimitMEMLOCK=infinity in its systemd unit",
                units::bytes(needed)
            ),
        ),
        _ => Check::ok(
            NAME,
            format!("{shown}; needed for memory that network cards or GPUs access"),
        ),
    }
}

fn file_size() -> Check {
    match getrlimit(Resource::Fsize).current {
        None => Check::ok("file size", "unlimited"),
        Some(limit) => Check::lack(
            "file size",
            units::bytes(limit),
            "segments are files, so pools stay below this limit; run 'ulimit -f unlimited'",
        ),
    }
}

fn dev_shm() -> Check {
    let found = match rustix::fs::statvfs("/dev/shm") {
        Ok(stat) => units::bytes(stat.f_frsize.saturating_mul(stat.f_blocks)),
        Err(error) => error.to_string(),
    };
    Check::ok("/dev/shm", format!("{found}; rgaps does not use it"))
}

/// Checks the disk that the daemon writes its lock, state and log to. None: the disk has enough space.
fn space(folder: &Path, free: u64, has_daemon: bool) -> Option<Check> {
    let found = format!("{} free in '{}'", units::bytes(free), folder.display());
    let advice = "free space: the daemon writes its lock, its state file and its log there";
    match free {
        SPACE_MIN.. => None,
        0 if !has_daemon => Some(Check::fail(SOCKET_FOLDER, found, advice)),
        _ => Some(Check::lack(SOCKET_FOLDER, found, advice)),
    }
}

/// The free bytes of a folder's disk. None: the disk has no limit, or cannot be read.
fn free_bytes(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    (stat.f_blocks > 0).then(|| stat.f_frsize.saturating_mul(stat.f_bavail))
}

/// Checks the folder of the daemon's socket: creates another socket there and connects to it.
fn socket_folder(config: &Config) -> Check {
    const NAME: &str = SOCKET_FOLDER;
    let socket = config.socket_path();
    let folder = socket.parent().unwrap_or(Path::new("/"));
    let is_new = config.socket.is_some() && !folder.exists();
    let advice = "set socket in rgaps.toml, or RGAPS_SOCKET, to a path in a folder of your own";
    if let Err(error) = config.prepare_socket_folder() {
        return Check::fail(NAME, error.to_string(), advice);
    }
    if is_new {
        return Check::lack(
            NAME,
            format!(
                "the folder of the configured socket, '{}', did not exist; created it",
                folder.display()
            ),
            "if the path is a mistake, remove the folder and correct socket in rgaps.toml, or RGAPS_SOCKET",
        );
    }
    let has_daemon = socket.exists();
    if let Some(check) = free_bytes(folder).and_then(|free| space(folder, free, has_daemon)) {
        return check;
    }
    let probe = folder.join(format!(".doctor-{}", std::process::id()));
    let tried = UnixListener::bind(&probe)
        .and_then(|_listener| std::os::unix::net::UnixStream::connect(&probe));
    // The probe's socket may not exist; it must not stay.
    let _ = std::fs::remove_file(&probe);
    let mode = std::fs::metadata(folder).map_or(0, |there| there.mode() & 0o7777);
    match tried {
        Ok(_) => Check::ok(
            NAME,
            format!(
                "'{}', mode {mode:04o}; the socket's is {:04o}",
                folder.display(),
                config.socket_mode.0
            ),
        ),
        Err(error) if has_daemon => Check::lack(
            NAME,
            format!(
                "'{}' is not writable ({error}), but has a socket",
                folder.display()
            ),
            "that is correct for a daemon of the system; to start a daemon of your own, set RGAPS_REALM",
        ),
        Err(error) => Check::fail(NAME, format!("'{}': {error}", folder.display()), advice),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn a_full_disk_is_seen_before_a_daemon_fails_on_it() {
        let seen = |free, has_daemon| {
            let check = space(Path::new("/x"), free, has_daemon);
            check.map(|check| (check.verdict, check.found))
        };
        let none = |verdict| Some((verdict, "0 B free in '/x'".to_owned()));
        assert_eq!(seen(0, false), none(Verdict::Fail));
        assert_eq!(seen(0, true), none(Verdict::Lack));
        assert_eq!(seen(SPACE_MIN - 1, false).unwrap().0, Verdict::Lack);
        assert_eq!(seen(SPACE_MIN, false), None);
        assert!(free_bytes(Path::new("/proc")).is_none(), "it has no disk");
    }
}

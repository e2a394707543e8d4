//! The state file, which lists the zones of a daemon for its successor.

use crate::step::step;
use rgaps_session::ZoneId;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{test_kill_process, Pid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Version of the file. Files of another version are not read.
const VERSION: u32 = 1;
/// Most bytes of a file that are read.
const MAX_BYTES: u64 = 1 << 20;

/// A failure to write the state file.
pub(crate) struct Unwritten {
    /// The warning in `status`.
    pub(crate) warning: String,
    /// When to write the file again.
    pub(crate) again: Instant,
}

/// A zone that a daemon served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedZone {
    pub(crate) id: ZoneId,
    pub(crate) class: String,
    pub(crate) registry_inode: u64,
    /// Process numbers of its clients as that daemon saw them, some of which may have ended; 0 for one that it could not see.
    pub(crate) pids: Vec<u32>,
    /// Whether these numbers mean the same processes to this daemon.
    pub(crate) are_local_pids: bool,
    /// Publishers of links that left or died, and how many messages each published.
    pub(crate) departed: Vec<(u64, u64)>,
}

impl SavedZone {
    /// The processes of its clients that this daemon can see live.
    pub(crate) fn living(&self) -> BTreeSet<u32> {
        let seen = self.pids.iter().copied().filter(|pid| *pid != 0);
        let seen = seen.filter(|pid| self.are_local_pids && may_live(*pid));
        seen.collect()
    }

    /// Whether a client may still hand it back. False only if all their processes have ended.
    pub(crate) fn may_return(&self) -> bool {
        !self.are_local_pids || self.pids.iter().any(|pid| may_live(*pid))
    }

    /// A copy for this daemon's own state file, with 0 for process numbers that mean nothing to it.
    pub(crate) fn as_seen_here(&self) -> SavedZone {
        let mut seen = self.clone();
        if !self.are_local_pids {
            seen.pids.fill(0);
        }
        seen
    }
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    /// Inode of the daemon's PID namespace, to which `pids` belong; 0 if unknown.
    pid_namespace: u64,
    /// The kernel's boot id, since no zone outlives a restart of the machine; empty if unknown.
    #[serde(default)]
    boot: String,
    #[serde(default)]
    zone: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    id: String,
    class: String,
    registry_inode: u64,
    pids: Vec<u32>,
    /// Incarnations in hexadecimal, since integers in TOML are signed, and the numbers of messages.
    #[serde(default)]
    departed: Vec<(String, u64)>,
}

/// Where the daemon of a socket keeps its state file.
pub fn state_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".state");
    PathBuf::from(name)
}

/// Replaces the file, whole or not at all.
pub(crate) fn write(path: &Path, zones: &[SavedZone]) -> io::Result<()> {
    let entries = zones.iter().map(|zone| Entry {
        id: format!("{:032x}", zone.id),
        class: zone.class.clone(),
        registry_inode: zone.registry_inode,
        pids: zone.pids.clone(),
        departed: zone
            .departed
            .iter()
            .map(|(incarnation, published)| (format!("{incarnation:x}"), *published))
            .collect(),
    });
    let document = Document {
        version: VERSION,
        pid_namespace: pid_namespace(),
        boot: boot(),
        zone: entries.collect(),
    };
    let text = toml::to_string(&document).map_err(io::Error::other)?;
    let mut making = path.as_os_str().to_owned();
    making.push(".new");
    let making = PathBuf::from(making);
    // A daemon that died here may have left it. The daemon's lock keeps other daemons away.
    let _ = std::fs::remove_file(&making);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(&making, flags, Mode::RUSR | Mode::WUSR)?;
    File::from(fd).write_all(text.as_bytes())?;
    step!("state.written");
    std::fs::rename(&making, path)
}

/// Reads the zones that a predecessor wrote, without those whose clients have all ended. Empty if there is no file, or none that
/// can be trusted.
pub(crate) fn read(path: &Path) -> Vec<SavedZone> {
    match try_read(path) {
        Ok(zones) => zones,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the state file of the previous daemon cannot be used; this daemon starts without its topics");
            Vec::new()
        }
    }
}

fn try_read(path: &Path) -> io::Result<Vec<SavedZone>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let about = file.metadata()?;
    if !about.is_file() || about.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it is not a file of this user"));
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text)?;
    let document: Document = toml::from_str(&text).map_err(io::Error::other)?;
    if document.version != VERSION {
        return Err(io::Error::other(format!(
            "it has version {}",
            document.version
        )));
    }
    if !document.boot.is_empty() && document.boot != boot() {
        return Ok(Vec::new());
    }
    // In another PID namespace a number may name another process, or none although the client lives.
    let same = document.pid_namespace != 0 && document.pid_namespace == pid_namespace();
    let zones = document.zone.into_iter().map(|entry| {
        let id = u128::from_str_radix(&entry.id, 16).map_err(io::Error::other)?;
        let departed = entry.departed.into_iter().map(|(incarnation, published)| {
            let incarnation = u64::from_str_radix(&incarnation, 16);
            Ok((incarnation.map_err(io::Error::other)?, published))
        });
        Ok(SavedZone {
            departed: departed.collect::<io::Result<_>>()?,
            id,
            class: entry.class,
            registry_inode: entry.registry_inode,
            pids: entry.pids,
            are_local_pids: same,
        })
    });
    let mut zones = zones.collect::<io::Result<Vec<SavedZone>>>()?;
    zones.retain(SavedZone::may_return);
    Ok(zones)
}

/// The kernel's boot id; empty if unknown.
fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or(String::new(), |id| id.trim().to_owned())
}

/// The inode of this process's PID namespace; 0 if unknown.
fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |about| about.ino())
}

/// Whether a process may live. False only if there is none of that number.
pub(crate) fn may_live(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// Removes the file.
pub(crate) fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "removing the state file failed");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = state_path(&folder.path().join("r.sock"));
        assert_eq!(read(&path), []);
        let zone = |id, class: &str, pids: &[u32]| SavedZone {
            id,
            class: class.into(),
            registry_inode: 17,
            pids: pids.to_vec(),
            are_local_pids: true,
            departed: vec![(u64::MAX, 3), (7, 0)],
        };
        let own = std::process::id();
        let zones = [
            zone(u128::MAX - 5, "default", &[own, 0]),
            zone(3, "größe \"x\"", &[0]),
        ];
        write(&path, &zones).unwrap();
        write(&path, &zones).unwrap();
        assert_eq!(read(&path), zones);
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        remove(&path);
        remove(&path);
        assert_eq!(read(&path), []);
    }

    #[test]
    fn zones_of_the_dead_are_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = child.id();
        child.wait().unwrap();
        let zone = |id, pids: &[u32]| SavedZone {
            id,
            class: "c".into(),
            registry_inode: 1,
            pids: pids.to_vec(),
            are_local_pids: true,
            departed: Vec::new(),
        };
        let living = zone(2, &[ended, std::process::id()]);
        write(&path, &[zone(1, &[ended]), living.clone(), zone(3, &[])]).unwrap();
        assert_eq!(read(&path), std::slice::from_ref(&living));
        let foreign = std::fs::read_to_string(&path)
            .unwrap()
            .replace("pid_namespace = ", "pid_namespace = 1");
        std::fs::write(&path, foreign).unwrap();
        assert_eq!(
            read(&path).len(),
            3,
            "of another namespace nothing is known"
        );
        write(&path, std::slice::from_ref(&living)).unwrap();
        assert_eq!(read(&path), [living]);
        let before = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, before.replace(&boot(), "another")).unwrap();
        assert_eq!(read(&path), [], "nobody outlives a restart of the machine");
    }

    #[test]
    fn what_is_no_state_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        for text in [
            "",
            "garbage",
            "version = 2\n",
            "version = 1\n[[zone]]\nid = \"xyz\"\nclass = \"c\"\nregistry_inode = 1",
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&path), [], "{text}");
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert_eq!(read(&path), []);
        assert_eq!(read(folder.path()), []);
    }
}

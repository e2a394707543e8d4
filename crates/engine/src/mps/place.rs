//! The private directory of a realm's MPS, and the record by which the next daemon finds what this
//! one started.

use super::process::{is_control_here, start_time};
use rgaps_session::{MpsControl, MPS_PIPE_PATH_MAX};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A process by its number and when it was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) start: u64,
}

impl Process {
    /// A process that lives.
    pub(super) fn of(pid: u32) -> Option<Process> {
        start_time(pid).map(|start| Process { pid, start })
    }

    pub(super) fn lives(self) -> bool {
        start_time(self.pid) == Some(self.start)
    }
}

/// Where a realm keeps its MPS: `<socket>.mps`, or a folder in `/tmp` where that is too long for the
/// sockets that MPS makes in it.
#[derive(Clone, Debug)]
pub struct Place {
    folder: PathBuf,
    pipes: PathBuf,
}

impl Place {
    /// The place of the realm whose daemon listens at `socket`.
    pub fn of(socket: &Path) -> Place {
        let mut name = socket.as_os_str().to_owned();
        name.push(".mps");
        let beside = Place::in_folder(PathBuf::from(name));
        if beside.pipes.as_os_str().len() <= MPS_PIPE_PATH_MAX {
            return beside;
        }
        let uid = rustix::process::geteuid().as_raw();
        let number = socket
            .as_os_str()
            .as_bytes()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
                (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        Place::in_folder(format!("/tmp/rgaps-mps-{uid}-{number:016x}").into())
    }

    fn in_folder(folder: PathBuf) -> Place {
        let pipes = folder.join("pipe");
        Place { folder, pipes }
    }

    /// The pipe directory.
    pub fn pipes(&self) -> &Path {
        &self.pipes
    }

    /// The log directory.
    pub fn logs(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// What the control daemon prints.
    pub(super) fn output(&self) -> PathBuf {
        self.logs().join("output.log")
    }

    fn record(&self) -> PathBuf {
        self.folder.join("control-started")
    }

    /// Makes the folders anew, ours alone. Only when no control daemon of ours lives.
    pub(super) fn prepare(&self) -> io::Result<()> {
        if self.is_ours()? {
            // Sockets and locks of a control daemon that is gone, which the next would stumble over.
            match std::fs::remove_dir_all(self.pipes()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        for folder in [&self.folder, &self.pipes, &self.logs()] {
            let made = std::fs::DirBuilder::new().mode(0o700).create(folder);
            match made {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        match self.is_ours()? {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Whether the folder is there; an error if it is not ours alone.
    fn is_ours(&self) -> io::Result<bool> {
        let there = match std::fs::symlink_metadata(&self.folder) {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let uid = rustix::process::geteuid().as_raw();
        if !there.is_dir() || there.uid() != uid || there.mode() & 0o077 != 0 {
            return Err(io::Error::other(
                "it is not a folder of this user with mode 0700; remove it",
            ));
        }
        Ok(true)
    }

    pub(super) fn write_record(&self, process: Process) -> io::Result<()> {
        let new = self.folder.join("control-started.new");
        std::fs::write(&new, format!("{} {}\n", process.pid, process.start))?;
        std::fs::rename(new, self.record())
    }

    pub(super) fn remove_record(&self) {
        // What they name is gone, so they are harmless where they cannot be removed.
        let _ = std::fs::remove_file(self.record());
        let _ = std::fs::remove_file(self.draining());
    }

    fn draining(&self) -> PathBuf {
        self.folder.join("control-drains")
    }

    /// Writes down that the control daemon was told to quit.
    pub(super) fn mark_draining(&self) {
        if let Err(error) = std::fs::write(self.draining(), "") {
            tracing::error!(%error, "recording that MPS quits failed");
        }
    }

    /// Whether the control daemon was told to quit.
    pub(super) fn drains(&self) -> bool {
        self.draining().exists()
    }

    /// Whether a daemon of this realm started MPS and did not stop it.
    pub(super) fn has_record(&self) -> bool {
        self.record().exists()
    }

    /// The control daemon that this one or a predecessor started, if it lives. A daemon that died
    /// before it could write the record left MPS's own, in a directory that is nobody else's.
    pub(super) fn living_control(&self) -> Option<Process> {
        if !self.is_ours().unwrap_or(false) {
            return None;
        }
        self.recorded().or_else(|| {
            let pid = MpsControl::at(self.pipes()).recorded_pid()?;
            Process::of(pid).filter(|process| is_control_here(process.pid))
        })
    }

    fn recorded(&self) -> Option<Process> {
        let text = std::fs::read_to_string(self.record()).ok()?;
        let (pid, start) = text.trim().split_once(' ')?;
        let process = Process {
            pid: pid.parse().ok()?,
            start: start.parse().ok()?,
        };
        process.lives().then_some(process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_long_path_is_not_taken_for_sockets() {
        let short = Place::of(Path::new("/run/user/1000/rgaps/default.sock"));
        assert_eq!(
            short.pipes(),
            Path::new("/run/user/1000/rgaps/default.sock.mps/pipe")
        );
        let long = PathBuf::from(format!("/{}/r.sock", "x".repeat(80)));
        let place = Place::of(&long);
        let pipes = place.pipes();
        assert!(pipes.starts_with("/tmp") && pipes.as_os_str().len() <= MPS_PIPE_PATH_MAX);
        assert_eq!(pipes, Place::of(&long).pipes());
        assert_ne!(pipes, Place::of(&long.join("other")).pipes());
    }

    #[test]
    fn the_record_names_a_process_that_lives() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::of(&folder.path().join("r.sock"));
        assert_eq!(place.living_control(), None);
        place.prepare().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&place.folder), mode(place.pipes())), (0o700, 0o700));
        let own = Process::of(std::process::id()).unwrap();
        place.write_record(own).unwrap();
        assert_eq!(place.living_control(), Some(own));
        let other = Process {
            start: own.start + 1,
            ..own
        };
        place.write_record(other).unwrap();
        assert_eq!(place.living_control(), None, "its number was given again");
        std::fs::write(place.pipes().join("stale"), "").unwrap();
        place.prepare().unwrap();
        assert!(!place.pipes().join("stale").exists());
        std::fs::set_permissions(&place.folder, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(place.prepare().is_err());
    }
}

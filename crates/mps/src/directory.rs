//! The private directory of a realm's MPS, and the record in it, by which the next daemon finds a control daemon that this one
//! started.

use crate::process::{is_control_here, start_time};
use rgaps_session::{MpsControl, MPS_PIPE_PATH_MAX};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A process, named by its number and its start time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// In clock ticks since the machine was started.
    pub(crate) start: u64,
}

impl Process {
    /// The living process of that number.
    pub(crate) fn of(pid: u32) -> Option<Process> {
        start_time(pid).map(|start| Process { pid, start })
    }

    pub(crate) fn lives(self) -> bool {
        start_time(self.pid) == Some(self.start)
    }
}

/// Where a realm keeps its MPS: `<socket>.mps`, or a folder in `/tmp` if that path is too long for the
/// sockets that MPS makes in it.
#[derive(Clone, Debug)]
pub struct MpsDirectory {
    folder: PathBuf,
    pipes: PathBuf,
}

impl MpsDirectory {
    /// The directory of the realm whose daemon listens at `socket`.
    pub fn of(socket: &Path) -> MpsDirectory {
        let mut name = socket.as_os_str().to_owned();
        name.push(".mps");
        let beside = MpsDirectory::in_folder(PathBuf::from(name));
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
        MpsDirectory::in_folder(format!("/tmp/rgaps-mps-{uid}-{number:016x}").into())
    }

    fn in_folder(folder: PathBuf) -> MpsDirectory {
        let pipes = folder.join("pipe");
        MpsDirectory { folder, pipes }
    }

    /// The pipe directory.
    pub fn pipes(&self) -> &Path {
        &self.pipes
    }

    /// The log directory.
    pub fn logs(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// The file with the control daemon's output.
    pub(crate) fn output(&self) -> PathBuf {
        self.logs().join("output.log")
    }

    fn record(&self) -> PathBuf {
        self.folder.join("control-started")
    }

    /// Makes empty folders that only this user can enter. Call it only when no control daemon of this realm lives.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        if self.is_private()? {
            // Sockets and locks of a dead control daemon would keep the next one from starting.
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
        match self.is_private()? {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Whether the folder exists. `Err` if other users can enter it.
    fn is_private(&self) -> io::Result<bool> {
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

    pub(crate) fn write_record(&self, process: Process) -> io::Result<()> {
        let new = self.folder.join("control-started.new");
        std::fs::write(&new, format!("{} {}\n", process.pid, process.start))?;
        std::fs::rename(new, self.record())
    }

    pub(crate) fn remove_record(&self) {
        // Files that cannot be removed do no harm, since they name a process that has ended.
        let _ = std::fs::remove_file(self.record());
        let _ = std::fs::remove_file(self.draining());
    }

    fn draining(&self) -> PathBuf {
        self.folder.join("control-drains")
    }

    /// Records that the control daemon was asked to quit.
    pub(crate) fn mark_draining(&self) {
        if let Err(error) = std::fs::write(self.draining(), "") {
            tracing::error!(%error, "recording that MPS quits failed");
        }
    }

    /// Whether the control daemon was asked to quit.
    pub(crate) fn drains(&self) -> bool {
        self.draining().exists()
    }

    /// Whether a daemon of this realm started MPS and did not stop it.
    pub(crate) fn has_record(&self) -> bool {
        self.record().exists()
    }

    /// The control daemon that this daemon or a predecessor started, if it lives. If a daemon died before it wrote the
    /// record, MPS's own file in this directory, which nobody else uses, names the process.
    pub(crate) fn living_control(&self) -> Option<Process> {
        if !self.is_private().unwrap_or(false) {
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
        let short = MpsDirectory::of(Path::new("/run/user/1000/rgaps/default.sock"));
        assert_eq!(
            short.pipes(),
            Path::new("/run/user/1000/rgaps/default.sock.mps/pipe")
        );
        let long = PathBuf::from(format!("/{}/r.sock", "x".repeat(80)));
        let directory = MpsDirectory::of(&long);
        let pipes = directory.pipes();
        assert!(pipes.starts_with("/tmp") && pipes.as_os_str().len() <= MPS_PIPE_PATH_MAX);
        assert_eq!(pipes, MpsDirectory::of(&long).pipes());
        assert_ne!(pipes, MpsDirectory::of(&long.join("other")).pipes());
    }

    #[test]
    fn the_record_names_a_process_that_lives() {
        let folder = tempfile::tempdir().unwrap();
        let directory = MpsDirectory::of(&folder.path().join("r.sock"));
        assert_eq!(directory.living_control(), None);
        directory.prepare().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&directory.folder), mode(directory.pipes())),
            (0o700, 0o700)
        );
        let own = Process::of(std::process::id()).unwrap();
        directory.write_record(own).unwrap();
        assert_eq!(directory.living_control(), Some(own));
        let other = Process {
            start: own.start + 1,
            ..own
        };
        directory.write_record(other).unwrap();
        assert_eq!(
            directory.living_control(),
            None,
            "its number was given again"
        );
        std::fs::write(directory.pipes().join("stale"), "").unwrap();
        directory.prepare().unwrap();
        assert!(!directory.pipes().join("stale").exists());
        std::fs::set_permissions(&directory.folder, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(directory.prepare().is_err());
    }
}

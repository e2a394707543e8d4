//! A small disk of a host's own, for the daemon's socket, state and log, which can be full.

use rustix::mount::{mount, unmount, MountFlags, UnmountFlags};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Room for state and log; shared memory is elsewhere.
const DISK: &std::ffi::CStr = c"size=16m,mode=0700";
/// A log that is longer begins anew.
const LOG_MAX: u64 = 4 << 20;

/// Gone when it is dropped; the log stays beside it.
pub struct Disk {
    folder: PathBuf,
    is_small: bool,
}

impl Disk {
    /// On a file system of its own, if such may be mounted here.
    pub fn make(folder: PathBuf) -> std::io::Result<Disk> {
        std::fs::create_dir(&folder)?;
        let mounted = mount("rgaps-soak", &folder, "tmpfs", MountFlags::empty(), DISK);
        if let Err(error) = &mounted {
            eprintln!("soak: no disk is filled: a tmpfs cannot be mounted: {error}");
        }
        Ok(Disk {
            folder,
            is_small: mounted.is_ok(),
        })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn ballast(&self) -> PathBuf {
        self.folder.join("ballast")
    }

    /// Fills it up. False: it is the machine's disk.
    pub fn fill(&self) -> std::io::Result<bool> {
        if !self.is_small {
            return Ok(false);
        }
        let mut ballast = File::create(self.ballast())?;
        for bytes in [1 << 16, 1] {
            let zeros = vec![0; bytes];
            while ballast.write_all(&zeros).is_ok() {}
        }
        Ok(true)
    }

    /// Makes room again.
    pub fn empty(&self) {
        // It may be empty.
        let _ = std::fs::remove_file(self.ballast());
    }

    /// Keeps the log from filling the disk: what was written so far goes to a file beside the disk.
    pub fn turn_log(&self) -> std::io::Result<()> {
        let bytes = std::fs::metadata(self.log()).map_or(0, |log| log.len());
        if bytes > LOG_MAX {
            self.keep_log()?;
            File::options().write(true).open(self.log())?.set_len(0)?;
        }
        Ok(())
    }

    fn keep_log(&self) -> std::io::Result<()> {
        let beside = self.folder.with_file_name("daemon.log");
        let mut kept = File::options().create(true).append(true).open(beside)?;
        std::io::copy(&mut File::open(self.log())?, &mut kept)?;
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_small {
            // There may be no log yet.
            let _ = self.keep_log();
            let _ = unmount(&self.folder, UnmountFlags::DETACH);
        }
    }
}

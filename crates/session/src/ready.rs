//! The pipe through which a daemon tells the client that started it that it is ready, or why it failed.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

/// The environment variable with the number of the pipe's descriptor.
pub(crate) const READY_VARIABLE: &str = "RGAPSD_READY_FD";
/// The daemon writes this when it is ready. Any other text is the reason why it failed.
pub(crate) const READY_WORD: &[u8] = b"ready\n";

/// The daemon's end of the pipe. Dropping it unused tells the client that the daemon failed.
#[derive(Debug)]
pub struct Ready {
    pipe: Option<File>,
}

impl Ready {
    /// Takes the pipe that the environment names. Call it once, before this process opens any descriptor. If no client
    /// started this daemon, all methods do nothing.
    pub fn from_env() -> Ready {
        let number = std::env::var(READY_VARIABLE)
            .ok()
            .and_then(|text| text.parse().ok());
        Ready {
            pipe: number.and_then(inherited_pipe),
        }
    }

    /// Tells the client that the daemon listens.
    pub fn ready(&mut self) {
        self.say(READY_WORD);
    }

    /// Tells the client that the daemon failed, for this reason.
    pub fn failed(&mut self, reason: &str) {
        self.say(reason.as_bytes());
    }

    fn say(&mut self, word: &[u8]) {
        if let Some(mut pipe) = self.pipe.take() {
            // Fails if the client no longer waits; the daemon continues.
            let _ = pipe.write_all(word);
        }
    }
}

fn inherited_pipe(number: RawFd) -> Option<File> {
    if number <= 2 {
        return None;
    }
    // SAFETY: our parent left this descriptor open for us. `from_env` is called before this process opens any descriptor, so
    // nothing else owns it. If it is not an open pipe, the checks below fail, and we forget it instead of closing it.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    let is_pipe = rustix::fs::fstat(&fd).is_ok_and(|status| {
        rustix::fs::FileType::from_raw_mode(status.st_mode) == rustix::fs::FileType::Fifo
    });
    let kept = is_pipe && rustix::io::fcntl_setfd(fd.as_fd(), rustix::io::FdFlags::CLOEXEC).is_ok();
    if !kept {
        std::mem::forget(fd);
        return None;
    }
    Some(File::from(fd))
}

//! How a daemon that a client started tells it that it is ready, or why it is not.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

/// Names the descriptor of the pipe to tell it through.
pub(crate) const READY_VARIABLE: &str = "RGAPSD_READY_FD";
/// What is written when the daemon is ready; anything else is the reason why not.
pub(crate) const READY_WORD: &[u8] = b"ready\n";

/// The daemon's end. Dropped without a word, it says that the daemon failed.
#[derive(Debug)]
pub struct Ready {
    pipe: Option<File>,
}

impl Ready {
    /// What the client that started this daemon left in the environment; to be called once,
    /// first of all, before any descriptor is opened. Without one, all calls do nothing.
    pub fn from_env() -> Ready {
        let number = std::env::var(READY_VARIABLE)
            .ok()
            .and_then(|text| text.parse().ok());
        Ready {
            pipe: number.and_then(inherited_pipe),
        }
    }

    /// The daemon listens.
    pub fn ready(&mut self) {
        self.say(READY_WORD);
    }

    /// The daemon gives up, for this reason.
    pub fn failed(&mut self, reason: &str) {
        self.say(reason.as_bytes());
    }

    fn say(&mut self, word: &[u8]) {
        if let Some(mut pipe) = self.pipe.take() {
            // The client may have lost patience; the daemon goes on without it.
            let _ = pipe.write_all(word);
        }
    }
}

fn inherited_pipe(number: RawFd) -> Option<File> {
    if number <= 2 {
        return None;
    }
    // SAFETY: the variable names a descriptor that our parent left open for us, and we are called
    // first, so nothing in this process owns it. If it is not open, the checks below fail and
    // it is forgotten instead of closed.
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

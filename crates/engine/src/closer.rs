//! Closes what strangers sent, on threads of its own: how long `close` takes is up to whoever made the file (a socket
//! with `SO_LINGER`, a file system in user space, gigabytes of memory to free).
//!
//! Only descriptors that came from clients, and sockets in which such descriptors lie unread, go this way. A user with
//! [`MAX_PENDING_PER_USER`] of them gets no new session until one of them is closed.

use rustix::fs::{AtFlags, FileType, StatxFlags};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Threads that close at the same time. Each ends when nothing waits.
const MAX_THREADS: usize = 64;
/// Closes of one user's that have not returned.
const MAX_PENDING_PER_USER: usize = 32;

/// Descriptors of one user that wait to be closed together.
struct Batch {
    uid: u32,
    fds: Vec<OwnedFd>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Batch>,
    threads: usize,
    /// Batches by user that wait or are being closed.
    pending: HashMap<u32, usize>,
}

/// The threads, as the reactor sees them.
#[derive(Clone, Default)]
pub(crate) struct Closer(Arc<Mutex<State>>);

impl Closer {
    /// Closes descriptors of a user's, at some time.
    pub(crate) fn close(&self, uid: u32, fds: Vec<OwnedFd>) {
        if fds.is_empty() {
            return;
        }
        let mut state = self.state();
        *state.pending.entry(uid).or_default() += 1;
        state.waiting.push_back(Batch { uid, fds });
        if state.threads == MAX_THREADS {
            return;
        }
        let closer = self.clone();
        let thread = std::thread::Builder::new().name("rgapsd-closer".to_owned());
        match thread.spawn(move || closer.run()) {
            Ok(_) => state.threads += 1,
            // They stay open until the next thread comes.
            Err(error) => tracing::error!(%error, "no thread to close descriptors"),
        }
    }

    /// Whether a user has as many closes under way as one may have.
    pub(crate) fn is_full(&self, uid: u32) -> bool {
        let pending = self.state().pending.get(&uid).copied().unwrap_or_default();
        pending >= MAX_PENDING_PER_USER
    }

    fn run(self) {
        loop {
            let mut state = self.state();
            let Some(batch) = state.waiting.pop_front() else {
                state.threads -= 1;
                return;
            };
            drop(state);
            drop(batch.fds);
            let mut state = self.state();
            if let Some(pending) = state.pending.get_mut(&batch.uid) {
                *pending -= 1;
                if *pending == 0 {
                    state.pending.remove(&batch.uid);
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Copies for the engine of descriptors that a client sent, if all are of memory. A copy can be closed anywhere: as long
/// as the original is open, that closes no file.
pub(crate) fn copies_of_memory(fds: &[OwnedFd]) -> Option<Vec<OwnedFd>> {
    let copy = |fd: &OwnedFd| is_memory(fd.as_fd()).then(|| fd.try_clone().ok()).flatten();
    fds.iter().map(copy).collect()
}

/// Whether a file is a memfd or a device, through which CUDA shares memory. The kernel says so by itself: it asks no
/// file system in user space or on another host.
fn is_memory(fd: BorrowedFd<'_>) -> bool {
    if rustix::fs::fcntl_get_seals(fd).is_ok() {
        return true;
    }
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let about = rustix::fs::statx(fd, "", flags, StatxFlags::TYPE);
    about.is_ok_and(|about| {
        FileType::from_raw_mode(about.stx_mode.into()) == FileType::CharacterDevice
    })
}

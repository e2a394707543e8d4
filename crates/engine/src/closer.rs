//! Closes the descriptors that clients sent, on threads of its own: whoever made the file decides how long `close` takes (a socket
//! with `SO_LINGER`, a file system in user space, gigabytes of memory to free).
//!
//! These threads close only descriptors from clients, and sockets that hold such descriptors unread. Each user has its own
//! threads. A user with [`MAX_PENDING_PER_USER`] unfinished closes gets no new session, and the daemon receives no
//! descriptors from it, until one of them returns.

use rustix::fs::{AtFlags, FileType, StatxFlags};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most threads of one user. A thread ends when that user has nothing left to close.
const MAX_THREADS_PER_USER: usize = 4;
/// Most unfinished closes of one user.
const MAX_PENDING_PER_USER: usize = 32;

/// Descriptors of one user that wait to be closed.
#[derive(Default)]
struct Pending {
    /// Descriptors that are closed together, in this order.
    waiting: VecDeque<Vec<OwnedFd>>,
    threads: usize,
    /// Batches that wait or are being closed.
    batches: usize,
    /// Descriptors in these batches.
    fds: usize,
}

/// The threads, as the reactor sees them.
#[derive(Clone, Default)]
pub(crate) struct Closer(Arc<Mutex<HashMap<u32, Pending>>>);

impl Closer {
    /// Closes descriptors of a user later.
    pub(crate) fn close(&self, uid: u32, fds: Vec<OwnedFd>) {
        if fds.is_empty() {
            return;
        }
        let mut users = self.users();
        let user = users.entry(uid).or_default();
        user.batches += 1;
        user.fds += fds.len();
        user.waiting.push_back(fds);
        if user.threads == MAX_THREADS_PER_USER {
            return;
        }
        let closer = self.clone();
        let thread = std::thread::Builder::new().name("rgapsd-closer".to_owned());
        match thread.spawn(move || closer.run(uid)) {
            Ok(_) => user.threads += 1,
            // The descriptors stay open until another thread of this user closes them.
            Err(error) => tracing::error!(%error, "no thread to close descriptors"),
        }
    }

    /// Whether a user has the most unfinished closes that it may have.
    pub(crate) fn is_full(&self, uid: u32) -> bool {
        let users = self.users();
        users
            .get(&uid)
            .is_some_and(|user| user.batches >= MAX_PENDING_PER_USER)
    }

    /// Descriptors of one user that are not closed.
    pub(crate) fn pending_of(&self, uid: u32) -> usize {
        self.users().get(&uid).map_or(0, |user| user.fds)
    }

    /// Descriptors of all users that are not closed.
    pub(crate) fn pending(&self) -> usize {
        self.users().values().map(|user| user.fds).sum()
    }

    fn run(self, uid: u32) {
        loop {
            let mut users = self.users();
            let Some(user) = users.get_mut(&uid) else {
                return;
            };
            let Some(batch) = user.waiting.pop_front() else {
                user.threads -= 1;
                if user.batches == 0 && user.threads == 0 {
                    users.remove(&uid);
                }
                return;
            };
            drop(users);
            let count = batch.len();
            drop(batch);
            if let Some(user) = self.users().get_mut(&uid) {
                user.batches -= 1;
                user.fds -= count;
            }
        }
    }

    fn users(&self) -> MutexGuard<'_, HashMap<u32, Pending>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Copies for the engine of descriptors that a client sent, if all are of memory. A copy can be closed anywhere: as long
/// as the original is open, that closes no file.
pub(crate) fn copies_of_memory(fds: &[OwnedFd]) -> Option<Vec<OwnedFd>> {
    let copy = |fd: &OwnedFd| is_memory(fd.as_fd()).then(|| fd.try_clone().ok()).flatten();
    fds.iter().map(copy).collect()
}

/// Whether a file is a memfd, a dma-buf, or a device, through which CUDA shares memory. The kernel says so by itself: it asks no
/// file system in user space or on another host.
fn is_memory(fd: BorrowedFd<'_>) -> bool {
    if rustix::fs::fcntl_get_seals(fd).is_ok() || rgaps_pool::is_dma_buf(fd) {
        return true;
    }
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let about = rustix::fs::statx(fd, "", flags, StatxFlags::TYPE);
    about.is_ok_and(|about| {
        FileType::from_raw_mode(about.stx_mode.into()) == FileType::CharacterDevice
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps_testkit::lingering;
    use std::io::Read;

    #[test]
    fn what_one_user_sent_does_not_keep_that_of_others_open() {
        let closer = Closer::default();
        let mut peers = Vec::new();
        // Where this process is stopped and continued, a socket is closed at once.
        while !closer.is_full(1) {
            let (socket, peer) = lingering();
            peers.push(peer);
            closer.close(1, vec![socket]);
            assert!(closer.pending_of(1) <= peers.len().min(MAX_PENDING_PER_USER));
        }
        assert!(!closer.is_full(2));
        for _ in 0..2 * MAX_PENDING_PER_USER {
            let (mut reader, writer) = std::io::pipe().unwrap();
            closer.close(2, vec![writer.into()]);
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        }
        // The peers' ends let all of them be closed.
        drop(peers);
        while closer.pending() > 0 {
            std::thread::yield_now();
        }
    }
}

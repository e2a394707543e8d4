//! A file descriptor of a subscriber for `poll`, `epoll` and event loops.
//!
//! Publishers ring futexes, for which no event loop can wait. A thread waits for them instead, and makes an eventfd readable
//! when a message is waiting. When none is left, the subscriber makes the eventfd unreadable and tells the thread to watch
//! again. Only a subscriber that was asked for a descriptor has the thread. See `docs/decisions/0004-waiting.md`.

use crate::subscriber::SubscriberCore;
use rgaps_layout::WAIT_SLICE_NS;
use rustix::event::{eventfd, EventfdFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Arc, Weak};

/// The eventfd and the thread behind it.
pub(crate) struct Readiness {
    event: Arc<OwnedFd>,
    /// Tells the thread to watch for messages; closing it ends the thread. Its capacity is 1, since a second request would change
    /// nothing.
    watch: SyncSender<()>,
}

impl Readiness {
    pub(crate) fn start(core: &Arc<SubscriberCore>) -> std::io::Result<Readiness> {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (watch, watches) = sync_channel(1);
        let (weak, raised) = (Arc::downgrade(core), event.clone());
        std::thread::Builder::new()
            .name("rgaps-readiness".to_owned())
            .spawn(move || run(&weak, &raised, &watches))?;
        let readiness = Readiness { event, watch };
        readiness.watch();
        Ok(readiness)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Makes the descriptor unreadable. True: it was readable.
    pub(crate) fn clear(&self) -> bool {
        rustix::io::read(&self.event, &mut [0u8; 8]) != Err(Errno::AGAIN)
    }

    /// Tells the thread to make the descriptor readable when a message is waiting.
    pub(crate) fn watch(&self) {
        let _ = self.watch.try_send(());
    }
}

fn run(core: &Weak<SubscriberCore>, event: &OwnedFd, watches: &Receiver<()>) {
    while watches.recv().is_ok() {
        loop {
            // Hold the core only during one slice, so that the program can drop the subscriber.
            let Some(core) = core.upgrade().filter(|core| !core.is_closed()) else {
                return;
            };
            let Ok(sleeper) = core.announce_sleep() else {
                return;
            };
            if core.lock().is_ready() {
                break;
            }
            sleeper.sleep(WAIT_SLICE_NS / 4);
        }
        // Fails only when the counter is full, after 2^64 writes that nobody read.
        let _ = rustix::io::write(event, &1u64.to_ne_bytes());
    }
}

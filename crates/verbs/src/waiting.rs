//! Waiting for a channel: polling for a bounded time, then sleeping.

use crate::channel::Channel;
use crate::error::{ChannelError, VerbsError};
use crate::receiving::{Each, Progress};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The polling time adapts between the configured one and this part of it.
const SPIN_PART_LEAST: u32 = 16;

impl Channel {
    /// The descriptors to wait for: completions, events of the device, the channel's own bell. When one is readable,
    /// call [`Channel::woken`], then [`Channel::progress`].
    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        let events = self.device.fabric().events_fd();
        [self.queue.completions_fd(), events, self.signals.bell()]
    }

    /// Lets the next completion make a descriptor readable. Earlier completions do not: call
    /// [`Channel::progress`] once more before waiting.
    pub fn arm(&self) -> Result<(), ChannelError> {
        self.check()?;
        self.queue.arm().map_err(|error| self.fail(error.into()))
    }

    /// Makes descriptors unreadable again; the flags say which of [`Channel::fds`] are readable. Each costs a system call.
    pub fn woken(&self, [completions, events, bell]: [bool; 3]) -> Result<(), ChannelError> {
        if events {
            self.device.look();
        }
        if bell {
            self.signals.clear_bell();
        }
        if completions {
            let woken = self.queue.woken();
            woken.map_err(|error| self.fail(error.into()))?;
        }
        self.check()
    }

    /// Wakes the thread that waits in [`Channel::serve`] or on [`Channel::fds`].
    pub fn ring(&self) {
        self.signals.ring();
    }

    /// Waits for something to do and does it, as [`Channel::progress`]. Polls first, for a time that adapts to whether
    /// polling finds anything; then sleeps until something arrives, the bell rings, or `limit` has passed.
    pub fn serve(&self, each: &mut Each<'_>, limit: Duration) -> Result<Progress, ChannelError> {
        let start = Instant::now();
        let spin = Duration::from_nanos(self.spin_ns.load(Relaxed).into());
        loop {
            let progress = self.progress(each)?;
            if progress.any {
                self.polling_paid(start.elapsed());
                return Ok(progress);
            }
            if start.elapsed() >= spin.min(limit) {
                break;
            }
            std::hint::spin_loop();
        }
        self.arm()?;
        let progress = self.progress(each)?;
        if progress.any {
            return Ok(progress);
        }
        let slept = Instant::now();
        self.sleep(limit.saturating_sub(start.elapsed()))?;
        self.polling_would_have(slept.elapsed());
        self.progress(each)
    }

    fn sleep(&self, limit: Duration) -> Result<(), ChannelError> {
        self.counts.sleeps.add(1);
        let mut fds = self
            .fds()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let limit = Timespec::try_from(limit).ok();
        match poll(&mut fds, limit.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => self.check(),
            Ok(_) => self.woken(fds.map(|fd| !fd.revents().is_empty())),
            Err(errno) => Err(self.fail(ChannelError::Verbs(VerbsError::Call {
                call: "poll",
                errno: errno.raw_os_error(),
            }))),
        }
    }

    fn polling_paid(&self, after: Duration) {
        // Work that was there at once says nothing about polling.
        if after > Duration::from_micros(1) {
            self.spin_by(|spin| spin.saturating_mul(2));
        }
    }

    fn polling_would_have(&self, slept: Duration) {
        match slept < self.config.spin {
            true => self.spin_by(|spin| spin.saturating_mul(2)),
            false => self.spin_by(|spin| spin / 2),
        }
    }

    fn spin_by(&self, change: impl Fn(u32) -> u32) {
        let most = u32::try_from(self.config.spin.as_nanos()).unwrap_or(u32::MAX);
        let now = self.spin_ns.load(Relaxed);
        let next = change(now).clamp(most / SPIN_PART_LEAST, most);
        if next != now {
            self.spin_ns.store(next, Relaxed);
        }
    }
}

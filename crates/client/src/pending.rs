//! Deadlines of waits, and pauses between polls of something that rings no doorbell.

use rgaps_sync::{monotonic_ns, spin_hint};
use std::time::Duration;

/// How many polls follow each other without sleeping.
const SPINS: u32 = 200;
/// Shortest and longest sleep between two polls.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// Between these limits a sleep takes one part in `PAUSE_PART` of the time waited so far, so a wait takes at most that much too long.
const PAUSE_PART: u32 = 32;
/// Most GPU work takes less time when no other work delays it.
const LONG: Duration = Duration::from_millis(3);

/// Pauses between polls of something that rings no doorbell: spins at first, then sleeps for a part of the time waited so far,
/// up to [`PAUSE_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Pause {
    looks: u32,
    /// When it first slept, on the monotonic clock. None: it has only spun.
    since_ns: Option<u64>,
    /// Time from the first sleep to the latest one.
    waited: Duration,
}

impl Pause {
    /// Whether this wait has taken longer than most GPU work does.
    pub(crate) fn is_long(&self) -> bool {
        self.waited > LONG
    }

    pub(crate) fn pause(&mut self) {
        if self.looks < SPINS {
            self.looks += 1;
            return spin_hint();
        }
        let now = monotonic_ns();
        let since = *self.since_ns.get_or_insert(now);
        self.waited = Duration::from_nanos(now.saturating_sub(since));
        std::thread::sleep(sleep_after(self.waited));
    }
}

/// How long to sleep after waiting for `waited`.
fn sleep_after(waited: Duration) -> Duration {
    (waited / PAUSE_PART).clamp(PAUSE_MIN, PAUSE_MAX)
}

/// How long closing a member waits for its queued GPU work before it leaves the rest to the background.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// Waits until `is_over` returns true, up to [`CLOSE_PATIENCE`]. False: it did not.
pub(crate) fn drain(mut is_over: impl FnMut() -> bool) -> bool {
    let deadline = Deadline::after(CLOSE_PATIENCE);
    let mut pause = Pause::default();
    while !is_over() {
        if deadline.left_ns().is_none() {
            return false;
        }
        pause.pause();
    }
    true
}

/// The end of a wait: nanoseconds on the monotonic clock; `u64::MAX` is never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(u64);

impl Deadline {
    /// The deadline in `timeout` from now; never, if the sum overflows.
    pub(crate) fn after(timeout: Duration) -> Deadline {
        let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        Deadline(monotonic_ns().saturating_add(ns))
    }

    /// A wait without end.
    pub(crate) const NEVER: Deadline = Deadline(u64::MAX);

    /// Nanoseconds left, above 0. None: the deadline has passed.
    pub(crate) fn left_ns(self) -> Option<u64> {
        if self.0 == u64::MAX {
            return Some(u64::MAX);
        }
        self.0.checked_sub(monotonic_ns()).filter(|left| *left > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_a_part_of_the_wait_and_bounded() {
        assert_eq!(sleep_after(Duration::ZERO), PAUSE_MIN);
        assert_eq!(
            sleep_after(Duration::from_micros(3200)),
            Duration::from_micros(100)
        );
        assert_eq!(sleep_after(Duration::from_secs(60)), PAUSE_MAX);
    }

    #[test]
    fn a_wait_is_long_only_after_it_was() {
        let mut pause = Pause::default();
        for _ in 0..=SPINS {
            pause.pause();
        }
        // It has begun one sleep, and had waited no time before that.
        assert!(!pause.is_long());
        while pause
            .since_ns
            .is_none_or(|since| monotonic_ns() - since <= 2 * LONG.as_nanos() as u64)
        {
            pause.pause();
        }
        pause.pause();
        assert!(pause.is_long());
    }
}

//! Deadlines of waits, and pauses between looks.

use rgaps_sync::{monotonic_ns, spin_hint};
use std::time::Duration;

/// Looks that follow each other without sleeping.
const SPINS: u32 = 200;
/// Shortest and longest sleep between two looks at what GPU work has reached.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// Between these a sleep is this part of what was waited so far: so late is the end of a wait seen at most.
const PAUSE_PART: u32 = 32;
/// Work that runs without hindrance mostly takes less.
const LONG: Duration = Duration::from_millis(3);

/// Pauses between looks at something that no doorbell rings for: spinning at first, then sleeping for a part of what was
/// waited, up to [`PAUSE_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Pause {
    looks: u32,
    /// When it first slept.
    since_ns: Option<u64>,
    waited: Duration,
}

impl Pause {
    /// Whether what is waited for takes longer than work that runs without hindrance mostly does.
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

/// How long to sleep when so long was waited already.
fn sleep_after(waited: Duration) -> Duration {
    (waited / PAUSE_PART).clamp(PAUSE_MIN, PAUSE_MAX)
}

/// How long closing waits for work that is queued before it leaves the rest to the background.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// Waits for a short while until something is over. False: it is not yet.
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

/// A point in time until which something is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(u64);

impl Deadline {
    /// After `timeout` from now; never for a time-out that is too long to count.
    pub(crate) fn after(timeout: Duration) -> Deadline {
        let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        Deadline(monotonic_ns().saturating_add(ns))
    }

    /// No end.
    pub(crate) const NEVER: Deadline = Deadline(u64::MAX);

    /// Nanoseconds that are left; none when it is over.
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
        // One sleep, and nothing that was waited before it.
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

//! Deadlines of waits, and pauses between looks.

use rgaps_sync::{monotonic_ns, spin_hint};
use std::time::Duration;

/// Looks that follow each other without sleeping.
const SPINS: u32 = 200;
/// Longest sleep between two looks at what GPU work has reached.
const PAUSE_MAX: Duration = Duration::from_millis(1);
const PAUSE_MIN: Duration = Duration::from_micros(20);

/// Pauses between looks at something that no doorbell rings for: spinning at first, then sleeping
/// longer each time, up to [`PAUSE_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Pause {
    looks: u32,
}

impl Pause {
    /// Whether what is waited for takes longer than work that runs without hindrance mostly does.
    pub(crate) fn is_long(&self) -> bool {
        self.looks > SPINS + 8
    }

    pub(crate) fn pause(&mut self) {
        self.looks = self.looks.saturating_add(1);
        if self.looks <= SPINS {
            return spin_hint();
        }
        let doublings = (self.looks - SPINS).min(8);
        std::thread::sleep((PAUSE_MIN * 2u32.pow(doublings)).min(PAUSE_MAX));
    }
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

//! Deadlines of waits.

use rgaps_sync::monotonic_ns;
use std::time::Duration;

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

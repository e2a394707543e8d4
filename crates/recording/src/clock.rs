//! The wall clock of a recording.

use rgaps_sync::monotonic_ns;
use std::time::{SystemTime, UNIX_EPOCH};

/// Turns the time of publishing, which is of the monotonic clock, into nanoseconds since 1970. The difference of the two
/// clocks is taken once, so the time between two messages stays what it was when the wall clock is set.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    monotonic_ns: u64,
    pub(crate) begun_ns: u64,
}

impl WallClock {
    /// The difference of the clocks now.
    pub fn now() -> WallClock {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        WallClock {
            monotonic_ns: monotonic_ns(),
            begun_ns: since.map_or(0, |since| since.as_nanos() as u64),
        }
    }

    /// Nanoseconds since 1970.
    pub fn wall_ns(self, monotonic_ns: u64) -> u64 {
        // Below 0 for messages from before this host started.
        let since = monotonic_ns.wrapping_sub(self.monotonic_ns) as i64;
        self.begun_ns.saturating_add_signed(since)
    }
}

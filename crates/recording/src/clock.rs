//! The wall clock of a recording.

use rgaps_sync::{monotonic_ns, to_wall, wall_offset_ns};

/// Turns publish times, which are on the monotonic clock, into nanoseconds since 1970. It reads the difference of the two
/// clocks once, so setting the wall clock does not change the time between two messages.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    offset_ns: i64,
    pub(crate) begun_ns: u64,
}

impl WallClock {
    /// Reads the current difference of the clocks.
    pub fn now() -> WallClock {
        let now_ns = monotonic_ns();
        let offset_ns = wall_offset_ns(now_ns);
        WallClock {
            offset_ns,
            begun_ns: to_wall(now_ns, offset_ns),
        }
    }

    /// Converts a publish time to nanoseconds since 1970.
    pub fn wall_ns(self, monotonic_ns: u64) -> u64 {
        to_wall(monotonic_ns, self.offset_ns)
    }
}

//! The wall clock of a recording.

use rgaps_sync::{monotonic_ns, to_wall, wall_offset_ns};

/// Turns the time of publishing, which is of the monotonic clock, into nanoseconds since 1970. The difference of the two
/// clocks is taken once, so the time between two messages stays what it was when the wall clock is set.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    offset_ns: i64,
    pub(crate) begun_ns: u64,
}

impl WallClock {
    /// The difference of the clocks now.
    pub fn now() -> WallClock {
        let now_ns = monotonic_ns();
        let offset_ns = wall_offset_ns(now_ns);
        WallClock {
            offset_ns,
            begun_ns: to_wall(now_ns, offset_ns),
        }
    }

    /// A time of publishing as nanoseconds since 1970.
    pub fn wall_ns(self, monotonic_ns: u64) -> u64 {
        to_wall(monotonic_ns, self.offset_ns)
    }
}

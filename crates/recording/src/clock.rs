//! The wall clock of a recording.

use rgaps_sync::{monotonic_ns, wall_offset_ns};

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
        let offset_ns = wall_offset_ns();
        WallClock {
            offset_ns,
            begun_ns: monotonic_ns().saturating_add_signed(offset_ns),
        }
    }

    /// Nanoseconds since 1970. Times from before this host started are negative, in two's complement.
    pub fn wall_ns(self, monotonic_ns: u64) -> u64 {
        let wall = (monotonic_ns as i64).saturating_add(self.offset_ns);
        u64::try_from(wall).unwrap_or(0)
    }
}

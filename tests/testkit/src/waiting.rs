//! Waiting for a state.

use std::time::{Duration, Instant};

/// The limit of every wait. It is longer than anything takes on any machine: a test that reaches it has failed.
pub const LIMIT: Duration = Duration::from_secs(120);
/// How often [`until`] looks.
pub const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Waits until a state is reached. Panics after [`LIMIT`], and says what it waited for.
#[track_caller]
pub fn until(what: &str, mut is_reached: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_reached() {
        assert!(begun.elapsed() < LIMIT, "waited {LIMIT:?} for {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}

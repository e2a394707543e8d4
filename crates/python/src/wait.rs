//! Waits in slices, detached from the interpreter, so that other threads run and Ctrl-C works.

use crate::error::invalid;
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// How often a wait checks for signals.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// The time-out that a user gives in seconds; None: without limit. Check it before anything else, so that an invalid one
/// fails even if there is nothing to wait for.
pub(crate) fn timeout(name: &str, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    match Duration::try_from_secs_f64(seconds) {
        Ok(timeout) => Ok(Some(timeout)),
        Err(_) => Err(invalid(format!(
            "{name}={seconds} is not a time-out; give seconds, 0 or more, or None to wait without limit"
        ))),
    }
}

/// A duration that a user gives in seconds.
pub(crate) fn duration(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        invalid(format!(
            "{name}={seconds} is not a duration; give seconds, 0 or more"
        ))
    })
}

/// Calls `step` with at most a slice of time, again and again, until it returns Some or the time-out is over (then returns
/// None). `step` runs detached from the interpreter; between steps, signal handlers run and may raise.
pub(crate) fn in_slices<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    mut step: impl FnMut(Duration) -> PyResult<Option<T>> + Send,
) -> PyResult<Option<T>> {
    let begun = Instant::now();
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        if let Some(found) = py.detach(|| step(slice))? {
            return Ok(Some(found));
        }
        py.check_signals()?;
        if left.is_some_and(|left| left <= slice) {
            return Ok(None);
        }
    }
}

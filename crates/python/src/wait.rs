//! Waiting in slices without the interpreter, so that other threads run and Ctrl-C works.

use crate::error::invalid;
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// A wait looks for signals this often.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// A time-out as Python gives it, in seconds; None waits for ever. Check it before anything else, so that a
/// wrong one fails whether or not there is something to wait for.
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

/// A length of time in seconds.
pub(crate) fn duration(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        invalid(format!(
            "{name}={seconds} is not a duration; give seconds, 0 or more"
        ))
    })
}

/// Calls `step` with at most a slice's time until it gives something, or until the time is over.
/// `step` runs detached from the interpreter; between steps, signal handlers run and may raise.
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

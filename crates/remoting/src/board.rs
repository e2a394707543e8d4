//! The counters of a backend, in a file that its server reads: five numbers of 8 bytes, little-endian.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Counters of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) calls: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) waited_ns: u64,
}

/// Bytes of the file.
const BYTES: usize = 5 * size_of::<u64>();

impl Counts {
    pub(crate) fn write(&self, to: &File) -> io::Result<()> {
        let all = [
            self.calls,
            self.bytes_in,
            self.bytes_out,
            self.memory_bytes,
            self.waited_ns,
        ];
        let mut bytes = [0; BYTES];
        for (at, number) in all.into_iter().enumerate() {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        to.write_all_at(&bytes, 0)
    }

    /// Reads the counters; zeros if the backend has not written yet.
    pub(crate) fn read(from: &File) -> Counts {
        let mut bytes = [0; BYTES];
        let _ = from.read_exact_at(&mut bytes, 0);
        let number = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
            u64::from_le_bytes(eight)
        };
        Counts {
            calls: number(0),
            bytes_in: number(1),
            bytes_out: number(2),
            memory_bytes: number(3),
            waited_ns: number(4),
        }
    }
}

/// The time in which at least one call waits.
#[derive(Default)]
pub(crate) struct WaitingTime(Mutex<BoardState>);

#[derive(Default)]
struct BoardState {
    calls: u32,
    /// When `calls` changed last; `None` while none waits.
    since: Option<Instant>,
    /// The time until then.
    before: Duration,
}

impl BoardState {
    fn total(&self, now: Instant) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| now - since)
    }
}

impl WaitingTime {
    /// Runs `wait`, and counts the time that it takes.
    pub(crate) fn of<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.change(1);
        let waited = wait();
        self.change(-1);
        waited
    }

    fn change(&self, by: i32) {
        let now = Instant::now();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.before = state.total(now);
        state.calls = state.calls.saturating_add_signed(by);
        state.since = (state.calls > 0).then_some(now);
    }

    /// All of it until now.
    pub(crate) fn total(&self) -> Duration {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.total(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_wait_at_the_same_time_count_once() {
        let time = WaitingTime::default();
        assert_eq!(time.total(), Duration::ZERO);
        let begun = Instant::now();
        time.of(|| {
            time.of(|| {
                // A call that still waits counts, too.
                while time.total() < Duration::from_millis(2) {}
            })
        });
        let total = time.total();
        assert!(total >= Duration::from_millis(2) && total <= begun.elapsed());
        assert_eq!(time.total(), total);
    }
}

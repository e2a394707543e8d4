//! How long a thread polls before it sleeps.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A look that comes so much later than the last: somebody else had the core.
const PREEMPTED: Duration = Duration::from_micros(500);
/// Waits without polling after that.
const PENANCE: u32 = 64;
/// Polling that brought nothing is halved, down to this part of what is allowed.
const PART_LEAST: u32 = 16;

/// Threads of this process that poll now. No more do than half of the cores, so that a peer on the same machine,
/// and whoever makes and takes messages, have the others.
static POLLING: AtomicUsize = AtomicUsize::new(0);

fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

pub(super) struct Spin {
    most: Duration,
    now: Duration,
    penance: u32,
    polls: bool,
    since: Instant,
    last: Instant,
}

impl Spin {
    pub(super) fn new(most: Duration) -> Self {
        Self {
            most,
            now: most,
            penance: 0,
            polls: false,
            since: Instant::now(),
            last: Instant::now(),
        }
    }

    /// There was something to do. Waiting begins anew.
    pub(super) fn begin(&mut self) {
        (self.since, self.last) = (Instant::now(), Instant::now());
    }

    /// There was nothing: whether to look again at once.
    pub(super) fn again(&mut self) -> bool {
        let now = Instant::now();
        if now - self.last > PREEMPTED {
            self.penance = PENANCE;
        }
        self.last = now;
        let again = self.penance == 0 && now - self.since < self.now && self.take();
        if again {
            std::hint::spin_loop();
        } else {
            self.give();
        }
        again
    }

    /// It slept so long instead.
    pub(super) fn slept(&mut self, slept: Duration) {
        self.penance = self.penance.saturating_sub(1);
        self.now = match slept < self.most {
            true => (self.now * 2).min(self.most),
            false => (self.now / 2).max(self.most / PART_LEAST),
        };
        self.begin();
    }

    fn take(&mut self) -> bool {
        if !self.polls {
            let most = cores() / 2;
            let more = |polling: usize| (polling < most).then_some(polling + 1);
            self.polls = POLLING.fetch_update(Relaxed, Relaxed, more).is_ok();
        }
        self.polls
    }

    pub(super) fn give(&mut self) {
        if std::mem::take(&mut self.polls) {
            POLLING.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for Spin {
    fn drop(&mut self) {
        self.give();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_threads_poll_than_half_of_the_cores() {
        let cores = cores();
        let mut all: Vec<Spin> = (0..cores + 1)
            .map(|_| Spin::new(Duration::from_secs(60)))
            .collect();
        let polling: usize = all.iter_mut().map(|spin| usize::from(spin.take())).sum();
        assert!(polling <= cores / 2, "{polling} of {cores}");
        drop(all);
        if cores > 1 {
            assert!(
                Spin::new(Duration::from_secs(60)).take(),
                "they are given back"
            );
        }
    }

    #[test]
    fn polling_that_brings_nothing_is_shortened_and_comes_back() {
        let mut spin = Spin::new(Duration::from_micros(160));
        for _ in 0..20 {
            spin.slept(Duration::from_secs(1));
        }
        assert_eq!(spin.now, Duration::from_micros(10));
        for _ in 0..20 {
            spin.slept(Duration::from_micros(20));
        }
        assert_eq!(spin.now, spin.most);
    }
}

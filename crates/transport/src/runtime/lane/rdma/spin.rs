//! Decides how long a thread polls before it sleeps (adaptive spinning): polling that finds nothing is shortened, and a thread that loses
//! its core while polling skips some polling.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// If a polling thread's looks are farther apart than this, it lost its core in between.
const PREEMPTED: Duration = Duration::from_millis(2);
/// After losing its core, a thread skips polling for one wait, then 2, 4 ..., up to this many; useful polling halves the number.
const SKIPS_MAX: u32 = 64;
/// Useless polling halves the next polling time, at least down to the allowed time divided by this.
const PART_LEAST: u32 = 16;

/// How many threads of this process poll now. At most half as many as there are cores may, but at least one. The other cores are for a
/// peer on the same machine, and for the threads that produce and consume messages.
static POLLING: AtomicUsize = AtomicUsize::new(0);

fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// The polling state of one thread.
pub(super) struct Spin {
    /// The allowed polling time.
    most: Duration,
    /// The polling time of the next wait.
    now: Duration,
    /// How many waits the thread does not poll.
    skips: u32,
    next_skips: u32,
    /// Whether the thread is counted in [`POLLING`].
    polls: bool,
    /// When this wait began, and when the thread last looked; `None` before the first look.
    since: Option<(Instant, Instant)>,
}

impl Spin {
    pub(super) fn new(most: Duration) -> Self {
        Self {
            most,
            now: most,
            skips: 0,
            next_skips: 1,
            polls: false,
            since: None,
        }
    }

    /// The thread had something to do: a new wait begins.
    pub(super) fn begin(&mut self) {
        if self.since.take().is_some() {
            self.next_skips = (self.next_skips / 2).max(1);
        }
    }

    /// Whether the thread may poll in this wait. Reads no clock.
    pub(super) fn may(&self) -> bool {
        self.skips == 0 && !self.now.is_zero()
    }

    /// The thread had nothing to do. Returns whether it looks again at once.
    pub(super) fn again(&mut self) -> bool {
        if !self.may() {
            self.give();
            return false;
        }
        let now = Instant::now();
        let (since, last) = self.since.unwrap_or((now, now));
        if now - last > PREEMPTED {
            self.skips = self.next_skips;
            self.next_skips = (self.next_skips * 2).min(SKIPS_MAX);
        }
        self.since = Some((since, now));
        let again = self.skips == 0 && now - since < self.now && self.take();
        if !again {
            self.give();
        }
        again
    }

    /// The thread slept for so long. If the sleep was shorter than the allowed polling time, polling would have paid.
    pub(super) fn slept(&mut self, slept: Duration) {
        self.skips = self.skips.saturating_sub(1);
        self.now = match slept < self.most {
            true => (self.now * 2).min(self.most),
            false => (self.now / 2).max(self.most / PART_LEAST),
        };
        self.since = None;
    }

    /// Counts the thread in [`POLLING`], if that has room. Returns whether it is counted.
    fn take(&mut self) -> bool {
        if !self.polls {
            let most = (cores() / 2).max(1);
            let more = |polling: usize| (polling < most).then_some(polling + 1);
            self.polls = POLLING.fetch_update(Relaxed, Relaxed, more).is_ok();
        }
        self.polls
    }

    /// Ends polling: other threads may poll instead.
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
    use std::sync::Mutex;

    /// The count of polling threads is the process's, so these tests run one at a time.
    static ONE: Mutex<()> = Mutex::new(());

    #[test]
    fn no_more_threads_poll_than_half_of_the_cores() {
        let _one = ONE.lock().unwrap();
        let cores = cores();
        let mut all: Vec<Spin> = (0..cores + 1)
            .map(|_| Spin::new(Duration::from_secs(60)))
            .collect();
        let polling: usize = all.iter_mut().map(|spin| usize::from(spin.take())).sum();
        assert_eq!(polling, (cores / 2).max(1));
        drop(all);
        assert!(
            Spin::new(Duration::from_secs(60)).take(),
            "they are given back"
        );
    }

    #[test]
    fn a_thread_that_loses_its_core_each_time_seldom_polls() {
        let _one = ONE.lock().unwrap();
        let mut spin = Spin::new(Duration::from_secs(60));
        let mut polled = 0;
        for _ in 0..1000 {
            if spin.may() {
                let long_ago = Instant::now() - 2 * PREEMPTED;
                spin.since = Some((long_ago, long_ago));
                assert!(!spin.again());
                polled += 1;
            }
            spin.slept(Duration::ZERO);
        }
        assert!(polled < 1000 / 32, "{polled}");
        // When polling pays again, the thread soon polls each time.
        while !spin.may() {
            spin.slept(Duration::ZERO);
        }
        for _ in 0..10 {
            assert!(spin.again());
            spin.begin();
        }
        assert_eq!(spin.next_skips, 1);
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

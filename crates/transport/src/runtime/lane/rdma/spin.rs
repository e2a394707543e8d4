//! How long a thread polls before it sleeps.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A thread that looks again only after so long has lost its core meanwhile.
const PREEMPTED: Duration = Duration::from_millis(2);
/// After losing its core, a thread skips polling for one wait, then 2, 4 ..., up to this many; useful polling halves the number.
const PENANCE_MAX: u32 = 64;
/// Useless polling halves the time of the next, down to this part of the time that is allowed.
const PART_LEAST: u32 = 16;

/// Threads of this process that poll now: at most half as many as there are cores, and at least one may. The other cores are for a peer on
/// the same machine, and for the threads that produce and consume messages.
static POLLING: AtomicUsize = AtomicUsize::new(0);

fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

pub(super) struct Spin {
    most: Duration,
    now: Duration,
    penance: u32,
    next_penance: u32,
    polls: bool,
    /// When waiting began, and when the thread looked last; `None` before the first look.
    since: Option<(Instant, Instant)>,
}

impl Spin {
    pub(super) fn new(most: Duration) -> Self {
        Self {
            most,
            now: most,
            penance: 0,
            next_penance: 1,
            polls: false,
            since: None,
        }
    }

    /// There was something to do. Waiting begins anew.
    pub(super) fn begin(&mut self) {
        if self.since.take().is_some() {
            self.next_penance = (self.next_penance / 2).max(1);
        }
    }

    /// Whether it may poll at all at this time; if not, no clock is read.
    pub(super) fn may(&self) -> bool {
        self.penance == 0 && !self.now.is_zero()
    }

    /// There was nothing to do. Returns whether to look again at once.
    pub(super) fn again(&mut self) -> bool {
        if !self.may() {
            self.give();
            return false;
        }
        let now = Instant::now();
        let (since, last) = self.since.unwrap_or((now, now));
        if now - last > PREEMPTED {
            self.penance = self.next_penance;
            self.next_penance = (self.next_penance * 2).min(PENANCE_MAX);
        }
        self.since = Some((since, now));
        let again = self.penance == 0 && now - since < self.now && self.take();
        if !again {
            self.give();
        }
        again
    }

    /// The thread slept so long instead.
    pub(super) fn slept(&mut self, slept: Duration) {
        self.penance = self.penance.saturating_sub(1);
        self.now = match slept < self.most {
            true => (self.now * 2).min(self.most),
            false => (self.now / 2).max(self.most / PART_LEAST),
        };
        self.since = None;
    }

    fn take(&mut self) -> bool {
        if !self.polls {
            let most = (cores() / 2).max(1);
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
    use std::sync::Mutex;

    /// Threads that poll are counted for the process: one test at a time.
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
        // Where it pays again, it does so soon.
        while !spin.may() {
            spin.slept(Duration::ZERO);
        }
        for _ in 0..10 {
            assert!(spin.again());
            spin.begin();
        }
        assert_eq!(spin.next_penance, 1);
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

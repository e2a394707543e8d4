//! When the engine does work that no request asks for: it maintains orphans and absent clients, sweeps control segments, and
//! notices that nobody needs the daemon.

use std::time::{Duration, Instant};

/// How soon orphans are maintained after a change.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// The longest time between two looks while nothing changes.
const PAUSE_LAST: Duration = Duration::from_millis(640);
/// How often control segments are swept.
const SWEEP_PAUSE: Duration = Duration::from_secs(10);

/// The times of the engine's own work.
pub(crate) struct Maintenance {
    /// When to maintain orphans and absent clients. None: there are none.
    next: Option<Instant>,
    /// The time between two looks; it doubles while nothing changes.
    pause: Duration,
    /// When to sweep free ranges of control segments. None: at the next tick.
    next_sweep: Option<Instant>,
    /// Since when nobody has needed the daemon. None: somebody needs it.
    idle_since: Option<Instant>,
    /// After how long without need the daemon ends. None: never.
    idle_exit: Option<Duration>,
    /// Whether kept history no longer counts as need, since no late joiner can connect.
    history_given_up: bool,
}

impl Maintenance {
    pub(crate) fn new(idle_exit: Option<Duration>, now: Instant) -> Maintenance {
        Maintenance {
            next: None,
            pause: PAUSE_FIRST,
            next_sweep: None,
            idle_since: Some(now),
            idle_exit,
            history_given_up: false,
        }
    }

    /// When something is due next.
    pub(crate) fn next(&self) -> Option<Instant> {
        let times = [self.next, self.next_sweep, self.idle_end()];
        times.into_iter().flatten().min()
    }

    /// Schedules maintenance soon.
    pub(crate) fn wake(&mut self, now: Instant) {
        self.pause = PAUSE_FIRST;
        let soon = now + PAUSE_FIRST;
        self.next = Some(self.next.map_or(soon, |at| at.min(soon)));
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|at| now >= at)
    }

    /// Schedules the next maintenance after one. `changed`: it changed something; `needed`: something is left to maintain.
    pub(crate) fn done(&mut self, now: Instant, changed: bool, needed: bool) {
        self.pause = match changed {
            true => PAUSE_FIRST,
            false => (self.pause * 2).min(PAUSE_LAST),
        };
        self.next = needed.then(|| now + self.pause);
    }

    pub(crate) fn is_sweep_due(&self, now: Instant) -> bool {
        self.next_sweep.is_none_or(|at| now >= at)
    }

    /// Schedules a sweep for the next tick.
    pub(crate) fn sweep_soon(&mut self, now: Instant) {
        self.next_sweep = Some(now);
    }

    /// Schedules the next sweep after one. `more`: it did not reach the end; `in_use`: zones have clients.
    pub(crate) fn swept(&mut self, now: Instant, more: bool, in_use: bool) {
        self.next_sweep = match (more, in_use) {
            (true, _) => Some(now + PAUSE_FIRST),
            (false, true) => Some(now + SWEEP_PAUSE),
            (false, false) => None,
        };
    }

    /// Notes whether somebody needs the daemon.
    pub(crate) fn note_use(&mut self, now: Instant, in_use: bool) {
        match in_use {
            true => self.idle_since = None,
            false => {
                self.idle_since.get_or_insert(now);
            }
        }
    }

    /// Keeps the daemon running although nobody needs it.
    pub(crate) fn stay(&mut self) {
        self.idle_exit = None;
    }

    fn idle_end(&self) -> Option<Instant> {
        let (since, wait) = self.idle_since.zip(self.idle_exit)?;
        Some(since + wait)
    }

    /// Whether nobody has needed the daemon for long enough.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.idle_end().is_some_and(|end| now >= end)
    }

    /// Notes that kept history no longer counts as need.
    pub(crate) fn give_up_history(&mut self) {
        self.history_given_up = true;
    }

    pub(crate) fn gave_up_history(&self) -> bool {
        self.history_given_up
    }
}

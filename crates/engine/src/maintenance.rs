//! When the engine does work that nobody asked for: it looks after orphans and absent clients, sweeps control segments,
//! and notices that nobody needs the daemon any more.

use std::time::{Duration, Instant};

/// How soon orphans are looked at after something changed.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// How seldom when nothing changes.
const PAUSE_LAST: Duration = Duration::from_millis(640);
/// How often control segments are swept.
const SWEEP_PAUSE: Duration = Duration::from_secs(10);

/// The times of the engine's own work.
pub(crate) struct Maintenance {
    /// When to look after orphans and absent clients; none: there are none.
    next: Option<Instant>,
    /// How long until then; doubled while nothing changes.
    pause: Duration,
    /// When to sweep control segments for memory that nobody was given.
    next_sweep: Option<Instant>,
    idle_since: Option<Instant>,
    /// How long nobody may need the daemon until it leaves; none: it stays.
    idle_exit: Option<Duration>,
    /// No late joiner can connect any more.
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

    /// Something changed that needs looking after soon.
    pub(crate) fn wake(&mut self, now: Instant) {
        self.pause = PAUSE_FIRST;
        let soon = now + PAUSE_FIRST;
        self.next = Some(self.next.map_or(soon, |at| at.min(soon)));
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|at| now >= at)
    }

    /// Orphans and absent clients were looked after. `changed`: something went; `needed`: something is left.
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

    /// Control segments are to be swept at the next tick.
    pub(crate) fn sweep_soon(&mut self, now: Instant) {
        self.next_sweep = Some(now);
    }

    /// Control segments were swept. `more`: not to the end; `in_use`: zones have clients.
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

    /// The daemon leaves no more by itself.
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

    /// History keeps the daemon no longer.
    pub(crate) fn give_up_history(&mut self) {
        self.history_given_up = true;
    }

    pub(crate) fn gave_up_history(&self) -> bool {
        self.history_given_up
    }
}

//! After a predecessor's death: which zones are to be handed back, and how long to wait for them.

use crate::state_file::{self, SavedZone};
use rgaps_session::ZoneId;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Processes that a warning names.
const MAX_NAMED: usize = 4;
/// Zones of a predecessor that are still with its clients.
#[derive(Debug)]
pub(crate) struct Recovery {
    expected: Vec<SavedZone>,
    wait: Duration,
    /// Until when joins wait; from the first session on.
    until: Option<Instant>,
}

impl Recovery {
    /// What the state file tells of.
    pub(crate) fn read(path: Option<&Path>, wait: Duration) -> Recovery {
        let expected = path.map(state_file::read).unwrap_or_default();
        if !expected.is_empty() {
            tracing::info!(
                zones = expected.len(),
                "waiting for the clients of the previous daemon to hand back its memory"
            );
        }
        Recovery {
            expected,
            wait,
            until: None,
        }
    }

    /// Somebody has connected: time runs.
    pub(crate) fn begin(&mut self, now: Instant) {
        if !self.expected.is_empty() && self.until.is_none() {
            self.until = Some(now + self.wait);
        }
    }

    pub(crate) fn expects_any(&self) -> bool {
        !self.expected.is_empty()
    }

    /// Zones that are not back.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &SavedZone> {
        self.expected.iter()
    }

    /// The expected zone of this number.
    pub(crate) fn expected(&self, zone: ZoneId) -> Option<&SavedZone> {
        self.expected.iter().find(|expected| expected.id == zone)
    }

    /// It is back, or a new zone has replaced it.
    pub(crate) fn forget(&mut self, zone: ZoneId) {
        self.expected.retain(|expected| expected.id != zone);
    }

    /// Forgets the zones that nobody is left to hand back.
    pub(crate) fn forget_dead(&mut self) {
        self.expected.retain(SavedZone::may_return);
    }

    /// A client of this process was told that its zone is lost: it will not hand it back.
    pub(crate) fn give_up(&mut self, zone: ZoneId, pid: u32) {
        let expected = self
            .expected
            .iter_mut()
            .find(|expected| expected.id == zone);
        if let Some(expected) = expected.filter(|expected| expected.are_local_pids) {
            let at = expected.pids.iter().position(|listed| *listed == pid);
            at.map(|at| expected.pids.swap_remove(at));
        }
        self.forget_dead();
    }

    /// Whether there are processes whose end is the end of a zone.
    pub(crate) fn watches_processes(&self) -> bool {
        self.expected.iter().any(|zone| !zone.living().is_empty())
    }

    /// Forgets zones whose processes cannot be seen from here, once it has waited for them. A client that runs would
    /// have come; that it has ended, nobody can tell this daemon or the next.
    pub(crate) fn forget_unseen(&mut self, now: Instant) {
        if !self.waits_for_any(now) {
            self.expected.retain(|zone| !zone.living().is_empty());
        }
    }

    /// Whether somebody may still come back: during the wait everybody, and later those who are seen to live.
    pub(crate) fn is_running(&self, now: Instant) -> bool {
        self.waits_for_any(now) || self.watches_processes()
    }

    /// What to tell people of zones that are not back, and what to do.
    pub(crate) fn warnings(&self, now: Instant) -> Vec<String> {
        let waits = self.waits_for_any(now);
        let warning = |zone: &SavedZone| {
            let class = &zone.class;
            let living = zone.living();
            match (living.is_empty(), waits) {
                (false, _) => Some(format!(
                    "topics of class '{class}' are missing: {} did not hand them back after the previous daemon \
                     ended; if a process is stopped or hangs, continue it ('kill -CONT') or restart it",
                    name_processes(&living)
                )),
                (true, true) => Some(format!(
                    "clients of the previous daemon did not hand back the topics of class '{class}' yet; the daemon \
                     waits for them a moment longer"
                )),
                (true, false) => None,
            }
        };
        self.expected.iter().filter_map(warning).collect()
    }

    pub(crate) fn waits_for(&self, class: &str, now: Instant) -> bool {
        let expected = self.expected.iter().any(|zone| zone.class == class);
        expected && self.waits_for_any(now)
    }

    pub(crate) fn waits_for_any(&self, now: Instant) -> bool {
        self.expects_any() && self.until.is_none_or(|until| now < until)
    }
}

/// "process 7", or "processes 7, 8 and 3 more".
pub(crate) fn name_processes(processes: &BTreeSet<u32>) -> String {
    let named = processes.iter().take(MAX_NAMED).map(u32::to_string);
    let named = named.collect::<Vec<String>>().join(", ");
    match processes.len() {
        1 => format!("process {named}"),
        few if few <= MAX_NAMED => format!("processes {named}"),
        many => format!("processes {named} and {} more", many - MAX_NAMED),
    }
}

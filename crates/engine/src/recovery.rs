//! After a predecessor's death: which zones are to be handed back, and how long to wait for them.

use crate::state_file::{self, SavedZone};
use rgaps_session::ZoneId;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Most processes that a warning names.
const MAX_NAMED: usize = 4;

/// Zones of a predecessor that its clients have not handed back yet.
#[derive(Debug)]
pub(crate) struct Recovery {
    expected: Vec<SavedZone>,
    /// How long joins wait for zones.
    wait: Duration,
    /// Until when joins wait. None: no session has been opened yet, so the time does not run.
    until: Option<Instant>,
}

impl Recovery {
    /// Reads the zones of a predecessor from the state file. `wait`: how long joins wait for them.
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

    /// Starts the time that joins wait, unless it runs. Call when a session opens.
    pub(crate) fn begin(&mut self, now: Instant) {
        if !self.expected.is_empty() && self.until.is_none() {
            self.until = Some(now + self.wait);
        }
    }

    pub(crate) fn expects_any(&self) -> bool {
        !self.expected.is_empty()
    }

    /// The zones that are not handed back yet.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &SavedZone> {
        self.expected.iter()
    }

    /// The expected zone of this number.
    pub(crate) fn expected(&self, zone: ZoneId) -> Option<&SavedZone> {
        self.expected.iter().find(|expected| expected.id == zone)
    }

    /// Forgets a zone that was handed back.
    pub(crate) fn forget(&mut self, zone: ZoneId) {
        self.expected.retain(|expected| expected.id != zone);
    }

    /// Forgets the zones whose processes have all ended.
    pub(crate) fn forget_dead(&mut self) {
        self.expected.retain(SavedZone::may_return);
    }

    /// Notes that process `pid` will not hand back a zone, since the daemon told it that the zone is lost.
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

    /// Whether processes that this daemon can see live may still hand back a zone, so that it has to notice their end.
    pub(crate) fn watches_processes(&self) -> bool {
        self.expected.iter().any(|zone| !zone.living().is_empty())
    }

    /// After the wait, forgets zones without a process that this daemon can see. A client that runs would have returned, and neither
    /// this daemon nor the next can see whether it has ended.
    pub(crate) fn forget_unseen(&mut self, now: Instant) {
        if !self.waits_for_any(now) {
            self.expected.retain(|zone| !zone.living().is_empty());
        }
    }

    /// Whether zones may still be handed back: during the wait all of them, later those with a process that is seen to live.
    pub(crate) fn is_running(&self, now: Instant) -> bool {
        self.waits_for_any(now) || self.watches_processes()
    }

    /// Warnings about zones that are not handed back, with advice.
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

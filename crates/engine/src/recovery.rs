//! After a predecessor's death: which zones are to be handed back, and how long to wait for them.

use crate::engine::Engine;
use crate::refuse::refuse;
use crate::state_file::{self, SavedZone};
use crate::zone::Zone;
use rgaps_session::{Refusal, RefusalCode, ZoneId};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Processes that a warning names.
const MAX_NAMED: usize = 4;
/// How soon the state file is tried again.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

/// The state file is not what it should be.
pub(crate) struct Unwritten {
    /// For people.
    pub(crate) warning: String,
    /// When to try again.
    pub(crate) again: Instant,
}

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

    /// The expected zone of this number.
    pub(crate) fn expected(&self, zone: ZoneId) -> Option<&SavedZone> {
        self.expected.iter().find(|expected| expected.id == zone)
    }

    /// It is back, or there is a zone in its place.
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
    fn forget_unseen(&mut self, now: Instant) {
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

    fn waits_for(&self, class: &str, now: Instant) -> bool {
        let expected = self.expected.iter().any(|zone| zone.class == class);
        expected && self.waits_for_any(now)
    }

    fn waits_for_any(&self, now: Instant) -> bool {
        self.expects_any() && self.until.is_none_or(|until| now < until)
    }
}

impl Engine {
    /// Refuses joins while the topics of their class may still come back.
    pub(crate) fn check_recovered(&self, class: &str) -> Result<(), Refusal> {
        let zone = self.zones.of_class(class);
        let incomplete = zone.is_some_and(|zone| zone.memory.is_incomplete());
        match incomplete || (zone.is_none() && self.recovery.waits_for(class, self.now)) {
            true => Err(recovering()),
            false => Ok(()),
        }
    }

    /// Refuses while any topics may still come back, or former links, whose publishers count as theirs until they
    /// are known to be gone.
    pub(crate) fn check_all_recovered(&self) -> Result<(), Refusal> {
        let awaited = |zone: &Zone| zone.memory.is_incomplete() || zone.clients.await_links();
        match self.recovery.waits_for_any(self.now) || self.zones.iter().any(awaited) {
            true => Err(recovering()),
            false => Ok(()),
        }
    }

    /// Writes down which zones there are, and which are still to be handed back. If that fails, it is tried again until
    /// it succeeds, and the status says so meanwhile: what clients do goes on.
    pub(crate) fn write_state(&mut self) {
        let Some(path) = &self.setup.state_file else {
            return;
        };
        let zones = self.zones.iter().map(|zone| SavedZone {
            id: zone.id,
            class: zone.class.clone(),
            registry_inode: zone.registry_inode,
            pids: zone.clients.pids_to_save(),
            are_local_pids: true,
            departed: zone.departed.iter().copied().collect(),
        });
        let all: Vec<SavedZone> = zones
            .chain(self.recovery.expected.iter().map(SavedZone::as_seen_here))
            .collect();
        let written = state_file::write(path, &all);
        // What could not be written is tried again as a whole.
        for zone in self.zones.iter_mut() {
            zone.departed.is_unsaved = false;
        }
        match (&written, &self.unwritten) {
            (Ok(()), Some(_)) => {
                tracing::info!(path = %path.display(), "the state file is written again")
            }
            (Err(error), None) => {
                tracing::error!(path = %path.display(), %error, "the state file cannot be written");
            }
            _ => {}
        }
        self.unwritten = written.err().map(|error| Unwritten {
            warning: format!(
                "the state file '{}' cannot be written ({error}): free space or make it writable; until then a daemon \
                 that has to take over may not find all topics",
                path.display()
            ),
            again: self.now + WRITE_AGAIN,
        });
    }

    /// Writes down publishers of links that are gone, before their orphans, from which a successor would know it, go.
    pub(crate) fn save_departed(&mut self) {
        if self.zones.iter().any(|zone| zone.departed.is_unsaved) {
            self.write_state();
        }
    }

    /// Writes the state file again, if that failed and it is time.
    pub(crate) fn write_state_again(&mut self) {
        if self
            .unwritten
            .as_ref()
            .is_some_and(|unwritten| self.now >= unwritten.again)
        {
            self.write_state();
        }
    }

    /// The daemon leaves in order. What clients are still in is handed back to the next one, as
    /// after a death; with nobody there, there is nothing to hand back.
    pub fn leave_state(&mut self) {
        self.quarantine.stop_mps();
        self.recovery.forget_dead();
        self.recovery.forget_unseen(self.now);
        match &self.setup.state_file {
            Some(path) if !self.recovery.expects_any() && !self.zones.have_clients() => {
                state_file::remove(path)
            }
            _ => self.write_state(),
        }
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

fn recovering() -> Refusal {
    refuse(
        RefusalCode::Recovering,
        "the daemon was restarted and waits for its clients to hand back their memory; ask again shortly",
    )
}

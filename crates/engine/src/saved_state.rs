//! Writing the state file, and refusing joins until the zones of a predecessor are back.

use crate::engine::Engine;
use crate::refuse::refuse;
use crate::state_file::{self, SavedZone, Unwritten};
use crate::zone::Zone;
use rgaps_session::{Refusal, RefusalCode};
use std::time::Duration;

/// How soon the state file is tried again.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

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

    /// Refuses while any topics may still come back, or links of a predecessor, whose publishers count as theirs until it is
    /// known that they have ended.
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
            registry_inode: zone.registry.inode(),
            pids: zone.clients.pids_to_save(),
            are_local_pids: true,
            departed: zone.history.departed().iter().copied().collect(),
        });
        let all: Vec<SavedZone> = zones
            .chain(self.recovery.missing().map(SavedZone::as_seen_here))
            .collect();
        let written = state_file::write(path, &all);
        // What could not be written is tried again as a whole.
        for zone in self.zones.iter_mut() {
            zone.history.note_saved();
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

    /// Writes down publishers of links that left or died, before their orphans end, from which a successor would know them.
    pub(crate) fn save_departed(&mut self) {
        if self
            .zones
            .iter()
            .any(|zone| zone.history.departed().is_unsaved())
        {
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

fn recovering() -> Refusal {
    refuse(
        RefusalCode::Recovering,
        "the daemon was restarted and waits for its clients to hand back their memory; ask again shortly",
    )
}

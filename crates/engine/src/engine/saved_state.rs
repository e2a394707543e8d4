//! Writing the state file, and refusing joins until the zones of a predecessor are back.

use super::Engine;
use crate::refuse::refuse;
use crate::state_file::{self, SavedZone, Unwritten};
use crate::zone::Zone;
use rgaps_session::{Refusal, RefusalCode};
use std::time::Duration;

/// How long to wait before writing the state file again after a failure.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

impl Engine {
    /// Refuses while clients may still hand back topics of this access class, or segments of them.
    pub(super) fn check_recovered(&self, class: &str) -> Result<(), Refusal> {
        let zone = self.zones.of_class(class);
        let incomplete = zone.is_some_and(|zone| zone.memory().is_incomplete());
        match incomplete || (zone.is_none() && self.recovery.waits_for(class, self.now)) {
            true => Err(recovering()),
            false => Ok(()),
        }
    }

    /// Refuses while clients may still hand back any zone or segment, or links that a predecessor served may still return. The
    /// publishers of such links are theirs until the process of the links is known to have ended.
    pub(super) fn check_all_recovered(&self) -> Result<(), Refusal> {
        let awaited = |zone: &Zone| zone.memory().is_incomplete() || zone.clients().await_links();
        match self.recovery.waits_for_any(self.now) || self.zones.iter().any(awaited) {
            true => Err(recovering()),
            false => Ok(()),
        }
    }

    /// Writes to the state file which zones there are, and which are still to be handed back. If that fails, clients are served
    /// all the same: `tick` tries again until it succeeds, and the status warns meanwhile.
    pub(super) fn write_state(&mut self) {
        let Some(path) = &self.setup.state_file else {
            return;
        };
        let zones = self.zones.iter().map(Zone::saved);
        let all: Vec<SavedZone> = zones
            .chain(self.recovery.missing().map(SavedZone::as_seen_here))
            .collect();
        let written = state_file::write(path, &all);
        // Also after a failure: the next attempt writes everything.
        for zone in self.zones.iter_mut() {
            zone.note_saved();
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

    /// Writes the state file if it lacks departed publishers of links. Call before their orphans end: from then on a successor knows
    /// these publishers only by the file.
    pub(super) fn save_departed(&mut self) {
        if self.zones.iter().any(|zone| zone.departed().is_unsaved()) {
            self.write_state();
        }
    }

    /// Writes the state file again, if that failed and it is time.
    pub(super) fn write_state_again(&mut self) {
        if self
            .unwritten
            .as_ref()
            .is_some_and(|unwritten| self.now >= unwritten.again)
        {
            self.write_state();
        }
    }

    /// Leaves the state file for a successor when this daemon ends in order. Clients hand their zones back to the successor, as
    /// after a crash. Without clients there is nothing to hand back, and the file is removed.
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

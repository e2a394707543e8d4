//! The doorbells of a zone, and the client that has each.

use crate::refuse::{bad, refuse};
use rgaps_layout::MAX_DOORBELLS;
use rgaps_session::{Refusal, RefusalCode};
use std::collections::HashMap;

/// Doorbells that one client may take for wait sets.
const MAX_CLIENT_DOORBELLS: usize = 1024;

/// The doorbells of a zone. Number 0 is never handed out, so that a zeroed slot rings nobody.
#[derive(Debug, Default)]
pub(crate) struct Doorbells {
    /// By doorbell: the client that has it.
    owners: HashMap<u32, u32>,
    next: u32,
}

impl Doorbells {
    /// Takes a doorbell for `client`. Numbers are used in rotation, so that a
    /// late ring for its last owner is unlikely to wake another (which would be harmless).
    pub(crate) fn take(&mut self, client: u32) -> Result<u32, Refusal> {
        if self.owners.len() as u32 >= MAX_DOORBELLS - 1 {
            return Err(refuse(
                RefusalCode::LimitReached,
                "all doorbells of the daemon are in use; close publishers, subscribers or wait sets",
            ));
        }
        loop {
            self.next = if self.next + 1 >= MAX_DOORBELLS {
                1
            } else {
                self.next + 1
            };
            if !self.owners.contains_key(&self.next) {
                self.owners.insert(self.next, client);
                return Ok(self.next);
            }
        }
    }

    /// Takes a doorbell for a wait set of a client. `of_members`: how many publishers and subscribers the client has.
    pub(crate) fn take_for_wait_set(
        &mut self,
        client: u32,
        of_members: usize,
    ) -> Result<u32, Refusal> {
        if self.count(client) >= MAX_CLIENT_DOORBELLS + of_members {
            return Err(refuse(
                RefusalCode::LimitReached,
                format!("this process has {MAX_CLIENT_DOORBELLS} wait sets, which is the limit; use one wait set for many topics"),
            ));
        }
        self.take(client)
    }

    /// Takes a certain doorbell for `client`. False: the number is invalid or taken.
    pub(crate) fn reserve(&mut self, doorbell: u32, client: u32) -> bool {
        if doorbell == 0 || doorbell >= MAX_DOORBELLS || self.owners.contains_key(&doorbell) {
            return false;
        }
        self.owners.insert(doorbell, client);
        true
    }

    /// The client that has a doorbell.
    fn owner(&self, doorbell: u32) -> Option<u32> {
        self.owners.get(&doorbell).copied()
    }

    /// How many doorbells `client` has.
    pub(crate) fn count(&self, client: u32) -> usize {
        self.owners
            .values()
            .filter(|owner| **owner == client)
            .count()
    }

    /// Takes back a wait set's doorbell. `is_members`: a publisher or subscriber has this doorbell, so that it is refused.
    pub(crate) fn give_back(
        &mut self,
        client: u32,
        doorbell: u32,
        is_members: bool,
    ) -> Result<(), Refusal> {
        if self.owner(doorbell) != Some(client) || is_members {
            return Err(bad(format!(
                "doorbell {doorbell} is not one of this session's wait sets"
            )));
        }
        self.give(doorbell);
        Ok(())
    }

    pub(crate) fn give(&mut self, doorbell: u32) {
        self.owners.remove(&doorbell);
    }

    /// Gives back all doorbells of `client`.
    pub(crate) fn give_all(&mut self, client: u32) {
        self.owners.retain(|_, owner| *owner != client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_doorbell_but_zero_is_handed_out_once() {
        let mut doorbells = Doorbells::default();
        let mut seen = std::collections::HashSet::new();
        while let Ok(bell) = doorbells.take(bell_owner(seen.len())) {
            assert!(bell > 0 && bell < MAX_DOORBELLS && seen.insert(bell));
        }
        assert_eq!(seen.len() as u32, MAX_DOORBELLS - 1);
        assert!(!doorbells.reserve(77, 9) && !doorbells.reserve(0, 9));
        doorbells.give(77);
        assert_eq!(doorbells.take(3), Ok(77));
        assert_eq!(doorbells.owner(77), Some(3));
        doorbells.give_all(1);
        assert_eq!(doorbells.count(1), 0);
        assert!(doorbells.count(0) > 0);
    }

    fn bell_owner(n: usize) -> u32 {
        (n % 2) as u32
    }
}

//! Which doorbells of a zone are taken, and by whom.

use rgaps_layout::MAX_DOORBELLS;
use std::collections::HashMap;

/// The doorbells of a zone. Number 0 is never handed out, so that a zeroed slot rings nobody.
#[derive(Debug, Default)]
pub(crate) struct Doorbells {
    /// By doorbell: the client that has it.
    owners: HashMap<u32, u32>,
    next: u32,
}

impl Doorbells {
    /// A doorbell for `client`. The one that has been free for longest comes first, so that a
    /// late ring for its former owner is unlikely to wake another (which would be harmless).
    pub(crate) fn take(&mut self, client: u32) -> Option<u32> {
        if self.owners.len() as u32 >= MAX_DOORBELLS - 1 {
            return None;
        }
        loop {
            self.next = if self.next + 1 >= MAX_DOORBELLS {
                1
            } else {
                self.next + 1
            };
            if !self.owners.contains_key(&self.next) {
                self.owners.insert(self.next, client);
                return Some(self.next);
            }
        }
    }

    /// Takes a certain doorbell. False where there is none such or somebody has it.
    pub(crate) fn reserve(&mut self, doorbell: u32, client: u32) -> bool {
        if doorbell == 0 || doorbell >= MAX_DOORBELLS || self.owners.contains_key(&doorbell) {
            return false;
        }
        self.owners.insert(doorbell, client);
        true
    }

    /// Who has it.
    pub(crate) fn owner(&self, doorbell: u32) -> Option<u32> {
        self.owners.get(&doorbell).copied()
    }

    /// How many `client` has.
    pub(crate) fn count(&self, client: u32) -> usize {
        self.owners
            .values()
            .filter(|owner| **owner == client)
            .count()
    }

    pub(crate) fn give(&mut self, doorbell: u32) {
        self.owners.remove(&doorbell);
    }

    /// Gives back all that `client` has.
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
        while let Some(bell) = doorbells.take(bell_owner(seen.len())) {
            assert!(bell > 0 && bell < MAX_DOORBELLS && seen.insert(bell));
        }
        assert_eq!(seen.len() as u32, MAX_DOORBELLS - 1);
        assert!(!doorbells.reserve(77, 9) && !doorbells.reserve(0, 9));
        doorbells.give(77);
        assert_eq!(doorbells.take(3), Some(77));
        assert_eq!(doorbells.owner(77), Some(3));
        doorbells.give_all(1);
        assert_eq!(doorbells.count(1), 0);
        assert!(doorbells.count(0) > 0);
    }

    fn bell_owner(n: usize) -> u32 {
        (n % 2) as u32
    }
}

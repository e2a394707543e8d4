//! Which granules of a pool are leased, and to whom.

use std::collections::hash_map::Entry;
use std::collections::HashMap;

/// Owner of a free granule.
pub(crate) const FREE: u32 = 0;

/// The granules of a pool's segments, from the pool's start. An owner is what the registry's
/// granule table holds: 0, or a number that stands for a topic and a publisher slot.
#[derive(Debug, Default)]
pub(crate) struct Granules {
    owners: Vec<u32>,
    leased: usize,
    /// How many each owner has.
    counts: HashMap<u32, usize>,
    /// Every granule below it is leased.
    first_free: usize,
}

impl Granules {
    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }

    pub(crate) fn leased(&self) -> usize {
        self.leased
    }

    /// Adds `count` free granules at the end.
    pub(crate) fn grow(&mut self, count: usize) {
        self.owners.resize(self.owners.len() + count, FREE);
    }

    /// Drops the granules from `len` on, whoever has them.
    pub(crate) fn truncate(&mut self, len: usize) {
        for at in len..self.owners.len() {
            self.discount(self.owners[at]);
        }
        self.owners.truncate(len);
        self.first_free = 0;
    }

    /// A granule of `owner`'s is about to be somebody else's.
    fn discount(&mut self, owner: u32) {
        if owner == FREE {
            return;
        }
        self.leased -= 1;
        if let Entry::Occupied(mut count) = self.counts.entry(owner) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    pub(crate) fn owner(&self, granule: usize) -> Option<u32> {
        self.owners.get(granule).copied()
    }

    /// The lowest `count` free granules that lie together.
    pub(crate) fn find(&mut self, count: usize) -> Option<usize> {
        while self
            .owners
            .get(self.first_free)
            .is_some_and(|owner| *owner != FREE)
        {
            self.first_free += 1;
        }
        let mut start = self.first_free;
        for at in self.first_free..self.owners.len() {
            if self.owners[at] != FREE {
                start = at + 1;
            } else if at + 1 - start == count {
                return Some(start);
            }
        }
        None
    }

    /// Free granules at the end.
    pub(crate) fn free_tail(&self) -> usize {
        self.owners
            .iter()
            .rev()
            .take_while(|owner| **owner == FREE)
            .count()
    }

    /// Gives granules to `owner`, or frees them.
    pub(crate) fn set(&mut self, first: usize, count: usize, owner: u32) {
        for at in first..first + count {
            self.discount(self.owners[at]);
            self.owners[at] = owner;
        }
        if owner != FREE {
            self.leased += count;
            *self.counts.entry(owner).or_default() += count;
        }
        if owner == FREE {
            self.first_free = self.first_free.min(first);
        }
    }

    /// What `owner` has: runs of granules, first and count.
    pub(crate) fn runs(&self, owner: u32) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        if self.count(owner) == 0 {
            return runs;
        }
        for at in self
            .owners
            .iter()
            .enumerate()
            .filter(|(_, o)| **o == owner)
            .map(|(at, _)| at)
        {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == at => *count += 1,
                _ => runs.push((at, 1)),
            }
        }
        runs
    }

    /// How many granules `owner` has.
    pub(crate) fn count(&self, owner: u32) -> usize {
        self.counts.get(&owner).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_fitting_run_is_found() {
        let mut granules = Granules::default();
        assert_eq!(granules.find(1), None);
        granules.grow(10);
        granules.set(0, 2, 7);
        granules.set(4, 3, 8);
        assert_eq!(granules.find(1), Some(2));
        assert_eq!(granules.find(2), Some(2));
        assert_eq!(granules.find(3), Some(7));
        assert_eq!(granules.find(4), None);
        assert_eq!(granules.free_tail(), 3);
        assert_eq!(granules.leased(), 5);
        granules.set(1, 1, FREE);
        assert_eq!(granules.find(3), Some(1));
        assert_eq!(granules.runs(8), [(4, 3)]);
        assert_eq!(granules.runs(7), [(0, 1)]);
        granules.truncate(5);
        assert_eq!((granules.leased(), granules.count(8)), (2, 1));
        granules.set(0, 1, FREE);
        assert_eq!((granules.leased(), granules.count(7)), (1, 0));
    }
}

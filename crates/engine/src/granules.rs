//! Which granules of a pool are leased, and to whom.
//!
//! A large pool has millions of granules, but few leases: the table keeps runs, and every operation
//! takes time by the number of runs that it meets. Invariants: the runs cover `0..len()` without gap
//! or overlap, and two that touch have different owners.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

/// Owner of a free granule.
pub(crate) const FREE: u32 = 0;

/// The granules of a pool's segments, from the pool's start. An owner is what the registry's
/// granule table holds: 0, or a number that stands for a topic and a publisher slot.
#[derive(Debug, Default)]
pub(crate) struct Granules {
    /// By first granule.
    runs: BTreeMap<usize, Run>,
    /// Granules that are not free.
    leased: usize,
    /// By owner: how many granules it has.
    counts: HashMap<u32, usize>,
    /// No granule below this one is free.
    first_free: usize,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    count: usize,
    owner: u32,
}

impl Granules {
    pub(crate) fn len(&self) -> usize {
        let last = self.runs.last_key_value();
        last.map_or(0, |(first, run)| first + run.count)
    }

    pub(crate) fn leased(&self) -> usize {
        self.leased
    }

    /// Adds `count` free granules at the end.
    pub(crate) fn grow(&mut self, count: usize) {
        self.insert(self.len(), count, FREE);
    }

    /// Drops the granules from `len` on, also leased ones.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.remove(len, self.len().saturating_sub(len));
        self.first_free = 0;
    }

    /// Whether `owner` has all of the `count` granules from `first` on.
    pub(crate) fn has(&self, owner: u32, first: usize, count: usize) -> bool {
        // Runs of one owner do not touch, so one of them has all, or there is none.
        let run = self.runs.range(..=first).next_back();
        run.is_some_and(|(start, run)| run.owner == owner && start + run.count >= first + count)
    }

    /// The first of the lowest `count` free granules in a row.
    pub(crate) fn find(&mut self, count: usize) -> Option<usize> {
        let free = |(_, run): &(&usize, &Run)| run.owner == FREE;
        let mut runs = self.runs.range(self.first_free..).filter(free);
        let lowest = runs.next();
        self.first_free = lowest.map_or_else(|| self.len(), |(first, _)| *first);
        let mut candidates = lowest.into_iter().chain(runs);
        let found = candidates.find(|(_, run)| run.count >= count);
        found.map(|(first, _)| *first)
    }

    /// How many granules at the end are free.
    pub(crate) fn free_tail(&self) -> usize {
        let last = self.runs.last_key_value();
        last.map_or(0, |(_, run)| match run.owner {
            FREE => run.count,
            _ => 0,
        })
    }

    /// Gives granules to `owner`, or frees them if that is [`FREE`]. They must exist.
    pub(crate) fn set(&mut self, first: usize, count: usize, owner: u32) {
        debug_assert!(first + count <= self.len());
        if count > 0 {
            self.remove(first, count);
            self.insert(first, count, owner);
        }
    }

    /// The runs of granules that `owner` has: first granule and count.
    pub(crate) fn runs(&self, owner: u32) -> Vec<(usize, usize)> {
        if self.count(owner) == 0 {
            return Vec::new();
        }
        let runs = self.runs.iter().filter(|(_, run)| run.owner == owner);
        runs.map(|(first, run)| (*first, run.count)).collect()
    }

    /// How many granules `owner` has.
    pub(crate) fn count(&self, owner: u32) -> usize {
        self.counts.get(&owner).copied().unwrap_or(0)
    }

    /// Takes granules out of the table, which leaves a gap: the caller closes it.
    fn remove(&mut self, first: usize, count: usize) {
        self.split(first);
        self.split(first + count);
        let inside = self.runs.range(first..first + count);
        let inside: Vec<usize> = inside.map(|(first, _)| *first).collect();
        for first in inside {
            if let Some(run) = self.runs.remove(&first) {
                self.discount(run);
            }
        }
    }

    /// Splits the run that has granules on both sides of `at`, if there is one.
    fn split(&mut self, at: usize) {
        let Some((first, run)) = self.runs.range_mut(..at).next_back() else {
            return;
        };
        let (left, owner) = (at - first, run.owner);
        if run.count > left {
            let count = run.count - left;
            run.count = left;
            self.runs.insert(at, Run { count, owner });
        }
    }

    /// Fills a gap in the table, or adds to its end. Merges the run with its neighbours of the same owner.
    fn insert(&mut self, first: usize, count: usize, owner: u32) {
        if owner != FREE {
            self.leased += count;
            *self.counts.entry(owner).or_default() += count;
        }
        let (mut start, mut end) = (first, first + count);
        if let Some(behind) = self.runs.get(&end).filter(|run| run.owner == owner) {
            let taken = behind.count;
            self.runs.remove(&end);
            end += taken;
        }
        let before = self.runs.range(..first).next_back();
        let before = before.filter(|(at, run)| run.owner == owner && **at + run.count == first);
        if let Some((&at, _)) = before {
            start = at;
        }
        let count = end - start;
        self.runs.insert(start, Run { count, owner });
        if owner == FREE {
            self.first_free = self.first_free.min(start);
        }
    }

    fn discount(&mut self, run: Run) {
        if run.owner == FREE {
            return;
        }
        self.leased -= run.count;
        if let Entry::Occupied(mut count) = self.counts.entry(run.owner) {
            *count.get_mut() -= run.count;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    /// The same, kept granule by granule.
    fn runs_of(owners: &[u32], owner: u32) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for at in (0..owners.len()).filter(|at| owners[*at] == owner) {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == at => *count += 1,
                _ => runs.push((at, 1)),
            }
        }
        runs
    }

    proptest! {
        #[test]
        fn runs_say_what_a_list_of_granules_says(
            steps in prop::collection::vec((0u8..8, 0usize..40, 1usize..9, 0u32..4), 1..80),
        ) {
            let (mut granules, mut owners) = (Granules::default(), Vec::new());
            for (step, at, count, owner) in steps {
                match step {
                    0 => {
                        granules.grow(count);
                        owners.resize(owners.len() + count, FREE);
                    }
                    1 if at < owners.len() && at > 30 => {
                        granules.truncate(at);
                        owners.truncate(at);
                    }
                    _ if at + count <= owners.len() => {
                        granules.set(at, count, owner);
                        owners[at..at + count].fill(owner);
                    }
                    _ => {}
                }
                prop_assert_eq!(granules.len(), owners.len());
                prop_assert_eq!(granules.leased(), owners.iter().filter(|o| **o != FREE).count());
                for owner in 1..4 {
                    let runs = runs_of(&owners, owner);
                    prop_assert_eq!(granules.count(owner), runs.iter().map(|run| run.1).sum::<usize>());
                    prop_assert_eq!(granules.runs(owner), runs);
                }
                let free = runs_of(&owners, FREE);
                let fits = free.iter().find(|run| run.1 >= count).map(|run| run.0);
                prop_assert_eq!(granules.find(count), fits);
                let tail = owners.iter().rev().take_while(|o| **o == FREE).count();
                prop_assert_eq!(granules.free_tail(), tail);
                let all = owners.get(at..at + count);
                let all = all.is_some_and(|all| all.iter().all(|o| *o == owner));
                prop_assert_eq!(granules.has(owner, at, count), all);
            }
        }
    }
}

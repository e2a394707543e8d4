//! The timelines of a zone, and the client that has each.

use rgaps_layout::MAX_TIMELINES;
use std::collections::{BTreeMap, VecDeque};

/// Timelines that one client may have.
pub(crate) const MAX_CLIENT_TIMELINES: usize = 256;

/// The timelines of a zone. Number 0 is never handed out, so that a zeroed descriptor names none.
#[derive(Debug)]
pub(crate) struct Timelines {
    /// By timeline: the client that has it.
    owners: BTreeMap<u32, u32>,
    /// The free timelines. The one that has been free for longest is handed out first: a subscriber may hold a sample whose point
    /// only the word `reached` tells of, which the end of the next tenure overwrites.
    free: VecDeque<u32>,
    /// Whether clients of a predecessor may have timelines that they have not handed back yet.
    pub(crate) unclaimed: bool,
}

impl Timelines {
    pub(crate) fn new() -> Timelines {
        Timelines {
            owners: BTreeMap::new(),
            free: (1..MAX_TIMELINES).collect(),
            unclaimed: false,
        }
    }

    pub(crate) fn take(&mut self, client: u32) -> Option<u32> {
        let timeline = self.free.pop_front()?;
        self.owners.insert(timeline, client);
        Some(timeline)
    }

    /// Takes a certain timeline for `client`. False: the number is invalid or taken.
    pub(crate) fn reserve(&mut self, timeline: u32, client: u32) -> bool {
        let Some(at) = self.free.iter().position(|free| *free == timeline) else {
            return false;
        };
        self.free.remove(at);
        self.owners.insert(timeline, client);
        true
    }

    /// The client that has a timeline.
    pub(crate) fn owner(&self, timeline: u32) -> Option<u32> {
        self.owners.get(&timeline).copied()
    }

    /// Whether a client may still advance a timeline.
    pub(crate) fn may_advance(&self, timeline: u32) -> bool {
        self.unclaimed || self.owners.contains_key(&timeline)
    }

    /// The free timelines.
    pub(crate) fn free(&self) -> impl Iterator<Item = u32> + '_ {
        self.free.iter().copied()
    }

    /// The timelines of `client`.
    pub(crate) fn of(&self, client: u32) -> Vec<u32> {
        let of_client = self.owners.iter().filter(|(_, owner)| **owner == client);
        of_client.map(|(timeline, _)| *timeline).collect()
    }

    pub(crate) fn give(&mut self, timeline: u32) {
        if self.owners.remove(&timeline).is_some() {
            self.free.push_back(timeline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_timeline_but_zero_is_handed_out_once_and_the_longest_free_first() {
        let mut timelines = Timelines::new();
        let taken: Vec<u32> = std::iter::from_fn(|| timelines.take(5)).collect();
        assert_eq!(taken, (1..MAX_TIMELINES).collect::<Vec<_>>());
        for index in [9, 3, 7] {
            timelines.give(index);
        }
        timelines.give(9);
        assert!(!timelines.reserve(0, 1) && !timelines.reserve(MAX_TIMELINES, 1));
        assert!(!timelines.reserve(4, 1), "somebody has it");
        assert!(timelines.reserve(3, 1) && !timelines.reserve(3, 2));
        assert_eq!([timelines.take(2), timelines.take(2)], [Some(9), Some(7)]);
        assert_eq!(timelines.take(2), None);
        assert_eq!((timelines.of(1), timelines.of(2)), (vec![3], vec![7, 9]));
        assert_eq!((timelines.owner(3), timelines.owner(0)), (Some(1), None));
    }
}

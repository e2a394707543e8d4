//! Granules in which blocks live.

use rgaps_layout::{GRANULE_BYTES, MAX_POOL_BYTES};
use std::collections::BTreeMap;

/// A set of granules, made of the extents of blocks as their publisher wrote them.
#[derive(Debug, Default)]
pub(crate) struct GranuleSet {
    /// Last granule by first, disjoint and not adjacent. Blocks lie in order as a rule, so there
    /// are far fewer runs than blocks.
    runs: BTreeMap<u64, u64>,
    empty_blocks: bool,
}

impl GranuleSet {
    /// Adds the granules that a block lies in. An extent that cannot be is ignored: whoever wrote
    /// it has only its own messages to lose.
    pub(crate) fn add(&mut self, offset: u64, bytes: u64) {
        let end = offset.saturating_add(bytes).min(MAX_POOL_BYTES);
        if bytes == 0 || offset >= end {
            // A message without bytes lives too, but nowhere.
            self.empty_blocks = true;
            return;
        }
        let (mut first, mut last) = (offset / GRANULE_BYTES, (end - 1) / GRANULE_BYTES);
        while let Some((&start, &stop)) = self.runs.range(..=last + 1).next_back() {
            if stop + 1 < first {
                break;
            }
            self.runs.remove(&start);
            first = first.min(start);
            last = last.max(stop);
        }
        self.runs.insert(first, last);
    }

    pub(crate) fn contains(&self, granule: usize) -> bool {
        let granule = granule as u64;
        self.runs
            .range(..=granule)
            .next_back()
            .is_some_and(|(_, last)| *last >= granule)
    }

    /// Whether no block was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty() && !self.empty_blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_the_granules_they_touch() {
        const G: u64 = GRANULE_BYTES;
        let mut set = GranuleSet::default();
        assert!(set.is_empty() && !set.contains(0));
        set.add(G, 1);
        set.add(3 * G - 1, 2);
        set.add(5 * G, G);
        assert_eq!(set.runs, BTreeMap::from([(1, 3), (5, 5)]));
        set.add(4 * G, 1);
        assert_eq!(set.runs, BTreeMap::from([(1, 5)]));
        for (granule, inside) in [(0, false), (1, true), (5, true), (6, false)] {
            assert_eq!(set.contains(granule), inside, "{granule}");
        }
    }

    #[test]
    fn nonsense_covers_nothing_but_lives() {
        let mut set = GranuleSet::default();
        set.add(u64::MAX, u64::MAX);
        set.add(0, 0);
        assert!(!set.is_empty() && !set.contains(0));
        set.add(0, u64::MAX);
        assert!(set.contains(0) && set.contains((MAX_POOL_BYTES / GRANULE_BYTES) as usize - 1));
    }
}

//! Granules in which blocks live.

use rgaps_layout::{GRANULE_BYTES, MAX_POOL_BYTES};
use std::collections::BTreeMap;

/// The granules of a publisher's blocks, per pool.
#[derive(Debug, Default)]
pub(crate) struct LiveGranules {
    pools: BTreeMap<u32, GranuleSet>,
}

impl LiveGranules {
    /// Adds the granules of `pool` that a block lies in. The pool's number is what a peer wrote; of one
    /// that there is not, or in which the publisher leases nothing, nobody asks.
    pub(crate) fn add(&mut self, pool: u32, offset: u64, bytes: u64) {
        self.pools.entry(pool).or_default().add(offset, bytes);
    }

    pub(crate) fn contains(&self, pool: u32, granule: usize) -> bool {
        self.pools
            .get(&pool)
            .is_some_and(|set| set.contains(granule))
    }

    /// Whether no block was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }
}

/// A set of granules, made of the extents of blocks as their publisher wrote them.
#[derive(Debug, Default)]
struct GranuleSet {
    /// Last granule by first, disjoint and not adjacent. Blocks lie in order as a rule, so there
    /// are far fewer runs than blocks.
    runs: BTreeMap<u64, u64>,
}

impl GranuleSet {
    /// Adds the granules that a block lies in. An extent that cannot be is ignored: whoever wrote
    /// it has only its own messages to lose.
    fn add(&mut self, offset: u64, bytes: u64) {
        let end = offset.saturating_add(bytes).min(MAX_POOL_BYTES);
        if bytes == 0 || offset >= end {
            // A message without bytes lives too, but nowhere.
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

    fn contains(&self, granule: usize) -> bool {
        let granule = granule as u64;
        self.runs
            .range(..=granule)
            .next_back()
            .is_some_and(|(_, last)| *last >= granule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_the_granules_they_touch() {
        const G: u64 = GRANULE_BYTES;
        let mut set = GranuleSet::default();
        assert!(!set.contains(0));
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
        let mut live = LiveGranules::default();
        assert!(live.is_empty());
        live.add(7, u64::MAX, u64::MAX);
        live.add(7, 0, 0);
        assert!(!live.is_empty() && !live.contains(7, 0));
        live.add(7, 0, u64::MAX);
        let last = (MAX_POOL_BYTES / GRANULE_BYTES) as usize - 1;
        assert!(live.contains(7, 0) && live.contains(7, last) && !live.contains(6, 0));
    }
}

//! Granules in which blocks live.

use rgaps_layout::{GRANULE_BYTES, MAX_POOL_BYTES};
use std::collections::BTreeMap;

/// The granules of a publisher's blocks, per pool.
#[derive(Debug, Default)]
pub(crate) struct LiveGranules {
    pools: BTreeMap<u32, GranuleSet>,
}

impl LiveGranules {
    /// Adds the granules of `pool` that a block lies in. A peer wrote the pool's number, so the pool may not exist; that does no
    /// harm, since only pools that exist are looked up.
    pub(crate) fn add(&mut self, pool: u32, offset: u64, bytes: u64) {
        self.pools.entry(pool).or_default().add(offset, bytes);
    }

    /// The granules of one pool.
    pub(crate) fn of(&self, pool: u32) -> &GranuleSet {
        static NONE: GranuleSet = GranuleSet {
            runs: BTreeMap::new(),
        };
        self.pools.get(&pool).unwrap_or(&NONE)
    }

    /// Whether no block was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }
}

/// A set of granules, made of ranges of bytes as a peer wrote them: extents of blocks, or claims.
#[derive(Debug, Default)]
pub(crate) struct GranuleSet {
    /// Last granule by first, disjoint and not adjacent. Blocks are in order as a rule, so there
    /// are far fewer runs than blocks.
    runs: BTreeMap<u64, u64>,
}

impl GranuleSet {
    /// Adds the granules that a range lies in. Ignores an impossible range: at worst its writer loses messages of its own.
    pub(crate) fn add(&mut self, offset: u64, bytes: u64) {
        let end = offset.saturating_add(bytes).min(MAX_POOL_BYTES);
        if bytes == 0 || offset >= end {
            // A message without bytes occupies no granule.
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

    /// The granules among `count` from `first` on that are not in the set, as runs in order: first granule and count.
    pub(crate) fn missing(&self, first: usize, count: usize) -> Vec<(usize, usize)> {
        let (mut at, end) = (first as u64, (first + count) as u64);
        let before = self.runs.range(..at).next_back();
        let runs = before.into_iter().chain(self.runs.range(at..end));
        let mut missing = Vec::new();
        for (first, last) in runs {
            if at < *first {
                missing.push((at as usize, (first - at) as usize));
            }
            at = at.max(last + 1);
        }
        if at < end {
            missing.push((at as usize, (end - at) as usize));
        }
        missing
    }

    /// Whether any of `count` granules from `first` on is in the set.
    pub(crate) fn touches(&self, first: usize, count: usize) -> bool {
        self.missing(first, count) != [(first, count)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_the_granules_they_touch() {
        const G: u64 = GRANULE_BYTES;
        let mut set = GranuleSet::default();
        assert!(!set.touches(0, 1));
        set.add(G, 1);
        set.add(3 * G - 1, 2);
        set.add(5 * G, G);
        assert_eq!(set.runs, BTreeMap::from([(1, 3), (5, 5)]));
        set.add(4 * G, 1);
        assert_eq!(set.runs, BTreeMap::from([(1, 5)]));
        for (granule, inside) in [(0, false), (1, true), (5, true), (6, false)] {
            assert_eq!(set.touches(granule, 1), inside, "{granule}");
        }
        set.add(8 * G, 2 * G);
        assert_eq!(set.missing(0, 12), [(0, 1), (6, 2), (10, 2)]);
        assert_eq!(set.missing(2, 7), [(6, 2)]);
        assert_eq!(set.missing(2, 3), []);
        assert!(set.touches(0, 2) && set.touches(6, 3) && !set.touches(6, 2));
    }

    #[test]
    fn nonsense_covers_nothing_but_lives() {
        let mut live = LiveGranules::default();
        assert!(live.is_empty());
        live.add(7, u64::MAX, u64::MAX);
        live.add(7, 0, 0);
        assert!(!live.is_empty() && !live.of(7).touches(0, 1));
        live.add(7, 0, u64::MAX);
        let last = (MAX_POOL_BYTES / GRANULE_BYTES) as usize - 1;
        assert!(live.of(7).missing(0, last + 1).is_empty() && !live.of(6).touches(0, 1));
    }
}

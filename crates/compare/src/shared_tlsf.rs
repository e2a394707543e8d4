//! A TLSF allocator whose state lies in shared memory. Several processes use it under a lock.
//!
//! It rebuilds the design of GAPS (the paper's Table I), with which rgaps is compared. The algorithm is that of
//! `rgaps_pool::Tlsf` (two levels of bins with bit masks, good fit, merging with both neighbours at once), but all
//! processes share one instance. So only the costs of a shared lock, and of cache lines that travel between cores,
//! differ.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bins of each power of two.
const SECOND: u64 = 32;
const SECOND_BITS: u32 = 5;
const FIRST: usize = 32;
const NONE: u64 = u64::MAX;
/// The unit of sizes.
const UNIT: u64 = 256;

// Offsets of the words before the nodes: the list of vacant nodes, the bit masks of both levels, the bins' lists.
const VACANT: usize = 0;
const ROWS: usize = 1;
const COLUMNS: usize = 2;
const HEADS: usize = COLUMNS + FIRST;
const NODES: usize = (HEADS + FIRST * SECOND as usize).next_multiple_of(8);

// A node is a cache line. Offsets of its words.
const NODE_WORDS: usize = 8;
const OFFSET: usize = 0;
const UNITS: usize = 1;
const BEFORE: usize = 2;
const BEHIND: usize = 3;
const NEXT: usize = 4;
const PREVIOUS: usize = 5;
const FREE: usize = 6;

/// The allocator, as one process sees it. The caller holds the lock during each call.
pub struct SharedTlsf<'a>(&'a [AtomicU64]);

impl<'a> SharedTlsf<'a> {
    /// Returns how many words an allocator of at most `blocks` blocks, free or not, needs.
    pub const fn words(blocks: usize) -> usize {
        NODES + blocks * NODE_WORDS
    }

    /// The allocator in these words.
    pub fn new(words: &'a [AtomicU64]) -> SharedTlsf<'a> {
        SharedTlsf(words)
    }

    /// Initialises the allocator with one free block of `bytes` bytes.
    pub fn init(&self, bytes: u64) {
        for word in &self.0[..NODES] {
            word.store(0, Relaxed);
        }
        for bin in 0..FIRST * SECOND as usize {
            self.set(HEADS + bin, NONE);
        }
        let count = ((self.0.len() - NODES) / NODE_WORDS) as u64;
        for node in 0..count {
            let next = if node + 1 < count { node + 1 } else { NONE };
            self.put(node, NEXT, next);
        }
        self.set(VACANT, 0);
        let node = self.take_node(0, bytes / UNIT, NONE, NONE);
        self.insert(node);
    }

    /// Allocates a block of at least `bytes` bytes. Returns its number and offset; None if no block is large enough.
    pub fn allocate(&self, bytes: u64) -> Option<(u64, u64)> {
        let units = bytes.div_ceil(UNIT).max(1);
        let node = self.good_fit(units)?;
        self.remove(node);
        let rest = self.of(node, UNITS) - units;
        if rest > 0 && self.get(VACANT) != NONE {
            let behind = self.of(node, BEHIND);
            let cut = self.take_node(self.of(node, OFFSET) + units, rest, node, behind);
            if behind != NONE {
                self.put(behind, BEFORE, cut);
            }
            self.put(node, BEHIND, cut);
            self.put(node, UNITS, units);
            self.insert(cut);
        }
        Some((node, self.of(node, OFFSET) * UNIT))
    }

    /// Frees the block with the number that `allocate` returned.
    pub fn free(&self, mut node: u64) {
        let behind = self.of(node, BEHIND);
        if behind != NONE && self.of(behind, FREE) != 0 {
            self.remove(behind);
            self.absorb(node, behind);
        }
        let before = self.of(node, BEFORE);
        if before != NONE && self.of(before, FREE) != 0 {
            self.remove(before);
            self.absorb(before, node);
            node = before;
        }
        self.insert(node);
    }

    fn absorb(&self, node: u64, behind: u64) {
        self.put(node, UNITS, self.of(node, UNITS) + self.of(behind, UNITS));
        let next = self.of(behind, BEHIND);
        self.put(node, BEHIND, next);
        if next != NONE {
            self.put(next, BEFORE, node);
        }
        self.put(behind, NEXT, self.get(VACANT));
        self.set(VACANT, behind);
    }

    fn take_node(&self, offset: u64, units: u64, before: u64, behind: u64) -> u64 {
        let node = self.get(VACANT);
        self.set(VACANT, self.of(node, NEXT));
        for (word, value) in [
            (OFFSET, offset),
            (UNITS, units),
            (BEFORE, before),
            (BEHIND, behind),
        ] {
            self.put(node, word, value);
        }
        node
    }

    /// Returns the row and column of the bin for free blocks of this size.
    fn bin(units: u64) -> (usize, usize) {
        if units < SECOND {
            return (0, units as usize);
        }
        let log = units.ilog2();
        let column = (units >> (log - SECOND_BITS)) - SECOND;
        ((log - SECOND_BITS) as usize + 1, column as usize)
    }

    /// Returns a block of the lowest non-empty bin in which all blocks are large enough.
    fn good_fit(&self, units: u64) -> Option<u64> {
        let up = match units < SECOND {
            true => units,
            false => units + (1 << (units.ilog2() - SECOND_BITS)) - 1,
        };
        let (mut row, column) = Self::bin(up);
        let mut columns = self.get(COLUMNS + row) & (u64::MAX << column);
        if columns == 0 {
            let rows = self.get(ROWS) & (u64::MAX << (row + 1));
            if rows == 0 {
                return None;
            }
            row = rows.trailing_zeros() as usize;
            columns = self.get(COLUMNS + row);
        }
        Some(self.get(HEADS + row * SECOND as usize + columns.trailing_zeros() as usize))
    }

    fn insert(&self, node: u64) {
        let (row, column) = Self::bin(self.of(node, UNITS));
        let head = HEADS + row * SECOND as usize + column;
        let next = self.get(head);
        self.put(node, NEXT, next);
        self.put(node, PREVIOUS, NONE);
        self.put(node, FREE, 1);
        if next != NONE {
            self.put(next, PREVIOUS, node);
        }
        self.set(head, node);
        self.set(COLUMNS + row, self.get(COLUMNS + row) | 1 << column);
        self.set(ROWS, self.get(ROWS) | 1 << row);
    }

    fn remove(&self, node: u64) {
        let (next, previous) = (self.of(node, NEXT), self.of(node, PREVIOUS));
        self.put(node, FREE, 0);
        if next != NONE {
            self.put(next, PREVIOUS, previous);
        }
        if previous != NONE {
            self.put(previous, NEXT, next);
            return;
        }
        let (row, column) = Self::bin(self.of(node, UNITS));
        self.set(HEADS + row * SECOND as usize + column, next);
        if next == NONE {
            self.set(COLUMNS + row, self.get(COLUMNS + row) & !(1 << column));
            if self.get(COLUMNS + row) == 0 {
                self.set(ROWS, self.get(ROWS) & !(1 << row));
            }
        }
    }

    // The lock orders the accesses; the words are atomic only because processes share them.
    fn get(&self, word: usize) -> u64 {
        self.0[word].load(Relaxed)
    }

    fn set(&self, word: usize, value: u64) {
        self.0[word].store(value, Relaxed);
    }

    fn of(&self, node: u64, word: usize) -> u64 {
        self.get(NODES + node as usize * NODE_WORDS + word)
    }

    fn put(&self, node: u64, word: usize, value: u64) {
        self.set(NODES + node as usize * NODE_WORDS + word, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_never_overlap_and_all_memory_comes_back() {
        const BYTES: u64 = 64 << 20;
        let words: Vec<AtomicU64> = (0..SharedTlsf::words(600))
            .map(|_| AtomicU64::new(0))
            .collect();
        let tlsf = SharedTlsf::new(&words);
        tlsf.init(BYTES);
        let mut live: Vec<(u64, u64, u64)> = Vec::new();
        let mut random = 88172645463325252u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for step in 0..20_000 {
            if live.len() < 200 && next() % 5 < 3 {
                let bytes = next() % (400 << 10) + 1;
                if let Some((node, offset)) = tlsf.allocate(bytes) {
                    let end = offset + bytes;
                    assert!(end <= BYTES);
                    let clash = live
                        .iter()
                        .find(|(_, from, to)| offset < *to && *from < end);
                    assert!(
                        clash.is_none(),
                        "step {step}: {offset}..{end} overlaps {clash:?}"
                    );
                    live.push((node, offset, end));
                }
            } else if !live.is_empty() {
                let (node, ..) = live.swap_remove(next() as usize % live.len());
                tlsf.free(node);
            }
        }
        for (node, ..) in live {
            tlsf.free(node);
        }
        // All blocks were merged into one, so one allocation can take all of it.
        assert_eq!(tlsf.allocate(BYTES).map(|(_, offset)| offset), Some(0));
        assert!(tlsf.allocate(1).is_none());
    }
}

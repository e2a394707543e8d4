//! Which ranges of a zone's control segment are free.

use std::collections::BTreeMap;

/// Free ranges by their start, coalesced; the lowest that fits is taken, so that the segment
/// stays dense and its pages few.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// By start: bytes.
    free: BTreeMap<u64, u64>,
    end: u64,
}

impl Ranges {
    pub(crate) fn new(start: u64, end: u64) -> Ranges {
        Ranges {
            free: BTreeMap::from([(start, end - start)]),
            end,
        }
    }

    /// One past the highest byte that is taken. Below it a successor hands out nothing until no subscriber may still read there.
    pub(crate) fn used_end(&self) -> u64 {
        match self.free.last_key_value() {
            Some((start, length)) if start + length == self.end => *start,
            _ => self.end,
        }
    }

    /// The free ranges: offsets and lengths.
    pub(crate) fn free(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.free.iter().map(|(offset, bytes)| (*offset, *bytes))
    }

    /// Takes the lowest free range of `bytes` bytes.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&offset, &length) = self.free.iter().find(|(_, length)| **length >= bytes)?;
        self.carve(offset, length, offset, bytes);
        Some(offset)
    }

    /// Takes a certain range. False, and no change: a part of it is taken.
    pub(crate) fn reserve(&mut self, offset: u64, bytes: u64) -> bool {
        let Some(end) = offset.checked_add(bytes) else {
            return false;
        };
        let Some((&start, &length)) = self.free.range(..=offset).next_back() else {
            return false;
        };
        if end > start + length {
            return false;
        }
        self.carve(start, length, offset, bytes);
        true
    }

    fn carve(&mut self, start: u64, length: u64, offset: u64, bytes: u64) {
        self.free.remove(&start);
        if offset > start {
            self.free.insert(start, offset - start);
        }
        let (end, old_end) = (offset + bytes, start + length);
        if old_end > end {
            self.free.insert(end, old_end - end);
        }
    }

    /// Gives back a range that was taken.
    pub(crate) fn give(&mut self, offset: u64, bytes: u64) {
        let (mut start, mut end) = (offset, offset + bytes);
        if let Some((&before, &length)) = self.free.range(..offset).next_back() {
            debug_assert!(before + length <= offset, "a range was given back twice");
            if before + length == offset {
                start = before;
            }
        }
        if let Some(&length) = self.free.get(&end) {
            self.free.remove(&end);
            end += length;
        }
        self.free.insert(start, end - start);
    }

    /// Takes all free ranges below `end`. Returns their offsets and lengths.
    pub(crate) fn take_all_below(&mut self, end: u64) -> Vec<(u64, u64)> {
        let below: Vec<(u64, u64)> = self
            .free
            .range(..end)
            .map(|(&start, &length)| (start, length.min(end - start)))
            .collect();
        for &(offset, bytes) in &below {
            self.reserve(offset, bytes);
        }
        below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_come_back_together() {
        let mut ranges = Ranges::new(100, 200);
        let (a, b, c) = (ranges.take(30), ranges.take(30), ranges.take(40));
        assert_eq!((a, b, c), (Some(100), Some(130), Some(160)));
        assert_eq!(ranges.take(1), None);
        ranges.give(100, 30);
        ranges.give(160, 40);
        assert_eq!(ranges.take(41), None);
        ranges.give(130, 30);
        assert_eq!(ranges.free, BTreeMap::from([(100, 100)]));
        assert_eq!(ranges.used_end(), 100, "nothing is taken any more");
        assert_eq!(ranges.take(10), Some(100));
        assert_eq!(ranges.used_end(), 110);
    }

    #[test]
    fn a_reservation_does_not_overlap_another() {
        let mut ranges = Ranges::new(0, 1000);
        assert!(ranges.reserve(100, 50));
        for (offset, bytes) in [(100, 1), (149, 10), (90, 11), (0, 1000), (u64::MAX, 2)] {
            assert!(!ranges.reserve(offset, bytes), "{offset} {bytes}");
        }
        assert!(ranges.reserve(150, 850));
        assert_eq!(ranges.free, BTreeMap::from([(0, 100)]));
    }

    #[test]
    fn what_a_predecessor_may_have_used_is_set_aside() {
        let mut ranges = Ranges::new(0, 1000);
        assert!(ranges.reserve(100, 50));
        assert_eq!(ranges.take_all_below(300), [(0, 100), (150, 150)]);
        assert_eq!(ranges.take(10), Some(300));
        assert!(ranges.used_end() >= 310);
    }
}

//! Adds and removes regions, and tracks the contiguous spans that they form. Not on the path of messages.

use super::headers::{Kind, NONE};
use super::{RegionError, Tlsf, UNIT};
use rgaps_layout::{GRANULE_BYTES, MAX_POOL_BYTES};
use std::ops::Range;

/// A contiguous range of regions. Its key in the map is its first unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// One past its last unit.
    end: u64,
    /// The edge before its first block.
    front: u32,
    /// The edge behind its last block.
    back: u32,
}

#[cfg(test)]
impl Span {
    pub(super) fn end(&self) -> u64 {
        self.end
    }
    pub(super) fn edges(&self) -> (u32, u32) {
        (self.front, self.back)
    }
}

impl Tlsf {
    /// Adds a range of the pool to allocate from, both ends multiples of the granule. Joins it with
    /// spans that it adjoins, so that a block may lie across them.
    pub fn add_region(&mut self, offset: u64, bytes: u64) -> Result<(), RegionError> {
        let mut block = self.add_region_apart(offset, bytes)?;
        let (start, end) = (offset / UNIT, (offset + bytes) / UNIT);
        let before = self.spans.range(..start).next_back();
        let before = before.map(|(left, span)| (*left, span.end));
        if let Some((left, _)) = before.filter(|(_, before_end)| *before_end == start) {
            block = self.join(left, start).unwrap_or(block);
        }
        if self.spans.contains_key(&end) {
            let (left, _) = self
                .spans
                .range(..end)
                .next_back()
                .expect("the span just added");
            self.join(*left, end);
        }
        self.newest = block;
        Ok(())
    }

    /// Adds a range as a span of its own, so that no block lies across its ends. Returns the free block that it forms,
    /// which is valid until the next change of the allocator.
    pub fn add_region_apart(&mut self, offset: u64, bytes: u64) -> Result<u32, RegionError> {
        let end = offset.saturating_add(bytes);
        if bytes == 0 || offset % GRANULE_BYTES != 0 || bytes % GRANULE_BYTES != 0 {
            return Err(RegionError::NotGranules { offset, bytes });
        }
        if end > MAX_POOL_BYTES {
            return Err(RegionError::BeyondPool { offset, bytes });
        }
        let (start, end) = (offset / UNIT, end / UNIT);
        let before = self.spans.range(..end).next_back();
        if before.is_some_and(|(_, span)| span.end > start) {
            return Err(RegionError::Overlap { offset, bytes });
        }
        if !self.headers.has_room(3) {
            return Err(RegionError::TooManyBlocks);
        }
        let front = self.headers.take(Kind::Edge, 0, 0);
        let back = self.headers.take(Kind::Edge, 0, 0);
        let block = self.headers.take(Kind::Free, start, end - start);
        self.headers.link(front, block);
        self.headers.link(block, back);
        self.bins.insert(&mut self.headers, block);
        self.spans.insert(start, Span { end, front, back });
        self.free_units += end - start;
        self.newest = block;
        Ok(block)
    }

    /// Joins two adjoining spans. Merges the blocks at the seam if both are free, and returns the merged block.
    fn join(&mut self, left: u64, right: u64) -> Option<u32> {
        let taken = self.spans.remove(&right).expect("the right span is there");
        let span = self.spans.get_mut(&left).expect("the left span is there");
        debug_assert_eq!(span.end, right);
        let (seam_before, seam_behind) = (span.back, taken.front);
        (span.end, span.back) = (taken.end, taken.back);
        let before = self.headers[seam_before].before;
        let behind = self.headers[seam_behind].behind;
        self.headers.release(seam_before);
        self.headers.release(seam_behind);
        self.headers.link(before, behind);
        let free = |kind| kind == Kind::Free;
        if !free(self.headers[before].kind) || !free(self.headers[behind].kind) {
            return None;
        }
        self.unbin(before);
        self.unbin(behind);
        self.absorb(before, behind);
        self.bins.insert(&mut self.headers, before);
        Some(before)
    }

    /// Removes free ranges, aligned to `granule` (rounded up to the layout's granule) and multiples of
    /// it, as long as `keep_bytes` free bytes remain. Returns them in ascending order, so that the caller
    /// can return their leases.
    pub fn take_free(&mut self, granule: u64, keep_bytes: u64) -> Vec<Range<u64>> {
        let granule = granule
            .clamp(1, MAX_POOL_BYTES)
            .next_multiple_of(GRANULE_BYTES)
            / UNIT;
        let mut spare = self.free_units.saturating_sub(keep_bytes.div_ceil(UNIT));
        let mut taken = Vec::new();
        // Starts with the largest blocks, so that there are few cuts.
        for block in self.bins.all_from(&self.headers, granule).into_iter().rev() {
            let header = self.headers[block];
            let from = u64::from(header.offset).next_multiple_of(granule);
            let to = header.end() / granule * granule;
            let units = to.saturating_sub(from).min(spare / granule * granule);
            // Removes the upper part: lower addresses are usually those that were leased first.
            if units > 0 && self.headers.has_room(3) {
                self.cut(block, to - units, to);
                spare -= units;
                taken.push((to - units) * UNIT..to * UNIT);
            }
        }
        taken.sort_unstable_by_key(|range| range.start);
        taken
    }

    /// Removes units `from..to` of a free block from its span, which splits or shrinks or ends the span.
    fn cut(&mut self, block: u32, from: u64, to: u64) {
        let header = self.headers[block];
        let (&start, &span) = self
            .spans
            .range(..=from)
            .next_back()
            .expect("its span is there");
        self.unbin(block);
        self.free_units -= to - from;

        let mut last = header.before;
        if u64::from(header.offset) < from {
            self.headers[block].units = from - u64::from(header.offset);
            self.bins.insert(&mut self.headers, block);
            last = block;
        } else {
            self.headers.release(block);
        }
        let mut first = header.behind;
        if to < header.end() {
            first = self.headers.take(Kind::Free, to, header.end() - to);
            self.headers.link(first, header.behind);
            self.bins.insert(&mut self.headers, first);
        }

        self.spans.remove(&start);
        if last == span.front {
            self.headers.release(span.front);
        } else {
            let back = self.headers.take(Kind::Edge, 0, 0);
            self.headers.link(last, back);
            self.spans.insert(
                start,
                Span {
                    end: from,
                    front: span.front,
                    back,
                },
            );
        }
        if first == span.back {
            self.headers.release(span.back);
        } else {
            let front = self.headers.take(Kind::Edge, 0, 0);
            self.headers.link(front, first);
            self.spans.insert(
                to,
                Span {
                    end: span.end,
                    front,
                    back: span.back,
                },
            );
        }
    }

    /// Takes a free block out of its bin.
    pub(super) fn unbin(&mut self, block: u32) {
        if self.newest == block {
            self.newest = NONE;
        }
        self.bins.remove(&mut self.headers, block);
    }

    /// Merges a block with the one behind it; neither is in a bin.
    pub(super) fn absorb(&mut self, block: u32, behind: u32) {
        let taken = self.headers[behind];
        self.headers[block].units += taken.units;
        self.headers.link(block, taken.behind);
        self.headers.release(behind);
    }
}

//! The allocator inside a publisher's arenas: TLSF with its headers apart from the memory.
//!
//! M. Masmano, I. Ripoll, A. Crespo, J. Real: "TLSF: a New Dynamic Memory Allocator for Real-Time
//! Systems", ECRTS 2004. Free blocks are kept in bins by size, two levels of them with a bit mask
//! each, so a block that is large enough is found by two bit scans; a freed block merges with its
//! neighbours in memory at once. Both take a number of steps that depends on nothing.
//!
//! What differs from the paper:
//! * Headers are in a slab of their own. The memory may belong to a GPU, where the CPU can read
//!   no header, and what others write into it cannot corrupt the allocator. One publisher owns
//!   it, so there is no lock.
//! * The paper's good fit passes over the bin that a size itself belongs to, so a block of the
//!   very size that is asked for, freed a moment ago, goes unused. Messages of one topic tend to
//!   have one size: the first few blocks of that bin are tried before the good fit.
//! * Memory comes in regions, and goes again. Regions that touch become one span.

mod bins;
mod headers;
mod spans;
#[cfg(test)]
mod tests;

use bins::{Bin, Bins, MAX_UNITS};
use headers::{Header, Headers, Kind, NONE};
use rgaps_layout::{BLOCK_ALIGN, GRANULE_BYTES};
use spans::Span;
use std::collections::BTreeMap;

/// The unit of all sizes and offsets inside.
const UNIT: u64 = BLOCK_ALIGN;
/// Blocks that are tried in the bin of the size that is asked for.
const PROBES: usize = 4;
/// Headers that `new` makes room for.
const FIRST_HEADERS: usize = 64;

/// An allocator of blocks in a pool, by offset; it never touches the pool itself.
#[derive(Debug)]
pub struct Tlsf {
    headers: Headers,
    bins: Bins,
    spans: BTreeMap<u64, Span>,
    /// The free block that the last region is in, while it is free.
    newest: u32,
    free_units: u64,
    used_units: u64,
}

/// A block that was given out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// From the start of the pool.
    pub offset: u64,
    /// What was asked for, rounded up to [`BLOCK_ALIGN`], which is the least.
    pub bytes: u64,
    /// Gives it back, once.
    pub handle: u32,
}

/// A region that cannot be added. The allocator is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum RegionError {
    /// Regions are whole granules.
    #[error("a region of {bytes} bytes at {offset} is not a multiple of granules of {GRANULE_BYTES} bytes; lease whole granules")]
    NotGranules { offset: u64, bytes: u64 },
    /// No pool reaches so far.
    #[error("a region of {bytes} bytes at {offset} ends beyond the largest pool")]
    BeyondPool { offset: u64, bytes: u64 },
    /// Part of it was added before.
    #[error("a region of {bytes} bytes at {offset} overlaps a region that was added before")]
    Overlap { offset: u64, bytes: u64 },
    /// No header is left.
    #[error("the allocator has too many blocks to add a region; free some first")]
    TooManyBlocks,
}

/// The handle names no block that is in use: it was freed before, or never given out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "handle {0:#x} is not a block in use; free each block once, with the allocator that it is from"
)]
pub struct UnknownHandle(pub u32);

/// What an allocator has, and what that costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TlsfStats {
    /// Bytes that can be given out.
    pub free_bytes: u64,
    /// Bytes that were given out, rounded up as they were.
    pub used_bytes: u64,
    /// The largest block that could be given out.
    pub largest_free_bytes: u64,
    /// Spans of regions that touch.
    pub spans: usize,
    /// Headers in use: one per block, free or not, and two per span.
    pub headers: usize,
    /// Private memory of headers that were ever in use, and of the bins.
    pub header_bytes: u64,
}

impl TlsfStats {
    /// Private bytes per byte of the regions; 0 without regions.
    pub fn header_bytes_per_pool_byte(&self) -> f64 {
        match self.free_bytes + self.used_bytes {
            0 => 0.0,
            pool => self.header_bytes as f64 / pool as f64,
        }
    }
}

impl Default for Tlsf {
    fn default() -> Self {
        Self::new()
    }
}

impl Tlsf {
    /// An allocator without memory. Its slab of headers doubles as blocks need it.
    pub fn new() -> Self {
        Self::with_headers(FIRST_HEADERS)
    }

    /// An allocator without memory that never allocates private memory itself while no more than
    /// `blocks` blocks are in use, in at most `blocks` spans: two blocks in use have at most one
    /// free block between them. The memory is reserved, not touched.
    pub fn with_blocks(blocks: u32) -> Self {
        Self::with_headers(4 * blocks as usize + FIRST_HEADERS)
    }

    fn with_headers(count: usize) -> Self {
        Tlsf {
            headers: Headers::with_capacity(count),
            bins: Bins::new(),
            spans: BTreeMap::new(),
            newest: NONE,
            free_units: 0,
            used_units: 0,
        }
    }

    /// Bytes to lease so that `allocate(bytes, align)` succeeds right after they were added as
    /// one region. `None` where no pool is large enough.
    pub fn lease_bytes(bytes: u64, align: u64) -> Option<u64> {
        let (units, align) = Self::in_units(bytes, align)?;
        // A region starts at a granule, so only a larger alignment needs a margin.
        let margin = align.saturating_sub(GRANULE_BYTES / UNIT);
        let units = (units + margin).next_multiple_of(GRANULE_BYTES / UNIT);
        (units <= MAX_UNITS).then_some(units * UNIT)
    }

    /// Gives out a block of at least `bytes` bytes (for 0, the least there is) at a multiple of
    /// `align`, a power of two; what is below [`BLOCK_ALIGN`] is raised to it, and anything else
    /// to the next power of two.
    ///
    /// `None` where no block was found: lease [`lease_bytes`](Self::lease_bytes) more.
    pub fn allocate(&mut self, bytes: u64, align: u64) -> Option<Allocation> {
        let (units, align) = Self::in_units(bytes, align)?;
        if !self.headers.has_room(2) {
            return None;
        }
        let (block, start) = self.find(units, align)?;
        let block = self.carve(block, start, units);
        self.free_units -= units;
        self.used_units += units;
        let handle = self.headers.mark_used(block);
        Some(Allocation {
            offset: start * UNIT,
            bytes: units * UNIT,
            handle,
        })
    }

    /// Takes a block back and returns its bytes. A handle that names no block in use is refused,
    /// and nothing changes.
    pub fn free(&mut self, handle: u32) -> Result<u64, UnknownHandle> {
        let mut block = self
            .headers
            .find_used(handle)
            .ok_or(UnknownHandle(handle))?;
        let Header {
            units,
            before,
            behind,
            ..
        } = self.headers[block];
        self.used_units -= units;
        self.free_units += units;
        if self.headers[behind].kind == Kind::Free {
            self.unbin(behind);
            self.absorb(block, behind);
        }
        if self.headers[before].kind == Kind::Free {
            self.unbin(before);
            self.absorb(before, block);
            block = before;
        }
        self.bins.insert(&mut self.headers, block);
        Ok(units * UNIT)
    }

    /// What there is. Takes time proportional to the number of the largest free blocks.
    pub fn stats(&self) -> TlsfStats {
        TlsfStats {
            free_bytes: self.free_units * UNIT,
            used_bytes: self.used_units * UNIT,
            largest_free_bytes: self.bins.largest(&self.headers) * UNIT,
            spans: self.spans.len(),
            headers: self.headers.live(),
            header_bytes: (self.headers.bytes() + size_of::<Tlsf>()) as u64,
        }
    }

    /// A size and an alignment in units, where a pool could hold such a block.
    fn in_units(bytes: u64, align: u64) -> Option<(u64, u64)> {
        let units = bytes.div_ceil(UNIT).max(1);
        let align = align.checked_next_power_of_two()?.max(UNIT) / UNIT;
        (units <= MAX_UNITS && align <= MAX_UNITS).then_some((units, align))
    }

    /// A free block that holds `units` units at a multiple of `align`, and where in it.
    fn find(&self, units: u64, align: u64) -> Option<(u32, u64)> {
        let mut index = self.bins.head(Bin::of(units));
        for _ in 0..PROBES {
            if index == NONE {
                break;
            }
            let header = &self.headers[index];
            if let Some(start) = header.fit(units, align) {
                return Some((index, start));
            }
            index = header.next;
        }
        // With room for the gap in front, any block found holds an aligned one.
        let roomy = self.bins.good_fit(units + align - 1);
        // Without, one may. What was leased for this very block holds it, but need not be in a
        // bin that is searched.
        let newest = Some(self.newest).filter(|newest| *newest != NONE);
        let candidates = [roomy, self.bins.good_fit(units), newest];
        candidates.into_iter().flatten().find_map(|found| {
            self.headers[found]
                .fit(units, align)
                .map(|start| (found, start))
        })
    }

    /// Cuts units `start..start + units` out of a free block; what is left of it on either side
    /// stays free. Returns the header of the cut, which is in no bin.
    fn carve(&mut self, block: u32, start: u64, units: u64) -> u32 {
        self.unbin(block);
        let Header { offset, behind, .. } = self.headers[block];
        let end = self.headers[block].end();
        let mut cut = block;
        if u64::from(offset) < start {
            self.headers[block].units = start - u64::from(offset);
            self.bins.insert(&mut self.headers, block);
            cut = self.headers.take(Kind::Used, start, units);
            self.headers.link(block, cut);
            self.headers.link(cut, behind);
        }
        self.headers[cut].units = units;
        if start + units < end {
            let rest = self
                .headers
                .take(Kind::Free, start + units, end - start - units);
            self.headers.link(cut, rest);
            self.headers.link(rest, behind);
            self.bins.insert(&mut self.headers, rest);
        }
        cut
    }
}

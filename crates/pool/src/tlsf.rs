//! The allocator inside a publisher's arenas: TLSF, with its headers outside the memory.
//!
//! M. Masmano, I. Ripoll, A. Crespo, J. Real: "TLSF: a New Dynamic Memory Allocator for Real-Time
//! Systems", ECRTS 2004. Free blocks lie in bins by size, in two levels with a bit mask each, so two bit
//! scans find a large enough block; a freed block merges with its free neighbours at once. Both take
//! a bounded number of steps.
//!
//! Differences from the paper:
//! * Headers lie in a private slab. The memory may be a GPU's, where the CPU can read no header, and
//!   other processes that write to it cannot corrupt the allocator. One publisher owns the allocator,
//!   so there is no lock.
//! * The paper's good fit skips the bin of the requested size itself, and so a block of exactly that
//!   size that was just freed. Messages of one topic tend to have one size, so we try the first few
//!   blocks of that bin before the good fit.
//! * Memory is added and removed in regions. Regions that adjoin become one span.

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

/// The unit, in bytes, of all internal sizes and offsets.
const UNIT: u64 = BLOCK_ALIGN;
/// The most blocks that `find` tries in the bin of the requested size.
const PROBES: usize = 4;
/// Headers for which `new` reserves memory.
const FIRST_HEADERS: usize = 64;

/// An allocator of blocks in a pool, by offset; it never touches the pool itself.
#[derive(Debug)]
pub struct Tlsf {
    headers: Headers,
    bins: Bins,
    spans: BTreeMap<u64, Span>,
    /// The free block that contains the last added region, or `NONE` after that block left its bin.
    newest: u32,
    free_units: u64,
    used_units: u64,
}

/// An allocated block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Bytes from the start of the pool.
    pub offset: u64,
    /// The requested size, rounded up to a multiple of [`BLOCK_ALIGN`] above 0.
    pub bytes: u64,
    /// Names the block for [`Tlsf::free`], once.
    pub handle: u32,
}

/// Why a region cannot be added. The allocator is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum RegionError {
    /// The region does not consist of whole granules.
    #[error("a region of {bytes} bytes at {offset} is not a multiple of granules of {GRANULE_BYTES} bytes; lease whole granules")]
    NotGranules { offset: u64, bytes: u64 },
    /// The region ends beyond the largest possible pool.
    #[error("a region of {bytes} bytes at {offset} ends beyond the largest pool")]
    BeyondPool { offset: u64, bytes: u64 },
    /// The allocator has part of the region already.
    #[error("a region of {bytes} bytes at {offset} overlaps a region that was added before")]
    Overlap { offset: u64, bytes: u64 },
    /// No headers are left.
    #[error("the allocator has too many blocks to add a region; free some first")]
    TooManyBlocks,
}

/// The handle names no block in use: the block was freed already, or never allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "handle {0:#x} is not a block in use; free each block once, with the allocator that it is from"
)]
pub struct UnknownHandle(pub u32);

/// The memory of an allocator, and its costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TlsfStats {
    /// Bytes of free blocks.
    pub free_bytes: u64,
    /// Bytes of blocks in use, including their rounding.
    pub used_bytes: u64,
    /// Bytes of the largest free block.
    pub largest_free_bytes: u64,
    /// Contiguous spans of regions.
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
    /// An allocator without memory. Its slab of headers doubles when it is full.
    pub fn new() -> Self {
        Self::with_headers(FIRST_HEADERS)
    }

    /// An allocator without memory, with headers for `blocks` blocks in use in at most `blocks` spans:
    /// up to there it allocates no more private memory. (Two blocks in use have at most one free block
    /// between them.) The headers' memory is reserved, not touched.
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

    /// The number of bytes to lease so that `allocate(bytes, align)` succeeds right after they were
    /// added as one region. None: no pool is large enough.
    pub fn lease_bytes(bytes: u64, align: u64) -> Option<u64> {
        let (units, align) = Self::in_units(bytes, align)?;
        // A region starts at a granule, so only a larger alignment needs a margin.
        let margin = align.saturating_sub(GRANULE_BYTES / UNIT);
        let units = (units + margin).next_multiple_of(GRANULE_BYTES / UNIT);
        (units <= MAX_UNITS).then_some(units * UNIT)
    }

    /// Allocates a block of at least `bytes` bytes (for 0, the smallest block) at a multiple of `align`.
    /// Rounds `align` up to a power of two, and to at least [`BLOCK_ALIGN`].
    ///
    /// None: no block was found. Lease [`lease_bytes`](Self::lease_bytes) more and add them.
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

    /// Frees a block and returns its size in bytes. Fails, and changes nothing, if the handle names no
    /// block in use.
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

    /// Returns statistics. Takes time proportional to the length of the highest bin's list.
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

    /// Converts a size and an alignment to units. None: no pool can hold such a block.
    fn in_units(bytes: u64, align: u64) -> Option<(u64, u64)> {
        let units = bytes.div_ceil(UNIT).max(1);
        let align = align.checked_next_power_of_two()?.max(UNIT) / UNIT;
        (units <= MAX_UNITS && align <= MAX_UNITS).then_some((units, align))
    }

    /// Finds a free block that holds `units` units at a multiple of `align`. Returns its header and the first unit.
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
        // Any block that also has room for the gap in front holds an aligned one.
        let roomy = self.bins.good_fit(units + align - 1);
        // A smaller block may hold one, too. The region just leased for this request does, but may lie in
        // a bin that the searches skip, so it is the last candidate.
        let newest = Some(self.newest).filter(|newest| *newest != NONE);
        let candidates = [roomy, self.bins.good_fit(units), newest];
        candidates.into_iter().flatten().find_map(|found| {
            self.headers[found]
                .fit(units, align)
                .map(|start| (found, start))
        })
    }

    /// Cuts units `start..start + units` out of a free block; the rest on either side stays free.
    /// Returns the header of the cut, which is in no bin.
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

//! A slab of block headers in private memory, outside the blocks.

use std::ops::{Index, IndexMut};

/// No header.
pub(super) const NONE: u32 = u32::MAX;
/// A handle's low bits are the index of a header, the high bits the header's generation.
const INDEX_BITS: u32 = 20;
/// The most headers of one allocator.
pub(super) const MAX_HEADERS: usize = 1 << INDEX_BITS;
const GENERATIONS: u16 = 1 << (32 - INDEX_BITS);

/// What a header stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Nothing: the header is in the slab's list of vacant headers.
    Vacant,
    /// A block in a bin.
    Free,
    /// An allocated block.
    Used,
    /// The edge before the first block of a span, or behind its last one.
    Edge,
}

/// A block, or an edge of a span.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    /// Length in units.
    pub(super) units: u64,
    /// First unit, from the start of the pool.
    pub(super) offset: u32,
    /// The block in front of it in memory, or an edge.
    pub(super) before: u32,
    /// The block behind it in memory, or an edge.
    pub(super) behind: u32,
    /// The next header in its bin's list or in the list of vacant headers, or `NONE`.
    pub(super) next: u32,
    /// The previous header in its bin's list, or `NONE`.
    pub(super) previous: u32,
    /// Counts the times that the header became a used block, modulo `GENERATIONS`.
    generation: u16,
    pub(super) kind: Kind,
}

const _: () = assert!(size_of::<Header>() == 32);

impl Header {
    /// One past the last unit.
    pub(super) fn end(&self) -> u64 {
        u64::from(self.offset) + self.units
    }

    /// The first unit at a multiple of `align` in this block from which `units` units fit. None: they do not.
    pub(super) fn fit(&self, units: u64, align: u64) -> Option<u64> {
        let start = u64::from(self.offset).next_multiple_of(align);
        (start + units <= self.end()).then_some(start)
    }
}

/// All headers of one allocator.
#[derive(Debug)]
pub(super) struct Headers {
    slab: Vec<Header>,
    vacant: u32,
    live: usize,
    /// Counts accesses to headers, for the test that each call makes a bounded number.
    #[cfg(test)]
    pub(super) looks: std::cell::Cell<u64>,
}

impl Headers {
    pub(super) fn with_capacity(count: usize) -> Self {
        Headers {
            slab: Vec::with_capacity(count.min(MAX_HEADERS)),
            vacant: NONE,
            live: 0,
            #[cfg(test)]
            looks: std::cell::Cell::new(0),
        }
    }

    /// Headers in use.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Bytes of the headers that were ever in use.
    pub(super) fn bytes(&self) -> usize {
        self.slab.len() * size_of::<Header>()
    }

    /// Whether `count` more can be taken.
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.live + count <= MAX_HEADERS
    }

    /// Takes a header from the slab for `units` units from `offset`. The caller has checked `has_room`.
    pub(super) fn take(&mut self, kind: Kind, offset: u64, units: u64) -> u32 {
        self.live += 1;
        let fresh = Header {
            units,
            offset: offset as u32,
            before: NONE,
            behind: NONE,
            next: NONE,
            previous: NONE,
            generation: 0,
            kind,
        };
        if self.vacant == NONE {
            self.slab.push(fresh);
            return (self.slab.len() - 1) as u32;
        }
        let index = self.vacant;
        self.vacant = self[index].next;
        let generation = self[index].generation;
        self[index] = Header {
            generation,
            ..fresh
        };
        index
    }

    /// Returns a header to the slab.
    pub(super) fn release(&mut self, index: u32) {
        let vacant = self.vacant;
        let header = &mut self[index];
        header.kind = Kind::Vacant;
        header.next = vacant;
        self.vacant = index;
        self.live -= 1;
    }

    /// Makes two headers neighbours in memory.
    pub(super) fn link(&mut self, before: u32, behind: u32) {
        self[before].behind = behind;
        self[behind].before = before;
    }

    /// Marks a block as used and returns its handle, which is valid until the block is freed.
    pub(super) fn mark_used(&mut self, index: u32) -> u32 {
        let header = &mut self[index];
        header.kind = Kind::Used;
        header.generation = (header.generation + 1) % GENERATIONS;
        u32::from(header.generation) << INDEX_BITS | index
    }

    /// The header of a used block, by its handle. None: the handle names no used block.
    pub(super) fn find_used(&self, handle: u32) -> Option<u32> {
        let index = handle % MAX_HEADERS as u32;
        let header = self.slab.get(index as usize)?;
        let named = u32::from(header.generation) == handle >> INDEX_BITS;
        (named && header.kind == Kind::Used).then_some(index)
    }
}

impl Index<u32> for Headers {
    type Output = Header;

    fn index(&self, index: u32) -> &Header {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        &self.slab[index as usize]
    }
}

impl IndexMut<u32> for Headers {
    fn index_mut(&mut self, index: u32) -> &mut Header {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        &mut self.slab[index as usize]
    }
}

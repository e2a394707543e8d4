//! The two levels of segregated free lists that give TLSF its name.

use super::headers::{Headers, Kind, NONE};
use rgaps_layout::{BLOCK_ALIGN, MAX_POOL_BYTES};

/// Units of the largest pool.
pub(super) const MAX_UNITS: u64 = MAX_POOL_BYTES / BLOCK_ALIGN;
/// Each power of two is divided into `1 << SECOND_BITS` bins.
const SECOND_BITS: u32 = 5;
const SECOND: usize = 1 << SECOND_BITS;
/// The number of rows. In the first, each size below `SECOND` units has its own bin; each further row is for
/// one power of two.
const FIRST: usize = (MAX_UNITS.ilog2() - SECOND_BITS) as usize + 2;

/// Row and column of a bin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Bin {
    row: usize,
    column: usize,
}

impl Bin {
    /// The bin for blocks of this size.
    pub(super) fn of(units: u64) -> Bin {
        debug_assert!(units > 0 && units < 2 * MAX_UNITS);
        if units < SECOND as u64 {
            return Bin {
                row: 0,
                column: units as usize,
            };
        }
        let log = units.ilog2();
        let column = (units >> (log - SECOND_BITS)) as usize - SECOND;
        Bin {
            row: (log - SECOND_BITS) as usize + 1,
            column,
        }
    }

    /// The lowest bin whose blocks all have at least this size, so that its list need not be searched.
    fn at_least(units: u64) -> Bin {
        if units < SECOND as u64 {
            return Bin::of(units);
        }
        let width = 1u64 << (units.ilog2() - SECOND_BITS);
        Bin::of(units + width - 1)
    }
}

/// Free blocks by size. Each list has the block freed last at its head.
#[derive(Debug)]
pub(super) struct Bins {
    /// Bit `r`: row `r` has a block.
    rows: u32,
    /// Bit `c` of row `r`: bin `(r, c)` has a block.
    columns: [u32; FIRST],
    heads: [[u32; SECOND]; FIRST],
}

const _: () = assert!(FIRST <= 32 && SECOND == 32);

impl Bins {
    pub(super) fn new() -> Self {
        Bins {
            rows: 0,
            columns: [0; FIRST],
            heads: [[NONE; SECOND]; FIRST],
        }
    }

    /// The block of a bin that was freed last, or `NONE`.
    pub(super) fn head(&self, bin: Bin) -> u32 {
        self.heads[bin.row][bin.column]
    }

    /// Marks a block as free and puts it at the head of its bin's list.
    pub(super) fn insert(&mut self, headers: &mut Headers, index: u32) {
        let bin = Bin::of(headers[index].units);
        let head = self.head(bin);
        let header = &mut headers[index];
        header.kind = Kind::Free;
        header.previous = NONE;
        header.next = head;
        if head != NONE {
            headers[head].previous = index;
        }
        self.heads[bin.row][bin.column] = index;
        self.columns[bin.row] |= 1 << bin.column;
        self.rows |= 1 << bin.row;
    }

    /// Removes a free block from its bin's list.
    pub(super) fn remove(&mut self, headers: &mut Headers, index: u32) {
        let header = headers[index];
        if header.next != NONE {
            headers[header.next].previous = header.previous;
        }
        if header.previous != NONE {
            headers[header.previous].next = header.next;
            return;
        }
        let bin = Bin::of(header.units);
        self.heads[bin.row][bin.column] = header.next;
        if header.next == NONE {
            self.columns[bin.row] &= !(1 << bin.column);
            if self.columns[bin.row] == 0 {
                self.rows &= !(1 << bin.row);
            }
        }
    }

    /// A block of at least this size, in constant time. Skips large enough blocks in the bin of the size
    /// itself.
    pub(super) fn good_fit(&self, units: u64) -> Option<u32> {
        if units > MAX_UNITS {
            return None;
        }
        self.first_from(Bin::at_least(units))
            .map(|bin| self.head(bin))
    }

    /// The lowest non-empty bin from `bin` on.
    pub(super) fn first_from(&self, bin: Bin) -> Option<Bin> {
        let here = self.columns[bin.row] & (u32::MAX << bin.column);
        if here != 0 {
            return Some(Bin {
                row: bin.row,
                column: here.trailing_zeros() as usize,
            });
        }
        let above = self.rows & u32::MAX.checked_shl(bin.row as u32 + 1).unwrap_or(0);
        if above == 0 {
            return None;
        }
        let row = above.trailing_zeros() as usize;
        Some(Bin {
            row,
            column: self.columns[row].trailing_zeros() as usize,
        })
    }

    /// All free blocks in the bin of this size and in higher bins, in that order. Takes time proportional to their number.
    pub(super) fn all_from(&self, headers: &Headers, units: u64) -> Vec<u32> {
        let mut found = Vec::new();
        let mut bin = self.first_from(Bin::of(units));
        while let Some(here) = bin {
            let mut index = self.head(here);
            while index != NONE {
                found.push(index);
                index = headers[index].next;
            }
            bin = here.following().and_then(|bin| self.first_from(bin));
        }
        found
    }

    /// The size of the largest free block, in units. Takes time proportional to the length of one list.
    pub(super) fn largest(&self, headers: &Headers) -> u64 {
        let Some(row) = self.rows.checked_ilog2() else {
            return 0;
        };
        let column = self.columns[row as usize].ilog2();
        let (mut index, mut largest) = (self.heads[row as usize][column as usize], 0);
        while index != NONE {
            largest = largest.max(headers[index].units);
            index = headers[index].next;
        }
        largest
    }
}

impl Bin {
    fn following(self) -> Option<Bin> {
        match (self.row, self.column) {
            (row, column) if column + 1 < SECOND => Some(Bin {
                row,
                column: column + 1,
            }),
            (row, _) if row + 1 < FIRST => Some(Bin {
                row: row + 1,
                column: 0,
            }),
            _ => None,
        }
    }
}

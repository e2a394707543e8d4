//! The device memory that a client may name.
//!
//! Copies and fills are made only inside it, so that a client cannot have the driver read or write the backend's own
//! memory. (This does not bind kernels; they run in this client's process, which has nothing of other clients.)

use crate::codes::Code;
use crate::extent::{Extent, Pitched};
use crate::limits::ALLOCATIONS_MAX;
use std::collections::BTreeMap;

struct Range {
    bytes: u64,
    device: u16,
    /// Whether it is an allocation, which counts towards the limit; variables of libraries do not.
    is_counted: bool,
}

/// Ranges by address.
pub(crate) struct Memory {
    ranges: BTreeMap<u64, Range>,
    used: u64,
    limit: Option<u64>,
}

impl Memory {
    pub(crate) fn new(limit: Option<u64>) -> Memory {
        Memory {
            ranges: BTreeMap::new(),
            used: 0,
            limit,
        }
    }

    /// Bytes that are allocated.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Bytes that may be allocated still, if there is a limit.
    pub(crate) fn left(&self) -> Option<u64> {
        self.limit.map(|limit| limit.saturating_sub(self.used))
    }

    /// Whether so much more may be allocated.
    pub(crate) fn admit(&self, bytes: u64) -> Result<(), Code> {
        let fits = self.left().is_none_or(|left| bytes <= left);
        match fits && self.ranges.len() < ALLOCATIONS_MAX {
            true => Ok(()),
            false => Err(Code::OUT_OF_MEMORY),
        }
    }

    pub(crate) fn add(&mut self, address: u64, bytes: u64, device: u16) {
        self.used += bytes;
        let range = Range {
            bytes,
            device,
            is_counted: true,
        };
        self.ranges.insert(address, range);
    }

    /// Counts memory that has no address.
    pub(crate) fn count(&mut self, bytes: u64) {
        self.used += bytes;
    }

    /// Call when memory that has no address was freed: ends its count.
    pub(crate) fn discount(&mut self, bytes: u64) {
        self.used -= bytes;
    }

    /// Adds a variable of a library. It stays when its library is unloaded: the driver then refuses it.
    pub(crate) fn add_variable(&mut self, address: u64, bytes: u64, device: u16) {
        let range = Range {
            bytes,
            device,
            is_counted: false,
        };
        self.ranges.entry(address).or_insert(range);
    }

    /// Whether this is the start of an allocation.
    pub(crate) fn is_allocation(&self, address: u64) -> Result<(), Code> {
        match self.ranges.get(&address) {
            Some(range) if range.is_counted => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    pub(crate) fn remove(&mut self, address: u64) {
        if let Some(range) = self.ranges.remove(&address) {
            self.used -= range.bytes;
        }
    }

    /// Forgets what was on a device that was reset.
    pub(crate) fn reset(&mut self, device: u16) {
        let mut freed = 0;
        self.ranges.retain(|_, range| {
            let is_gone = range.device == device;
            freed += if is_gone && range.is_counted {
                range.bytes
            } else {
                0
            };
            !is_gone
        });
        self.used -= freed;
    }

    /// Whether all of a range is the client's.
    pub(crate) fn check(&self, address: u64, bytes: u64) -> Result<(), Code> {
        let (start, range) = self
            .ranges
            .range(..=address)
            .next_back()
            .ok_or(Code::INVALID_VALUE)?;
        let inside = address - start;
        let fits = inside <= range.bytes && bytes <= range.bytes - inside;
        match fits {
            true => Ok(()),
            false => Err(Code::INVALID_VALUE),
        }
    }

    /// Whether all rows of an extent are the client's.
    pub(crate) fn check_rows(&self, at: &Pitched, extent: &Extent) -> Result<(), Code> {
        self.check(at.address, span(at, extent).ok_or(Code::INVALID_VALUE)?)
    }
}

/// Bytes from the first to behind the last of the rows; `None` if rows or layers overlap.
pub(crate) fn span(at: &Pitched, extent: &Extent) -> Option<u64> {
    if extent.width_bytes == 0 || extent.height == 0 || extent.depth == 0 {
        return Some(0);
    }
    let rows = extent.height > 1 || extent.depth > 1;
    let layers = extent.depth > 1;
    let layer = at.row_bytes.checked_mul(extent.height)?;
    if rows && at.row_bytes < extent.width_bytes || layers && at.layer_bytes < layer {
        return None;
    }
    let to_layer = at.layer_bytes.checked_mul(extent.depth - 1)?;
    let to_row = at.row_bytes.checked_mul(extent.height - 1)?;
    to_layer
        .checked_add(to_row)?
        .checked_add(extent.width_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_allocated_may_be_named() {
        let mut memory = Memory::new(Some(300));
        memory.add(1000, 100, 0);
        assert_eq!(memory.check(1000, 100), Ok(()));
        assert_eq!(memory.check(1099, 1), Ok(()));
        for (address, bytes) in [(999, 1), (1000, 101), (1101, 0), (1050, u64::MAX), (0, 1)] {
            assert!(memory.check(address, bytes).is_err(), "{address} {bytes}");
        }
        assert_eq!(memory.admit(200), Ok(()));
        assert_eq!(memory.admit(201), Err(Code::OUT_OF_MEMORY));
        memory.remove(1000);
        assert_eq!((memory.used(), memory.admit(300)), (0, Ok(())));
    }

    #[test]
    fn rows_must_not_overlap_and_must_fit() {
        let at = |row_bytes, layer_bytes| Pitched {
            array: 0,
            address: 0,
            row_bytes,
            layer_bytes,
        };
        let extent = |width_bytes, height, depth| Extent {
            width_bytes,
            height,
            depth,
        };
        assert_eq!(span(&at(16, 0), &extent(10, 3, 1)), Some(42));
        assert_eq!(span(&at(16, 64), &extent(10, 3, 2)), Some(106));
        assert_eq!(span(&at(0, 0), &extent(10, 1, 1)), Some(10));
        assert_eq!(span(&at(8, 0), &extent(10, 2, 1)), None);
        assert_eq!(span(&at(16, 40), &extent(10, 3, 2)), None);
        assert_eq!(span(&at(u64::MAX, 0), &extent(1, 3, 1)), None);
    }
}

//! Positions and sizes of copies: rows and layers of memory, and parts of arrays.

use serde::{Deserialize, Serialize};

/// A position in memory of rows and layers, or in an array.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pitched {
    /// The array, or 0. An array has no addresses, so `address` counts bytes as if its rows and layers followed each other.
    pub array: u64,
    /// Address of the first byte.
    pub address: u64,
    /// Bytes from a row to the next.
    pub row_bytes: u64,
    /// Bytes from a layer to the next.
    pub layer_bytes: u64,
}

impl Pitched {
    /// Rows in memory, so many bytes from one to the next.
    pub fn rows(address: u64, row_bytes: u64) -> Pitched {
        Pitched {
            address,
            row_bytes,
            ..Pitched::default()
        }
    }

    /// Memory in which the rows of an extent follow each other.
    pub fn packed(address: u64, extent: &Extent) -> Pitched {
        Pitched {
            layer_bytes: extent.width_bytes * extent.height,
            ..Pitched::rows(address, extent.width_bytes)
        }
    }
}

/// How many bytes, rows and layers a copy has from a [`Pitched`] on.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    /// Bytes of a row.
    pub width_bytes: u64,
    /// Rows of a layer.
    pub height: u64,
    /// Layers.
    pub depth: u64,
}

impl Extent {
    /// All bytes; `None` if their number does not fit.
    pub fn bytes(&self) -> Option<u64> {
        self.width_bytes
            .checked_mul(self.height)?
            .checked_mul(self.depth)
    }

    /// Whether it is one row only.
    pub fn is_row(&self) -> bool {
        self.height == 1 && self.depth == 1
    }
}

/// One row: `bytes` bytes from `address` on.
pub fn row(address: u64, bytes: u64) -> (Pitched, Extent) {
    let at = Pitched {
        array: 0,
        address,
        row_bytes: bytes,
        layer_bytes: bytes,
    };
    let extent = Extent {
        width_bytes: bytes,
        height: 1,
        depth: 1,
    };
    (at, extent)
}

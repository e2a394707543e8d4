//! Copies of bytes that follow each other, from or to an array: row after row.

use crate::session;
use crate::transfer::{copy_rows, Direction, Order};
use rgaps_remoting::{Code, Extent, Pitched};

/// Bytes that follow each other: in memory, or in an array from a position on.
#[derive(Clone, Copy)]
pub(crate) struct Run(Pitched);

impl Run {
    /// From an address on.
    pub(crate) fn memory(address: u64) -> Run {
        Run(Pitched {
            address,
            ..Pitched::default()
        })
    }

    /// From a position in an array on.
    pub(crate) fn array(at: Pitched) -> Run {
        Run(at)
    }

    /// Bytes to the end of the row.
    fn rest(&self) -> u64 {
        match self.0.row_bytes {
            0 => u64::MAX,
            row => row - self.0.address % row,
        }
    }

    /// Whether whole rows of this length begin here.
    fn has_rows_of(&self, width: u64) -> bool {
        self.0.row_bytes == 0 || self.rest() == self.0.row_bytes && self.0.row_bytes == width
    }

    /// The next bytes.
    fn take(&mut self, extent: &Extent) -> Pitched {
        let mut at = self.0;
        self.0.address += extent.width_bytes * extent.height;
        if at.row_bytes == 0 {
            at.row_bytes = extent.width_bytes;
        }
        at
    }
}

/// The most that one call can copy.
fn next(to: &Run, from: &Run, left: u64) -> Extent {
    let width_bytes = left.min(to.rest()).min(from.rest());
    let are_rows = to.has_rows_of(width_bytes) && from.has_rows_of(width_bytes);
    Extent {
        width_bytes,
        height: if are_rows { left / width_bytes } else { 1 },
        depth: 1,
    }
}

/// Copies bytes. `direction` `None`: as the two ends imply.
pub(crate) fn copy(
    mut to: Run,
    mut from: Run,
    bytes: usize,
    direction: Option<Direction>,
    order: Order,
) -> Result<(), Code> {
    let direction = direction.unwrap_or_else(|| Direction::of(&to.0, &from.0));
    let mut left = bytes as u64;
    if left == 0 {
        return session::check_alive();
    }
    while left > 0 {
        let extent = next(&to, &from, left);
        left -= extent.width_bytes * extent.height;
        copy_rows(
            to.take(&extent),
            from.take(&extent),
            extent,
            direction,
            order,
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_array(address: u64, row_bytes: u64) -> Run {
        Run(Pitched {
            array: 1,
            address,
            row_bytes,
            layer_bytes: 1000,
        })
    }

    /// Address of the array, width and height of each call.
    fn calls(mut to: Run, mut from: Run, mut left: u64) -> Vec<(u64, u64, u64)> {
        let mut all = Vec::new();
        while left > 0 {
            let extent = next(&to, &from, left);
            left -= extent.width_bytes * extent.height;
            all.push((to.take(&extent).address, extent.width_bytes, extent.height));
            from.take(&extent);
        }
        all
    }

    #[test]
    fn whole_rows_go_together() {
        let memory = Run::memory(1 << 40);
        let whole = calls(in_array(20, 10), memory, 40);
        assert_eq!(whole, [(20, 10, 4)]);
        let parts = calls(in_array(4, 10), memory, 30);
        assert_eq!(parts, [(4, 6, 1), (10, 10, 2), (30, 4, 1)]);
        assert_eq!(calls(in_array(4, 10), memory, 3), [(4, 3, 1)]);
        let rows_of_others = calls(in_array(0, 10), in_array(0, 15), 30);
        assert_eq!(
            rows_of_others,
            [(0, 10, 1), (10, 5, 1), (15, 5, 1), (20, 10, 1)]
        );
    }
}

//! Copies in pieces that fit a buffer.

use crate::call::{Extent, Pitched};
use crate::limits::{STRIPE_PIECES, STRIPE_PIECE_BYTES};

/// A part of a copy: where it begins, and how much it is.
pub type Piece = (Pitched, Extent);

/// Cuts a copy into pieces of at most `most` bytes and one layer, in the order in which the bytes travel.
pub fn pieces(at: Pitched, extent: Extent, most: u64) -> impl Iterator<Item = Piece> {
    let width = extent.width_bytes;
    let column = width.min(most).max(1);
    let columns = width.div_ceil(column);
    // Rows that go together; one where a row is cut itself.
    let group = match columns {
        0 | 1 => (most / column).clamp(1, extent.height.max(1)),
        _ => 1,
    };
    let groups = extent.height.div_ceil(group);
    let count = extent.depth * groups * columns;
    (0..count).map(move |number| {
        let (layer, rest) = (number / (groups * columns), number % (groups * columns));
        let (row, x) = (rest / columns * group, rest % columns * column);
        let piece = Pitched {
            address: at.address + layer * at.layer_bytes + row * at.row_bytes + x,
            ..at
        };
        let extent = Extent {
            width_bytes: column.min(width - x),
            height: group.min(extent.height - row),
            depth: 1,
        };
        (piece, extent)
    })
}

/// The parts of `bytes` bytes that travel over the stripe `index` of `stripes`, in their order: offset and length.
pub(crate) fn stripe(
    bytes: usize,
    index: usize,
    stripes: usize,
) -> impl Iterator<Item = (usize, usize)> {
    let stripes = stripes.max(1);
    let piece = (bytes / (stripes * STRIPE_PIECES)).next_multiple_of(4096);
    let piece = piece.clamp(*STRIPE_PIECE_BYTES.start(), *STRIPE_PIECE_BYTES.end());
    (index..bytes.div_ceil(piece))
        .step_by(stripes)
        .map(move |number| {
            let offset = number * piece;
            (offset, piece.min(bytes - offset))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::STAGING_BYTES;

    fn cut(width_bytes: u64, height: u64, depth: u64) -> Vec<Piece> {
        let at = Pitched {
            array: 0,
            address: 0,
            row_bytes: width_bytes + 10,
            layer_bytes: (width_bytes + 10) * height + 100,
        };
        let extent = Extent {
            width_bytes,
            height,
            depth,
        };
        let all: Vec<_> = pieces(at, extent, STAGING_BYTES as u64).collect();
        let bytes: u64 = all.iter().map(|(_, e)| e.width_bytes * e.height).sum();
        assert_eq!(bytes, width_bytes * height * depth);
        assert!(all
            .iter()
            .all(|(_, e)| e.width_bytes * e.height <= STAGING_BYTES as u64));
        all
    }

    #[test]
    fn stripes_have_each_byte_once() {
        for (bytes, count) in [(1, 1), (1 << 20, 4), (4 << 20, 12), ((64 << 20) + 7, 65)] {
            let mut all: Vec<_> = (0..3).flat_map(|index| stripe(bytes, index, 3)).collect();
            all.sort();
            assert_eq!(all.len(), count, "{bytes}");
            let end = all.iter().fold(0, |end, (offset, length)| {
                assert_eq!(end, *offset);
                end + length
            });
            assert_eq!(end, bytes);
        }
    }

    #[test]
    fn copies_are_cut_into_pieces_that_fit() {
        assert_eq!(cut(100, 1, 1).len(), 1);
        assert_eq!(cut(100, 50, 3).len(), 3);
        let most = STAGING_BYTES as u64;
        let long = cut(most * 2 + 1, 2, 1);
        assert_eq!(long.len(), 6);
        assert_eq!(long[3].0.address, most * 2 + 11);
        assert_eq!(
            cut(1 << 20, 9, 1).len(),
            9_usize.div_ceil(STAGING_BYTES >> 20)
        );
        assert!(cut(0, 1, 1).is_empty() && cut(5, 0, 1).is_empty());
    }
}

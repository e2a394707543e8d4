//! Arrays: memory of the GPU for textures and surfaces, whose layout only the driver knows. Both ends compute sizes and positions from the
//! array's shape.

use crate::codes::Code;
use crate::extent::{Extent, Pitched};
use serde::{Deserialize, Serialize};

/// Bytes of `CUDA_TEXTURE_DESC`.
pub const SAMPLER_BYTES: usize = 104;
/// Bytes of `CUDA_RESOURCE_VIEW_DESC`.
pub const VIEW_BYTES: usize = 112;
/// Most elements in any direction, far above every GPU's limits, which the driver checks. Products of three fit 64 bits.
const SIDE_MAX: u64 = 1 << 18;
/// `CUDA_ARRAY3D_LAYERED`, `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`.
const LAYERED: u32 = 1;
const WITHOUT_MEMORY: u32 = 0x40 | 0x80;

/// `CUDA_ARRAY3D_DESCRIPTOR`: elements in each direction, 0 in directions that the array does not have.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    /// Elements of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// Layers.
    pub depth: u64,
    /// `CUarray_format`.
    pub format: u32,
    /// Channels of an element.
    pub channels: u32,
    /// `CUDA_ARRAY3D_LAYERED` and others.
    pub flags: u32,
}

impl Shape {
    /// Refuses formats whose elements are not channels of whole bytes, and memory that another call maps.
    pub fn check(&self) -> Result<(), Code> {
        if channel_bytes(self.format).is_none() || self.flags & WITHOUT_MEMORY != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let sides = [self.width, self.height, self.depth];
        let is_valid = self.width > 0
            && [1, 2, 4].contains(&self.channels)
            && sides.iter().all(|side| *side <= SIDE_MAX);
        match is_valid {
            true => Ok(()),
            false => Err(Code::INVALID_VALUE),
        }
    }

    /// Bytes of an element.
    pub fn element_bytes(&self) -> u64 {
        channel_bytes(self.format).unwrap_or(0) * u64::from(self.channels)
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        self.width * self.element_bytes()
    }

    /// Bytes of a layer.
    pub fn layer_bytes(&self) -> u64 {
        self.row_bytes() * self.height.max(1)
    }

    /// Bytes of all elements, without the driver's padding.
    pub fn bytes(&self) -> u64 {
        self.layer_bytes() * self.depth.max(1)
    }

    /// The shape of a level of a mipmapped array: each one is half as long in each direction.
    pub fn level(&self, level: u32) -> Shape {
        let half = |side: u64| match side {
            0 => 0,
            side => side.checked_shr(level).unwrap_or(0).max(1),
        };
        Shape {
            width: half(self.width),
            height: half(self.height),
            depth: match self.flags & LAYERED {
                0 => half(self.depth),
                _ => self.depth,
            },
            ..*self
        }
    }

    /// Most levels of a mipmapped array.
    pub fn levels_max(&self) -> u32 {
        let depth = match self.flags & LAYERED {
            0 => self.depth,
            _ => 0,
        };
        self.width.max(self.height).max(depth).max(1).ilog2() + 1
    }

    /// Where an element of the array with this number is: `x` counts bytes, `y` rows, `z` layers.
    pub fn element(&self, array: u64, (x, y, z): (u64, u64, u64)) -> Option<Pitched> {
        let (row_bytes, layer_bytes) = (self.row_bytes(), self.layer_bytes());
        let layers = z.checked_mul(layer_bytes)?;
        let rows = y.checked_mul(row_bytes)?;
        Some(Pitched {
            array,
            address: layers.checked_add(rows)?.checked_add(x)?,
            row_bytes,
            layer_bytes,
        })
    }

    /// The bytes in its row, the rows in its layer and the layers that precede a position.
    pub fn position(&self, at: &Pitched) -> (u64, u64, u64) {
        let in_layer = at.address % self.layer_bytes();
        (
            in_layer % self.row_bytes(),
            in_layer / self.row_bytes(),
            at.address / self.layer_bytes(),
        )
    }

    /// Whether all of an extent is inside the array.
    pub fn holds(&self, at: &Pitched, extent: &Extent) -> Result<(), Code> {
        let (x, y, z) = self.position(at);
        let fits = |from: u64, length: u64, end: u64| length <= end.saturating_sub(from);
        let is_inside = (at.row_bytes, at.layer_bytes) == (self.row_bytes(), self.layer_bytes())
            && fits(x, extent.width_bytes, self.row_bytes())
            && fits(y, extent.height, self.height.max(1))
            && fits(z, extent.depth, self.depth.max(1));
        match is_inside {
            true => Ok(()),
            false => Err(Code::INVALID_VALUE),
        }
    }
}

/// Bytes of a channel of a `CUarray_format`: integers and floats, plain and normalised.
fn channel_bytes(format: u32) -> Option<u64> {
    match format {
        0x01 | 0x08 | 0xc0..=0xc2 | 0xc6..=0xc8 => Some(1),
        0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => Some(2),
        0x03 | 0x0a | 0x20 => Some(4),
        _ => None,
    }
}

/// What a texture reads: `CUDA_RESOURCE_DESC`.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "its fields are those of CUDA's structure")]
pub enum Resource {
    /// An array.
    Array(u64),
    /// A mipmapped array.
    Mipmap(u64),
    /// Memory of the device.
    Linear {
        address: u64,
        format: u32,
        channels: u32,
        bytes: u64,
    },
    /// Rows of memory of the device.
    Rows {
        address: u64,
        format: u32,
        channels: u32,
        width: u64,
        height: u64,
        pitch: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(width: u64, height: u64, depth: u64) -> Shape {
        Shape {
            width,
            height,
            depth,
            format: 0x20,
            channels: 2,
            flags: 0,
        }
    }

    fn extent(width_bytes: u64, height: u64, depth: u64) -> Extent {
        Extent {
            width_bytes,
            height,
            depth,
        }
    }

    #[test]
    fn sizes_follow_from_the_shape() {
        let array = shape(10, 6, 3);
        assert_eq!((array.element_bytes(), array.row_bytes()), (8, 80));
        assert_eq!((array.layer_bytes(), array.bytes()), (480, 1440));
        assert_eq!(shape(10, 0, 0).bytes(), 80);
        let wide = array.level(1);
        assert_eq!((wide.width, wide.height, wide.depth), (5, 3, 1));
        let layered = Shape {
            flags: LAYERED,
            ..array
        }
        .level(9);
        assert_eq!((layered.width, layered.height, layered.depth), (1, 1, 3));
        assert_eq!((array.levels_max(), shape(1, 0, 0).levels_max()), (4, 1));
    }

    #[test]
    fn elements_lead_back_to_their_positions() {
        let array = shape(10, 6, 3);
        let at = array.element(5, (16, 4, 2)).unwrap();
        assert_eq!((at.array, at.address), (5, 2 * 480 + 4 * 80 + 16));
        assert_eq!(array.position(&at), (16, 4, 2));
        assert_eq!(array.element(5, (0, u64::MAX, 0)), None);
    }

    #[test]
    fn only_what_is_inside_may_be_named() {
        let array = shape(10, 6, 3);
        let at = array.element(5, (16, 4, 2)).unwrap();
        assert_eq!(array.holds(&at, &extent(64, 2, 1)), Ok(()));
        for wrong in [extent(65, 2, 1), extent(64, 3, 1), extent(64, 2, 2)] {
            assert!(array.holds(&at, &wrong).is_err(), "{wrong:?}");
        }
        let all = extent(u64::MAX, u64::MAX, u64::MAX);
        assert!(array.holds(&at, &all).is_err());
        // A client may send any numbers.
        let far = Pitched {
            address: u64::MAX,
            ..at
        };
        assert!(array.holds(&far, &extent(1, 1, 1)).is_err());
        let other = Pitched { row_bytes: 8, ..at };
        assert!(array.holds(&other, &extent(1, 1, 1)).is_err());
    }

    #[test]
    fn formats_and_sides_have_limits() {
        let array = shape(10, 6, 3);
        assert_eq!(array.check(), Ok(()));
        let packed = Shape {
            format: 0x91,
            ..array
        };
        assert_eq!(packed.check(), Err(Code::NOT_SUPPORTED));
        let sparse = Shape {
            flags: 0x40,
            ..array
        };
        assert_eq!(sparse.check(), Err(Code::NOT_SUPPORTED));
        for wrong in [
            shape(0, 6, 3),
            shape(SIDE_MAX + 1, 0, 0),
            shape(1, u64::MAX, 1),
            Shape {
                channels: 3,
                ..array
            },
        ] {
            assert_eq!(wrong.check(), Err(Code::INVALID_VALUE), "{wrong:?}");
        }
    }
}

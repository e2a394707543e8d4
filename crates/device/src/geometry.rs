//! Sizes of a topic, and where its tables lie.

use crate::DeviceError;
use rgaps_layout::{
    DeviceSeat, DEVICE_BLOCK_ALIGN, DEVICE_HOLDER_BYTES, MAX_DEVICE_BLOCKS, MAX_DEVICE_DEPTH,
    MAX_DEVICE_SUBSCRIBERS, MAX_POOL_BYTES,
};

const WORD_BYTES: u64 = size_of::<u64>() as u64;

/// The sizes of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Messages in the ring, a power of two. A subscriber that is further behind misses some or, if it is reliable, back-pressures the
    /// publisher.
    pub depth: u32,
    /// Blocks: those in the ring, and those that may be loaned or held beside them.
    pub blocks: u32,
    /// Bytes of the largest message.
    pub block_bytes: u64,
}

impl Geometry {
    /// Checks that a topic can have these sizes, and rounds the blocks up to their alignment.
    pub(crate) fn checked(self) -> Result<Geometry, DeviceError> {
        let refuse = |why: String| Err(DeviceError::Argument(why));
        let Geometry {
            depth,
            blocks,
            block_bytes,
        } = self;
        if !depth.is_power_of_two() || depth > MAX_DEVICE_DEPTH {
            return refuse(format!(
                "a device topic cannot have a depth of {depth}; it must be a power of two, at most {MAX_DEVICE_DEPTH}"
            ));
        }
        if blocks <= depth || blocks > MAX_DEVICE_BLOCKS {
            return refuse(format!(
                "a device topic of depth {depth} cannot have {blocks} blocks; it must have more than its depth, \
                 at most {MAX_DEVICE_BLOCKS}"
            ));
        }
        if block_bytes == 0 || block_bytes > MAX_POOL_BYTES / u64::from(blocks) / 2 {
            return refuse(format!(
                "a device topic cannot have {blocks} blocks of {block_bytes} bytes"
            ));
        }
        Ok(Geometry {
            block_bytes: block_bytes.next_multiple_of(DEVICE_BLOCK_ALIGN),
            ..self
        })
    }

    /// Where the lengths start in the ring segment, behind the slots.
    pub(crate) fn lengths_at(&self) -> u64 {
        u64::from(self.depth) * WORD_BYTES
    }

    /// Where the blocks start in the ring segment. All bytes before must be zero at first.
    pub(crate) fn blocks_at(&self) -> u64 {
        (self.lengths_at() + u64::from(self.blocks) * WORD_BYTES)
            .next_multiple_of(DEVICE_BLOCK_ALIGN)
    }

    /// Bytes used of the ring segment.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.blocks_at() + u64::from(self.blocks) * self.block_bytes
    }

    /// Where the holder words start in the words segment, behind the seats, of which the last is the publisher's.
    pub(crate) fn holders_at(&self) -> u64 {
        u64::from(MAX_DEVICE_SUBSCRIBERS + 1) * size_of::<DeviceSeat>() as u64
    }

    /// Bytes used of the words segment. All must be zero at first.
    pub(crate) fn words_bytes(&self) -> u64 {
        self.holders_at() + u64::from(self.blocks) * DEVICE_HOLDER_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_sizes_are_refused() {
        let good = Geometry {
            depth: 8,
            blocks: 12,
            block_bytes: 100,
        };
        assert_eq!(good.checked().unwrap().block_bytes, 256);
        for bad in [
            Geometry { depth: 0, ..good },
            Geometry { depth: 6, ..good },
            Geometry {
                depth: 1 << 16,
                blocks: 65535,
                ..good
            },
            Geometry { blocks: 8, ..good },
            Geometry {
                blocks: 65536,
                ..good
            },
            Geometry {
                block_bytes: 0,
                ..good
            },
            Geometry {
                block_bytes: 1 << 40,
                ..good
            },
            Geometry {
                block_bytes: u64::MAX,
                ..good
            },
        ] {
            assert!(
                matches!(bad.checked(), Err(DeviceError::Argument(_))),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn tables_do_not_overlap() {
        let largest = Geometry {
            depth: MAX_DEVICE_DEPTH,
            blocks: MAX_DEVICE_BLOCKS,
            block_bytes: 1,
        };
        let largest = largest.checked().unwrap();
        assert!(
            largest.lengths_at() < largest.blocks_at()
                && largest.blocks_at() % DEVICE_BLOCK_ALIGN == 0
        );
        assert_eq!(
            largest.ring_bytes(),
            largest.blocks_at() + u64::from(MAX_DEVICE_BLOCKS) * 256
        );
        assert!(largest.holders_at() % DEVICE_HOLDER_BYTES == 0);
    }
}

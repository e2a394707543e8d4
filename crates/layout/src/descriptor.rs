//! The flags of a [`Descriptor`](crate::Descriptor), and its words that have several fields.

use crate::define::packed;
use crate::{DType, MAX_REPLICAS};

/// `BlockWord::flags` bit: the element type, `shape` and `strides` are filled in.
pub const DESCRIPTOR_TYPED: u8 = 1;
/// `BlockWord::flags` bit: the timeline and `point` are filled in. Without it the bytes are complete.
pub const DESCRIPTOR_QUEUED: u8 = 2;
/// `BlockWord::flags` bit: `replicas` is filled in.
pub const DESCRIPTOR_COPIED: u8 = 4;
/// `BlockWord::flags` bit: `missed_so_far` is filled in. Without it, it counts as 0.
pub const DESCRIPTOR_MISSED: u8 = 8;
/// `BlockWord::flags` bit: the message has metadata (an attachment, parts): `metadata` says how much, and the ring
/// slot's metadata area holds it.
pub const DESCRIPTOR_METADATA: u8 = 16;

/// Words of `Descriptor::replicas`.
pub const REPLICA_PAIRS: usize = MAX_REPLICAS / 2;

packed! {
    /// `Descriptor::block`: the block of a message's bytes, and which other fields of the descriptor are filled in.
    pub struct BlockWord {
        /// Index into the publisher's block table.
        pub block: u32,
        /// Index of the pool in the zone.
        pub pool: u16,
        /// Dimensions, with `DESCRIPTOR_TYPED`.
        pub ndim: u8,
        /// `DESCRIPTOR_TYPED` and the others.
        pub flags: u8,
    }

    /// `Descriptor::element`: the element type, with `DESCRIPTOR_TYPED`, and the timeline of the message's point, with
    /// `DESCRIPTOR_QUEUED`.
    pub struct ElementWord {
        /// `DType::code`.
        pub dtype_code: u8,
        /// `DType::bits`.
        pub dtype_bits: u8,
        /// `DType::lanes`.
        pub dtype_lanes: u16,
        /// Index of the timeline.
        pub timeline: u32,
    }

    /// A word of `Descriptor::replicas`: the indices of two replicas' blocks, plus 1; 0: none.
    pub struct ReplicaPair {
        /// The first replica.
        pub first: u32,
        /// The second replica.
        pub second: u32,
    }
}

impl ElementWord {
    /// Element type and timeline in one.
    #[inline]
    pub fn new(dtype: DType, timeline: u32) -> ElementWord {
        ElementWord {
            dtype_code: dtype.code,
            dtype_bits: dtype.bits,
            dtype_lanes: dtype.lanes,
            timeline,
        }
    }

    /// The element type.
    #[inline]
    pub fn dtype(self) -> DType {
        DType {
            code: self.dtype_code,
            bits: self.dtype_bits,
            lanes: self.dtype_lanes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_in_their_word_as_in_memory() {
        let block = BlockWord {
            block: 0x0102_0304,
            pool: 0x0506,
            ndim: 7,
            flags: 8,
        };
        assert_eq!(block.to_word(), 0x0807_0506_0102_0304);
        assert_eq!(BlockWord::of_word(block.to_word()), block);
        let dtype = DType {
            code: 1,
            bits: 2,
            lanes: 0x0304,
        };
        let element = ElementWord::new(dtype, 0x0506_0708);
        assert_eq!(element.to_word(), 0x0506_0708_0304_0201);
        assert_eq!(ElementWord::of_word(element.to_word()).dtype(), dtype);
        let pair = ReplicaPair {
            first: 1,
            second: 2,
        };
        assert_eq!(pair.to_word(), 2 << 32 | 1);
    }
}

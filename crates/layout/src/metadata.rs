//! Metadata: the attachment of a message and the table of its parts.
//!
//! A message's *attachment* is a few bytes of the user's that travel beside the payload; a *header* is an
//! attachment in a standard encoding. A message's *parts* are named arrays that share its block.
//! Both lie in the ring slot's metadata area, in this order, and travel between hosts in the same form:
//!
//! ```text
//! 0                                       attachment, `attachment_bytes` bytes
//! attachment_bytes, rounded up to 8       PartEntry[parts]
//! ```
//! The lengths are in `Descriptor::metadata`, valid with [`DESCRIPTOR_METADATA`](crate::DESCRIPTOR_METADATA). All numbers are little-endian.

use crate::define::{encoded, packed};
use crate::{DType, MAX_ATTACHMENT_BYTES, MAX_DIMS, MAX_MESSAGE_PARTS, MAX_PART_NAME};
use std::mem::size_of;

/// `MetadataLengths::attachment_kind`: bytes whose meaning is the user's.
pub const ATTACHMENT_RAW: u16 = 0;
/// `MetadataLengths::attachment_kind`: a header, as `rgaps::Header` encodes it.
pub const ATTACHMENT_HEADER: u16 = 1;
/// Most bytes of metadata of one message.
pub const MAX_METADATA_BYTES: usize = MAX_ATTACHMENT_BYTES + MAX_MESSAGE_PARTS * PART_ENTRY_BYTES;
/// Size of a [`PartEntry`].
pub const PART_ENTRY_BYTES: usize = size_of::<PartEntry>();

encoded! {
    /// One part of a message: a named array in the message's block.
    #[allow(missing_docs)]
    pub struct PartEntry [216] {
        /// Offset of the part's first byte from the message's first byte.
          0 offset: u64,
          8 bytes: u64,
         16 dtype_code: u8,
         17 dtype_bits: u8,
         18 dtype_lanes: u16,
         20 ndim: u8,
         21 name_bytes: u8,
         22 reserved: u16,
        /// Lengths in elements, per dimension.
         24 shape: [u64; MAX_DIMS],
        /// Strides in elements, per dimension.
         88 strides: [i64; MAX_DIMS],
        /// UTF-8, `name_bytes` of it; the rest is 0.
        152 name: [u8; MAX_PART_NAME + 1],
    }
}

impl PartEntry {
    /// The element type.
    pub fn dtype(&self) -> DType {
        DType {
            code: self.dtype_code,
            bits: self.dtype_bits,
            lanes: self.dtype_lanes,
        }
    }

    /// The name. None if it is invalid: not UTF-8, empty, or longer than [`MAX_PART_NAME`].
    pub fn name(&self) -> Option<&str> {
        let name = self.name.get(..usize::from(self.name_bytes))?;
        let name = std::str::from_utf8(name).ok()?;
        (!name.is_empty() && name.len() <= MAX_PART_NAME).then_some(name)
    }
}

packed! {
    /// How much metadata a message has: `Descriptor::metadata`.
    pub struct MetadataLengths {
        /// Bytes of the attachment.
        pub attachment_bytes: u32,
        /// [`ATTACHMENT_RAW`] or [`ATTACHMENT_HEADER`].
        pub attachment_kind: u16,
        /// Entries of the table of parts.
        pub parts: u16,
    }
}

impl MetadataLengths {
    /// The lengths in a descriptor's word. None if they exceed the limits.
    pub fn from_word(word: u64) -> Option<MetadataLengths> {
        let lengths = MetadataLengths::of_word(word);
        lengths.is_sound().then_some(lengths)
    }

    /// Whether the lengths are within the limits. Check this for lengths that a peer wrote.
    pub fn is_sound(self) -> bool {
        self.attachment_bytes as usize <= MAX_ATTACHMENT_BYTES
            && self.attachment_kind <= ATTACHMENT_HEADER
            && usize::from(self.parts) <= MAX_MESSAGE_PARTS
    }

    /// Offset of the table of parts.
    pub fn parts_at(self) -> usize {
        (self.attachment_bytes as usize).next_multiple_of(8)
    }

    /// Bytes of attachment and parts together, a multiple of 8.
    pub fn bytes(self) -> usize {
        self.parts_at() + usize::from(self.parts) * PART_ENTRY_BYTES
    }
}

const _: () = {
    assert!(MAX_ATTACHMENT_BYTES % 8 == 0 && PART_ENTRY_BYTES % 8 == 0);
    assert!(MAX_PART_NAME < u8::MAX as usize);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_encoded_as_it_lies_in_memory() {
        let mut name = [0; MAX_PART_NAME + 1];
        name[..3].copy_from_slice(b"rgb");
        let entry = PartEntry {
            offset: 0x0102_0304_0506_0708,
            bytes: 0x1112_1314_1516_1718,
            dtype_code: 2,
            dtype_bits: 32,
            dtype_lanes: 0x0203,
            ndim: 8,
            name_bytes: 3,
            reserved: 0,
            shape: std::array::from_fn(|dim| dim as u64 + 1),
            strides: std::array::from_fn(|dim| -(dim as i64)),
            name,
        };
        let bytes = entry.encode();
        assert_eq!(PartEntry::decode(&bytes), entry);
        assert_eq!(entry.name(), Some("rgb"));
        assert_eq!(bytes[0], 8);
        assert_eq!(bytes[18..20], [3, 2]);
        assert_eq!(bytes[24 + 8 * 7], 8);
        assert_eq!(bytes[88 + 8..88 + 16], [0xff; 8]);
        assert_eq!(&bytes[152..156], b"rgb\0");
    }

    #[test]
    fn names_that_lie_are_none() {
        let entry = |name: &[u8], name_bytes: usize| {
            let mut entry = PartEntry::decode(&[0; PART_ENTRY_BYTES]);
            entry.name[..name.len()].copy_from_slice(name);
            entry.name_bytes = name_bytes as u8;
            entry
        };
        assert_eq!(entry(b"", 0).name(), None);
        assert_eq!(entry(b"\xff", 1).name(), None);
        assert_eq!(entry(b"a", 255).name(), None);
        assert_eq!(entry(&[b'a'; 64], 64).name(), None);
        assert_eq!(entry(&[b'a'; 63], 63).name().map(str::len), Some(63));
    }

    #[test]
    fn lengths_are_bounded() {
        let most = MetadataLengths {
            attachment_bytes: MAX_ATTACHMENT_BYTES as u32,
            attachment_kind: ATTACHMENT_HEADER,
            parts: MAX_MESSAGE_PARTS as u16,
        };
        assert_eq!(MetadataLengths::from_word(most.to_word()), Some(most));
        assert_eq!(most.bytes(), MAX_METADATA_BYTES);
        for beyond in [1u64, 1 << 32, 1 << 48] {
            assert_eq!(MetadataLengths::from_word(most.to_word() + beyond), None);
        }
        let odd = MetadataLengths {
            attachment_bytes: 5,
            parts: 1,
            ..MetadataLengths::default()
        };
        assert_eq!((odd.parts_at(), odd.bytes()), (8, 8 + PART_ENTRY_BYTES));
    }
}

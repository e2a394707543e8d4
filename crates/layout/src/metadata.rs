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
//! The lengths are in word [`METADATA_WORD`] of the descriptor, valid with
//! [`DESCRIPTOR_METADATA`](crate::DESCRIPTOR_METADATA). All numbers are little-endian.

use crate::{DType, MAX_ATTACHMENT_BYTES, MAX_DIMS, MAX_MESSAGE_PARTS, MAX_PART_NAME};
use std::mem::{offset_of, size_of};

/// `Descriptor::attachment_kind`: bytes whose meaning only the user knows.
pub const ATTACHMENT_RAW: u16 = 0;
/// `Descriptor::attachment_kind`: a header, as `rgaps::Header` encodes it.
pub const ATTACHMENT_HEADER: u16 = 1;
/// Number of the descriptor's word with `attachment_bytes`, `attachment_kind` and `parts`.
pub const METADATA_WORD: usize = 10;
/// Most bytes of metadata of one message.
pub const MAX_METADATA_BYTES: usize = MAX_ATTACHMENT_BYTES + MAX_MESSAGE_PARTS * PART_ENTRY_BYTES;
/// Size of a [`PartEntry`].
pub const PART_ENTRY_BYTES: usize = size_of::<PartEntry>();

/// One part of a message: a named array in the message's block.
///
/// ```text
///   0 offset      u64  of the first byte, from the message's first
///   8 bytes       u64
///  16 dtype_code u8, dtype_bits u8, dtype_lanes u16, ndim u8, name_bytes u8, reserved u16
///  24 shape       [u64; 8]  elements
///  88 strides     [i64; 8]  elements
/// 152 name        [u8; 64]  UTF-8, `name_bytes` of it; the rest is 0
/// 216
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the diagram above
pub struct PartEntry {
    pub offset: u64,
    pub bytes: u64,
    pub dtype_code: u8,
    pub dtype_bits: u8,
    pub dtype_lanes: u16,
    pub ndim: u8,
    pub name_bytes: u8,
    pub reserved: u16,
    pub shape: [u64; MAX_DIMS],
    pub strides: [i64; MAX_DIMS],
    pub name: [u8; MAX_PART_NAME + 1],
}

const SHAPE_AT: usize = offset_of!(PartEntry, shape);
const STRIDES_AT: usize = offset_of!(PartEntry, strides);
const NAME_AT: usize = offset_of!(PartEntry, name);

impl PartEntry {
    /// The element type.
    pub fn dtype(&self) -> DType {
        DType {
            code: self.dtype_code,
            bits: self.dtype_bits,
            lanes: self.dtype_lanes,
        }
    }

    /// The name, if it is one: UTF-8, not empty, and not longer than [`MAX_PART_NAME`].
    pub fn name(&self) -> Option<&str> {
        let name = self.name.get(..usize::from(self.name_bytes))?;
        let name = std::str::from_utf8(name).ok()?;
        (!name.is_empty() && name.len() <= MAX_PART_NAME).then_some(name)
    }

    /// As it lies in memory and travels between hosts.
    pub fn encode(&self) -> [u8; PART_ENTRY_BYTES] {
        let mut to = [0; PART_ENTRY_BYTES];
        to[..8].copy_from_slice(&self.offset.to_le_bytes());
        to[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        to[16] = self.dtype_code;
        to[17] = self.dtype_bits;
        to[18..20].copy_from_slice(&self.dtype_lanes.to_le_bytes());
        to[20] = self.ndim;
        to[21] = self.name_bytes;
        for dim in 0..MAX_DIMS {
            let at = SHAPE_AT + 8 * dim;
            to[at..at + 8].copy_from_slice(&self.shape[dim].to_le_bytes());
            let at = STRIDES_AT + 8 * dim;
            to[at..at + 8].copy_from_slice(&self.strides[dim].to_le_bytes());
        }
        to[NAME_AT..].copy_from_slice(&self.name);
        to
    }

    /// The entry that these bytes are; its fields are a peer's words, and not checked.
    pub fn decode(from: &[u8; PART_ENTRY_BYTES]) -> PartEntry {
        let word = |at: usize| {
            let word = from[at..at + 8].try_into();
            u64::from_le_bytes(word.expect("eight bytes"))
        };
        let mut name = [0; MAX_PART_NAME + 1];
        name.copy_from_slice(&from[NAME_AT..]);
        PartEntry {
            offset: word(0),
            bytes: word(8),
            dtype_code: from[16],
            dtype_bits: from[17],
            dtype_lanes: u16::from_le_bytes([from[18], from[19]]),
            ndim: from[20],
            name_bytes: from[21],
            reserved: u16::from_le_bytes([from[22], from[23]]),
            shape: std::array::from_fn(|dim| word(SHAPE_AT + 8 * dim)),
            strides: std::array::from_fn(|dim| word(STRIDES_AT + 8 * dim) as i64),
            name,
        }
    }
}

/// How much metadata a message has: word [`METADATA_WORD`] of its descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataLengths {
    /// Bytes of the attachment.
    pub attachment_bytes: u32,
    /// [`ATTACHMENT_RAW`] or [`ATTACHMENT_HEADER`].
    pub attachment_kind: u16,
    /// Entries of the table of parts.
    pub parts: u16,
}

impl MetadataLengths {
    /// The lengths that a descriptor's word gives; none if they are beyond the limits.
    pub fn from_word(word: u64) -> Option<MetadataLengths> {
        let lengths = MetadataLengths {
            attachment_bytes: word as u32,
            attachment_kind: (word >> 32) as u16,
            parts: (word >> 48) as u16,
        };
        lengths.is_sound().then_some(lengths)
    }

    /// Whether the lengths are within the limits; to be asked of lengths that a peer wrote.
    pub fn is_sound(self) -> bool {
        self.attachment_bytes as usize <= MAX_ATTACHMENT_BYTES
            && self.attachment_kind <= ATTACHMENT_HEADER
            && usize::from(self.parts) <= MAX_MESSAGE_PARTS
    }

    /// The descriptor's word.
    pub fn to_word(self) -> u64 {
        u64::from(self.attachment_bytes)
            | u64::from(self.attachment_kind) << 32
            | u64::from(self.parts) << 48
    }

    /// Where the table of parts starts.
    pub fn parts_at(self) -> usize {
        (self.attachment_bytes as usize).next_multiple_of(8)
    }

    /// Bytes of attachment and parts together, a multiple of 8.
    pub fn bytes(self) -> usize {
        self.parts_at() + usize::from(self.parts) * PART_ENTRY_BYTES
    }
}

const _: () = {
    assert!(size_of::<PartEntry>() == 216);
    assert!(offset_of!(PartEntry, offset) == 0);
    assert!(offset_of!(PartEntry, bytes) == 8);
    assert!(offset_of!(PartEntry, dtype_code) == 16);
    assert!(offset_of!(PartEntry, dtype_bits) == 17);
    assert!(offset_of!(PartEntry, dtype_lanes) == 18);
    assert!(offset_of!(PartEntry, ndim) == 20);
    assert!(offset_of!(PartEntry, name_bytes) == 21);
    assert!(offset_of!(PartEntry, reserved) == 22);
    assert!(offset_of!(PartEntry, shape) == 24);
    assert!(offset_of!(PartEntry, strides) == 88);
    assert!(offset_of!(PartEntry, name) == 152);
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

//! The layout of a publisher's region: the ring, the block table, the bitmap of returned blocks, the ring's metadata.
//!
//! ```text
//! descriptor(0)    Descriptor[ring_capacity]
//! block(0)         BlockEntry[block_capacity]
//! returned(0)      u64[block_capacity / 64]   a bit per returned block
//! summary(0)       u64[ceil(block_capacity / 4096)]   a bit per word above that is not 0
//! metadata_near()  u8[ring_capacity][METADATA_NEAR_BYTES]   the first bytes of each slot's metadata
//! metadata_far()   u8[ring_capacity][METADATA_FAR_BYTES]    the rest
//! ```

use crate::{
    BlockEntry, Descriptor, CONTROL_PAGE, MAX_BLOCKS, MAX_DEPTH, MAX_METADATA_BYTES, SPARE_BLOCKS,
};
use std::mem::size_of;

/// Metadata of a message up to this many bytes lies close to that of its neighbours in the ring, so that small
/// headers touch few pages.
pub const METADATA_NEAR_BYTES: usize = 256;
/// Room of a ring slot for the rest of a message's metadata: whole pages, which messages with at most [`METADATA_NEAR_BYTES`] do
/// not touch.
pub const METADATA_FAR_BYTES: usize =
    (MAX_METADATA_BYTES - METADATA_NEAR_BYTES).next_multiple_of(CONTROL_PAGE as usize);

/// The geometry of a publisher's region: its numbers of descriptors and blocks determine all offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublisherRegion {
    /// Descriptors in the ring.
    pub ring_capacity: u32,
    /// Entries of the block table.
    pub block_capacity: u32,
}

impl PublisherRegion {
    /// The region of a publisher that keeps `depth` messages and has `loans` open at most.
    ///
    /// The ring has room for one more message, since a publisher announces a message before it removes the oldest one.
    pub const fn for_history(depth: u32, loans: u32) -> PublisherRegion {
        let blocks = depth as u64 + loans as u64 + SPARE_BLOCKS as u64;
        let blocks = if blocks > MAX_BLOCKS as u64 {
            MAX_BLOCKS
        } else {
            blocks as u32
        };
        PublisherRegion {
            ring_capacity: (depth + 1).next_power_of_two(),
            block_capacity: blocks.next_multiple_of(64),
        }
    }
    /// Whether the numbers are within the limits. Check this for numbers that a peer wrote.
    pub const fn is_sound(self) -> bool {
        self.ring_capacity.is_power_of_two()
            && self.ring_capacity <= MAX_DEPTH * 2
            && self.block_capacity > 0
            && self.block_capacity % 64 == 0
            && self.block_capacity <= MAX_BLOCKS
    }
    /// Offset of the descriptor of sequence number `sequence`.
    #[inline(always)]
    pub const fn descriptor(self, sequence: u64) -> u64 {
        self.slot(sequence) * size_of::<Descriptor>() as u64
    }
    /// Offset of the entry of block `block`.
    #[inline(always)]
    pub const fn block(self, block: u32) -> u64 {
        let table = self.ring_capacity as u64 * size_of::<Descriptor>() as u64;
        table + block as u64 * size_of::<BlockEntry>() as u64
    }
    /// Offset of word `word` of the bitmap of returned blocks: of blocks `64 * word` and on.
    #[inline]
    pub const fn returned(self, word: u32) -> u64 {
        self.block(self.block_capacity) + word as u64 * WORD_BYTES
    }
    /// Offset of word `word` of the bitmap's summary: of words `64 * word` and on of the bitmap.
    #[inline]
    pub const fn summary(self, word: u32) -> u64 {
        let bitmap = (self.block_capacity / 64) as u64 * WORD_BYTES;
        self.returned(0) + bitmap.next_multiple_of(64) + word as u64 * WORD_BYTES
    }
    /// Words of the summary.
    #[inline]
    pub const fn summary_words(self) -> u32 {
        self.block_capacity.div_ceil(64 * 64)
    }
    /// Offset of word `word` of the metadata of sequence number `sequence`.
    #[inline]
    pub const fn metadata(self, sequence: u64, word: usize) -> u64 {
        let (slot, at) = (self.slot(sequence), word as u64 * WORD_BYTES);
        match at.checked_sub(METADATA_NEAR_BYTES as u64) {
            None => self.metadata_near() + slot * METADATA_NEAR_BYTES as u64 + at,
            Some(at) => self.metadata_far() + slot * METADATA_FAR_BYTES as u64 + at,
        }
    }
    const fn metadata_near(self) -> u64 {
        self.summary(self.summary_words())
            .next_multiple_of(CONTROL_PAGE)
    }
    /// Offset of the slots' metadata beyond their first [`METADATA_NEAR_BYTES`].
    #[inline]
    pub const fn metadata_far(self) -> u64 {
        let near = self.ring_capacity as u64 * METADATA_NEAR_BYTES as u64;
        (self.metadata_near() + near).next_multiple_of(CONTROL_PAGE)
    }
    /// Bytes of the region, whole pages. Most of them are never touched.
    pub const fn bytes(self) -> u64 {
        self.metadata_far() + self.ring_capacity as u64 * METADATA_FAR_BYTES as u64
    }
    #[inline(always)]
    const fn slot(self, sequence: u64) -> u64 {
        sequence & (self.ring_capacity - 1) as u64
    }
}

const WORD_BYTES: u64 = size_of::<u64>() as u64;

//! What travels through a topic's ring.

use crate::{MAX_DIMS, MAX_REPLICAS, METADATA_WORD};
use std::mem::{offset_of, size_of};

/// `flags` bit: `dtype`, `shape` and `strides` are filled in.
pub const DESCRIPTOR_TYPED: u8 = 1;
/// `flags` bit: `timeline` and `timeline_value` are filled in. Without it the bytes are there.
pub const DESCRIPTOR_QUEUED: u8 = 2;
/// `flags` bit: `replicas` is filled in.
pub const DESCRIPTOR_COPIED: u8 = 4;
/// `flags` bit: `missed_so_far` is filled in. Without it, it counts as 0.
pub const DESCRIPTOR_MISSED: u8 = 8;
/// `flags` bit: the message has metadata (an attachment, parts): word 10 says how much, and the ring slot's
/// metadata area holds it.
pub const DESCRIPTOR_METADATA: u8 = 16;

/// The descriptor's word with `missed_so_far`.
pub const MISSED_WORD: usize = 11;

/// One message, as its publisher announces it. A reader needs only the first cache line of an
/// untyped message.
///
/// ```text
///   0 committed   u64  sequence + 1; 0 while the slot is being written
///   8 generation  u64  of the block's holder word
///  16 incarnation u64  of the publisher that wrote the slot
///  24 block       u32  index into the publisher's block table
///  28 pool        u16  index of the pool in the zone
///  30 ndim        u8
///  31 flags       u8
///  32 offset      u64  of the first byte, from the start of the pool
///  40 bytes       u64
///  48 publish_ns  i64  CLOCK_MONOTONIC when publish was called, in two's complement: negative for a message of
///                      another host from before this host started
///  56 tag         u64  the user's
///  64 dtype_code u8, dtype_bits u8, dtype_lanes u16, timeline u32
///  72 timeline_value u64  point on `timeline`, POINT_NONE or POINT_ABORTED
///  80 attachment_bytes u32, attachment_kind u16, parts u16, if DESCRIPTOR_METADATA
///  88 missed_so_far u64  running sum: messages between those of this publisher, up to this one, that never reached
///                      this host, if DESCRIPTOR_MISSED
///  96 shape       [u64; 8]  elements
/// 160 strides     [i64; 8]  elements
/// 224 replicas    [u32; 8]  blocks with copies in other pools, plus 1; 0: none
/// ```
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // the diagram above
pub struct Descriptor {
    pub committed: u64,
    pub generation: u64,
    pub incarnation: u64,
    pub block: u32,
    pub pool: u16,
    pub ndim: u8,
    pub flags: u8,
    pub offset: u64,
    pub bytes: u64,
    pub publish_ns: u64,
    pub tag: u64,
    pub dtype_code: u8,
    pub dtype_bits: u8,
    pub dtype_lanes: u16,
    pub timeline: u32,
    pub timeline_value: u64,
    pub attachment_bytes: u32,
    pub attachment_kind: u16,
    pub parts: u16,
    pub missed_so_far: u64,
    pub shape: [u64; MAX_DIMS],
    pub strides: [i64; MAX_DIMS],
    pub replicas: [u32; MAX_REPLICAS],
}

const _: () = {
    assert!(size_of::<Descriptor>() == 256);
    assert!(offset_of!(Descriptor, committed) == 0);
    assert!(offset_of!(Descriptor, generation) == 8);
    assert!(offset_of!(Descriptor, incarnation) == 16);
    assert!(offset_of!(Descriptor, block) == 24);
    assert!(offset_of!(Descriptor, pool) == 28);
    assert!(offset_of!(Descriptor, ndim) == 30);
    assert!(offset_of!(Descriptor, flags) == 31);
    assert!(offset_of!(Descriptor, offset) == 32);
    assert!(offset_of!(Descriptor, bytes) == 40);
    assert!(offset_of!(Descriptor, publish_ns) == 48);
    assert!(offset_of!(Descriptor, tag) == 56);
    assert!(offset_of!(Descriptor, dtype_code) == 64);
    assert!(offset_of!(Descriptor, timeline) == 68);
    assert!(offset_of!(Descriptor, timeline_value) == 72);
    assert!(offset_of!(Descriptor, attachment_bytes) == 80);
    assert!(offset_of!(Descriptor, attachment_kind) == 84);
    assert!(offset_of!(Descriptor, parts) == 86);
    assert!(offset_of!(Descriptor, attachment_bytes) == METADATA_WORD * 8);
    assert!(offset_of!(Descriptor, missed_so_far) == MISSED_WORD * 8);
    assert!(offset_of!(Descriptor, shape) == 96);
    assert!(offset_of!(Descriptor, strides) == 160);
    assert!(offset_of!(Descriptor, replicas) == 224);
};

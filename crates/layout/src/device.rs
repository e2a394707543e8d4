//! Device topics: the words that kernels and hosts share: `docs/decisions/0046-device-topics.md`.
//!
//! ```text
//! control segment, host memory       DeviceControl, then nothing
//! ring segment, the topic's domain   slots[depth] | lengths[blocks] | blocks[blocks]
//! words segment, the topic's domain  DeviceSeat[MAX_DEVICE_SUBSCRIBERS + 1] | holders[blocks], one in each DEVICE_HOLDER_BYTES
//!
//! slot      sequence << 16 | block; 0: none yet
//! length    bytes of the message in the block
//! holder    generation << 18 | RING << 17 | PRODUCER << 16 | a bit for each seat;
//!           the generation is the sequence number of the message that was published in the block
//! cursor    sequence of the message that the subscriber wants next << 2 | JOINED << 1 | RELIABLE;
//!           in the last seat, the publisher's: sequence of the newest message for which it has waited for room
//! ```
//! Kernels are compiled against `rgaps/device_layout.h`, which [`device_header`] writes and a test of `rgaps-capi` compares.

use crate::define::define;
use std::mem::{offset_of, size_of};

/// First word of a device topic's control segment ("rgapsdev").
pub const DEVICE_MAGIC: u64 = u64::from_le_bytes(*b"rgapsdev");
/// Version of everything in this file.
pub const DEVICE_LAYOUT_VERSION: u32 = 3;
/// Subscribers of a device topic. One bit each in a holder word.
pub const MAX_DEVICE_SUBSCRIBERS: u32 = 16;
/// Longest ring of a device topic, in messages.
pub const MAX_DEVICE_DEPTH: u32 = 1 << 15;
/// Most blocks of a device topic.
pub const MAX_DEVICE_BLOCKS: u32 = (1 << DEVICE_SEQUENCE_SHIFT) - 1;
/// The size of a block is a multiple of this.
pub const DEVICE_BLOCK_ALIGN: u64 = 256;
/// Bit of a holder word that belongs to the publisher, from the loan until it is published.
pub const DEVICE_PRODUCER_BIT: u32 = MAX_DEVICE_SUBSCRIBERS;
/// Bit of a holder word that says that the ring holds the block.
pub const DEVICE_RING_BIT: u32 = DEVICE_PRODUCER_BIT + 1;
/// The lowest bit of the generation in a holder word.
pub const DEVICE_GENERATION_SHIFT: u32 = DEVICE_RING_BIT + 1;
/// The lowest bit of the sequence number in a slot.
pub const DEVICE_SEQUENCE_SHIFT: u32 = 16;
/// Distance of two holder words, so that no two share a cache line of the host.
pub const DEVICE_HOLDER_BYTES: u64 = 64;
/// The lowest bit of the sequence number in a cursor.
pub const DEVICE_CURSOR_SHIFT: u32 = 2;
/// Flag of a cursor: the publisher waits for the subscriber.
pub const DEVICE_CURSOR_RELIABLE: u64 = 1;
/// Flag of a cursor: the subscriber has joined.
pub const DEVICE_CURSOR_JOINED: u64 = 2;
/// The publisher's bit in `stopped`, and the index of its `DeviceSeat`. For a subscriber both are its seat.
pub const DEVICE_PUBLISHER_ENDPOINT: u32 = MAX_DEVICE_SUBSCRIBERS;
/// In `owners`: the seat is free.
pub const DEVICE_SEAT_FREE: u64 = 0;
/// In `owners`: the seat's owner is a process that is unknown to the daemon.
pub const DEVICE_OWNER_UNKNOWN: u64 = 1;
/// Bytes of the control segment: a page of any host.
pub const DEVICE_CONTROL_BYTES: u64 = 64 << 10;

define! {
    /// Words from hosts to kernels, in host memory. Kernels only read them, and seldom, since they lie across a bus.
    DeviceControl [512] {
        /// [`DEVICE_MAGIC`].
          0 magic: u64,
        /// [`DEVICE_LAYOUT_VERSION`].
          8 version: u32,
        /// Messages in the ring, a power of two.
         12 depth: u32,
        /// Blocks, more than `depth`.
         16 blocks: u32,
        /// Padding.
         20 reserved: u32,
        /// Bytes of a block.
         24 block_bytes: u64,
        /// Bytes of the ring segment.
         32 ring_bytes: u64,
        /// Bytes of the words segment.
         40 words_bytes: u64,
        /// 1 + the seat of the process that forwards messages to hosts; 0: there is none.
         48 bridge: u64,
        /// Padding.
         56 padding: [u8; 72],
        /// The owner of each seat: [`DEVICE_SEAT_FREE`], [`DEVICE_OWNER_UNKNOWN`], or a client of the daemon's ([`device_owner`]).
        /// Taken by compare-and-swap.
        128 owners: u64[16],
        /// Seats whose bits and cursors the publisher may ignore.
        256 evicted: u64,
        /// Padding.
        264 evicted_padding: [u8; 120],
        /// Endpoints whose waits end: a bit for each seat, and [`DEVICE_PUBLISHER_ENDPOINT`].
        384 stopped: u64,
        /// Padding.
        392 stopped_padding: [u8; 120],
    }

    /// The words that a subscriber writes; in the last seat, those of the publisher.
    DeviceSeat [128] {
        /// The cursor, as in the head of this module.
          0 cursor: u64,
        /// How many messages the subscriber has missed.
          8 missed: u64,
        /// Padding.
         16 padding: [u8; 112],
    }
}

/// The parameter of kernels: addresses in their process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTopicView {
    /// [`DeviceControl`].
    pub control: u64,
    /// Slots.
    pub slots: u64,
    /// Lengths.
    pub lengths: u64,
    /// The first block.
    pub blocks_at: u64,
    /// The first [`DeviceSeat`].
    pub seats: u64,
    /// The first holder word.
    pub holders: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Messages in the ring.
    pub depth: u32,
    /// Blocks.
    pub blocks: u32,
}

impl DeviceTopicView {
    /// The structure as eight words.
    pub fn words(&self) -> [u64; 8] {
        [
            self.control,
            self.slots,
            self.lengths,
            self.blocks_at,
            self.seats,
            self.holders,
            self.block_bytes,
            u64::from(self.depth) | u64::from(self.blocks) << 32,
        ]
    }
}

/// The word in `owners` for a client of the daemon: its index in its zone, 24 bits of the zone's number and 24 bits of the client's. Both
/// numbers are secrets, so the word, which others can read, has only a part of each.
pub fn device_owner(zone: u128, client_index: u32, client_id: u64) -> u64 {
    u64::from(client_index + 1) << 48 | (zone as u64 & OWNER_ZONE_MASK) << 24 | client_id >> 40
}

/// Whether an owner is, or was, a client of a zone.
pub fn is_device_owner_in(zone: u128, owner: u64) -> bool {
    owner >> 48 != 0 && owner >> 24 & OWNER_ZONE_MASK == zone as u64 & OWNER_ZONE_MASK
}

const OWNER_ZONE_MASK: u64 = 0xff_ffff;

const _: () = assert!(size_of::<DeviceTopicView>() == 64);
const _: () = assert!(size_of::<[u64; MAX_DEVICE_SUBSCRIBERS as usize]>() == 128);
const _: () = assert!(
    MAX_DEVICE_SUBSCRIBERS <= 32 && size_of::<DeviceControl>() as u64 <= DEVICE_CONTROL_BYTES
);
const _: () = assert!(MAX_DEVICE_DEPTH < MAX_DEVICE_BLOCKS && MAX_DEVICE_DEPTH.is_power_of_two());

/// Constants of `rgaps/device_layout.h`, without their prefix.
const CONSTANTS: [(&str, u64); 20] = [
    ("LAYOUT_VERSION", DEVICE_LAYOUT_VERSION as u64),
    ("MAX_SUBSCRIBERS", MAX_DEVICE_SUBSCRIBERS as u64),
    ("MAX_DEPTH", MAX_DEVICE_DEPTH as u64),
    ("MAX_BLOCKS", MAX_DEVICE_BLOCKS as u64),
    ("BLOCK_ALIGN", DEVICE_BLOCK_ALIGN),
    ("PRODUCER_BIT", DEVICE_PRODUCER_BIT as u64),
    ("RING_BIT", DEVICE_RING_BIT as u64),
    ("GENERATION_SHIFT", DEVICE_GENERATION_SHIFT as u64),
    ("SEQUENCE_SHIFT", DEVICE_SEQUENCE_SHIFT as u64),
    ("HOLDER_BYTES", DEVICE_HOLDER_BYTES),
    ("CURSOR_SHIFT", DEVICE_CURSOR_SHIFT as u64),
    ("CURSOR_RELIABLE", DEVICE_CURSOR_RELIABLE),
    ("CURSOR_JOINED", DEVICE_CURSOR_JOINED),
    (
        "CURSOR_FLAGS",
        DEVICE_CURSOR_RELIABLE | DEVICE_CURSOR_JOINED,
    ),
    ("PUBLISHER_ENDPOINT", DEVICE_PUBLISHER_ENDPOINT as u64),
    ("CONTROL_EVICTED", offset_of!(DeviceControl, evicted) as u64),
    ("CONTROL_STOPPED", offset_of!(DeviceControl, stopped) as u64),
    ("SEAT_BYTES", size_of::<DeviceSeat>() as u64),
    ("SEAT_CURSOR", offset_of!(DeviceSeat, cursor) as u64),
    ("SEAT_MISSED", offset_of!(DeviceSeat, missed) as u64),
];

/// Fields of `rgaps_device_topic_t`: type, name, offset.
const FIELDS: [(&str, &str, usize); 9] = [
    ("uint64_t", "control", offset_of!(DeviceTopicView, control)),
    ("uint64_t", "slots", offset_of!(DeviceTopicView, slots)),
    ("uint64_t", "lengths", offset_of!(DeviceTopicView, lengths)),
    (
        "uint64_t",
        "blocks_at",
        offset_of!(DeviceTopicView, blocks_at),
    ),
    ("uint64_t", "seats", offset_of!(DeviceTopicView, seats)),
    ("uint64_t", "holders", offset_of!(DeviceTopicView, holders)),
    (
        "uint64_t",
        "block_bytes",
        offset_of!(DeviceTopicView, block_bytes),
    ),
    ("uint32_t", "depth", offset_of!(DeviceTopicView, depth)),
    ("uint32_t", "blocks", offset_of!(DeviceTopicView, blocks)),
];

/// The text of `rgaps/device_layout.h`.
pub fn device_header() -> String {
    let mut text = String::from(
        "/* The words of device topics. Written by crates/layout/src/device.rs, which explains them: do not edit. */\n\
         #ifndef RGAPS_DEVICE_LAYOUT_H\n#define RGAPS_DEVICE_LAYOUT_H\n\n#include <stddef.h>\n#include <stdint.h>\n\n",
    );
    for (name, value) in CONSTANTS {
        text += &format!("#define RGAPS_DEVICE_{name} {value}\n");
    }
    text += "\n/* A device topic as kernels of one process see it. Passed to them by value. */\ntypedef struct rgaps_device_topic {\n";
    for (kind, name, _) in FIELDS {
        text += &format!("    {kind} {name};\n");
    }
    text += "} rgaps_device_topic_t;\n\n#ifdef __cplusplus\n";
    for (_, name, at) in FIELDS {
        text += &format!("static_assert(offsetof(rgaps_device_topic_t, {name}) == {at}, \"layout of {name}\");\n");
    }
    text += &format!(
        "static_assert(sizeof(rgaps_device_topic_t) == {}, \"layout of the topic\");\n#endif\n\n#endif\n",
        size_of::<DeviceTopicView>()
    );
    text
}

//! What the daemon and listings know of a device topic, in which kernels publish and receive.
//!
//! The process that forwards between a device topic and an ordinary one reports it. The daemon keeps the report and the
//! descriptors, so that other processes open the device topic by name.

use rgaps_layout::Domain;
use serde::{Deserialize, Serialize};

/// A device topic, as the process says that forwards between it and an ordinary topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRow {
    /// Where its ring and blocks are.
    pub domain: Domain,
    /// Messages in its ring.
    pub depth: u32,
    /// Its blocks.
    pub blocks: u32,
    /// Bytes of a block, so of the largest message.
    pub block_bytes: u64,
    /// Whether kernels publish and hosts receive, or the reverse.
    pub kernels_publish: bool,
    /// Whether its GPU runs kernels of several processes in turns: there is no MPS.
    pub takes_turns: bool,
    /// Sequence number of its newest message; 0: there was none.
    pub newest: u64,
    /// Whether the publisher has waited for room for the next message.
    pub publisher_waits: bool,
    /// Messages that were forwarded.
    pub forwarded: u64,
    /// Messages that could not be forwarded: larger than a block, or aborted.
    pub refused: u64,
    /// Subscribers that the daemon had evicted.
    pub evictions: u64,
    /// Seats that are taken; at most [`MAX_DEVICE_SUBSCRIBERS`](rgaps_layout::MAX_DEVICE_SUBSCRIBERS).
    pub seats: Vec<DeviceSeatRow>,
}

/// A taken seat of a device topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSeatRow {
    /// Its number.
    pub seat: u32,
    /// Who has it, as in the control segment (`rgaps_layout::device_owner`).
    pub owner: u64,
    /// Whether somebody has joined in it.
    pub joined: bool,
    /// Whether the publisher waits for it.
    pub reliable: bool,
    /// Whether it was evicted.
    pub evicted: bool,
    /// Whether it is the seat of the process that forwards to hosts.
    pub is_bridge: bool,
    /// Sequence number of the message that it wants next.
    pub next_sequence: u64,
    /// Messages that it missed.
    pub missed: u64,
    /// Blocks that it holds, where none is free for the publisher; else 0.
    pub held: u32,
}

/// What the daemon wants done with a seat, unless somebody else has it by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatEnd {
    /// Its number.
    pub seat: u32,
    /// Who has it.
    pub owner: u64,
    /// Whether it is free afterwards: its owner and the owner's work on GPUs have ended. Otherwise its subscriber is evicted and keeps it.
    pub is_free: bool,
}

impl DeviceRow {
    /// Whether the publisher waits for this seat's subscriber: it is reliable and has not passed the oldest message of a full ring, or it
    /// has blocks of which none is left.
    pub fn waits_for(&self, seat: &DeviceSeatRow) -> bool {
        let is_behind = self.newest + 1 >= seat.next_sequence + u64::from(self.depth);
        let holds_up = seat.held > 0 || seat.reliable && is_behind;
        self.publisher_waits && seat.joined && !seat.evicted && holds_up
    }
}

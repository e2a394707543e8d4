//! The description of a device topic, in which kernels publish and receive, for the daemon and listings.
//!
//! The process that forwards between a device topic and an ordinary topic reports it. The daemon keeps the report and the
//! descriptors, so that other processes can open the device topic by name.

use rgaps_layout::Domain;
use serde::{Deserialize, Serialize};

/// A device topic, as the process that forwards between it and an ordinary topic reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRow {
    /// The domain of its ring and blocks.
    pub domain: Domain,
    /// Messages in its ring.
    pub depth: u32,
    /// The number of its blocks.
    pub blocks: u32,
    /// The size of a block, and so of the largest message, in bytes.
    pub block_bytes: u64,
    /// Whether kernels publish and hosts receive, or the reverse.
    pub kernels_publish: bool,
    /// Whether its GPU runs kernels of several processes in turns, because MPS does not run.
    pub takes_turns: bool,
    /// Sequence number of its newest message; 0: nothing was published yet.
    pub newest: u64,
    /// Whether the publisher waits for room for the next message.
    pub publisher_waits: bool,
    /// Messages that were forwarded.
    pub forwarded: u64,
    /// Messages that could not be forwarded: larger than a block, or aborted.
    pub refused: u64,
    /// How many subscribers the daemon has evicted.
    pub evictions: u64,
    /// Seats that are taken; at most [`MAX_DEVICE_SUBSCRIBERS`](rgaps_layout::MAX_DEVICE_SUBSCRIBERS).
    pub seats: Vec<DeviceSeatRow>,
}

/// A taken seat of a device topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSeatRow {
    /// Its number.
    pub seat: u32,
    /// Its owner's word in the control segment (`rgaps_layout::device_owner`).
    pub owner: u64,
    /// Whether a subscriber has joined in it.
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
    /// How many blocks it holds, if the publisher has no free block; else 0.
    pub held: u32,
}

/// The daemon's instruction to free or evict a seat. Ignore it if the seat has another owner by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatEnd {
    /// Its number.
    pub seat: u32,
    /// Its owner, as in [`DeviceSeatRow::owner`].
    pub owner: u64,
    /// True: free the seat, since its owner and the owner's GPU work have ended. False: evict its subscriber, which keeps the seat.
    pub is_free: bool,
}

impl DeviceRow {
    /// Whether the publisher waits for this seat's subscriber: it is reliable and has not received the oldest message of a full ring,
    /// or it holds blocks while the publisher has no free one.
    pub fn waits_for(&self, seat: &DeviceSeatRow) -> bool {
        let is_behind = self.newest + 1 >= seat.next_sequence + u64::from(self.depth);
        let holds_up = seat.held > 0 || seat.reliable && is_behind;
        self.publisher_waits && seat.joined && !seat.evicted && holds_up
    }
}

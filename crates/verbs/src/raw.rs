//! A queue pair without a channel, for tests and figures. It can violate a channel's protocol, and write in ways that
//! channels do not.

use crate::address::ChannelAddress;
use crate::device::Device;
use crate::error::VerbsError;
use crate::fabric::{Completion, Depths, QueuePair, Work};
use crate::receiving::RECEIVE;
use crate::region::Region;
use crate::status::Status;
use std::sync::Arc;

/// A queue pair that does not count works and receives: its user sees to it that the queues never overflow.
pub struct RawPair {
    // First, so that it is dropped before the memory that its works use.
    queue: Box<dyn QueuePair>,
    regions: Vec<Arc<Region>>,
    receives: u32,
}

/// A write.
#[derive(Clone, Copy, Debug)]
pub struct RawWrite {
    /// Where the bytes start in the local region.
    pub offset: usize,
    /// How many bytes.
    pub bytes: u32,
    /// Their target: an address of the peer.
    pub address: u64,
    /// The peer's key for that address.
    pub key: u32,
    /// The immediate data, for a write that notifies the peer.
    pub immediate: Option<u32>,
    /// Whether it completes as [`RawCompletion::Sent`]; a failure is always reported.
    pub is_signalled: bool,
}

/// How a write or a receive completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawCompletion {
    /// A signalled write.
    Sent,
    /// A write of the peer with immediate data.
    Received {
        /// The immediate data.
        immediate: u32,
        /// How many bytes it wrote.
        bytes: u32,
    },
    /// A write or receive that failed.
    Failed(Status),
}

impl RawPair {
    /// Creates a queue pair with so many slots, and posts its receives.
    pub fn new(device: &Arc<Device>, sends: u32, receives: u32) -> Result<Self, VerbsError> {
        let queue = device.fabric().queue_pair(Depths {
            sends,
            receives: receives.max(1),
            completions: sends + receives.max(1),
            inline_bytes: 0,
        })?;
        if receives > 0 {
            queue.post_receives(receives, RECEIVE)?;
        }
        let regions = Vec::new();
        Ok(Self {
            queue,
            regions,
            receives,
        })
    }

    /// The address of a channel with this queue pair, whose ring is this region but for its last 64 bytes, which begin with the
    /// credit words.
    pub fn address(&self, region: &Region) -> ChannelAddress {
        ChannelAddress {
            queue: self.queue.address(),
            key: region.keys().remote,
            ring: region.address(),
            ring_bytes: region.bytes() as u64 - 64,
            credits: region.address() + region.bytes() as u64 - 64,
            receives: self.receives,
        }
    }

    /// Connects.
    pub fn connect(&self, peer: &ChannelAddress) -> Result<(), VerbsError> {
        self.queue.connect(&peer.queue, 6)
    }

    /// Keeps a region for as long as this queue pair may read it. Returns its number.
    pub fn keep(&mut self, region: Arc<Region>) -> usize {
        self.regions.push(region);
        self.regions.len() - 1
    }

    /// The local key of a region that is kept.
    pub fn local_key(&self, region: usize) -> u32 {
        self.regions[region].keys().local
    }

    /// Writes from a region that is kept.
    pub fn write(&self, region: usize, write: &RawWrite) -> Result<(), VerbsError> {
        self.write_with(region, write, self.local_key(region))
    }

    /// Writes with any local key, also from outside of the region: the device refuses memory that is not registered under the key.
    pub fn write_with(&self, region: usize, write: &RawWrite, key: u32) -> Result<(), VerbsError> {
        let region = &self.regions[region];
        let work = Work {
            number: RECEIVE + 1,
            local: region.start().wrapping_add(write.offset),
            bytes: write.bytes,
            local_key: key,
            remote: write.address,
            remote_key: write.key,
            immediate: write.immediate,
            signalled: write.is_signalled,
            inline: false,
        };
        // SAFETY: the work is not inline, and `self` keeps its regions until the queue pair is destroyed; the device reads
        // nothing that is not registered under this key: the work fails with `LocalProtection`.
        unsafe { self.queue.post(&[work]) }
    }

    /// Posts receives again.
    pub fn post_receives(&self, count: u32) -> Result<(), VerbsError> {
        self.queue.post_receives(count, RECEIVE)
    }

    /// The next completion, if there is one.
    pub fn poll(&self) -> Result<Option<RawCompletion>, VerbsError> {
        let mut completion = [Completion::Sent { number: 0 }];
        let count = self.queue.poll(&mut completion)?;
        let found = completion[..count]
            .first()
            .map(|completion| match *completion {
                Completion::Sent { .. } => RawCompletion::Sent,
                Completion::Received { immediate, bytes } => {
                    RawCompletion::Received { immediate, bytes }
                }
                Completion::Failed { status, .. } => RawCompletion::Failed(status),
            });
        Ok(found)
    }
}

impl ChannelAddress {
    /// The ring's address and bytes, the address of the credit words, and the key of both.
    pub fn parts(&self) -> (u64, u64, u64, u32) {
        (self.ring, self.ring_bytes, self.credits, self.key)
    }
}

/// The immediate data of a stall notice and of a head notice.
pub const NOTICES: [u32; 2] = [1 << 31, 1 << 30];
/// The bit of immediate data that says that the lower bits are the mark of a direct write.
pub const MARKED: u32 = 1 << 29;

//! `bench link`: topics between two hosts, which are both on this machine: a daemon and links for each, a
//! publisher on one, subscribers on the other.
//!
//! In rounds, in turns: hops of the floor (the same processes, wake-ups and copies without rgaps); bare TCP;
//! messages one at a time, which is what latency is made of; a burst of messages on all topics, which is what
//! rates are made of. Then all bytes are verified. All times are of one clock, since it is one machine.

mod hosts;
mod report;
mod run;
mod subscribe;
mod tree;
mod wire;

pub(crate) use hosts::Program;
pub use hosts::{enter, Host, Hosts, Namespaces};
pub use report::LinkReport;
pub use run::{link, link_beside, Round};
pub(crate) use subscribe::{subscribe, Subscribe};
pub use tree::{tree, TreeOptions, TreeReport};
pub(crate) use wire::WireHost;
pub use wire::{FloorBytes, SOURCE, TARGET};

use crate::exchange::Wait;
use rgaps::Domain;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Lanes of a link at most.
pub const LANES_MAX: usize = 8;
/// Subscribers of all topics at most: each has a bell.
pub const SUBSCRIBERS_MAX: usize = 40;
/// Rounds whose messages get memory that was never used: a round's are still kept while the next one's are filled.
pub const GROWING: u64 = 2;
/// Messages before those that are timed, in each round.
const WARM_UP: u64 = 4;
/// Bytes of such a message.
const WARM_UP_BYTES: u64 = 64;

/// Bells of the board.
mod bell {
    use super::{LANES_MAX, SUBSCRIBERS_MAX};

    pub const MAIN: usize = 63;

    pub fn subscriber(member: usize) -> usize {
        member
    }

    pub fn lane(lane: usize) -> usize {
        assert!(lane < 2 * LANES_MAX);
        SUBSCRIBERS_MAX + lane
    }
}

/// What is to be measured.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // the names say it
pub struct LinkOptions {
    /// Where messages are published.
    pub domain: Domain,
    /// Where they are read.
    pub to: Domain,
    pub size: u64,
    /// Of each topic, a process each.
    pub subscribers: usize,
    pub lanes: u32,
    pub topics: usize,
    pub tls: bool,
    /// Over RDMA: at loopback, since cards are not shared with namespaces.
    pub rdma: bool,
    /// That are timed one by one.
    pub messages: u64,
    pub wait: Wait,
    pub namespaces: Namespaces,
}

impl LinkOptions {
    fn transport(&self) -> &'static str {
        match self.rdma {
            true => "rdma",
            false => "tcp",
        }
    }
}

/// What all processes know.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub struct Plan {
    /// Where messages are published.
    pub domain: Domain,
    /// Where they are read.
    pub to: Domain,
    pub size: u64,
    /// Of each topic.
    pub subscribers: usize,
    pub topics: usize,
    pub lanes: u32,
    pub wait: Wait,
    /// Rounds; the first [`GROWING`] are not counted.
    pub rounds: u64,
    /// Hops of the floor, and messages one at a time, of a round.
    pub single: u64,
    /// Messages of a burst, on each topic.
    pub burst: u64,
    /// Messages that the regions of the floor have room for.
    pub slots: u64,
}

/// Most bytes of the messages that are there at the same time.
const BYTES_MAX: u64 = 2 << 30;
/// Of bare TCP, which uses its memory again.
const REGION_BYTES: u64 = 256 << 20;
/// Most messages of a round that go one at a time.
const SINGLE_MAX: u64 = 32;
/// A burst is long enough to forget its beginning: so many bytes, but no fewer and no more messages than these.
const BURST_BYTES: u64 = 32 << 20;
const BURST: RangeInclusive<u64> = 64..=512;

impl Plan {
    /// `pool_bytes`: what each host's pool may have.
    fn new(options: &LinkOptions, memory_bytes: u64, pool_bytes: u64) -> Plan {
        let size = options.size.max(1);
        // Both hosts' pools have the messages, and other things need memory, too.
        let budget = BYTES_MAX.min(memory_bytes / 16).min(pool_bytes / 4) / size;
        let single = options
            .messages
            .clamp(1, SINGLE_MAX)
            .min((budget / 2).max(1));
        let burst = (BURST_BYTES / size).clamp(*BURST.start(), *BURST.end());
        let burst = burst.min(budget / 2 / options.topics as u64).max(1);
        Plan {
            domain: options.domain,
            to: options.to,
            size,
            subscribers: options.subscribers,
            topics: options.topics,
            lanes: options.lanes,
            wait: options.wait,
            rounds: GROWING + options.messages.div_ceil(single),
            single,
            burst,
            slots: (REGION_BYTES / size).clamp(1, burst),
        }
    }

    /// Hops of the floor of a round.
    fn hops(&self) -> u64 {
        WARM_UP + self.single
    }

    fn slot_bytes(&self) -> u64 {
        self.size.next_multiple_of(64)
    }

    /// Processes that subscribe.
    fn members(&self) -> usize {
        self.subscribers * self.topics
    }

    fn topic(&self, member: usize) -> usize {
        member / self.subscribers
    }

    fn name(&self, topic: usize) -> String {
        format!("bench/link/{topic}")
    }

    /// Messages of a round on a topic, one by one and warming up.
    fn alone(&self, topic: usize) -> u64 {
        match topic {
            0 => WARM_UP + self.single,
            _ => 0,
        }
    }

    fn per_round(&self, topic: usize) -> u64 {
        self.alone(topic) + self.burst
    }

    /// Bytes of message `index` of a round.
    fn bytes(&self, topic: usize, index: u64) -> u64 {
        match topic == 0 && index < WARM_UP {
            true => WARM_UP_BYTES.min(self.size),
            false => self.size,
        }
    }

    /// Bytes of all messages of a round.
    fn round_bytes(&self) -> u64 {
        let of = |topic| (0..self.per_round(topic)).map(move |index| self.bytes(topic, index));
        (0..self.topics).flat_map(of).sum()
    }
}

//! `bench link`: topics between two hosts. Both hosts run on this machine, each with a daemon and a process of links. The
//! publishers are on one host, the subscribers on the other.
//!
//! Each round measures in turn: hops of the floor (the same processes, wake-ups and copies without rgaps), bare TCP,
//! messages one at a time (for latency), and a burst of messages on all topics (for rates). Then the subscribers
//! verify all bytes. All times come from one clock, since both hosts are one machine.

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

/// Most lanes of a link.
pub const LANES_MAX: usize = 8;
/// Most subscribers of all topics together: each has a bell.
pub const SUBSCRIBERS_MAX: usize = 40;
/// The first rounds, which are not counted: their messages get memory that was never used. Two, since the messages of a
/// round are still kept while those of the next are filled.
pub const GROWING: u64 = 2;
/// Messages of each round that warm up and are not timed.
const WARM_UP: u64 = 4;
/// Bytes of a message that warms up.
const WARM_UP_BYTES: u64 = 64;

/// Numbers of the board's bells: one for each subscriber, one for each plain and each TLS lane of the floor, and `MAIN`
/// for the benchmark's own process.
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

/// The parameters of `bench link`.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // the names say it
pub struct LinkOptions {
    /// Where messages are published.
    pub domain: Domain,
    /// Where they are read.
    pub to: Domain,
    pub size: u64,
    /// Subscribers of each topic, each in a process of its own.
    pub subscribers: usize,
    pub lanes: u32,
    pub topics: usize,
    pub tls: bool,
    /// Use RDMA, at loopback: RDMA cards are not shared with network namespaces.
    pub rdma: bool,
    /// Messages that are timed one by one.
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

/// What all processes of the benchmark know.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub struct LinkPlan {
    /// Where messages are published.
    pub domain: Domain,
    /// Where they are read.
    pub to: Domain,
    pub size: u64,
    /// Subscribers of each topic.
    pub subscribers: usize,
    pub topics: usize,
    pub lanes: u32,
    pub wait: Wait,
    /// Rounds; the first [`GROWING`] are not counted.
    pub rounds: u64,
    /// Timed hops of a round, and timed messages that go one at a time.
    pub single: u64,
    /// Messages of a burst on each topic.
    pub burst: u64,
    /// Messages for which each of the floor's regions has room.
    pub slots: u64,
}

/// Most bytes of messages that exist at the same time.
const BYTES_MAX: u64 = 2 << 30;
/// Bytes of a region of the floor. Bare TCP reuses this memory.
const REGION_BYTES: u64 = 256 << 20;
/// Most messages of a round that go one at a time.
const SINGLE_MAX: u64 = 32;
/// Bytes of a burst on a topic, enough that its start-up does not count.
const BURST_BYTES: u64 = 32 << 20;
/// Fewest and most messages of a burst on a topic, whatever their size.
const BURST: RangeInclusive<u64> = 64..=512;

impl LinkPlan {
    /// Plans rounds whose messages fit into the machine's memory and into `pool_bytes`, the cap of each host's pool.
    fn new(options: &LinkOptions, memory_bytes: u64, pool_bytes: u64) -> LinkPlan {
        let size = options.size.max(1);
        // The pools of both hosts hold the messages, and other things need memory, too.
        let budget = BYTES_MAX.min(memory_bytes / 16).min(pool_bytes / 4) / size;
        let single = options
            .messages
            .clamp(1, SINGLE_MAX)
            .min((budget / 2).max(1));
        let burst = (BURST_BYTES / size).clamp(*BURST.start(), *BURST.end());
        let burst = burst.min(budget / 2 / options.topics as u64).max(1);
        LinkPlan {
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

    /// Messages of a round that go one at a time, with those that warm up. Only the first topic has any.
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

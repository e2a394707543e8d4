//! The topics, one of each kind of service.

use rgaps::{Domain, Late, Publisher, PublisherBuilder, Subscriber, SubscriberBuilder};
use rgaps::{Node, OpenError};
use rgaps_testkit::Random;
use std::time::Duration;

/// Longer than any publisher may be held back: the supervisor sees that first.
const DEADLINE: Duration = Duration::from_secs(60);
/// Samples that a subscriber may hold.
pub const MAX_HELD: u32 = 32;

/// A topic.
pub struct Kind {
    pub name: &'static str,
    /// Whether its subscribers may ask for reliability.
    pub reliable: bool,
    /// Whether history outlives its publisher.
    pub transient_local: bool,
    /// Messages that it keeps.
    pub depth: u32,
    /// Bytes that it keeps; 0 for no limit.
    pub bytes: u64,
}

/// All of them.
pub const KINDS: [Kind; 4] = [
    Kind {
        name: "chaos/reliable",
        reliable: true,
        transient_local: false,
        depth: 4,
        bytes: 0,
    },
    Kind {
        name: "chaos/lossy",
        reliable: false,
        transient_local: false,
        depth: 4,
        bytes: 0,
    },
    Kind {
        name: "chaos/log",
        reliable: true,
        transient_local: false,
        depth: 64,
        bytes: 8 << 20,
    },
    Kind {
        name: "chaos/kept",
        reliable: true,
        transient_local: true,
        depth: 8,
        bytes: 0,
    },
];

impl Kind {
    pub fn publisher(&self, node: &Node) -> Result<Publisher, OpenError> {
        let builder: PublisherBuilder = node
            .publisher(self.name)
            .domain(crate::domain::domain())
            .type_name("chaos")
            .deadline(DEADLINE)
            .loan_timeout(Duration::from_millis(20));
        let builder = match self.bytes {
            0 => builder.keep_last(self.depth),
            bytes => builder.keep_all(self.depth, bytes),
        };
        let builder = if self.reliable {
            builder
        } else {
            builder.best_effort()
        };
        if self.transient_local {
            builder.transient_local().create()
        } else {
            builder.create()
        }
    }

    /// A subscriber; whether it is reliable, and where it reads. One that is to live takes all there is.
    pub fn subscriber(
        &self,
        node: &Node,
        survivor: bool,
        random: &mut Random,
    ) -> Result<(Subscriber, bool, Domain), OpenError> {
        let here = crate::domain::domain();
        let reads = match crate::domain::across() {
            Some(across) if random.percent(50) => across,
            _ => here,
        };
        let reliable = self.reliable && (survivor || random.percent(75));
        let late = match random.below(4) {
            _ if !self.transient_local => Late::Nothing,
            _ if survivor => Late::AllKept,
            0 => Late::Nothing,
            1 => Late::Latest,
            2 => Late::Last(3),
            _ => Late::AllKept,
        };
        let builder: SubscriberBuilder = node
            .subscriber(self.name)
            .type_name("chaos")
            .max_held(MAX_HELD)
            .late(late);
        let builder = if reliable {
            builder.reliable()
        } else {
            builder
        };
        let builder = match reads == here {
            true => builder,
            false => builder.domain(reads),
        };
        Ok((builder.create()?, reliable, reads))
    }

    /// Bytes of the next message: mostly small, some to 64 KiB, a few of mebibytes.
    pub fn message_bytes(&self, random: &mut Random) -> u64 {
        match random.below(100) {
            0..=4 => 0,
            5..=64 => random.below(4 << 10),
            65..=96 => random.below(64 << 10),
            _ => random.below(3 << 20),
        }
    }
}

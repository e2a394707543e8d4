//! The topics, one of each kind of service, and the members' variety within each.

use rgaps::{Late, Node, OpenError, Publisher, SlowReaderPolicy, Subscriber};
use rgaps_testkit::Random;
use std::fmt;
use std::time::Duration;

/// How long a publisher waits for its readers before it tries again.
const DEADLINE: Duration = Duration::from_secs(2);
/// Samples that a subscriber may hold.
pub const MAX_HELD: u32 = 32;

/// A topic.
pub struct Kind {
    pub name: &'static str,
    /// Whether publishers offer reliable delivery.
    pub reliable: bool,
    /// Whether they leave out readers that are too slow.
    pub drops: bool,
    /// Whether history outlives its publisher.
    pub transient_local: bool,
    /// Messages that each publisher keeps.
    pub depth: u32,
    /// Bytes that each keeps; 0: keep last.
    pub bytes: u64,
}

/// All of them.
pub const KINDS: [Kind; 5] = [
    Kind {
        name: "soak/reliable",
        reliable: true,
        drops: false,
        transient_local: false,
        depth: 16,
        bytes: 0,
    },
    Kind {
        name: "soak/lossy",
        reliable: false,
        drops: false,
        transient_local: false,
        depth: 4,
        bytes: 0,
    },
    Kind {
        name: "soak/log",
        reliable: true,
        drops: false,
        transient_local: false,
        depth: 64,
        bytes: 8 << 20,
    },
    Kind {
        name: "soak/drops",
        reliable: true,
        drops: true,
        transient_local: false,
        depth: 8,
        bytes: 0,
    },
    Kind {
        name: "soak/kept",
        reliable: true,
        drops: false,
        transient_local: true,
        depth: 8,
        bytes: 0,
    },
];

/// What a subscriber asks for; it follows from its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    pub reliable: bool,
    /// Its own queue; none: all that publishers keep.
    pub depth: Option<u32>,
    /// Whether it asks for what was published before it joined.
    pub late: bool,
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reliable = if self.reliable {
            "reliable"
        } else {
            "best effort"
        };
        let late = if self.late { ", late" } else { "" };
        match self.depth {
            Some(depth) => write!(f, "{reliable}, depth {depth}{late}"),
            None => write!(f, "{reliable}{late}"),
        }
    }
}

impl Kind {
    pub fn publisher(&self, node: &Node) -> Result<Publisher, OpenError> {
        let builder = node
            .publisher(self.name)
            .type_name("soak")
            .deadline(DEADLINE)
            .loan_timeout(Duration::from_millis(20));
        let builder = match self.bytes {
            0 => builder.keep_last(self.depth),
            bytes => builder.keep_all(self.depth, bytes),
        };
        let builder = match self.reliable {
            true => builder,
            false => builder.best_effort(),
        };
        let builder = match self.drops {
            true => builder
                .slow_reader(SlowReaderPolicy::Drop)
                .deadline(Duration::from_millis(50)),
            false => builder,
        };
        match self.transient_local {
            true => builder.transient_local().create(),
            false => builder.create(),
        }
    }

    /// What the subscriber with this seed asks for.
    pub fn wish(&self, seed: u64) -> Wish {
        let mut random = Random::new(seed);
        let reliable = self.reliable && random.percent(75);
        let depth = random.percent(20).then(|| 1 + random.below(8) as u32);
        let late = self.transient_local && random.percent(60);
        Wish {
            reliable,
            depth,
            late,
        }
    }

    pub fn subscriber(&self, node: &Node, wish: Wish) -> Result<Subscriber, OpenError> {
        let builder = node
            .subscriber(self.name)
            .type_name("soak")
            .max_held(MAX_HELD);
        let builder = match wish.reliable {
            true => builder.reliable(),
            false => builder,
        };
        let builder = match wish.depth {
            Some(depth) => builder.depth(depth),
            None => builder,
        };
        match wish.late {
            true => builder.late(Late::AllKept).create(),
            false => builder.create(),
        }
    }

    /// Bytes of the next message: mostly small, some to 64 KiB, a few to 1 MiB.
    pub fn message_bytes(&self, random: &mut Random) -> u64 {
        match random.below(100) {
            0..=2 => 0,
            3..=69 => random.below(4 << 10),
            70..=97 => random.below(64 << 10),
            _ => random.below(1 << 20),
        }
    }
}

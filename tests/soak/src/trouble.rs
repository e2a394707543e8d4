//! What happens to members and hosts, in the order that a seed gives.

use rgaps_testkit::Random;
use std::time::Duration;

/// Longest time between two disturbances.
const PAUSE_MAX_MS: u64 = 1_200;

/// A kind of disturbance, and how often it comes beside the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    KillPublisher,
    KillSubscriber,
    KillDaemon,
    KillLinks,
    StopMember,
    StopDaemon,
    StopLinks,
    Cut,
    Flood,
    FillDisk,
    KillObserver,
    /// The kernel kills a publisher, a subscriber, a daemon or links for want of memory.
    OutOfMemory,
}

const KINDS: [(Kind, u64); 12] = [
    (Kind::KillPublisher, 20),
    (Kind::KillSubscriber, 20),
    (Kind::KillDaemon, 6),
    (Kind::KillLinks, 10),
    (Kind::StopMember, 16),
    (Kind::StopDaemon, 6),
    (Kind::StopLinks, 8),
    (Kind::Cut, 14),
    (Kind::Flood, 8),
    (Kind::FillDisk, 6),
    (Kind::KillObserver, 5),
    (Kind::OutOfMemory, 6),
];

/// One disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// After the one before it.
    pub pause: Duration,
    pub kind: Kind,
    /// Whom it meets: modulo how many there are.
    pub whom: u64,
    /// How long it lasts, where it lasts.
    pub lasts: Duration,
}

/// The next one: of all kinds, or of one only.
pub fn next(random: &mut Random, only: Option<Kind>) -> Trouble {
    let all: u64 = KINDS.iter().map(|(_, weight)| weight).sum();
    let mut at = random.below(all);
    let chosen = KINDS.iter().find(|(_, weight)| {
        let is_it = at < *weight;
        at = at.saturating_sub(*weight);
        is_it
    });
    let kind = only.unwrap_or(chosen.map_or(Kind::KillPublisher, |(kind, _)| *kind));
    let lasts_max_ms = match kind {
        Kind::Cut => 5_000,
        _ => 2_500,
    };
    Trouble {
        pause: Duration::from_millis(random.below(PAUSE_MAX_MS)),
        kind,
        whom: random.next_u64(),
        lasts: Duration::from_millis(100 + random.below(lasts_max_ms)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_troubles_again_and_every_kind_comes() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..1000)
                .map(|_| next(&mut random, None))
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        for (kind, _) in KINDS {
            assert!(
                draw(7).iter().any(|trouble| trouble.kind == kind),
                "{kind:?}"
            );
        }
    }
}

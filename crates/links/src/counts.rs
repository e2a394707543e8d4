//! What is counted and timed of the messages to and from one host.

use crate::traces::LinkTraces;
use rgaps_client::links::HISTOGRAM_BUCKETS;
use rgaps_client::Histogram;
use rgaps_sync::wall_ns;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// A histogram that threads add to.
#[derive(Debug, Default)]
pub struct Times {
    sum_ns: AtomicU64,
    counts: [AtomicU64; HISTOGRAM_BUCKETS],
}

impl Times {
    /// It took so long.
    pub fn add(&self, ns: u64) {
        self.sum_ns.fetch_add(ns, Relaxed);
        self.counts[Histogram::bucket(ns)].fetch_add(1, Relaxed);
    }

    /// From one time of this host's clock until another.
    pub fn span(&self, from_ns: u64, to_ns: u64) {
        self.add(to_ns.saturating_sub(from_ns));
    }

    /// As it is now.
    pub fn read(&self) -> Histogram {
        Histogram {
            sum_ns: self.sum_ns.load(Relaxed),
            counts: std::array::from_fn(|at| self.counts[at].load(Relaxed)),
        }
    }
}

/// Times of messages that go to a host.
#[derive(Debug, Default)]
pub struct TimesOut {
    /// From publishing until the links take it.
    pub take: Times,
    /// From there until its first byte is written.
    pub queue: Times,
    /// From there until it is acknowledged.
    pub wire: Times,
}

/// Times of messages that come from a host.
#[derive(Debug, Default)]
pub struct TimesIn {
    /// From having a place until its turn.
    pub ingress: Times,
    /// From there until it is published.
    pub publish: Times,
    /// From publishing there until publishing here.
    pub total: Times,
}

impl TimesIn {
    /// A message that had a place, and then its turn, is published here now; elsewhere it was at that time of
    /// the wall clock. Where the
    /// clocks are apart by more than that took, it took no time.
    pub fn published(&self, [placed_ns, turn_ns, now_ns]: [u64; 3], published_wall_ns: u64) {
        self.ingress.span(placed_ns, turn_ns);
        self.publish.span(turn_ns, now_ns);
        self.total.span(published_wall_ns, wall_ns());
    }
}

/// Counts of what went to a host.
#[derive(Debug, Default)]
pub struct EgressCounts {
    /// Messages.
    pub messages: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Messages for which there was no room.
    pub skipped: AtomicU64,
    /// How long it took.
    pub times: TimesOut,
    /// What is told of single messages.
    pub traces: Option<LinkTraces>,
}

impl EgressCounts {
    /// Nothing yet.
    pub fn new(traces: Option<LinkTraces>) -> Arc<EgressCounts> {
        Arc::new(EgressCounts {
            traces,
            ..EgressCounts::default()
        })
    }
}

/// Counts of what came.
#[derive(Debug, Default)]
pub struct IngressCounts {
    /// Messages.
    pub messages: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Messages that never came.
    pub missed: AtomicU64,
    /// Messages for the host that were given up.
    pub given_up: AtomicU64,
    /// How often the link came up.
    pub connects: AtomicU64,
    /// How long it took.
    pub times: TimesIn,
    /// What is told of single messages.
    pub traces: Option<LinkTraces>,
}

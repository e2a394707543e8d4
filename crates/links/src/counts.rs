//! What is counted and timed of the messages to and from one host.

use crate::issues::TopicIssues;
use crate::traces::LinkTraces;
use rgaps_client::links::HISTOGRAM_BUCKETS;
use rgaps_client::{Histogram, Stage};
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
    /// It took from one time of this host's clock until another.
    pub fn span(&self, from_ns: u64, to_ns: u64) {
        let ns = to_ns.saturating_sub(from_ns);
        self.sum_ns.fetch_add(ns, Relaxed);
        self.counts[Histogram::bucket(ns)].fetch_add(1, Relaxed);
    }

    pub fn read(&self) -> Histogram {
        Histogram {
            sum_ns: self.sum_ns.load(Relaxed),
            counts: std::array::from_fn(|at| self.counts[at].load(Relaxed)),
        }
    }
}

/// What is counted of one host, as long as it is known.
#[derive(Default)]
pub struct HostCounts {
    pub messages_out: AtomicU64,
    pub bytes_out: AtomicU64,
    /// Messages for it for which there was no room.
    pub skipped: AtomicU64,
    pub given_up: AtomicU64,
    pub messages_in: AtomicU64,
    pub bytes_in: AtomicU64,
    pub missed: AtomicU64,
    pub connects: AtomicU64,
    /// How long stages took, in their order.
    times: [Times; Stage::ALL.len()],
    pub traces: Option<LinkTraces>,
    pub issues: TopicIssues,
}

impl HostCounts {
    pub fn new(traces: Option<LinkTraces>) -> Arc<HostCounts> {
        Arc::new(HostCounts {
            traces,
            ..HostCounts::default()
        })
    }

    pub fn times(&self, stage: Stage) -> &Times {
        &self.times[stage as usize]
    }

    /// A message that had a place, and then its turn, is published here now; elsewhere it was at that time of the wall clock. Where
    /// the clocks are apart by more than that took, it took no time.
    pub fn published(&self, [placed_ns, turn_ns, now_ns]: [u64; 3], published_wall_ns: u64) {
        self.times(Stage::Land).span(placed_ns, turn_ns);
        self.times(Stage::Publish).span(turn_ns, now_ns);
        self.times(Stage::Total).span(published_wall_ns, wall_ns());
    }
}

//! Counts and times of the messages to and from one host.

use crate::issues::TopicIssues;
use crate::traces::LinkTraces;
use rgaps_client::links::HISTOGRAM_BUCKETS;
use rgaps_client::{Histogram, LinkFigures, RdmaFigures, Stage};
use rgaps_sync::{to_wall, wall_offset_ns};
use rgaps_transport::{LinkCounts, LinkStatus};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// A histogram that threads add to.
#[derive(Debug, Default)]
pub struct Times {
    sum_ns: AtomicU64,
    counts: [AtomicU64; HISTOGRAM_BUCKETS],
}

impl Times {
    /// Adds the span between two times of the monotonic clock.
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

/// The counts of one host. They continue when its link is replaced.
#[derive(Default)]
pub struct HostCounts {
    pub messages_out: AtomicU64,
    pub bytes_out: AtomicU64,
    /// Messages that were not sent to the host, for lack of room or by its limits.
    pub skipped: AtomicU64,
    /// Messages that were dropped before the host acknowledged them, and that no other flow sends.
    pub given_up: AtomicU64,
    pub messages_in: AtomicU64,
    pub bytes_in: AtomicU64,
    pub missed: AtomicU64,
    pub connects: AtomicU64,
    /// How long stages took, by stage.
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

    /// Adds the times of a message: when it got memory, had its turn and was published here, and its publishing time on its origin's wall
    /// clock.
    pub fn published(&self, [placed_ns, turn_ns, now_ns]: [u64; 3], published_wall_ns: u64) {
        self.times(Stage::Land).span(placed_ns, turn_ns);
        self.times(Stage::Publish).span(turn_ns, now_ns);
        let now_wall_ns = to_wall(now_ns, wall_offset_ns(now_ns));
        self.times(Stage::Total)
            .span(published_wall_ns, now_wall_ns);
    }

    /// The host's figures. `status`: that of its link, if there is one.
    pub fn figures(&self, host: &str, status: Option<&LinkStatus>) -> LinkFigures {
        let counts = status.map(|status| status.counts).unwrap_or_default();
        LinkFigures {
            host: host.to_owned(),
            lanes: status.map_or(0, |status| status.lanes.len() as u32),
            messages_out: self.messages_out.load(Relaxed),
            messages_in: self.messages_in.load(Relaxed),
            bytes_out: self.bytes_out.load(Relaxed),
            bytes_in: self.bytes_in.load(Relaxed),
            wire_bytes_out: counts.wire_bytes_out,
            wire_bytes_in: counts.wire_bytes_in,
            skipped: self.skipped.load(Relaxed),
            given_up: self.given_up.load(Relaxed),
            missed: self.missed.load(Relaxed),
            resent: counts.resent,
            duplicates: counts.duplicates,
            connects: self.connects.load(Relaxed),
            lanes_ended: counts.lanes_ended,
            violations: counts.disconnected,
            ends: counts.ends,
            rdma: rdma(&counts),
            retained_bytes: status.map_or(0, |status| status.retained_bytes),
            stages: Stage::ALL.map(|stage| self.times(stage).read()),
        }
    }
}

fn rdma(counts: &LinkCounts) -> RdmaFigures {
    let channels = &counts.channels;
    RdmaFigures {
        opened: counts.rdma_opened,
        failed: counts.rdma_failed,
        ring_bytes_out: channels.bytes_sent,
        ring_bytes_in: channels.bytes_received,
        direct_bytes_out: channels.direct_bytes_sent,
        direct_bytes_in: counts.direct_bytes_in,
        works: channels.works,
        doorbells: channels.doorbells,
        stalls_ring: channels.stalls_ring,
        stalls_receives: channels.stalls_receives,
        stalls_sends: channels.stalls_sends,
    }
}

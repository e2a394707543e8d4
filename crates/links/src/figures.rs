//! What is counted and timed on the link with a host.

use crate::forward::{Departed, Held};
use crate::land::Arrived;
use crate::peer::Peer;
use crate::traces::Trace;
use crate::wire::{monotonic_ns, wall_ns};
use rgaps_client::links::{LinksNode, HISTOGRAM_BUCKETS};
use rgaps_client::{Histogram, LaneEnd, LinkFigures, Node, RdmaFigures, Stage};
use rgaps_transport::{LinkCounts, LinkStatus, Payload};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the daemon is told.
const TELL: Duration = Duration::from_secs(1);

/// Tells the daemon of all links, now and then.
#[derive(Default)]
pub struct Teller {
    told: Option<Instant>,
}

impl Teller {
    /// If it is time.
    pub fn tell<'a>(&mut self, node: &Node, peers: impl Iterator<Item = &'a Peer>) {
        if self.told.is_some_and(|at| at.elapsed() < TELL) {
            return;
        }
        self.told = Some(Instant::now());
        for peer in peers {
            // It takes those of hosts only that it was told of.
            if let Err(error) = node.set_figures(peer.figures()) {
                tracing::debug!(%error, host = peer.node.host, "telling the daemon the figures of a link failed");
            }
        }
    }
}

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

    fn read(&self) -> Histogram {
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
    pub land: Times,
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
        self.land.span(placed_ns, turn_ns);
        self.publish.span(turn_ns, now_ns);
        self.total.span(published_wall_ns, wall_ns());
    }
}

/// A message on its way to one host. It is dropped when that has it, or it was given up.
pub struct Carried {
    held: Arc<Held>,
    sent: Arc<Departed>,
    taken_ns: u64,
    /// When its first byte was written; 0: it was not.
    written_ns: AtomicU64,
    /// If it is told of.
    trace: Option<Trace>,
}

impl Carried {
    /// One that the links took then.
    pub fn new(
        held: Arc<Held>,
        sent: Arc<Departed>,
        taken_ns: u64,
        trace: Option<Trace>,
    ) -> Arc<Carried> {
        Arc::new(Carried {
            held,
            sent,
            taken_ns,
            written_ns: AtomicU64::new(0),
            trace,
        })
    }
}

impl Carried {
    /// A lane writes it. Two lanes that begin at the same time say the same.
    fn begin(&self) {
        if self.written_ns.load(Relaxed) == 0 {
            self.written_ns.store(monotonic_ns(), Relaxed);
        }
    }
}

impl Payload for Carried {
    fn bytes(&self) -> usize {
        self.held.bytes()
    }

    fn ready(&self) -> usize {
        self.held.ready()
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        self.begin();
        self.held.slice(from, to)
    }

    fn direct(&self) -> Option<u64> {
        self.begin();
        self.held.direct()
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        let written_ns = *self.written_ns.get_mut();
        if written_ns != 0 {
            let (times, now_ns) = (&self.sent.times, monotonic_ns());
            times.queue.span(self.taken_ns, written_ns);
            times.wire.span(written_ns, now_ns);
            if let (Some(traces), Some(trace)) = (&self.sent.traces, self.trace.take()) {
                traces.sent(trace, self.taken_ns, written_ns, now_ns);
            }
        }
    }
}

/// All that is known of a link.
pub fn figures(
    host: &str,
    sent: &Departed,
    arrived: &Arrived,
    status: Option<&LinkStatus>,
) -> LinkFigures {
    let counts = status.map(|status| status.counts).unwrap_or_default();
    let stages = Stage::ALL.map(|stage| match stage {
        Stage::Take => sent.times.take.read(),
        Stage::Queue => sent.times.queue.read(),
        Stage::Wire => sent.times.wire.read(),
        Stage::Land => arrived.times.land.read(),
        Stage::Publish => arrived.times.publish.read(),
        Stage::Total => arrived.times.total.read(),
    });
    LinkFigures {
        host: host.to_owned(),
        lanes: status.map_or(0, |status| status.lanes.len() as u32),
        messages_out: sent.messages.load(Relaxed),
        messages_in: arrived.messages.load(Relaxed),
        bytes_out: sent.bytes.load(Relaxed),
        bytes_in: arrived.bytes.load(Relaxed),
        wire_bytes_out: counts.wire_bytes_out,
        wire_bytes_in: counts.wire_bytes_in,
        left_out: sent.left_out.load(Relaxed),
        given_up: arrived.given_up.load(Relaxed),
        missed: arrived.missed.load(Relaxed),
        redelivered: counts.resent,
        duplicates: counts.duplicates,
        connects: arrived.connects.load(Relaxed),
        lanes_ended: counts.lanes_ended,
        cut_off: counts.disconnected,
        ends: LaneEnd::ALL.map(|end| counts.ends[end_of(end) as usize]),
        rdma: rdma(&counts),
        retained_bytes: status.map_or(0, |status| status.retained_bytes),
        stages,
    }
}

/// What a link calls it.
fn end_of(end: LaneEnd) -> rgaps_transport::LaneEnd {
    use rgaps_transport::LaneEnd as Its;
    match end {
        LaneEnd::Closed => Its::Closed,
        LaneEnd::Replaced => Its::Replaced,
        LaneEnd::Connection => Its::Connection,
        LaneEnd::Lie => Its::ProtocolViolation,
        LaneEnd::Completion => Its::Completion,
        LaneEnd::Event => Its::Event,
        LaneEnd::Call => Its::Call,
    }
}

fn rdma(counts: &LinkCounts) -> RdmaFigures {
    let lanes = &counts.rdma;
    RdmaFigures {
        opened: counts.rdma_opened,
        failed: counts.rdma_failed,
        ring_bytes_out: lanes.ring_bytes_out,
        ring_bytes_in: lanes.ring_bytes_in,
        direct_bytes_out: lanes.direct_bytes_out,
        direct_bytes_in: lanes.direct_bytes_in,
        works: lanes.works,
        doorbells: lanes.doorbells,
        stalls_ring: lanes.stalls_ring,
        stalls_receives: lanes.stalls_receives,
        stalls_sends: lanes.stalls_sends,
    }
}

//! What is counted and timed on the link with a host.

use crate::counts::{EgressCounts, IngressCounts};
use rgaps_client::{LaneEnd, LinkFigures, RdmaFigures, Stage};
use rgaps_transport::{LinkCounts, LinkStatus};
use std::sync::atomic::Ordering::Relaxed;

/// All that is known of a link.
pub fn figures(
    host: &str,
    sent: &EgressCounts,
    arrived: &IngressCounts,
    status: Option<&LinkStatus>,
) -> LinkFigures {
    let counts = status.map(|status| status.counts).unwrap_or_default();
    let stages = Stage::ALL.map(|stage| match stage {
        Stage::Take => sent.times.take.read(),
        Stage::Queue => sent.times.queue.read(),
        Stage::Wire => sent.times.wire.read(),
        Stage::Land => arrived.times.ingress.read(),
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
        skipped: sent.skipped.load(Relaxed),
        given_up: arrived.given_up.load(Relaxed),
        missed: arrived.missed.load(Relaxed),
        resent: counts.resent,
        duplicates: counts.duplicates,
        connects: arrived.connects.load(Relaxed),
        lanes_ended: counts.lanes_ended,
        violations: counts.disconnected,
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
        LaneEnd::ProtocolViolation => Its::ProtocolViolation,
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

//! What is counted and timed on the link with a host.

use crate::counts::HostCounts;
use rgaps_client::{LinkFigures, RdmaFigures, Stage};
use rgaps_transport::{LinkCounts, LinkStatus};
use std::sync::atomic::Ordering::Relaxed;

/// All that is known of a link.
pub fn figures(host: &str, counted: &HostCounts, status: Option<&LinkStatus>) -> LinkFigures {
    let counts = status.map(|status| status.counts).unwrap_or_default();
    LinkFigures {
        host: host.to_owned(),
        lanes: status.map_or(0, |status| status.lanes.len() as u32),
        messages_out: counted.messages_out.load(Relaxed),
        messages_in: counted.messages_in.load(Relaxed),
        bytes_out: counted.bytes_out.load(Relaxed),
        bytes_in: counted.bytes_in.load(Relaxed),
        wire_bytes_out: counts.wire_bytes_out,
        wire_bytes_in: counts.wire_bytes_in,
        skipped: counted.skipped.load(Relaxed),
        given_up: counted.given_up.load(Relaxed),
        missed: counted.missed.load(Relaxed),
        resent: counts.resent,
        duplicates: counts.duplicates,
        connects: counted.connects.load(Relaxed),
        lanes_ended: counts.lanes_ended,
        violations: counts.disconnected,
        // Both name the reasons in this order.
        ends: counts.ends,
        rdma: rdma(&counts),
        retained_bytes: status.map_or(0, |status| status.retained_bytes),
        stages: Stage::ALL.map(|stage| counted.times(stage).read()),
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

#[cfg(test)]
mod tests {
    #[test]
    fn reasons_for_which_lanes_end_are_counted_in_the_order_in_which_they_are_shown() {
        let counted = rgaps_transport::LaneEnd::ALL.map(|end| format!("{end:?}"));
        let shown = rgaps_client::LaneEnd::ALL.map(|end| format!("{end:?}"));
        assert_eq!(counted, shown);
    }
}

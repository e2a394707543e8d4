//! What a link is made with, what it reports of itself, and to whom.

use super::lane::LaneStatus;
use super::LinkRuntime;
use crate::machine::frame::{LaneKey, RdmaMode};
use crate::machine::{FlowEvent, LinkLimits};
use rgaps_layout::LaneEnd;
use rgaps_verbs::ChannelCounts;
use std::net::SocketAddr;
use std::time::Duration;

/// What a link may use, and how patient it is.
#[derive(Clone, Copy, Debug)]
pub struct LinkConfig {
    /// Lanes that this end opens, if it is the one that dials.
    pub lanes: usize,
    /// Both ends of the link.
    pub limits: LinkLimits,
    /// A lane writes something at least so often.
    pub beat_ms: u64,
    /// A lane that is quiet for so long is closed.
    pub quiet_ms: u64,
    /// The shortest and the longest wait between attempts to open a lane.
    pub backoff_ms: (u64, u64),
    /// A lane's reading thread polls for so long before it sleeps.
    pub spin: Duration,
    /// Whether lanes are to be RDMA lanes, where the endpoint has RDMA.
    pub rdma: RdmaMode,
    /// After an RDMA lane broke, or could not be opened, lanes are TCP for so long. Then RDMA lanes replace them.
    pub rdma_again_ms: u64,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            lanes: 4,
            limits: LinkLimits::default(),
            beat_ms: 250,
            quiet_ms: 1500,
            backoff_ms: (20, 1000),
            spin: Duration::ZERO,
            rdma: RdmaMode::Prefer,
            rdma_again_ms: 2000,
        }
    }
}

/// What the control plane knows of the other end.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its incarnation; 0 if any will do.
    pub incarnation: u64,
    /// The key of this pair of incarnations.
    pub key: LaneKey,
    /// Where it listens, if this end opens the lanes (one of the two has to); else empty.
    pub dial: Vec<SocketAddr>,
}

/// The state of a link, for reports.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    /// The lanes that are open.
    pub lanes: Vec<LaneStatus>,
    /// Bytes of messages that are not acknowledged.
    pub retained_bytes: u64,
    /// Large messages that have arrived in part or whole and are not delivered.
    pub arriving: usize,
    /// Why the last lane ended, or could not be opened.
    pub error: Option<String>,
    /// Counted since the link was made.
    pub counts: LinkCounts,
}

/// How often something happened on a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Bytes that lanes wrote, frames included.
    pub wire_bytes_out: u64,
    /// Bytes that they read.
    pub wire_bytes_in: u64,
    /// Messages that may have left on a lane that was lost, and were sent again.
    pub resent: u64,
    /// Messages of the peer that arrived again, and were dropped.
    pub duplicates: u64,
    /// Lanes that were opened.
    pub lanes_opened: u64,
    /// Lanes that ended.
    pub lanes_ended: u64,
    /// How often the peer was disconnected for a protocol violation.
    pub disconnected: u64,
    /// RDMA lanes that were opened.
    pub rdma_opened: u64,
    /// How often RDMA broke, or was not possible.
    pub rdma_failed: u64,
    /// What the channels of RDMA lanes counted: frames are bytes that were copied through rings.
    pub channels: ChannelCounts,
    /// Bytes that the peer's cards wrote into receive buffers by themselves.
    pub direct_bytes_in: u64,
    /// Lanes that ended, in the order of [`LaneEnd::ALL`].
    pub ends: [u64; LaneEnd::ALL.len()],
}

impl LinkCounts {
    pub(super) fn add_lane(&mut self, lane: &LaneStatus) {
        self.wire_bytes_out += lane.bytes_out;
        self.wire_bytes_in += lane.bytes_in;
        self.direct_bytes_in += lane.direct_bytes_in;
        self.channels += lane.channel.unwrap_or_default();
    }
}

/// Who learns what happens on a link: one event at a time, in order. The link is not locked and may be called. It does not block.
pub trait LinkUser: Send + Sync + 'static {
    /// Something happened to a flow that is sent.
    fn flow_event(&self, event: FlowEvent, link: &LinkRuntime) {
        let _ = (event, link);
    }

    /// Something happened to the link.
    fn event(&self, event: LinkEvent, link: &LinkRuntime) {
        let _ = (event, link);
    }
}

/// What happened on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// There is a lane, where there was none.
    Up,
    /// There is no lane any more; both ends keep what is not acknowledged and go on when there is one again.
    Down {
        /// Why the last one ended.
        why: String,
    },
    /// A lane ended; others may go on.
    LaneEnded {
        /// Its number.
        lane: u32,
        /// Why.
        end: LaneEnd,
        /// In words: for RDMA with the status of the work that failed.
        why: String,
    },
    /// The peer is another incarnation (or the pair has another key). All flows that arrived are over. The user
    /// [reopens](crate::machine::LinkMachine::reopen) the flows that it sends.
    Restarted,
    /// The peer refused a lane, or this end refused one.
    LaneRefused {
        /// Why, with what both sides have.
        why: String,
    },
}

//! A link's configuration, its reports, and the user who gets its events.

use super::lane::LaneStatus;
use super::LinkRuntime;
use crate::machine::frame::{LaneKey, RdmaMode};
use crate::machine::{FlowEvent, LinkLimits};
use rgaps_layout::LaneEnd;
use rgaps_verbs::ChannelCounts;
use std::net::SocketAddr;
use std::time::Duration;

/// The limits and times of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkConfig {
    /// How many lanes this end opens, if it is the one that dials.
    pub lanes: usize,
    /// The limits of the link's machine.
    pub limits: LinkLimits,
    /// A lane writes at least one frame in this time.
    pub beat_ms: u64,
    /// A lane on which nothing was received for so long is closed.
    pub quiet_ms: u64,
    /// The shortest and the longest wait between attempts to open a lane.
    pub backoff_ms: (u64, u64),
    /// A lane's reading thread polls for so long before it sleeps.
    pub spin: Duration,
    /// Whether lanes are to be RDMA lanes.
    pub rdma: RdmaMode,
    /// After an RDMA lane broke or could not be opened, new lanes are TCP lanes for so long. Then RDMA lanes replace them.
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

/// What the control plane knows of a link's peer.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its incarnation; 0 accepts any.
    pub incarnation: u64,
    /// The key of this pair of incarnations.
    pub key: LaneKey,
    /// The addresses at which it listens, if this end opens the lanes; empty if the peer does.
    pub dial: Vec<SocketAddr>,
}

/// The state of a link, for reports.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    /// The lanes that are open.
    pub lanes: Vec<LaneStatus>,
    /// Bytes of sent messages that are not acknowledged.
    pub retained_bytes: u64,
    /// Large messages that the peer has requested and that are not delivered.
    pub arriving: usize,
    /// Why the last lane ended, or could not be opened.
    pub error: Option<String>,
    /// Counted since the link was made.
    pub counts: LinkCounts,
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Bytes that lanes wrote, frames included.
    pub wire_bytes_out: u64,
    /// Bytes that lanes read, frames included.
    pub wire_bytes_in: u64,
    /// Messages that were resent because a lost lane may have taken them.
    pub resent: u64,
    /// Small messages that arrived more than once.
    pub duplicates: u64,
    /// Lanes that were opened.
    pub lanes_opened: u64,
    /// Lanes that ended.
    pub lanes_ended: u64,
    /// How often the peer was disconnected for a protocol violation.
    pub disconnected: u64,
    /// RDMA lanes that were opened.
    pub rdma_opened: u64,
    /// How often an RDMA lane broke or could not be opened.
    pub rdma_failed: u64,
    /// The sums of the RDMA lanes' channel counters. Their frames are the bytes that were copied through rings.
    pub channels: ChannelCounts,
    /// Bytes that the peer's cards wrote directly into receive buffers.
    pub direct_bytes_in: u64,
    /// Lanes that ended, by reason, in the order of [`LaneEnd::ALL`].
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

/// Gets the events of a link: one at a time, in order. The link is not locked during a call, so the user may call it. The user must not
/// block.
pub trait LinkUser: Send + Sync + 'static {
    /// An event of a flow that this end sends.
    fn flow_event(&self, event: FlowEvent, link: &LinkRuntime) {
        let _ = (event, link);
    }

    /// An event of the link.
    fn event(&self, event: LinkEvent, link: &LinkRuntime) {
        let _ = (event, link);
    }
}

/// An event of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The link has its first lane.
    Up,
    /// The link has lost its last lane. Both ends keep the messages that are not acknowledged, and continue with the next lane.
    Down {
        /// Why the last lane ended.
        why: String,
    },
    /// A lane ended. Others may be left.
    LaneEnded {
        /// The lane's number.
        lane: u32,
        /// The kind of reason.
        end: LaneEnd,
        /// The reason as text; for RDMA with the status of the work that failed.
        why: String,
    },
    /// The peer has another incarnation, machine or key. All flows that arrived have ended. The user
    /// [reopens](crate::machine::LinkMachine::reopen) the flows that it sends.
    Restarted,
    /// The peer refused a lane, or this end refused one.
    LaneRefused {
        /// The reason, with the value of each end.
        why: String,
    },
}

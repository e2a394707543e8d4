//! The state of a link that its lock guards.

use super::config::{LinkCounts, LinkEvent, Peer};
use super::delivery::Task;
use super::lane::Lane;
use crate::machine::frame::Hello;
use crate::machine::LinkMachine;
use rgaps_layout::LaneEnd;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The state of a link that its lock guards.
pub(super) struct LockedLink {
    pub(super) machine: LinkMachine,
    /// The number that HELLO names, unique in this endpoint. A restart changes it.
    pub(super) machine_id: u64,
    /// Tasks to perform without the lock, before the machine's outputs.
    pub(super) tasks: VecDeque<Task>,
    /// A thread is performing tasks and outputs.
    pub(super) is_settling: bool,
    pub(super) lanes: BTreeMap<u32, Arc<dyn Lane>>,
    pub(super) peer: Peer,
    /// The peer's incarnation and the number of its machine, to which the lanes belong; `None` if it had no lane yet.
    pub(super) seen: Option<(u64, u64)>,
    /// The machine restarts as soon as all lanes have ended.
    pub(super) is_restarting: bool,
    pub(super) is_closing: bool,
    /// The number of the last lane that was opened with the peer in `seen`.
    pub(super) last_lane: u32,
    /// Failed attempts to open a lane in a row: they lengthen the wait before the next.
    pub(super) failures: u32,
    /// When this end last began to open a lane.
    pub(super) dialled_ms: u64,
    /// Until then the peer gets no lane, because it violated the protocol.
    pub(super) penalty_until_ms: u64,
    /// RDMA is not tried before this time; `rdma_why`: because it broke or was not possible.
    pub(super) rdma_after_ms: u64,
    pub(super) rdma_why: Option<String>,
    /// The peer's last HELLO did not say [`RdmaMode::No`](crate::machine::frame::RdmaMode::No).
    pub(super) peer_has_rdma: bool,
    /// Why the last lane ended or could not be opened.
    pub(super) error: Option<String>,
    pub(super) threads: Vec<JoinHandle<()>>,
    /// The sums over ended lanes, and the link's own counts.
    pub(super) counts: LinkCounts,
}

impl LockedLink {
    /// Queues an event for the user, after the outputs that the machine has so far.
    pub(super) fn event(&mut self, event: LinkEvent) {
        while let Some(output) = self.machine.output() {
            self.tasks.push_back(Task::Output(output));
        }
        self.tasks.push_back(Task::Event(event));
    }

    pub(super) fn next_task(&mut self) -> Option<Task> {
        let task = self.tasks.pop_front();
        task.or_else(|| self.machine.output().map(Task::Output))
    }

    /// Whether [`LinkRuntime::settle`](super::LinkRuntime::settle) has nothing to do.
    pub(super) fn is_settled(&self) -> bool {
        self.tasks.is_empty() && !self.is_restarting && self.machine.is_settled()
    }

    /// Why a lane ended.
    pub(super) fn end_of(&self, lane: &dyn Lane, now_ms: u64) -> LaneEnd {
        if lane.state().is_replaced.load(Relaxed) {
            return LaneEnd::Replaced;
        }
        if self.is_closing || self.is_restarting {
            return LaneEnd::Closed;
        }
        if now_ms < self.penalty_until_ms {
            return LaneEnd::ProtocolViolation;
        }
        lane.broke().unwrap_or(LaneEnd::Connection)
    }

    /// Whether a HELLO is from another incarnation or machine than the lanes.
    pub(super) fn is_other(&self, other: &Hello) -> bool {
        self.seen
            .is_some_and(|seen| seen != (other.node, other.machine))
    }

    /// Closes all lanes; the machine restarts when they have ended.
    pub(super) fn begin_restart(&mut self) {
        self.is_restarting = true;
        self.seen = None;
        for lane in self.lanes.values() {
            lane.close("the peer is another incarnation");
        }
    }

    /// Restarts the machine, if a restart has begun, all lanes have ended and nothing is out for delivery. Returns what the machine had of
    /// the old peer, to be dropped without the lock.
    pub(super) fn restart(&mut self, machine_id: impl FnOnce() -> u64) -> Option<impl Sized> {
        if !self.is_restarting || !self.lanes.is_empty() || self.machine.is_delivering() {
            return None;
        }
        self.is_restarting = false;
        self.machine_id = machine_id();
        let old_state = self.machine.restart();
        self.event(LinkEvent::Restarted);
        Some(old_state)
    }
}

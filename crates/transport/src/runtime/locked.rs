//! What a link's lock guards.

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

/// What the link's lock guards.
pub(super) struct LockedLink {
    pub(super) machine: LinkMachine,
    /// The number that HELLO names: no other link of this endpoint has it, and after a restart the link has another.
    pub(super) machine_id: u64,
    /// What is to be done without the lock, before the machine's outputs.
    pub(super) tasks: VecDeque<Task>,
    /// A thread carries out tasks and outputs.
    pub(super) is_settling: bool,
    pub(super) lanes: BTreeMap<u32, Arc<dyn Lane>>,
    pub(super) peer: Peer,
    /// The incarnation that the lanes belong to, and which of its machines.
    pub(super) seen: Option<(u64, u64)>,
    /// All lanes are to end first, then the machine restarts.
    pub(super) is_restarting: bool,
    pub(super) is_closing: bool,
    /// The number of the last lane that was opened with the peer in `seen`.
    pub(super) last_lane: u32,
    pub(super) failures: u32,
    pub(super) dialled_ms: u64,
    pub(super) penalty_until_ms: u64,
    /// RDMA is not tried before this time, and why: it broke, or was not possible.
    pub(super) rdma_after_ms: u64,
    pub(super) rdma_why: Option<String>,
    /// The peer's HELLO said that it has RDMA.
    pub(super) peer_has_rdma: bool,
    pub(super) error: Option<String>,
    pub(super) threads: Vec<JoinHandle<()>>,
    /// Of lanes that ended, and what is counted here.
    pub(super) counts: LinkCounts,
}

impl LockedLink {
    /// Behind all that happened before.
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

    /// Whether a HELLO is of another incarnation or machine than the lanes.
    pub(super) fn is_other(&self, other: &Hello) -> bool {
        self.seen
            .is_some_and(|seen| seen != (other.node, other.machine))
    }

    pub(super) fn begin_restart(&mut self) {
        self.is_restarting = true;
        self.seen = None;
        for lane in self.lanes.values() {
            lane.close("the peer is another incarnation");
        }
    }

    /// Restarts the machine, once nobody uses what it has of the former peer; that is to be dropped without the lock.
    pub(super) fn restart(&mut self, machine_id: impl FnOnce() -> u64) -> Option<impl Sized> {
        if !self.is_restarting || !self.lanes.is_empty() || self.machine.is_delivering() {
            return None;
        }
        self.is_restarting = false;
        self.machine_id = machine_id();
        let former = self.machine.restart();
        self.event(LinkEvent::Restarted);
        Some(former)
    }
}

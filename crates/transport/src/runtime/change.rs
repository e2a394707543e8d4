//! What a link's user does to its flows.

use super::user::FlowId;
use super::LinkRuntime;
use crate::machine::frame::Description;
use crate::machine::LinkMachine;
use crate::payload::Payload;
use std::sync::Arc;

/// A link whose lock is held: its user changes its flows, as one step. A flow of a machine that was replaced takes nothing.
pub struct LinkChange<'a> {
    machine: &'a mut LinkMachine,
    number: u64,
    has_lanes: bool,
    /// What is to be dropped without the lock.
    dropped: Vec<Arc<dyn Payload>>,
}

impl LinkChange<'_> {
    /// Whether a flow is one of this machine, and not of one that was replaced.
    pub fn is_current(&self, flow: FlowId) -> bool {
        flow.machine == self.number
    }

    /// Whether there is a lane.
    pub fn has_lanes(&self) -> bool {
        self.has_lanes
    }

    /// See [`LinkMachine::open`].
    pub fn open(&mut self, first: u64, description: Description) -> Option<FlowId> {
        let number = self.machine.open(first, description)?;
        Some(FlowId {
            machine: self.number,
            number,
        })
    }

    /// See [`LinkMachine::send`].
    pub fn send(
        &mut self,
        flow: FlowId,
        sequence: u64,
        payload: &Arc<dyn Payload>,
        description: Description,
    ) -> bool {
        let payload = Arc::clone(payload);
        let sends = || {
            self.machine
                .send(flow.number, sequence, payload, description)
        };
        flow.machine == self.number && sends()
    }

    /// See [`LinkMachine::say`].
    pub fn say(&mut self, said: Arc<dyn Payload>) -> bool {
        self.machine.say(said)
    }

    /// See [`LinkMachine::ready`].
    pub fn ready(&mut self, flow: FlowId, sequence: u64, ready: u64) {
        if self.is_current(flow) {
            self.machine.ready(flow.number, sequence, ready);
        }
    }

    /// See [`LinkMachine::cancel`]. Whether there was something to give up.
    pub fn cancel(&mut self, flow: FlowId, sequence: u64) -> bool {
        if !self.is_current(flow) {
            return false;
        }
        let payload = self.machine.cancel(flow.number, sequence);
        let is_cancelled = payload.is_some();
        self.dropped.extend(payload);
        is_cancelled
    }

    /// See [`LinkMachine::oldest_unsent`].
    pub fn oldest_unsent(&self, flow: FlowId) -> Option<u64> {
        self.is_current(flow)
            .then(|| self.machine.oldest_unsent(flow.number))?
    }

    /// See [`LinkMachine::skip`].
    pub fn skip(&mut self, flow: FlowId, next: u64) {
        if self.is_current(flow) {
            self.machine.skip(flow.number, next);
        }
    }

    /// See [`LinkMachine::cut`].
    pub fn cut(&mut self, flow: FlowId) {
        if self.is_current(flow) {
            let dropped = self.machine.cut(flow.number);
            self.dropped.extend(dropped);
        }
    }

    /// See [`LinkMachine::close`].
    pub fn close(&mut self, flow: FlowId) {
        if self.is_current(flow) {
            self.machine.close(flow.number);
        }
    }

    /// See [`LinkMachine::refuse`].
    pub fn refuse(&mut self, flow: FlowId, why: Description) -> bool {
        self.is_current(flow) && self.machine.refuse(flow.number, why)
    }
}

impl LinkRuntime {
    /// Changes the link's flows with its lock held, and then has lanes write. `act` is quick and does not call the link.
    pub fn change<T>(&self, act: impl FnOnce(&mut LinkChange<'_>) -> T) -> T {
        let mut locked = self.lock();
        let (number, has_lanes) = (locked.machines, !locked.lanes.is_empty());
        let mut change = LinkChange {
            machine: &mut locked.machine,
            number,
            has_lanes,
            dropped: Vec::new(),
        };
        let result = act(&mut change);
        let dropped = change.dropped;
        drop(locked);
        drop(dropped);
        self.settle();
        result
    }
}

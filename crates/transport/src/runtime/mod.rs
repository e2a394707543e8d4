//! Runs a link: a [`LinkMachine`] under a lock, lanes with their threads, and the clock.
//!
//! ```text
//!   user --change--> LinkMachine --batch--> Lane --> network --> Lane --frame--> LinkMachine --settle--> user
//! ```
//!
//! A thread that has changed the machine under the lock *settles* the link afterwards without the lock: it gives the machine's outputs
//! to the user, in order and from one thread at a time, and has lanes write the frames that wait. A small message whose turn it is goes
//! from the read buffer of its lane straight to the user. [`crate::machine`] says who may touch which bytes.
//!
//! **Restart.** HELLO names the peer's incarnation and the number of its link's machine. When one of them has changed (the peer's user
//! may have dropped the link and made it again), the link closes all lanes. When the last one has ended and nothing is out for
//! delivery, the machine restarts, and the user gets [`LinkEvent::Restarted`].

mod batch;
mod config;
mod delivery;
mod endpoint;
mod handshake;
mod lane;
mod locked;
mod opening;

pub use config::{LinkConfig, LinkCounts, LinkEvent, LinkStatus, LinkUser, Peer};
pub use endpoint::{Endpoint, EndpointConfig, EndpointError, Link};
pub use lane::{LaneKind, LaneStatus};

use crate::machine::frame::{Description, Frame, RdmaMode, Reset, LANES_MAX};
use crate::machine::{
    FlowReceiver, FrameStep, LinkMachine, ProtocolViolation, WriteLimit, WriteRange,
};
use batch::Batch;
use delivery::deliver_small;
use endpoint::Shared;
use locked::LockedLink;
use rgaps_layout::LaneEnd;
use rgaps_verbs::MARK_MAX;
use rustix::time::{clock_gettime, ClockId};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// How long a peer that violated the protocol gets no lane.
const PENALTY_MS: u64 = 1000;
/// A lane that ends sooner counts as a failed attempt to open one.
const LIVED_MS: u64 = 1000;

/// Milliseconds of the monotonic clock. The coarse clock lags a few ms, but reads no hardware: it is read for each frame.
fn clock_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    let numbers = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    let (Ok(s), Ok(ns)) = numbers else {
        unreachable!("it counts from the machine's start");
    };
    s * 1000 + ns / 1_000_000
}

/// RESET with this reason: the last frame of a lane.
fn reset(why: &str) -> Frame {
    let why = Description::of_words(why);
    Reset { why }.into()
}

/// What a lane has to do after a frame.
struct Admitted {
    /// Of a chunk: the range for its bytes.
    range: Option<WriteRange>,
    /// [`LinkRuntime::settle`] would have nothing to do.
    is_settled: bool,
}

/// A running link, which its user and its lanes' threads share.
pub struct LinkRuntime {
    pub(crate) name: String,
    config: LinkConfig,
    receiver: Arc<dyn FlowReceiver>,
    user: Arc<dyn LinkUser>,
    pub(crate) shared: Arc<Shared>,
    locked: Mutex<LockedLink>,
    /// Wakes the thread that opens lanes.
    changed: Condvar,
}

impl LinkRuntime {
    pub(crate) fn new(
        name: &str,
        mut config: LinkConfig,
        peer: Peer,
        (receiver, user): (Arc<dyn FlowReceiver>, Arc<dyn LinkUser>),
        shared: Arc<Shared>,
    ) -> Self {
        config.lanes = config.lanes.clamp(1, LANES_MAX);
        // Without RDMA, grants name no addresses.
        let registered = match config.rdma {
            RdmaMode::No => Arc::default(),
            _ => Arc::clone(&shared.registered),
        };
        let remote = Arc::new(move |address, bytes| registered.remote(address, bytes));
        let locked = LockedLink {
            machine: LinkMachine::new(config.limits, Arc::clone(&receiver), remote),
            machine_id: shared.next_machine(),
            tasks: VecDeque::new(),
            is_settling: false,
            lanes: BTreeMap::new(),
            peer,
            seen: None,
            is_restarting: false,
            is_closing: false,
            last_lane: 0,
            failures: 0,
            dialled_ms: 0,
            penalty_until_ms: 0,
            rdma_after_ms: 0,
            rdma_why: None,
            peer_has_rdma: false,
            error: None,
            threads: Vec::new(),
            counts: LinkCounts::default(),
        };
        Self {
            name: name.into(),
            config,
            receiver,
            user,
            shared,
            locked: Mutex::new(locked),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, LockedLink> {
        self.locked.lock().expect("no thread of a link panics")
    }

    /// Changes the machine with the link locked, then settles the link. `act` must be quick and must not call the link. It returns the
    /// payloads that the machine gives it, so that they are dropped without the lock.
    pub fn change<T>(&self, act: impl FnOnce(&mut LinkMachine) -> T) -> T {
        let result = act(&mut self.lock().machine);
        self.settle();
        result
    }

    /// The user may have receive buffers again, or be able to take deliveries that it could not take: asks it again.
    pub fn buffer_free(&self) {
        self.change(LinkMachine::buffer_free);
    }

    /// Takes what the control plane knows of the peer. Restarts the link if the peer has another incarnation or key.
    pub(crate) fn set_peer(&self, peer: Peer) {
        let mut locked = self.lock();
        // A new key means that the peer's machine is new, too.
        let restarts = locked.seen.is_some_and(|(node, _)| {
            peer.key != locked.peer.key
                || ![0, locked.peer.incarnation, node].contains(&peer.incarnation)
        });
        locked.peer = peer;
        (locked.failures, locked.penalty_until_ms) = (0, 0);
        locked.rdma_after_ms = 0;
        if restarts {
            locked.begin_restart();
        }
        drop(locked);
        self.changed.notify_all();
        self.settle();
    }

    /// The link's state, for reports.
    pub fn status(&self) -> LinkStatus {
        let locked = self.lock();
        let mut counts = locked.counts;
        (counts.resent, counts.duplicates) = locked.machine.repeated();
        let lanes = locked.lanes.values().map(|lane| lane.status());
        let lanes: Vec<LaneStatus> = lanes.collect();
        lanes.iter().for_each(|lane| counts.add_lane(lane));
        LinkStatus {
            lanes,
            retained_bytes: locked.machine.retained_bytes(),
            arriving: locked.machine.held().large,
            error: locked.error.clone(),
            counts,
        }
    }

    /// Ends the link, its lanes and threads. Waits for all threads except the one that calls this.
    pub fn close(&self) {
        let mut locked = self.lock();
        locked.is_closing = true;
        for lane in locked.lanes.values() {
            let why = "the link is closed";
            lane.write_last(&reset(why));
            lane.close(why);
        }
        let threads = std::mem::take(&mut locked.threads);
        drop(locked);
        self.changed.notify_all();
        let this = std::thread::current().id();
        for thread in threads {
            if thread.thread().id() != this {
                // A panic of it was reported when it happened.
                let _ = thread.join();
            }
        }
    }

    // Calls of lanes.

    /// Notes that the lane has written its oldest `payloads` payloads, and fills the batch, if it is empty, with the next frames within the
    /// limit. Returns whether frames are left.
    fn batch(&self, lane: u32, payloads: usize, limit: WriteLimit, batch: &mut Batch) -> bool {
        let mut locked = self.lock();
        if payloads > 0 {
            locked.machine.written(lane, payloads);
        }
        // A batch that is written in part gets no more frames.
        let is_new = batch.is_empty();
        while is_new && batch.has_room() {
            let Some(queued) = locked.machine.next(lane, limit) else {
                break;
            };
            batch.push(queued);
        }
        let is_left = locked.machine.waiting(lane, WriteLimit::All).is_some();
        let is_over = limit == WriteLimit::All && payloads > 0;
        let has_changed = is_over && locked.machine.has_changed_lanes(Some(lane));
        drop(locked);
        if has_changed {
            self.wake_changed();
        }
        is_left
    }

    /// Handles a frame that arrived. `payload`: the bytes of a small message; empty for all other frames. `Err`: why the lane ends.
    fn frame(&self, lane: u32, frame: &Frame, payload: &[u8]) -> Result<Admitted, String> {
        if let Frame::Reset(Reset { why }) = frame {
            return Err(format!("the peer ends the link: {}", why.words()));
        }
        self.admit(self.lock(), lane, frame, payload)
    }

    /// Handles a mark: the peer's card has written a whole message directly.
    fn marked(&self, lane: u32, mark: u32, bytes: u32) -> Result<Admitted, String> {
        let locked = self.lock();
        let chunk = locked.machine.marked((mark, MARK_MAX), bytes);
        self.admit(locked, lane, &chunk, &[])
    }

    fn admit(
        &self,
        mut locked: MutexGuard<'_, LockedLink>,
        lane: u32,
        frame: &Frame,
        payload: &[u8],
    ) -> Result<Admitted, String> {
        let step = locked.machine.frame(lane, frame, payload);
        let mut is_settled = locked.is_settled();
        drop(locked);
        let range = match step.map_err(|violation| self.disconnect(Some(lane), &violation))? {
            FrameStep::Done => None,
            FrameStep::Chunk(range) => Some(range),
            FrameStep::Deliver(small) => {
                // Straight from the lane's read buffer.
                let message = payload.split_at(small.description_bytes.into());
                let outcome = deliver_small(self, small.flow, small.sequence, message);
                self.lock().machine.delivered(small.flow, outcome);
                // The user may wait for `rest`.
                is_settled = false;
                None
            }
        };
        Ok(Admitted { range, is_settled })
    }

    /// All bytes of a chunk have landed; `directly`: the peer's card wrote them. Returns whether the message is complete, so that the
    /// caller has to settle the link.
    fn landed(&self, range: WriteRange, directly: bool) -> bool {
        let grant = range.landed(directly);
        if let Some(grant) = grant {
            self.lock().machine.landed(grant);
        }
        grant.is_some()
    }

    /// Disconnects the peer for a frame that is not valid here. Returns the reason.
    fn violated(&self, lane: Option<u32>, frame: &'static str, what: &'static str) -> String {
        self.disconnect(lane, &ProtocolViolation { frame, what })
    }

    /// The peer violated the protocol: closes all lanes but `lane`, which the caller ends, and accepts none for a while. Returns the
    /// reason.
    fn disconnect(&self, lane: Option<u32>, violation: &dyn Display) -> String {
        let why = format!("{} was disconnected: {violation}", self.name);
        let mut locked = self.lock();
        locked.counts.disconnected += 1;
        locked.penalty_until_ms = clock_ms() + PENALTY_MS;
        locked.error = Some(why.clone());
        let reset = reset(&format!("protocol violation: {violation}"));
        for (number, open) in &locked.lanes {
            open.write_last(&reset);
            if Some(*number) != lane {
                open.close(&why);
            }
        }
        why
    }

    /// Removes a lane. The calling thread is the last of the lane's threads.
    fn lane_ended(&self, lane: u32, why: String) {
        let mut locked = self.lock();
        let now_ms = clock_ms();
        let ended = locked.lanes.remove(&lane);
        locked.machine.lane_ended(lane);
        let mut is_replaced = false;
        if let Some(ended) = ended {
            locked.counts.add_lane(&ended.status());
            locked.counts.lanes_ended += 1;
            let end = locked.end_of(&*ended, now_ms);
            locked.counts.ends[end as usize] += 1;
            locked.event(LinkEvent::LaneEnded {
                lane,
                end,
                why: why.clone(),
            });
            let is_rdma = ended.state().kind == LaneKind::Rdma;
            if is_rdma && !locked.is_closing && !locked.is_restarting {
                self.rdma_failed(&mut locked, why.clone());
            }
            is_replaced = end == LaneEnd::Replaced;
            if !is_replaced && now_ms - ended.state().since_ms < LIVED_MS {
                locked.failures = locked.failures.saturating_add(1);
            }
        }
        if !is_replaced {
            locked.error = Some(why.clone());
        }
        if locked.lanes.is_empty() {
            locked.event(LinkEvent::Down { why });
        }
        drop(locked);
        self.changed.notify_all();
        self.settle();
    }

    // Calls of the clock.

    /// Ticks the machine, closes lanes of which nothing was received for too long, and has quiet ones send ALIVE. Returns whether the next
    /// tick is wanted soon.
    pub(crate) fn tick(&self) -> bool {
        let (mut locked, now_ms) = (self.lock(), clock_ms());
        let LockedLink {
            machine,
            lanes,
            failures,
            ..
        } = &mut *locked;
        machine.tick();
        for (number, lane) in lanes {
            let state = lane.state();
            if now_ms.saturating_sub(state.received_ms(now_ms)) >= self.config.quiet_ms {
                lane.close("nothing was heard of the peer");
            } else if now_ms.saturating_sub(state.written_ms()) >= self.config.beat_ms {
                machine.beat(*number);
            }
            if now_ms - state.since_ms >= LIVED_MS {
                *failures = 0;
            }
        }
        drop(locked);
        self.settle();
        let locked = self.lock();
        locked.machine.awaits_tick() || locked.is_restarting
    }

    // After each change.

    /// Changes the machine as [`change`](Self::change) does, without settling the link. The caller calls [`settle`](Self::settle) after
    /// several changes: so several messages leave with one system call.
    pub fn change_unsettled<T>(&self, act: impl FnOnce(&mut LinkMachine) -> T) -> T {
        act(&mut self.lock().machine)
    }

    /// Gives the user all outputs and events, and has lanes write, until nothing is left of both.
    pub fn settle(&self) {
        self.settle_all();
        self.receiver.rest();
    }

    fn settle_all(&self) {
        loop {
            let mut locked = self.lock();
            if !locked.is_settling {
                locked.is_settling = true;
                locked = self.perform_tasks(locked);
                locked.is_settling = false;
            }
            let awaits_tick = locked.machine.awaits_tick();
            let has_changed = locked.machine.has_changed_lanes(None);
            drop(locked);
            if awaits_tick {
                self.shared.hurry();
            }
            if !has_changed || !self.wake_changed() {
                return;
            }
        }
    }

    /// Performs all tasks and outputs, and a restart that is due.
    fn perform_tasks<'a>(
        &'a self,
        mut locked: MutexGuard<'a, LockedLink>,
    ) -> MutexGuard<'a, LockedLink> {
        loop {
            if let Some(task) = locked.next_task() {
                drop(locked);
                let delivered = task.perform(self);
                locked = self.lock();
                if let Some((flow, outcome)) = delivered {
                    locked.machine.delivered(flow, outcome);
                }
                continue;
            }
            let Some(old_state) = locked.restart(|| self.shared.next_machine()) else {
                return locked;
            };
            drop(locked);
            drop(old_state);
            self.changed.notify_all();
            locked = self.lock();
        }
    }

    /// Wakes the lanes that got something to write. Returns whether there were any.
    fn wake_changed(&self) -> bool {
        let mut any = false;
        loop {
            let mut locked = self.lock();
            let Some(number) = locked.machine.changed_lane() else {
                return any;
            };
            let lane = locked.lanes.get(&number).cloned();
            drop(locked);
            if let Some(lane) = lane {
                lane.wake(self);
                any = true;
            }
        }
    }
}

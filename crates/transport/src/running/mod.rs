//! A link that runs: the books of both ends under a lock, lanes with their threads, real time.
//!
//! Whoever changes something under the lock *settles* it afterwards without the lock: the owner hears what
//! happened, one thread at a time and in order, and lanes write what they have.

mod opening;

use crate::batch::Batch;
use crate::cursors::Ring;
use crate::driver::{Destination, Driver, Much, Sent};
use crate::endpoint::Shared;
use crate::frame::{Flow, Frame, LaneKey, Meta, ResetReason, Wish, LANES_MAX};
use crate::lane::{Lane, LaneEnd, LaneStatus};
use crate::owner::{Event, Owner};
use crate::payload::Payload;
use crate::places::Chunk;
use crate::receiver::ReceiverConfig;
use crate::sender::SenderConfig;
use rgaps_verbs::ChannelCounts;
use rustix::time::{clock_gettime, ClockId};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// A peer that lied gets no lane for so long.
const PENALTY_MS: u64 = 1000;
/// A lane that ended sooner counts as one that could not be opened.
const LIVED_MS: u64 = 1000;

/// What a link may use, and how patient it is.
#[derive(Clone, Copy, Debug)]
pub struct LinkConfig {
    /// Lanes that this end opens, if it is the one that dials.
    pub lanes: usize,
    /// The eager ring of each lane, for what comes.
    pub ring_bytes: u64,
    /// The sending end.
    pub sender: SenderConfig,
    /// The receiving end.
    pub receiver: ReceiverConfig,
    /// A lane says something at least so often.
    pub beat_ms: u64,
    /// A lane that is quiet for so long is closed.
    pub quiet_ms: u64,
    /// The shortest and the longest wait between attempts to open a lane.
    pub backoff_ms: (u64, u64),
    /// Whoever reads a lane looks for bytes for so long before it sleeps.
    pub spin: Duration,
    /// Whether lanes are to be RDMA lanes, where the endpoint has RDMA.
    pub rdma: Wish,
    /// After an RDMA lane broke, or could not be had, lanes are TCP for so long. Then those are replaced.
    pub rdma_again_ms: u64,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            lanes: 4,
            ring_bytes: 1 << 20,
            sender: SenderConfig::default(),
            receiver: ReceiverConfig::default(),
            beat_ms: 250,
            quiet_ms: 1500,
            backoff_ms: (20, 1000),
            spin: Duration::ZERO,
            rdma: Wish::Prefer,
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

/// A link as others see it.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    /// The peer's name.
    pub name: String,
    /// The peer's incarnation, once it said it.
    pub incarnation: u64,
    /// The lanes that are open.
    pub lanes: Vec<LaneStatus>,
    /// Bytes of messages that are not acknowledged.
    pub retained_bytes: u64,
    /// Landing places that are not committed.
    pub places: usize,
    /// Why there was no lane last.
    pub error: Option<String>,
    /// Counted since the link was made.
    pub counts: LinkCounts,
}

/// What happened on a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Bytes that lanes wrote, frames included.
    pub wire_bytes_out: u64,
    /// Bytes that they read.
    pub wire_bytes_in: u64,
    /// Messages that were on their way when a lane was lost, and went again.
    pub redelivered: u64,
    /// Messages of the peer that came again, and were thrown away.
    pub duplicates: u64,
    /// How often a lane's ring had no room for a message.
    pub stalls: u64,
    /// Lanes that were opened.
    pub lanes_opened: u64,
    /// Lanes that ended.
    pub lanes_ended: u64,
    /// How often the peer was cut off for a lie.
    pub cut_off: u64,
    /// RDMA lanes that were opened.
    pub rdma_opened: u64,
    /// How often RDMA broke, or could not be had.
    pub rdma_failed: u64,
    /// What went over RDMA lanes, and what held it up.
    pub rdma: RdmaCounts,
    /// Lanes that ended, in the order of [`LaneEnd::ALL`].
    pub ends: [u64; LaneEnd::ALL.len()],
}

/// What RDMA lanes counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdmaCounts {
    /// Bytes that were copied through rings of the peer.
    pub ring_bytes_out: u64,
    /// Bytes that were copied through rings of this end.
    pub ring_bytes_in: u64,
    /// Bytes that were written into their place at the peer.
    pub direct_bytes_out: u64,
    /// Bytes that the peer wrote into their place here.
    pub direct_bytes_in: u64,
    /// Works that were posted, and doorbells rung for them.
    pub works: u64,
    /// See above.
    pub doorbells: u64,
    /// How often a frame waited for bytes of the peer's ring,
    pub stalls_ring: u64,
    /// for receives of the peer,
    pub stalls_receives: u64,
    /// for slots of the send queue, which the completion queue has, too.
    pub stalls_sends: u64,
}

impl RdmaCounts {
    fn add(&mut self, channel: &ChannelCounts, direct_bytes_in: u64) {
        self.ring_bytes_out += channel.bytes_sent;
        self.ring_bytes_in += channel.bytes_received;
        self.direct_bytes_out += channel.direct_bytes_sent;
        self.direct_bytes_in += direct_bytes_in;
        self.works += channel.works;
        self.doorbells += channel.doorbells;
        self.stalls_ring += channel.stalls_ring;
        self.stalls_receives += channel.stalls_receives;
        self.stalls_sends += channel.stalls_sends;
    }
}

impl LinkCounts {
    fn add_lane(&mut self, lane: &LaneStatus) {
        self.wire_bytes_out += lane.bytes_out;
        self.wire_bytes_in += lane.bytes_in;
        if let Some(channel) = &lane.channel {
            self.rdma.add(channel, lane.direct_bytes_in);
        }
    }
}

struct Open {
    lane: Arc<dyn Lane>,
    since_ms: u64,
    is_rdma: bool,
    /// It is closed because an RDMA lane took its place.
    replaced: bool,
}

struct Core {
    driver: Driver,
    lanes: BTreeMap<u32, Open>,
    peer: Peer,
    /// The incarnation that the lanes belong to.
    seen: u64,
    /// All lanes are to end first.
    restarting: bool,
    closing: bool,
    delivering: bool,
    /// The number of the last lane that was opened with the peer in `seen`.
    last_lane: u32,
    failures: u32,
    dialled_ms: u64,
    penalty_until_ms: u64,
    /// RDMA is not tried before, and why: it broke, or could not be had.
    rdma_after_ms: u64,
    rdma_why: Option<String>,
    /// The peer said that it could.
    peer_has_rdma: bool,
    error: Option<String>,
    threads: Vec<JoinHandle<()>>,
    beat: u64,
    /// Of lanes that ended, and what is counted here.
    counts: LinkCounts,
}

impl Core {
    /// Why a lane ended.
    fn end_of(&self, open: &Open, now_ms: u64) -> LaneEnd {
        if open.replaced {
            return LaneEnd::Replaced;
        }
        if self.closing || self.restarting {
            return LaneEnd::Closed;
        }
        if now_ms < self.penalty_until_ms {
            return LaneEnd::Lie;
        }
        open.lane.broke().unwrap_or(LaneEnd::Connection)
    }
}

/// Some ms behind at most, and read for each frame: without a look at the hardware.
fn clock_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    let numbers = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    let (Ok(s), Ok(ns)) = numbers else {
        unreachable!("it counts from the machine's start");
    };
    s * 1000 + ns / 1_000_000
}

/// A link, as its threads see it.
pub(crate) struct Running {
    pub(crate) name: String,
    config: LinkConfig,
    ring: Ring,
    owner: Arc<dyn Owner>,
    pub(crate) shared: Arc<Shared>,
    start_ms: u64,
    core: Mutex<Core>,
    changed: Condvar,
}

impl Running {
    pub(crate) fn new(
        name: &str,
        mut config: LinkConfig,
        ring: Ring,
        peer: Peer,
        owner: Arc<dyn Owner>,
        shared: Arc<Shared>,
        driver: Driver,
    ) -> Self {
        config.lanes = config.lanes.clamp(1, LANES_MAX);
        let core = Core {
            driver,
            lanes: BTreeMap::new(),
            peer,
            seen: 0,
            restarting: false,
            closing: false,
            delivering: false,
            last_lane: 0,
            failures: 0,
            dialled_ms: 0,
            penalty_until_ms: 0,
            rdma_after_ms: 0,
            rdma_why: None,
            peer_has_rdma: false,
            error: None,
            threads: Vec::new(),
            beat: 0,
            counts: LinkCounts::default(),
        };
        Self {
            name: name.into(),
            config,
            ring,
            owner,
            shared,
            start_ms: clock_ms(),
            core: Mutex::new(core),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        clock_ms() - self.start_ms
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("no thread of a link panics")
    }

    // What the owner does.

    pub(crate) fn open(&self, flow: Flow, first: u64, reliable: bool, retained_max: u64) {
        let mut core = self.lock();
        core.driver.open(flow, first, reliable, retained_max);
        drop(core);
        self.settle();
    }

    pub(crate) fn send(
        &self,
        flow: Flow,
        sequence: u64,
        payload: Arc<dyn Payload>,
        meta: Meta,
    ) -> Sent {
        let sent = self.lock().driver.send(flow, sequence, payload, meta);
        self.settle();
        sent
    }

    pub(crate) fn more(&self, flow: Flow, sequence: u64, ready: u64) {
        self.lock().driver.more(flow, sequence, ready);
        self.settle();
    }

    pub(crate) fn give_up(&self, flow: Flow, sequence: u64) {
        self.lock().driver.give_up(flow, sequence);
        self.settle();
    }

    pub(crate) fn close_flow(&self, flow: Flow) {
        self.lock().driver.close(flow);
        self.settle();
    }

    pub(crate) fn retry(&self) {
        self.lock().driver.retry();
        self.settle();
    }

    /// What the control plane says of the peer.
    pub(crate) fn set_peer(&self, peer: Peer) {
        let mut core = self.lock();
        // With another key the peer's books are new, too.
        let other = peer.key != core.peer.key
            || ![0, core.peer.incarnation, core.seen].contains(&peer.incarnation);
        let other = other && core.seen != 0;
        core.peer = peer;
        (core.failures, core.penalty_until_ms, core.rdma_after_ms) = (0, 0, 0);
        if other {
            self.begin_restart(&mut core);
        }
        drop(core);
        self.changed.notify_all();
        self.settle();
    }

    fn begin_restart(&self, core: &mut Core) {
        core.restarting = true;
        core.seen = 0;
        for open in core.lanes.values() {
            open.lane.close("the peer is another incarnation");
        }
        self.restart_if_closed(core);
    }

    fn restart_if_closed(&self, core: &mut Core) {
        if core.restarting && core.lanes.is_empty() {
            core.restarting = false;
            core.driver.restart();
        }
    }

    pub(crate) fn committed(&self) -> Vec<(Flow, u64)> {
        self.lock().driver.committed()
    }

    pub(crate) fn status(&self) -> LinkStatus {
        let core = self.lock();
        let (retained_bytes, places) = core.driver.held();
        let mut counts = core.counts;
        (counts.redelivered, counts.stalls, counts.duplicates) = core.driver.counts();
        for lane in core.lanes.values().map(|open| open.lane.status()) {
            counts.add_lane(&lane);
        }
        LinkStatus {
            name: self.name.clone(),
            incarnation: core.seen,
            lanes: core.lanes.values().map(|open| open.lane.status()).collect(),
            retained_bytes,
            places,
            error: core.error.clone(),
            counts,
        }
    }

    /// Ends lanes and threads; waits for them, but not for the thread that calls this.
    pub(crate) fn close(&self) {
        let mut core = self.lock();
        core.closing = true;
        for open in core.lanes.values() {
            open.lane.last_word(&Frame::Goodbye);
            open.lane.close("the link is closed");
        }
        let threads = std::mem::take(&mut core.threads);
        drop(core);
        self.changed.notify_all();
        let this = std::thread::current().id();
        for thread in threads {
            if thread.thread().id() != this {
                // It told its panic, if it had one.
                let _ = thread.join();
            }
        }
    }

    // What lanes do.

    /// Payloads of a batch were written; the next one. Whether something is left that is more than that.
    pub(crate) fn batch(&self, lane: u32, payloads: usize, much: Much, batch: &mut Batch) -> bool {
        let mut core = self.lock();
        if payloads > 0 {
            core.driver.written(lane, payloads);
        }
        let left = core.driver.batch(lane, much, batch);
        drop(core);
        if much == Much::All && payloads > 0 {
            self.kick_dirty(Some(lane));
        }
        left
    }

    /// Payloads were written, the oldest first.
    pub(crate) fn written(&self, lane: u32, payloads: usize) {
        self.lock().driver.written(lane, payloads);
    }

    /// Whether something waits to be written, and whether that is part of so much.
    pub(crate) fn waiting(&self, lane: u32, much: Much) -> Option<bool> {
        self.lock().driver.waiting(lane, much)
    }

    pub(crate) fn frame(&self, lane: u32, frame: &Frame) -> Result<Option<Destination>, String> {
        match frame {
            Frame::Alive { .. } => return Ok(None),
            Frame::Goodbye => return Err("the peer closed the link".into()),
            Frame::Reset { reason, .. } => {
                return Err(format!("the peer resets the link: {reason:?}"))
            }
            _ => {}
        }
        let result = self.lock().driver.frame(lane, frame, self.now_ms());
        result.map_err(|lie| self.cut_off(lane, &lie))
    }

    /// The same of a write that came with a mark.
    pub(crate) fn marked(
        &self,
        lane: u32,
        mark: u32,
        bytes: u32,
    ) -> Result<Option<Destination>, String> {
        let mut core = self.lock();
        let result = core.driver.marked(lane, mark, bytes, self.now_ms());
        drop(core);
        result.map_err(|lie| self.cut_off(lane, &lie))
    }

    pub(crate) fn landed(&self, lane: u32, small: &[u8]) -> Result<(), String> {
        let result = self.lock().driver.landed(lane, small);
        result.map_err(|lie| self.cut_off(lane, &lie))
    }

    /// Bytes of a chunk have landed; directly: the peer wrote them into their place itself.
    pub(crate) fn landed_part(&self, chunk: &Chunk, bytes: u64, directly: bool) {
        match &chunk.hears {
            Some(hears) => hears.landed(chunk.from, bytes, directly && chunk.is_on_card),
            None => self
                .owner
                .landed(chunk.flow, chunk.sequence, chunk.from, bytes),
        }
    }

    /// The peer lied: it has no lane of this link any more, and gets none for a while.
    pub(crate) fn cut_off(&self, lane: u32, lie: &dyn Display) -> String {
        let why = format!("{} was cut off: {lie}", self.name);
        self.shared.counts.cut_off.fetch_add(1, Relaxed);
        let mut core = self.lock();
        core.counts.cut_off += 1;
        core.penalty_until_ms = self.now_ms() + PENALTY_MS;
        core.error = Some(why.clone());
        let reset = Frame::Reset {
            reason: ResetReason::Protocol,
            ours: 0,
        };
        for (number, open) in &core.lanes {
            open.lane.last_word(&reset);
            if *number != lane {
                open.lane.close(&why);
            }
        }
        why
    }

    /// A lane's threads have ended, but for the one that calls.
    pub(crate) fn lane_ended(&self, lane: u32, why: String) {
        let mut core = self.lock();
        let now_ms = self.now_ms();
        let ended = core.lanes.remove(&lane);
        core.driver.lane_closed(lane, now_ms);
        if let Some(open) = &ended {
            core.counts.add_lane(&open.lane.status());
            core.counts.lanes_ended += 1;
            let end = core.end_of(open, now_ms);
            core.counts.ends[end as usize] += 1;
            core.driver.event(Event::LaneEnded {
                lane,
                end,
                why: why.clone(),
            });
            if open.is_rdma && !core.closing && !core.restarting {
                self.rdma_failed(&mut core, why.clone());
            }
        }
        let replaced = ended.as_ref().is_some_and(|open| open.replaced);
        if !replaced {
            if ended.is_some_and(|open| now_ms - open.since_ms < LIVED_MS) {
                core.failures = core.failures.saturating_add(1);
            }
            core.error = Some(why.clone());
        }
        if core.lanes.is_empty() {
            core.driver.event(Event::Down { why });
        }
        self.restart_if_closed(&mut core);
        drop(core);
        self.changed.notify_all();
        self.settle();
    }

    pub(crate) fn keep_thread(&self, thread: JoinHandle<()>) {
        self.lock().threads.push(thread);
    }

    // What time does.

    /// Whether the next tick is wanted soon.
    pub(crate) fn tick(&self) -> bool {
        let mut core = self.lock();
        let now_ms = self.now_ms();
        core.driver.tick(now_ms);
        let (mut quiet, mut silent) = (Vec::new(), Vec::new());
        for (number, open) in &core.lanes {
            if now_ms.saturating_sub(open.lane.heard_ms(now_ms)) >= self.config.quiet_ms {
                quiet.push(Arc::clone(&open.lane));
            } else if now_ms.saturating_sub(open.lane.spoke_ms()) >= self.config.beat_ms {
                silent.push(*number);
            }
        }
        if core.failures > 0
            && core
                .lanes
                .values()
                .any(|open| now_ms - open.since_ms >= LIVED_MS)
        {
            core.failures = 0;
        }
        core.beat += 1;
        let beat = core.beat;
        silent
            .iter()
            .for_each(|number| core.driver.beat(*number, beat));
        if let Some(open) = core.driver.stuck().and_then(|stuck| core.lanes.get(&stuck)) {
            open.lane.close("the peer asks and does not read");
        }
        drop(core);
        for lane in quiet {
            lane.close("nothing was heard of the peer");
        }
        self.settle();
        self.lock().driver.awaits_tick()
    }

    // After each change.

    /// Tells the owner what happened, and has lanes write, until there is nothing of either.
    pub(crate) fn settle(&self) {
        loop {
            let mut core = self.lock();
            if !core.delivering && core.driver.has_deliveries() {
                core.delivering = true;
                while let Some(delivery) = core.driver.next_delivery() {
                    drop(core);
                    let outcome = delivery.perform(&*self.owner);
                    core = self.lock();
                    if let Some((flow, outcome)) = outcome {
                        core.driver.delivered(flow, outcome);
                    }
                }
                core.delivering = false;
            }
            let awaits_tick = core.driver.awaits_tick();
            drop(core);
            if awaits_tick {
                self.shared.hurry();
            }
            if !self.kick_dirty(None) {
                return;
            }
        }
    }

    /// Has lanes write that have something new. Whether there were any.
    fn kick_dirty(&self, but: Option<u32>) -> bool {
        let mut any = false;
        while let Some(lane) = self.next_dirty(but) {
            lane.kick(self);
            any = true;
        }
        any
    }

    fn next_dirty(&self, but: Option<u32>) -> Option<Arc<dyn Lane>> {
        let mut core = self.lock();
        while let Some(number) = core.driver.dirty() {
            let open = core.lanes.get(&number).filter(|_| Some(number) != but);
            if let Some(open) = open {
                return Some(Arc::clone(&open.lane));
            }
        }
        None
    }
}

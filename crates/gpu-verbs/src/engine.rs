//! The engine of one queue pair: fetches the entries that kernels wrote, posts them on a carrier, writes completions.

use crate::carrier::{Carrier, Event};
use crate::entry::{completion, decode, Outcome, Work};
use crate::queue::{QueueMemory, Which};
use crate::view::{Syndrome, RECORD_RECEIVE, RECORD_SEND};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Most entries that one step fetches.
const FETCHED_AT_ONCE: usize = 64;

/// The behaviour of a software card, for tests. Real cards are known to do each of these.
#[derive(Clone, Copy, Debug, Default)]
pub struct Behaviour {
    /// Seed of all random choices.
    pub seed: u64,
    /// A step fetches, and advances the carrier, in one of `delay_one_in` cases each; 0 and 1: always.
    pub delay_one_in: u32,
    /// Whether the card yields between writing the two parts of a completion.
    pub is_torn: bool,
    /// Whether the doorbell record decides which works are posted, and the doorbell only wakes the card. Otherwise the
    /// doorbell's own index decides.
    pub record_decides: bool,
    /// How often a write with immediate is tried while the peer has no receive; 0: without limit.
    pub receive_tries: u32,
}

/// What a card counted on a queue pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// New values of the doorbell.
    pub doorbells: u64,
    /// Entries fetched.
    pub works: u64,
    /// Completions of sends written.
    pub completions: u64,
    /// Completions of immediates that the peer sent.
    pub received: u64,
    /// What kernels did against the rules: the first eight different texts.
    pub violations: Vec<String>,
}

pub(crate) struct Engine {
    queue: Arc<QueueMemory>,
    carrier: Box<dyn Carrier>,
    behaviour: Behaviour,
    random: u64,
    is_stalled: Arc<AtomicBool>,
    counts: Arc<Mutex<Counts>>,
    /// The doorbell as it was last seen.
    doorbell: [u8; 8],
    /// Entries with a lower index may be fetched.
    ready: u64,
    /// Entries with a lower index were fetched.
    fetched: u64,
    /// The index of each work in flight, and whether it completes also when it succeeds.
    in_flight: VecDeque<(u64, bool)>,
    events: VecDeque<Event>,
    /// Completions written, of sends and of receives.
    completed: [u64; 2],
    /// Receives that kernels have posted, ever.
    receives: u64,
    /// A work failed, or a kernel broke the rules: all further works are flushed.
    has_failed: bool,
    /// A completion or receive queue would be overrun. The engine stops, since it cannot report anything more.
    is_dead: bool,
}

impl Engine {
    pub(crate) fn new(
        queue: Arc<QueueMemory>,
        carrier: Box<dyn Carrier>,
        behaviour: Behaviour,
        is_stalled: Arc<AtomicBool>,
        counts: Arc<Mutex<Counts>>,
    ) -> Engine {
        Engine {
            queue,
            carrier,
            behaviour,
            random: behaviour.seed | 1,
            is_stalled,
            counts,
            doorbell: [0; 8],
            ready: 0,
            fetched: 0,
            in_flight: VecDeque::new(),
            events: VecDeque::new(),
            completed: [0; 2],
            receives: 0,
            has_failed: false,
            is_dead: false,
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.queue.number()
    }

    fn note(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().expect("nobody panics with it"));
    }

    fn violation(&self, what: String) {
        self.note(|counts| {
            if counts.violations.len() < 8 && !counts.violations.contains(&what) {
                counts.violations.push(what);
            }
        });
    }

    fn is_skipped(&mut self) -> bool {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let one_in = u64::from(self.behaviour.delay_one_in);
        one_in > 1 && self.random % one_in != 0
    }

    /// Does what can be done without waiting. Returns whether there was anything to do.
    pub(crate) fn step(&mut self) -> bool {
        if self.is_dead || self.is_stalled.load(Ordering::Acquire) {
            return false;
        }
        // First the doorbell, then the receives, then the works: so the receives that a kernel posted before it rang count before its
        // works are carried out. As soon as the peer sees such a work, it may send an immediate.
        let mut is_busy = self.look_at_doorbell();
        self.look_at_receives();
        if self.fetched < self.ready && !self.is_skipped() {
            is_busy |= self.fetch();
        }
        if !self.is_skipped() {
            self.carrier.progress(&mut self.events);
        }
        while let Some(event) = self.events.pop_front() {
            is_busy = true;
            match event {
                Event::Done(result) => self.done(result),
                Event::Received { immediate, bytes } => self.received(immediate, bytes),
            }
        }
        is_busy
    }

    fn look_at_receives(&mut self) {
        let posted = self.queue.record(RECORD_RECEIVE) as u16;
        let more = posted.wrapping_sub(self.receives as u16);
        if more == 0 {
            return;
        }
        let most = 1u64 << self.queue.depths().receives_log2;
        if self.receives + u64::from(more) > self.completed[1] + most {
            let text = format!("{more} more receives than the queue has entries for");
            self.violation(text);
            self.is_dead = true;
            return;
        }
        self.receives += u64::from(more);
        self.carrier.add_receives(more.into());
    }

    fn look_at_doorbell(&mut self) -> bool {
        let bytes = self.queue.doorbell();
        if bytes == self.doorbell {
            return false;
        }
        self.doorbell = bytes;
        self.note(|counts| counts.doorbells += 1);
        let half = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let (rung, number) = ((half(0) >> 8) as u16, half(4) >> 8);
        let record = self.queue.record(RECORD_SEND);
        let size = 1u64 << self.queue.depths().sends_log2;
        // Kernels write the record before the doorbell, so the record may be ahead of the doorbell, but never behind.
        let ahead = (record as u16).wrapping_sub(rung);
        let is_good = number == self.number()
            && bytes[3] == 0
            && bytes[7] == 0
            && record <= 0xffff
            && u64::from(ahead) <= size;
        let next = match self.behaviour.record_decides {
            true => record as u16,
            false => rung,
        };
        let more = u64::from(next.wrapping_sub(self.ready as u16));
        if !is_good || self.ready + more > self.fetched + size {
            self.violation(format!(
                "doorbell {bytes:02x?} with record {record:#x}, when {:#x} was known",
                self.ready
            ));
            self.has_failed = true;
            return true;
        }
        self.ready += more;
        true
    }

    fn fetch(&mut self) -> bool {
        let mut is_busy = false;
        for _ in 0..FETCHED_AT_ONCE {
            if self.fetched == self.ready {
                break;
            }
            let index = self.fetched;
            if self.has_failed {
                self.fetched += 1;
                // Completions come in order, so this one waits for the works in flight.
                match self.in_flight.is_empty() {
                    true => self.complete(Outcome::Failed(Syndrome::Flushed), index),
                    false => self.in_flight.push_back((index, true)),
                }
                is_busy = true;
                continue;
            }
            match decode(&self.queue.entry(index), index, self.number()) {
                Ok(work) => {
                    if !self.take(&work) {
                        break;
                    }
                }
                Err(error) => {
                    self.violation(error.to_string());
                    if !self.in_flight.is_empty() {
                        break;
                    }
                    self.fetched += 1;
                    self.complete(Outcome::Failed(Syndrome::LocalOperation), index);
                    self.has_failed = true;
                }
            }
            is_busy = true;
        }
        is_busy
    }

    fn take(&mut self, work: &Work) -> bool {
        if !self.carrier.post(work) {
            return false;
        }
        self.fetched += 1;
        self.note(|counts| counts.works += 1);
        self.in_flight.push_back((work.index, work.completes));
        true
    }

    fn done(&mut self, result: Result<(), Syndrome>) {
        let Some((index, completes)) = self.in_flight.pop_front() else {
            self.violation("the carrier finished a work that was not posted".into());
            return;
        };
        match result {
            // After a failure all works are flushed, also those that the carrier carried out.
            _ if self.has_failed => self.complete(Outcome::Failed(Syndrome::Flushed), index),
            Ok(()) if completes => self.complete(Outcome::Done, index),
            Ok(()) => {}
            Err(syndrome) => {
                self.has_failed = true;
                self.complete(Outcome::Failed(syndrome), index);
                self.flush();
            }
        }
    }

    /// Ends all works behind a failed one: makes the carrier abandon them, and completes them as flushed.
    fn flush(&mut self) {
        self.carrier.fail();
        for (index, _) in std::mem::take(&mut self.in_flight) {
            self.complete(Outcome::Failed(Syndrome::Flushed), index);
        }
        self.events
            .retain(|event| matches!(event, Event::Received { .. }));
        if self.receives > self.completed[1] {
            self.write(
                Which::Receives,
                Outcome::ReceiveFailed(Syndrome::Flushed),
                0,
            );
        }
    }

    fn received(&mut self, immediate: u32, bytes: u32) {
        let counter = self.completed[1] as u16;
        self.note(|counts| counts.received += 1);
        self.write(
            Which::Receives,
            Outcome::Received { immediate, bytes },
            counter,
        );
    }

    fn complete(&mut self, outcome: Outcome, index: u64) {
        self.note(|counts| counts.completions += 1);
        self.write(Which::Sends, outcome, index as u16);
    }

    fn write(&mut self, which: Which, outcome: Outcome, counter: u16) {
        let log2 = which.log2(self.queue.depths());
        let written = self.completed[which as usize];
        let taken = self.queue.taken(which);
        let open = (written as u32).wrapping_sub(taken) & 0xff_ffff;
        if self.is_dead || u64::from(open) >= 1 << log2 {
            if !self.is_dead {
                let text = format!("completion queue overrun: {written} written, {taken} taken");
                self.violation(text);
            }
            self.is_dead = true;
            return;
        }
        let owner = (written >> log2 & 1) as u8;
        let raw = completion(outcome, self.number(), counter, owner);
        let is_torn = self.behaviour.is_torn;
        let between = || {
            if is_torn {
                std::thread::yield_now();
            }
        };
        self.queue.complete(which, written, &raw, between);
        self.completed[which as usize] += 1;
    }
}

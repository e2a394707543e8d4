//! One queue pair as a card serves it: fetch entries, have a carrier carry them out, complete.

use crate::carrier::{Carrier, Event};
use crate::entry::{completion, decode, Outcome, Work};
use crate::queue::{QueueMemory, Which};
use crate::view::{Syndrome, RECORD_RECEIVE, RECORD_SEND};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Entries that one step fetches.
const FETCHED_AT_ONCE: usize = 64;

/// How a software card behaves; real ones are known to do each of these.
#[derive(Clone, Copy, Debug, Default)]
pub struct Behaviour {
    /// All that is random comes from it.
    pub seed: u64,
    /// A step does something in one of so many cases; 0 and 1: always.
    pub delay_one_in: u32,
    /// Others may run between the two parts of a completion.
    pub is_torn: bool,
    /// How far works go, the doorbell record says, and the doorbell only wakes.
    pub record_decides: bool,
    /// Tries of a write with immediate that finds no receive; 0: without end.
    pub receive_tries: u32,
}

/// What a card has seen of a queue pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Doorbells that were new.
    pub doorbells: u64,
    /// Entries fetched.
    pub works: u64,
    /// Completions of sends written.
    pub completions: u64,
    /// Immediates that were given to kernels.
    pub received: u64,
    /// What no kernel may do, the first of each kind of it.
    pub violations: Vec<String>,
}

pub(crate) struct Engine {
    queue: Arc<QueueMemory>,
    carrier: Box<dyn Carrier>,
    behaviour: Behaviour,
    random: u64,
    is_stalled: Arc<AtomicBool>,
    counts: Arc<Mutex<Counts>>,
    doorbell: [u8; 8],
    /// Works up to here may be fetched, and were.
    ready: u64,
    fetched: u64,
    in_flight: VecDeque<(u64, bool)>,
    events: VecDeque<Event>,
    /// Completions written, of sends and of receives.
    completed: [u64; 2],
    receives: u64,
    has_failed: bool,
    /// A completion queue would be overrun: nothing more can be said.
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

    /// Does what there is to do now. Whether there was anything.
    pub(crate) fn step(&mut self) -> bool {
        if self.is_dead || self.is_stalled.load(Ordering::Acquire) {
            return false;
        }
        // In this order: receives that a kernel posted before it rang are there before its works are carried out. The peer may
        // send as soon as it sees one.
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
        // The record is written before the doorbell, so it may be newer, and never older.
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
                // Behind those that are on their way.
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
            // What the carrier did behind a failure counts for nothing.
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

    /// Works that the carrier will not tell of any more: all that came behind a failure.
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

//! One publisher, some subscribers, one message at a time: what latency and fan-out are made of.
//!
//! Rounds of a batch each. The publisher fills a batch of loans; then come as many hops of the
//! floor, then the messages, each answered by all subscribers (on the board) before the next; then
//! the subscribers verify all bytes of the batch. Filling and verifying wash the caches where
//! messages are large, so some hops and some small messages, which are not timed, come before
//! those that are; the one message per round that comes right after the washing is reported apart
//! (`first`).

use crate::board::{Board, Field, Geometry};
use crate::contents;
use crate::crew::{Crew, Job, Orders};
use crate::stage::{node, Stage};
use rgaps::{Loan, PublisherQos, RecvError, Sample, Subscriber, SubscriberQos};
use rgaps_sync::{futex_wait, futex_wake_all, monotonic_ns, spin_hint};
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Most messages of a round.
const BATCH_MAX: u64 = 64;
/// Most bytes of a round's messages.
const BATCH_BYTES: u64 = 2 << 30;
/// Hops, and small messages, before those that are timed.
const WARM_UP: usize = 16;
/// Bytes of such a message.
const WARM_UP_BYTES: u64 = 64;
/// Before each message, so that sleepers sleep.
const SETTLE_NS: u64 = 100_000;
/// How long a subscriber waits for a message, which it then counts as lost.
const RECV_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the messages' pause is where there are more pollers than cores.
const NAP: Duration = Duration::from_micros(100);

/// Result areas of a subscriber.
const MESSAGES: usize = 0;
const FIRST: usize = 1;
const FLOOR: usize = 2;

/// How subscribers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// By looking all the time.
    Poll,
    /// Asleep on a futex.
    Block,
    /// By looking now and then: awake as far as the publisher knows, without a core each.
    Nap,
}

/// What is exchanged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub size: u64,
    pub messages: usize,
    pub wait: Wait,
    pub subscribers: usize,
}

impl Plan {
    fn batch(&self) -> usize {
        let fit = (BATCH_BYTES / self.size.max(1)).clamp(1, BATCH_MAX) as usize;
        fit.min(self.messages.max(1))
    }

    fn rounds(&self) -> usize {
        self.messages.div_ceil(self.batch())
    }

    /// Messages of a round: the first, those that warm up, those that are timed.
    fn messages_per_round(&self) -> usize {
        1 + WARM_UP + self.batch()
    }

    /// Bytes of message `index` of a round.
    fn bytes(&self, index: usize) -> u64 {
        match index {
            1..=WARM_UP => WARM_UP_BYTES.min(self.size),
            _ => self.size,
        }
    }
}

/// What came of it, in nanoseconds.
pub struct Outcome {
    /// How long each publish call took.
    pub publish: Vec<u64>,
    /// How long each send of the floor took.
    pub floor_send: Vec<u64>,
    /// From publish call to handler, per subscriber.
    pub messages: Vec<Vec<u64>>,
    /// The same of the first message after filling and verifying.
    pub first: Vec<u64>,
    /// The floor's, from send to receive, of all subscribers.
    pub floor: Vec<u64>,
    pub lost: u64,
    pub corrupt: u64,
}

/// The publisher's side: starts the subscribers and exchanges.
pub fn run(stage: &Stage, topic: &str, plan: &Plan) -> anyhow::Result<Outcome> {
    let (batch, rounds) = (plan.batch(), plan.rounds());
    let geometry = Geometry {
        members: plan.subscribers,
        samples: batch * rounds,
    };
    let board = Board::create(geometry)?;
    let mut crew = Crew::default();
    for member in 0..plan.subscribers {
        let orders = Orders {
            member,
            geometry,
            config: stage.config.clone(),
            topic: topic.to_owned(),
            job: Job::Listen(plan.clone()),
        };
        crew.add(&orders, &board)?;
    }
    let publisher = stage
        .node
        .publisher(topic)
        .domain(stage.domain)
        .qos(PublisherQos {
            max_loans: plan.messages_per_round() as u32,
            loan_timeout: Duration::from_secs(60),
            ..PublisherQos::default()
        })
        .keep_last(1)
        .create()?;
    let mut sender = Sender {
        crew,
        board: &board,
        plan,
        done: 1,
        publish: Vec::with_capacity(batch * rounds),
        floor_send: Vec::with_capacity(batch * rounds),
    };
    // Each subscriber counts one when it has joined.
    sender.wait()?;
    let mut sequence = 0;
    for round in 0..rounds {
        let mut loans = Vec::with_capacity(plan.messages_per_round());
        for index in 0..plan.messages_per_round() {
            let mut loan = publisher.loan(plan.bytes(index))?;
            contents::fill(&mut loan, contents::seed(0, sequence))?;
            sequence += 1;
            loans.push(loan);
        }
        let hops = WARM_UP + batch;
        for hop in 0..hops {
            sender.hop((round * hops + hop + 1) as u64, hop >= WARM_UP)?;
        }
        for (index, loan) in loans.into_iter().enumerate() {
            sender.message(loan, index > WARM_UP)?;
        }
        // All bytes are verified.
        sender.done += 1;
        sender.wait()?;
    }
    let Sender {
        crew,
        publish,
        floor_send,
        ..
    } = sender;
    crew.finish()?;
    Ok(outcome(&board, plan, publish, floor_send))
}

fn outcome(board: &Board, plan: &Plan, publish: Vec<u64>, floor_send: Vec<u64>) -> Outcome {
    let (rounds, all) = (plan.rounds(), plan.rounds() * plan.batch());
    let members = 0..plan.subscribers;
    let sum = |field| {
        members
            .clone()
            .map(|m| board.field(m, field).load(Ordering::Acquire))
            .sum()
    };
    let (lost, corrupt) = (sum(Field::Lost), sum(Field::Corrupt));
    Outcome {
        publish,
        floor_send,
        messages: members
            .clone()
            .map(|m| board.results(m, MESSAGES, all))
            .collect(),
        first: members
            .clone()
            .flat_map(|m| board.results(m, FIRST, rounds))
            .collect(),
        floor: members.flat_map(|m| board.results(m, FLOOR, all)).collect(),
        lost,
        corrupt,
    }
}

struct Sender<'a> {
    crew: Crew,
    board: &'a Board,
    plan: &'a Plan,
    /// What every subscriber has to have counted before the next step.
    done: u64,
    publish: Vec<u64>,
    floor_send: Vec<u64>,
}

impl Sender<'_> {
    fn wait(&mut self) -> anyhow::Result<()> {
        let (board, done) = (self.board, self.done);
        let behind = |m: usize| board.field(m, Field::Done).load(Ordering::Acquire) < done;
        self.crew
            .wait_until("a subscriber", || !(0..board.members()).any(behind))?;
        if self.plan.wait == Wait::Block {
            let begun = monotonic_ns();
            while monotonic_ns() - begun < SETTLE_NS {
                spin_hint();
            }
        }
        Ok(())
    }

    fn hop(&mut self, number: u64, counts: bool) -> anyhow::Result<()> {
        let begun = monotonic_ns();
        self.board.slot(0).send(number, begun);
        if self.plan.wait == Wait::Block {
            for member in 0..self.board.members() {
                let bell = self.board.bell(member);
                bell.fetch_add(1, Ordering::Release);
                futex_wake_all(bell);
            }
        }
        let took = monotonic_ns() - begun;
        if counts {
            self.floor_send.push(took);
        }
        self.done += 1;
        self.wait()
    }

    fn message(&mut self, loan: Loan, counts: bool) -> anyhow::Result<()> {
        let begun = monotonic_ns();
        loan.publish().map_err(|unpublished| unpublished.error)?;
        let took = monotonic_ns() - begun;
        if counts {
            self.publish.push(took);
        }
        self.done += 1;
        self.wait()
    }
}

/// A subscriber's side.
pub fn listen(orders: &Orders, plan: &Plan, board: &Board) -> anyhow::Result<()> {
    let (batch, rounds) = (plan.batch(), plan.rounds());
    let node = node(&orders.config, "rgaps-bench-listener")?;
    let subscriber = node
        .subscriber(&orders.topic)
        .qos(SubscriberQos {
            max_held: plan.messages_per_round() as u32,
            spin: Duration::ZERO,
            ..SubscriberQos::default()
        })
        .create()?;
    let listener = Listener {
        orders,
        plan,
        board,
        subscriber,
    };
    listener.has_done();
    let mut sequence = 0;
    for round in 0..rounds {
        let hops = WARM_UP + batch;
        for hop in 0..hops {
            let took = listener.hop((round * hops + hop) as u64 + 1);
            if hop >= WARM_UP {
                let index = round * batch + hop - WARM_UP;
                board.data(orders.member, FLOOR)[index].store(took, Ordering::Relaxed);
            }
            listener.has_done();
        }
        let mut samples = Vec::with_capacity(plan.messages_per_round());
        for index in 0..plan.messages_per_round() {
            let (sample, took) = listener.message()?;
            let result = match index {
                0 => Some((FIRST, round)),
                1..=WARM_UP => None,
                _ => Some((MESSAGES, round * batch + index - WARM_UP - 1)),
            };
            if let Some((area, at)) = result {
                board.data(orders.member, area)[at].store(took, Ordering::Relaxed);
            }
            samples.push(sample);
            listener.has_done();
        }
        for (index, sample) in samples.iter().enumerate() {
            listener.verify(sample, sequence, plan.bytes(index))?;
            sequence += 1;
        }
        listener.has_done();
    }
    let missed = listener.subscriber.missed();
    board
        .field(orders.member, Field::Lost)
        .fetch_add(missed, Ordering::AcqRel);
    Ok(())
}

struct Listener<'a> {
    orders: &'a Orders,
    plan: &'a Plan,
    board: &'a Board,
    subscriber: Subscriber,
}

impl Listener<'_> {
    fn has_done(&self) {
        self.board
            .field(self.orders.member, Field::Done)
            .fetch_add(1, Ordering::AcqRel);
    }

    /// Waits for the floor's message in the same way as for rgaps's.
    fn hop(&self, number: u64) -> u64 {
        let slot = self.board.slot(0);
        let bell = self.board.bell(self.orders.member);
        loop {
            let rings = bell.load(Ordering::Acquire);
            if let Some(sent_ns) = slot.receive(number) {
                return monotonic_ns() - sent_ns;
            }
            match self.plan.wait {
                Wait::Poll => spin_hint(),
                Wait::Nap => std::thread::sleep(NAP),
                Wait::Block => {
                    futex_wait(bell, rings, rgaps_layout::WAIT_SLICE_NS);
                }
            }
        }
    }

    fn message(&self) -> anyhow::Result<(Sample, u64)> {
        let sample = match self.plan.wait {
            Wait::Block => self.subscriber.recv_timeout(RECV_TIMEOUT)?,
            wait => self.look(wait)?,
        };
        let took = monotonic_ns() - sample.publish_ns();
        Ok((sample, took))
    }

    fn look(&self, wait: Wait) -> anyhow::Result<Sample> {
        let begun = monotonic_ns();
        let mut looks = 0u32;
        loop {
            if let Some(sample) = self.subscriber.try_recv()? {
                return Ok(sample);
            }
            match wait {
                Wait::Nap => std::thread::sleep(NAP),
                _ => spin_hint(),
            }
            looks = looks.wrapping_add(1);
            if looks % 4096 == 0 && monotonic_ns() - begun > RECV_TIMEOUT.as_nanos() as u64 {
                return Err(RecvError::TimedOut(self.orders.topic.clone()).into());
            }
        }
    }

    fn verify(&self, sample: &Sample, sequence: u64, bytes: u64) -> anyhow::Result<()> {
        let expected = contents::seed(0, sequence);
        let in_order = sample.sequence() == sequence;
        if !in_order || !contents::verify(sample, expected, bytes)? {
            self.board
                .field(self.orders.member, Field::Corrupt)
                .fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }
}

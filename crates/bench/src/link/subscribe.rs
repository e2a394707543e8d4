//! A subscriber of `bench link`: receives hops of the floor and messages, times and verifies them.

use super::wire::{FloorBytes, TARGET};
use super::{bell, LinkPlan, WARM_UP};
use crate::board::{Board, Field};
use crate::contents;
use crate::crew::Orders;
use crate::exchange::Wait;
use crate::floor;
use crate::gpu::Gpu;
use crate::stage::node;
use rgaps::{Domain, RecvError, Sample, Subscriber, SubscriberQos};
use rgaps_cuda::DeviceBuffer;
use rgaps_sync::{futex_wake_all, monotonic_ns, spin_hint};
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Result areas: when each timed message, each timed hop, and the last message of each burst arrived.
pub const MESSAGES: usize = 0;
pub const HOPS: usize = 1;
pub const BURSTS: usize = 2;
/// Line with the number of rounds whose messages the subscribers may verify and release.
pub const LET_GO: usize = 0;
/// Messages that arrived more than once.
pub const DUPLICATE: Field = Field::Cpu2;
/// Limit of each wait.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a subscriber looks for duplicates at its end.
const LINGER: Duration = Duration::from_millis(30);

struct Reader<'a> {
    plan: &'a LinkPlan,
    orders: &'a Orders,
    board: &'a Board,
    topic: usize,
    subscriber: Subscriber,
    gpu: Option<(&'a Gpu, &'a DeviceBuffer)>,
    next: u64,
}

/// The orders of a subscriber.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Subscribe {
    pub plan: LinkPlan,
    pub bytes: FloorBytes,
}

pub(crate) fn subscribe(
    orders: &Orders,
    subscribe: &Subscribe,
    board: &Board,
) -> anyhow::Result<()> {
    let plan = &subscribe.plan;
    let topic = plan.topic(orders.member);
    let bytes = match topic {
        0 => Some(subscribe.bytes.open()?),
        _ => None,
    };
    let node = node(&orders.config, "rgaps-bench-subscriber")?;
    let gpu = match plan.size % 8 {
        0 => Gpu::of(plan.to)?,
        _ => None,
    };
    let wrong = gpu.as_ref().map(|gpu| gpu.numbers(1)).transpose()?;
    let qos = SubscriberQos {
        reliable: true,
        max_held: plan.per_round(topic) as u32 + 1,
        spin: Duration::ZERO,
        ..SubscriberQos::default()
    };
    let mut builder = node.subscriber(&plan.name(topic)).qos(qos);
    if plan.to != Domain::Host {
        builder = builder.domain(plan.to);
    }
    let mut reader = Reader {
        plan,
        orders,
        board,
        topic,
        subscriber: builder.create()?,
        gpu: gpu.as_ref().zip(wrong.as_ref()),
        next: 0,
    };
    reader.has_done();
    for round in 0..plan.rounds {
        if let Some(bytes) = &bytes {
            for hop in 0..plan.hops() {
                reader.hop(bytes, round, hop)?;
            }
        }
        reader.messages(round)?;
    }
    let begun = Instant::now();
    while begun.elapsed() < LINGER {
        if reader.subscriber.try_recv()?.is_some() {
            reader.count(DUPLICATE, 1);
        }
        std::thread::yield_now();
    }
    if let Some((gpu, wrong)) = reader.gpu {
        reader.count(Field::Corrupt, gpu.read_numbers(wrong)?[0]);
    }
    reader.count(Field::Lost, reader.subscriber.missed());
    reader.has_done();
    Ok(())
}

impl Reader<'_> {
    fn count(&self, field: Field, n: u64) {
        self.board
            .field(self.orders.member, field)
            .fetch_add(n, Ordering::AcqRel);
    }

    fn has_done(&self) {
        self.count(Field::Done, 1);
        let bell = self.board.bell(bell::MAIN);
        bell.fetch_add(1, Ordering::Release);
        futex_wake_all(bell);
    }

    fn note(&self, area: usize, at: u64, now_ns: u64) {
        self.board.data(self.orders.member, area)[at as usize].store(now_ns, Ordering::Relaxed);
    }

    fn hop(&self, bytes: &Board, round: u64, hop: u64) -> anyhow::Result<()> {
        let plan = self.plan;
        let number = round * plan.hops() + hop + 1;
        let (wait, bell) = (plan.wait, bell::subscriber(self.orders.member));
        floor::receive(self.board, 1, number, wait, bell)?;
        let now = monotonic_ns();
        if let Some(timed) = hop.checked_sub(WARM_UP) {
            self.note(HOPS, round * plan.single + timed, now);
        }
        if self.orders.member == 0 {
            let seed = contents::seed(number, 0);
            let at = bytes.data_offset(TARGET, 0);
            let right = bytes.bytes(at, plan.size, |bytes| contents::is(seed, 0, bytes));
            self.count(Field::Corrupt, u64::from(!right));
        }
        self.has_done();
        Ok(())
    }

    /// Receives the messages of a round; verifies and releases them when the publisher allows it.
    fn messages(&mut self, round: u64) -> anyhow::Result<()> {
        let (plan, topic) = (self.plan, self.topic);
        let (first, alone) = (self.next, plan.alone(topic));
        let mut samples = Vec::with_capacity(plan.per_round(topic) as usize);
        for index in 0..plan.per_round(topic) {
            let sample = self.message()?;
            let now = monotonic_ns();
            samples.push(sample);
            if index < alone {
                if let Some(timed) = index.checked_sub(WARM_UP) {
                    self.note(MESSAGES, round * plan.single + timed, now);
                }
                self.has_done();
            } else if index + 1 == plan.per_round(topic) {
                self.note(BURSTS, round, now);
                self.has_done();
            }
        }
        let deadline = Instant::now() + LIMIT;
        while self.board.line(LET_GO)[0].load(Ordering::Acquire) <= round {
            anyhow::ensure!(Instant::now() < deadline, "the publisher does not go on");
            std::thread::sleep(floor::NAP);
        }
        for (index, sample) in samples.iter().enumerate() {
            let seed = contents::seed(topic as u64, first + index as u64);
            self.verify(sample, seed, plan.bytes(topic, index as u64))?;
        }
        if let Some((gpu, _)) = self.gpu {
            gpu.finish("the check of the bytes")?;
        }
        drop(samples);
        self.has_done();
        Ok(())
    }

    /// Waits for the next message and its bytes. Fails if a message was lost.
    fn message(&mut self) -> anyhow::Result<Sample> {
        loop {
            let sample = self.look()?;
            if sample.tag() < self.next {
                self.count(DUPLICATE, 1);
                continue;
            }
            if sample.tag() > self.next {
                let lost = sample.tag() - self.next;
                self.count(Field::Lost, lost);
                anyhow::bail!(
                    "{lost} messages of topic '{}' were lost",
                    self.subscriber.topic()
                );
            }
            self.next += 1;
            sample.synchronize(LIMIT)?;
            return Ok(sample);
        }
    }

    fn look(&self) -> anyhow::Result<Sample> {
        if self.plan.wait == Wait::Block {
            return Ok(self.subscriber.recv_timeout(LIMIT)?);
        }
        let begun = Instant::now();
        loop {
            for _ in 0..4096 {
                if let Some(sample) = self.subscriber.try_recv()? {
                    return Ok(sample);
                }
                spin_hint();
            }
            if begun.elapsed() > LIMIT {
                return Err(RecvError::TimedOut(self.subscriber.topic().to_owned()).into());
            }
        }
    }

    fn verify(&self, sample: &Sample, seed: u64, bytes: u64) -> anyhow::Result<()> {
        let mut right = sample.len() == bytes && sample.domain() == self.plan.to;
        match self.gpu {
            Some((gpu, wrong)) => {
                sample.wait_on(gpu.handle())?;
                gpu.check(sample, seed, wrong, 0)?;
            }
            None => right &= contents::verify(sample, seed, bytes)?,
        }
        self.count(Field::Corrupt, u64::from(!right));
        Ok(())
    }
}

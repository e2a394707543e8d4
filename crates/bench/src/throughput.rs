//! `bench throughput`: one publisher, one subscriber, both polling.
//!
//! Runs of rgaps and of the floor, a ring of 64-byte slots, take turns; each figure is a median over the runs.
//! The time includes filling every message before its hop and verifying it afterwards.

use crate::board::{Board, Field, Geometry};
use crate::contents;
use crate::crew::{Crew, Job, Orders};
use crate::machine::Machine;
use crate::stage::{node, Stage};
use crate::summary::{median, round};
use rgaps::{Config, Domain, Publisher, PublisherQos, Subscriber};
use rgaps_sync::{monotonic_ns, spin_hint};
use rustix::time::{clock_gettime, ClockId};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Runs of each kind.
const RUNS: usize = 5;
/// Slots of the floor's ring, and messages that the publisher keeps.
const DEPTH: usize = 1024;
const SLOT_WORDS: usize = 8;
/// Spins between two looks at the clock.
const SPINS: u32 = 1 << 14;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ThroughputPlan {
    pub size: u64,
    /// Messages of each run.
    pub messages: u64,
}

/// What `bench throughput` reports.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Throughput {
    pub domain: String,
    pub size: u64,
    pub messages_per_s: f64,
    /// Messages per second of CPU time of both processes together.
    pub messages_per_cpu_s: f64,
    pub bytes_per_s: f64,
    pub messages: u64,
    pub lost: u64,
    pub corrupt: u64,
    /// Messages per second of each run, in order.
    pub runs_per_s: Vec<f64>,
    pub floor: Floor,
    pub machine: Machine,
}

/// The figures of the floor.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Floor {
    pub messages_per_s: f64,
    pub messages_per_cpu_s: f64,
}

/// Returns the CPU time of this process, in nanoseconds.
pub fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Times `messages` messages of `size` bytes per run.
pub fn throughput(
    user: &Config,
    domain: Domain,
    size: u64,
    messages: u64,
) -> anyhow::Result<Throughput> {
    let machine = Machine::describe();
    let stage = Stage::new(user, domain)?;
    let plan = ThroughputPlan { size, messages };
    let geometry = Geometry {
        members: 1,
        samples: DEPTH * SLOT_WORDS,
    };
    let board = Board::create(geometry)?;
    let topic = "bench/throughput";
    let publisher = publisher(&stage, topic)?;
    let mut crew = Crew::default();
    let orders = Orders {
        member: 0,
        geometry,
        config: stage.config.clone(),
        topic: topic.to_owned(),
        job: Job::Receive(plan.clone()),
    };
    crew.add(&orders, &board)?;
    let mut sender = Sender {
        crew,
        board: &board,
        done: 0,
        sequence: 0,
    };
    let (mut runs, mut floor) = (Vec::new(), Vec::new());
    sender.wait()?;
    for _ in 0..RUNS {
        floor.push(sender.time(messages, |sender| sender.send_floor(messages))?);
        runs.push(sender.time(messages, |sender| sender.send(&publisher, &plan))?);
    }
    sender.crew.finish()?;
    let middle =
        |of: &[Speed], what: fn(&Speed) -> f64| round(median(of.iter().map(what).collect()), 0);
    Ok(Throughput {
        domain: domain.to_string(),
        size,
        messages_per_s: middle(&runs, |run| run.per_s),
        messages_per_cpu_s: middle(&runs, |run| run.per_cpu_s),
        bytes_per_s: middle(&runs, |run| run.per_s) * size as f64,
        messages: messages * RUNS as u64,
        lost: board.field(0, Field::Lost).load(Ordering::Acquire),
        corrupt: board.field(0, Field::Corrupt).load(Ordering::Acquire),
        runs_per_s: runs.iter().map(|run| round(run.per_s, 0)).collect(),
        floor: Floor {
            messages_per_s: middle(&floor, |run| run.per_s),
            messages_per_cpu_s: middle(&floor, |run| run.per_cpu_s),
        },
        machine,
    })
}

fn publisher(stage: &Stage, topic: &str) -> anyhow::Result<Publisher> {
    let qos = PublisherQos {
        deadline: PATIENCE,
        loan_timeout: PATIENCE,
        ..PublisherQos::default()
    };
    let builder = stage.node.publisher(topic).domain(stage.domain).qos(qos);
    Ok(builder.keep_last(DEPTH as u32).create()?)
}

struct Speed {
    per_s: f64,
    per_cpu_s: f64,
}

struct Sender<'a> {
    crew: Crew,
    board: &'a Board,
    done: u64,
    sequence: u64,
}

impl Sender<'_> {
    /// Waits for the subscriber to be ready for the next run, or done with the last.
    fn wait(&mut self) -> anyhow::Result<()> {
        self.done += 1;
        let (board, done) = (self.board, self.done);
        let so = || board.field(0, Field::Done).load(Ordering::Acquire) >= done;
        self.crew.wait_until("the subscriber", so)
    }

    fn time(
        &mut self,
        messages: u64,
        send: impl FnOnce(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<Speed> {
        let (cpu, begun) = (cpu_ns(), monotonic_ns());
        send(self)?;
        let cpu = cpu_ns() - cpu;
        self.wait()?;
        let took = self.board.field(0, Field::Ended).load(Ordering::Acquire) - begun;
        let cpu = cpu + self.board.field(0, Field::Cpu).load(Ordering::Acquire);
        Ok(Speed {
            per_s: messages as f64 * 1e9 / took as f64,
            per_cpu_s: messages as f64 * 1e9 / cpu as f64,
        })
    }

    fn send(&mut self, publisher: &Publisher, plan: &ThroughputPlan) -> anyhow::Result<()> {
        for _ in 0..plan.messages {
            let mut loan = publisher.loan(plan.size)?;
            contents::fill(&mut loan, contents::seed(0, self.sequence))?;
            self.sequence += 1;
            loan.publish().map_err(|unpublished| unpublished.error)?;
        }
        Ok(())
    }

    fn send_floor(&mut self, messages: u64) -> anyhow::Result<()> {
        let ring = Ring::new(self.board);
        for number in 0..messages {
            spin_until(|| ring.read().load(Ordering::Acquire) + DEPTH as u64 > number)?;
            ring.write(number);
        }
        Ok(())
    }
}

/// Runs the subscriber.
pub fn receive(orders: &Orders, plan: &ThroughputPlan, board: &Board) -> anyhow::Result<()> {
    let node = node(&orders.config, "rgaps-bench-receiver")?;
    let subscriber = node.subscriber(&orders.topic).reliable().create()?;
    let ring = Ring::new(board);
    let mut sequence = 0;
    let ready = || board.field(0, Field::Done).fetch_add(1, Ordering::AcqRel);
    ready();
    for _ in 0..RUNS {
        let cpu = cpu_ns();
        for number in 0..plan.messages {
            spin_until(|| ring.take(number))?;
        }
        report(board, cpu);
        // Resets the ring for the next run, which the publisher begins only after `ready`.
        ring.read().store(0, Ordering::Release);
        ready();
        let cpu = cpu_ns();
        for _ in 0..plan.messages {
            take(&subscriber, plan, sequence, board)?;
            sequence += 1;
        }
        report(board, cpu);
        ready();
    }
    board
        .field(0, Field::Lost)
        .store(subscriber.missed(), Ordering::Release);
    Ok(())
}

fn report(board: &Board, cpu: u64) {
    board
        .field(0, Field::Ended)
        .store(monotonic_ns(), Ordering::Release);
    board
        .field(0, Field::Cpu)
        .store(cpu_ns() - cpu, Ordering::Release);
}

fn take(
    subscriber: &Subscriber,
    plan: &ThroughputPlan,
    sequence: u64,
    board: &Board,
) -> anyhow::Result<()> {
    let mut found = None;
    let mut failed = None;
    spin_until(|| match subscriber.try_recv() {
        Ok(sample) => {
            found = sample;
            found.is_some()
        }
        Err(error) => {
            failed = Some(error);
            true
        }
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    if let Some(sample) = found {
        if !contents::verify(&sample, contents::seed(0, sequence), plan.size)? {
            board
                .field(0, Field::Corrupt)
                .fetch_add(1, Ordering::AcqRel);
        }
    }
    Ok(())
}

fn spin_until(mut so: impl FnMut() -> bool) -> anyhow::Result<()> {
    let mut begun = None;
    loop {
        for _ in 0..SPINS {
            if so() {
                return Ok(());
            }
            spin_hint();
        }
        let begun = *begun.get_or_insert_with(monotonic_ns);
        let waited = monotonic_ns() - begun;
        anyhow::ensure!(
            waited < PATIENCE.as_nanos() as u64,
            "the other side does not go on"
        );
    }
}

/// The floor: one writer, one reader, 64-byte slots with a sequence number each.
struct Ring<'a> {
    slots: &'a [AtomicU64],
    read: &'a AtomicU64,
}

impl<'a> Ring<'a> {
    fn new(board: &'a Board) -> Ring<'a> {
        Ring {
            slots: board.data(0, 0),
            read: &board.line(0)[0],
        }
    }

    /// Messages that the reader has taken, in this run.
    fn read(&self) -> &AtomicU64 {
        self.read
    }

    fn slot(&self, number: u64) -> &[AtomicU64] {
        let index = number as usize % DEPTH;
        &self.slots[index * SLOT_WORDS..][..SLOT_WORDS]
    }

    fn write(&self, number: u64) {
        let slot = self.slot(number);
        for word in &slot[1..] {
            word.store(number, Ordering::Relaxed);
        }
        slot[0].store(number + 1, Ordering::Release);
    }

    fn take(&self, number: u64) -> bool {
        let slot = self.slot(number);
        if slot[0].load(Ordering::Acquire) != number + 1 {
            return false;
        }
        let whole = slot[1..]
            .iter()
            .all(|word| word.load(Ordering::Relaxed) == number);
        assert!(whole, "the floor's ring is torn");
        // A later run uses the same numbers and must not find this one.
        slot[0].store(0, Ordering::Relaxed);
        self.read.store(number + 1, Ordering::Release);
        true
    }
}

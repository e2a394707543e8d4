//! `bench handoff`: the time from the end of a publisher's kernel to the start of a subscriber's.
//!
//! In each round two processes send each other one message, then one hop of the floor. The sender queues a kernel
//! that fills the message and one that stamps it with the GPU's clock, and publishes on that stream. The receiver
//! makes its stream wait for the message, and queues a kernel that stamps the clock and one that checks every word.
//! The hand-over is the difference of the two stamps.
//!
//! All processes on one GPU share its clock. The clocks of two GPUs differ by an unknown offset. It cancels out in
//! the sum of a hand-over there and one back, so half of that sum is reported.
//!
//! The floor does the same steps without rgaps: after the kernels the stream writes a number to shared memory, the
//! receiver waits for a 64-byte slot, and its stream waits for the number before its kernels.

use crate::board::{Board, Field, Geometry, PinnedBoard};
use crate::contents::seed;
use crate::crew::{Crew, Job, Orders};
use crate::exchange::Wait;
use crate::floor;
use crate::gpu::{is_under_mps, Gpu};
use crate::machine::Machine;
use crate::stage::{node, Stage};
use crate::summary::Micros;
use rgaps::{Config, Domain, GpuUuid, Publisher, Sample, Subscriber, SubscriberQos};
use rgaps_cuda::{DeviceBuffer, Driver};
use rgaps_sync::{monotonic_ns, spin_hint};
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Rounds that are not timed.
const WARM_UP: usize = 8;
/// Limit of each wait.
const SOON: Duration = Duration::from_secs(30);
/// Seed of the contents of the floor's buffer.
const PAYLOAD: u64 = 7;
/// Ends every wait of a stream for a number in a line. The GPU compares the sign of the difference, as a 64-bit
/// integer, so a larger value would count as below small numbers.
const LET_GO: u64 = i64::MAX as u64;

/// Result areas, one for each stamp of a round: when the receiver's kernels begin, and when the sender's end.
const BEGIN: usize = 0;
const END: usize = 1;
const FLOOR_BEGIN: usize = 2;
const FLOOR_END: usize = 3;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandoffPlan {
    gpus: [GpuUuid; 2],
    size: u64,
    kernel_ns: u64,
    wait: Wait,
    rounds: usize,
}

impl HandoffPlan {
    fn total(&self) -> usize {
        WARM_UP + self.rounds
    }
}

/// What `bench handoff` reports.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Handoff {
    pub gpus: Vec<String>,
    /// Both processes were clients of MPS.
    pub mps: bool,
    pub wait: Wait,
    /// `one`: both clocks are one GPU's. `halved`: a hand-over there and one back, halved.
    pub clock: Clock,
    /// The step in which the GPU's clock advances.
    pub clock_step_ns: u64,
    /// The summary of the first of `sizes`.
    #[serde(flatten)]
    pub first: Option<Brief>,
    pub sizes: Vec<Size>,
    pub lost: u64,
    pub corrupt: u64,
    pub machine: Machine,
}

/// Hand-overs of one size in four numbers.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Brief {
    pub size: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub floor_us: f64,
}

/// How hand-overs were timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Clock {
    One,
    Halved,
}

/// Messages of one size.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Size {
    pub size: u64,
    /// How long a kernel spins on the publisher's stream before the message is filled; 0: there is no such kernel.
    pub kernel_us: u64,
    pub mps: bool,
    #[serde(flatten)]
    pub time: Micros,
    pub floor_us: f64,
    pub floor_p99_us: f64,
    /// Number of times in each distribution.
    pub count: usize,
}

/// Measures `messages` hand-overs in each direction for each size and each duration of the publisher's kernel.
pub fn handoff(
    user: &Config,
    gpus: [usize; 2],
    sizes: &[u64],
    kernels_us: &[u64],
    messages: usize,
    wait: Wait,
) -> anyhow::Result<Handoff> {
    let devices = Driver::load()?.devices()?;
    let uuid = |ordinal: usize| {
        let device = devices.get(ordinal);
        device
            .map(|device| device.uuid)
            .ok_or_else(|| anyhow::anyhow!("there is no GPU {ordinal}, only {}", devices.len()))
    };
    let gpus = [uuid(gpus[0])?, uuid(gpus[1])?];
    let machine = Machine::describe();
    let stage = Stage::new(user, Domain::Cuda(gpus[0]))?;
    let gpu = Gpu::open(gpus[0])?;
    let mut report = Handoff {
        gpus: vec![gpu.name().to_owned()],
        mps: is_under_mps(),
        wait,
        clock: if gpus[0] == gpus[1] {
            Clock::One
        } else {
            Clock::Halved
        },
        clock_step_ns: 0,
        first: None,
        sizes: Vec::new(),
        lost: 0,
        corrupt: 0,
        machine,
    };
    if report.clock == Clock::Halved {
        report.gpus.push(Gpu::open(gpus[1])?.name().to_owned());
    }
    for &size in sizes {
        anyhow::ensure!(
            size > 0 && size % 8 == 0,
            "a message has whole words of 8 bytes, not {size} bytes"
        );
        for &kernel_us in kernels_us {
            let plan = HandoffPlan {
                gpus,
                size,
                kernel_ns: kernel_us * 1000,
                wait,
                rounds: messages,
            };
            run(&stage, &gpu, &plan, &mut report)?;
        }
    }
    Ok(report)
}

fn run(stage: &Stage, gpu: &Gpu, plan: &HandoffPlan, report: &mut Handoff) -> anyhow::Result<()> {
    let geometry = Geometry {
        members: 1,
        samples: plan.total(),
    };
    let board = Board::create(geometry)?;
    let topic = format!("bench/handoff/{}/{}", plan.size, plan.kernel_ns);
    let orders = Orders {
        member: 0,
        geometry,
        config: stage.config.clone(),
        topic: topic.clone(),
        job: Job::HandBack(plan.clone()),
    };
    let mut crew = Crew::default();
    crew.add(&orders, &board)?;
    let side = Side::new(&stage.node, &topic, plan, &board, gpu, 0)?;
    let found = side.all()?;
    crew.finish()?;
    let theirs: Vec<Vec<u64>> = (0..4)
        .map(|area| board.results(0, area, plan.total()))
        .collect();
    report.corrupt += found.corrupt + board.field(0, Field::Corrupt).load(Ordering::Acquire);
    report.lost += board.field(0, Field::Lost).load(Ordering::Acquire);
    let mps = report.mps && board.field(0, Field::Results).load(Ordering::Acquire) == 1;
    report.mps = mps;
    report.clock_step_ns = found.step_ns;
    let time = |begin, end| times(report.clock, plan, &found.stamps, &theirs, begin, end);
    let (ns, floor) = (time(BEGIN, END)?, time(FLOOR_BEGIN, FLOOR_END)?);
    let count = ns.len();
    let (time, floor) = (Micros::of(ns), Micros::of(floor));
    report.first.get_or_insert(Brief {
        size: plan.size,
        p50_us: time.p50_us,
        p99_us: time.p99_us,
        floor_us: floor.p50_us,
    });
    report.sizes.push(Size {
        size: plan.size,
        kernel_us: plan.kernel_ns / 1000,
        mps,
        time,
        floor_us: floor.p50_us,
        floor_p99_us: floor.p99_us,
        count,
    });
    Ok(())
}

/// Returns the hand-overs in nanoseconds, from the stamps of this process (all areas, one behind the other) and of the
/// other process (by area).
fn times(
    clock: Clock,
    plan: &HandoffPlan,
    own: &[u64],
    others: &[Vec<u64>],
    begin: usize,
    end: usize,
) -> anyhow::Result<Vec<u64>> {
    let total = plan.total();
    let mut times = Vec::new();
    for round in WARM_UP..total {
        let mine = |area: usize| own[area * total + round];
        let there = others[begin][round].wrapping_sub(mine(end));
        let back = mine(begin).wrapping_sub(others[end][round]);
        let found = match clock {
            Clock::One => [Some(there), Some(back)],
            Clock::Halved => [Some(there.wrapping_add(back) / 2), None],
        };
        for ns in found.into_iter().flatten() {
            anyhow::ensure!(
                ns < i64::MAX as u64,
                "a subscriber's kernel began before the publisher's ended: the message was not waited for, \
                 or the clocks are not one"
            );
            times.push(ns);
        }
    }
    Ok(times)
}

/// Runs the other process: it receives first, and reports its stamps on the board.
pub fn hand_back(orders: &Orders, plan: &HandoffPlan, board: &Board) -> anyhow::Result<()> {
    let node = node(&orders.config, "rgaps-bench-handoff")?;
    let gpu = Gpu::open(plan.gpus[1])?;
    let found = Side::new(&node, &orders.topic, plan, board, &gpu, 1)?.all()?;
    for area in 0..4 {
        let stamps = &found.stamps[area * plan.total()..];
        for (word, stamp) in board.data(0, area).iter().zip(stamps) {
            word.store(*stamp, Ordering::Relaxed);
        }
    }
    board
        .field(0, Field::Corrupt)
        .store(found.corrupt, Ordering::Release);
    board
        .field(0, Field::Lost)
        .store(found.lost, Ordering::Release);
    board
        .field(0, Field::Results)
        .store(u64::from(is_under_mps()), Ordering::Release);
    Ok(())
}

/// The results of a process.
struct Found {
    stamps: Vec<u64>,
    step_ns: u64,
    lost: u64,
    corrupt: u64,
}

/// The publisher, subscriber and memory of one of the two processes.
struct Side<'a> {
    plan: &'a HandoffPlan,
    board: &'a Board,
    gpu: &'a Gpu,
    own: usize,
    publisher: Publisher,
    subscriber: Subscriber,
    /// The stamps of all rounds by area, one area behind the other.
    stamps: DeviceBuffer,
    /// Wrong words of each message, then of each hop of the floor.
    wrong: DeviceBuffer,
    payload: DeviceBuffer,
    lines: PinnedBoard,
}

impl<'a> Side<'a> {
    fn new(
        node: &rgaps::Node,
        topic: &str,
        plan: &'a HandoffPlan,
        board: &'a Board,
        gpu: &'a Gpu,
        own: usize,
    ) -> anyhow::Result<Side<'a>> {
        let domain = Domain::Cuda(plan.gpus[own]);
        let publisher = node
            .publisher(&format!("{topic}/{own}"))
            .domain(domain)
            .loan_timeout(SOON)
            .create()?;
        let subscriber = node
            .subscriber(&format!("{topic}/{}", 1 - own))
            .domain(domain)
            .qos(SubscriberQos {
                spin: Duration::ZERO,
                ..SubscriberQos::default()
            })
            .create()?;
        let payload = gpu.buffer(plan.size)?;
        gpu.fill_buffer(&payload, PAYLOAD)?;
        let side = Side {
            plan,
            board,
            gpu,
            own,
            publisher,
            subscriber,
            stamps: gpu.numbers(4 * plan.total())?,
            wrong: gpu.numbers(2 * plan.total())?,
            payload,
            lines: board.register(gpu.context())?,
        };
        anyhow::ensure!(
            side.publisher.wait_for_subscribers(1, SOON)?,
            "the other process does not subscribe"
        );
        Ok(side)
    }

    fn all(&self) -> anyhow::Result<Found> {
        let outcome = (0..self.plan.total()).try_for_each(|round| self.round(round));
        if outcome.is_err() {
            // End the waits of queued work: dropping the buffers waits for that work.
            for line in 0..2 {
                self.board.line(line)[0].store(LET_GO, Ordering::Release);
            }
        }
        outcome?;
        let stamps = self.gpu.read_numbers(&self.stamps)?;
        let wrong = self.gpu.read_numbers(&self.wrong)?;
        Ok(Found {
            step_ns: step(&stamps),
            stamps,
            lost: self.subscriber.missed(),
            corrupt: wrong.iter().filter(|words| **words > 0).count() as u64,
        })
    }

    fn round(&self, round: usize) -> anyhow::Result<()> {
        match self.own {
            0 => {
                self.send(round)?;
                self.receive(round)?;
                self.send_bare(round)?;
                self.receive_bare(round)
            }
            _ => {
                self.receive(round)?;
                self.send(round)?;
                self.receive_bare(round)?;
                self.send_bare(round)
            }
        }
    }

    fn stamp(&self, area: usize, round: usize) -> anyhow::Result<()> {
        self.gpu
            .stamp(&self.stamps, area * self.plan.total() + round)
    }

    fn send(&self, round: usize) -> anyhow::Result<()> {
        let mut loan = self.publisher.loan(self.plan.size)?;
        self.gpu.spin(self.plan.kernel_ns)?;
        self.gpu
            .fill(&mut loan, seed(self.own as u64, round as u64))?;
        self.stamp(END, round)?;
        loan.set_tag(round as u64);
        let published = loan.publish_on(self.gpu.handle());
        published.map_err(|unpublished| unpublished.error)?;
        Ok(())
    }

    fn receive(&self, round: usize) -> anyhow::Result<()> {
        let sample = self.next()?;
        sample.wait_on(self.gpu.handle())?;
        self.stamp(BEGIN, round)?;
        let contents = seed(1 - self.own as u64, round as u64);
        self.gpu.check(&sample, contents, &self.wrong, round)?;
        let (tag, bytes) = (sample.tag(), sample.len());
        sample.release_on(self.gpu.handle());
        anyhow::ensure!(
            tag == round as u64 && bytes == self.plan.size,
            "received message {tag} of {bytes} bytes instead of message {round}"
        );
        self.gpu.finish("the kernels of a hand-over")
    }

    fn next(&self) -> anyhow::Result<Sample> {
        if self.plan.wait == Wait::Block {
            return Ok(self.subscriber.recv_timeout(SOON)?);
        }
        let begun = monotonic_ns();
        loop {
            for _ in 0..1024 {
                if let Some(sample) = self.subscriber.try_recv()? {
                    return Ok(sample);
                }
                spin_hint();
            }
            let waited = Duration::from_nanos(monotonic_ns() - begun);
            anyhow::ensure!(waited < SOON, "waited in vain for a message");
            std::thread::yield_now();
        }
    }

    fn send_bare(&self, round: usize) -> anyhow::Result<()> {
        let number = round as u64 + 1;
        self.gpu.spin(self.plan.kernel_ns)?;
        self.gpu.fill_buffer(&self.payload, PAYLOAD)?;
        self.stamp(FLOOR_END, round)?;
        self.gpu.write(&self.lines, self.own, number)?;
        let bell = 1 - self.own;
        floor::send(
            self.board,
            self.own,
            number,
            monotonic_ns(),
            self.plan.wait,
            bell..bell + 1,
        );
        Ok(())
    }

    fn receive_bare(&self, round: usize) -> anyhow::Result<()> {
        let (number, other) = (round as u64 + 1, 1 - self.own);
        floor::receive(self.board, other, number, self.plan.wait, self.own)?;
        self.gpu.wait(&self.lines, other, number)?;
        self.stamp(FLOOR_BEGIN, round)?;
        let index = self.plan.total() + round;
        self.gpu
            .check_buffer(&self.payload, PAYLOAD, &self.wrong, index)?;
        self.gpu.finish("the kernels of the floor")
    }
}

/// Returns the clock's step: the greatest common divisor of the stamps' differences, 0 if all stamps are the same.
fn step(stamps: &[u64]) -> u64 {
    let greatest_common = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let first = stamps.first().copied().unwrap_or(0);
    let steps = stamps.iter().map(|stamp| stamp.abs_diff(first));
    steps.fold(0, greatest_common)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_of_two_clocks_cancels_out() {
        let plan = HandoffPlan {
            gpus: [GpuUuid([0; 16]), GpuUuid([1; 16])],
            size: 8,
            kernel_ns: 0,
            wait: Wait::Poll,
            rounds: 1,
        };
        // This side sends at 1000 and receives at 1100. The other side, whose clock has any offset, sends 20 after it receives.
        for theirs_begin in [5u64, 1 << 60] {
            let mut ours = vec![0; 4 * plan.total()];
            let mut theirs = vec![vec![0; plan.total()]; 4];
            ours[END * plan.total() + WARM_UP] = 1000;
            ours[BEGIN * plan.total() + WARM_UP] = 1100;
            theirs[BEGIN][WARM_UP] = theirs_begin;
            theirs[END][WARM_UP] = theirs_begin + 20;
            let halved = times(Clock::Halved, &plan, &ours, &theirs, BEGIN, END).unwrap();
            assert_eq!(halved, [40]);
            assert!(times(Clock::One, &plan, &ours, &theirs, BEGIN, END).is_err());
        }
    }

    #[test]
    fn a_clock_has_its_step() {
        assert_eq!(step(&[70, 102, 134, 230]), 32);
        assert_eq!(step(&[5, 6, 12]), 1);
        assert_eq!(step(&[]), 0);
    }
}

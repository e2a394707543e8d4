//! Times hand-overs from one process's kernel to another's on the same GPU, without rgaps.
//!
//! Each of two processes queues a wait for the other's number, a kernel, and the write of its own number, many times
//! over. A gate holds both streams until everything is queued, so the time is the GPU's alone: no CPU takes part.
//! Without MPS the two processes take turns on the GPU, and each hand-over waits for a turn.

use crate::board::{Board, Field, Geometry, PinnedBoard};
use crate::crew::{Crew, Job, Orders};
use crate::summary::at;
use anyhow::{bail, Context as _};
use rgaps::{Config, GpuUuid};
use rgaps_cuda::{Context, CudaStream, Driver, ForeignStreams, OnStream};
use rgaps_kernels::Kernels;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Hand-overs there and back that are queued at once; a driver's queue has room for about a thousand
/// operations.
const BATCH: u64 = 32;
/// Timed batches. One untimed batch comes before them.
const BATCHES: u64 = 16;
/// The run fails if a step takes longer. Loading the driver and the kernels alone takes seconds.
const LIMIT: Duration = Duration::from_secs(20);
/// Lines of the board with the numbers that the streams of the first and of the second process write.
const NUMBERS: [usize; 2] = [0, 1];
/// Line of the board with the number of the batches that both streams may run.
const GATE: usize = 2;
/// Ends every wait of a stream. Streams compare cyclically, so no larger number is above zero.
const LET_GO: u64 = i64::MAX as u64;

/// The orders of both processes.
#[derive(Clone, Serialize, Deserialize)]
pub struct HandoverPlan {
    gpu: GpuUuid,
}

/// How long a hand-over takes, one way.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Handover {
    pub p50_us: f64,
    pub min_us: f64,
    pub max_us: f64,
    /// Timed hand-overs.
    pub count: u64,
}

/// Times hand-overs between two new processes, which get `environment` added to theirs.
pub fn handover(gpu: GpuUuid, environment: &[(&str, &str)]) -> anyhow::Result<Handover> {
    let geometry = Geometry {
        members: 2,
        samples: BATCHES as usize,
    };
    let board = Board::create(geometry)?;
    let mut crew = Crew::default();
    for member in 0..2 {
        let orders = Orders {
            member,
            geometry,
            config: Config::default(),
            topic: String::new(),
            job: Job::HandOver(HandoverPlan { gpu }),
        };
        crew.add_with(&orders, &board, environment)?;
    }
    let deadline = Instant::now() + LIMIT;
    let results = || board.field(0, Field::Results).load(Ordering::Acquire);
    crew.wait_until("the hand-overs", || {
        results() == BATCHES || Instant::now() >= deadline
    })?;
    if results() != BATCHES {
        // Dropping the crew ends both processes, and with them their queued work.
        bail!(
            "two kernels did not get through with their hand-overs in {} s",
            LIMIT.as_secs()
        );
    }
    crew.finish()?;
    let mut ns = board.results(0, 0, BATCHES as usize);
    ns.sort_unstable();
    let us = |batch: u64| batch as f64 / 1000.0 / (2 * BATCH) as f64;
    Ok(Handover {
        p50_us: us(at(&ns, 0.5)),
        min_us: us(ns[0]),
        max_us: us(ns[ns.len() - 1]),
        count: 2 * BATCH * BATCHES,
    })
}

/// Runs one of the two processes.
pub(crate) fn hand_over(orders: &Orders, plan: &HandoverPlan, board: &Board) -> anyhow::Result<()> {
    let context = Context::retain(Driver::load()?, plan.gpu)?;
    let kernels = Kernels::load(context.clone())?;
    let numbers = board.register(&context)?;
    let stream = CudaStream::new(context.clone())?;
    let streams = ForeignStreams::default();
    let member = Member {
        own: orders.member,
        board,
        numbers: &numbers,
        kernels: &kernels,
        stream: &stream,
        on: streams.enter(&context, stream.handle())?,
    };
    let outcome = (0..=BATCHES).try_for_each(|batch| member.batch(batch));
    // After a failure, ends all waits that either stream has queued.
    for line in [NUMBERS[0], NUMBERS[1], GATE] {
        if outcome.is_err() {
            board.line(line)[0].store(LET_GO, Ordering::Release);
        }
    }
    outcome
}

struct Member<'a> {
    own: usize,
    board: &'a Board,
    numbers: &'a PinnedBoard,
    kernels: &'a Kernels,
    stream: &'a CudaStream,
    on: OnStream<'a>,
}

impl Member<'_> {
    fn batch(&self, batch: u64) -> anyhow::Result<()> {
        let (mine, theirs) = (NUMBERS[self.own], NUMBERS[1 - self.own]);
        self.wait_for(GATE, batch + 1)?;
        for round in batch * BATCH + 1..=(batch + 1) * BATCH {
            if self.own == 1 {
                self.wait_for(theirs, round)?;
            }
            self.kernels.spin(self.stream.handle(), 0)?;
            self.write(mine, round)?;
            if self.own == 0 {
                self.wait_for(theirs, round)?;
            }
        }
        self.done().store(batch + 1, Ordering::Release);
        if self.own == 0 {
            let other = self.board.field(1, Field::Done);
            until("the other process", || {
                Ok(other.load(Ordering::Acquire) > batch)
            })?;
            let begun = Instant::now();
            self.board.line(GATE)[0].store(batch + 1, Ordering::Release);
            until("the kernels", || Ok(self.on.is_idle()?))?;
            let took = begun.elapsed().as_nanos() as u64;
            // The first batch warms up.
            if let Some(index) = batch.checked_sub(1) {
                let results = self.board.data(0, 0);
                results[index as usize].store(took, Ordering::Relaxed);
                let count = self.board.field(0, Field::Results);
                count.store(batch, Ordering::Release);
            }
            return Ok(());
        }
        until("the kernels", || Ok(self.on.is_idle()?))
    }

    fn done(&self) -> &AtomicU64 {
        self.board.field(self.own, Field::Done)
    }

    fn address(&self, line: usize) -> u64 {
        self.numbers.device_address() + Board::line_offset(line)
    }

    fn write(&self, line: usize, number: u64) -> anyhow::Result<()> {
        // SAFETY: `address` is in the registered board, whose words are atomics of 8 bytes. `hand_over` drops the
        // registration after the work has finished, which the driver waits for.
        unsafe { self.on.write_value(self.address(line), number) }.context("a number's write")
    }

    fn wait_for(&self, line: usize, number: u64) -> anyhow::Result<()> {
        // SAFETY: `address` is in the registered board, whose words are atomics of 8 bytes, and the stream only reads
        // it. `hand_over` drops the registration after the work has finished, which the driver waits for.
        unsafe { self.on.wait_value(self.address(line), number) }.context("a wait for a number")
    }
}

fn until(what: &str, so: impl Fn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = Instant::now() + LIMIT;
    while !so()? {
        anyhow::ensure!(Instant::now() < deadline, "waited in vain for {what}");
        std::hint::spin_loop();
    }
    Ok(())
}

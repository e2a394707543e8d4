//! The figure `copied` of `bench latency` on a GPU: the path of a message without shared GPU memory. The publisher
//! copies it to pinned host memory that both processes have mapped; the subscriber copies it from there into GPU
//! memory of its own. Programs without a GPU-aware transport work this way, and so does the baseline in the paper on
//! GAPS. `compare` does not have this design: `bench latency` prints it beside rgaps's own time.

use crate::board::{Board, Field, Geometry, AREAS};
use crate::contents::seed;
use crate::crew::{Crew, Job, Orders};
use crate::exchange::Wait;
use crate::floor;
use crate::gpu::Gpu;
use crate::stage::Stage;
use crate::summary::Micros;
use rgaps::GpuUuid;
use rgaps_sync::monotonic_ns;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;

/// Messages that are not timed.
const WARM_UP: usize = 3;
/// A run times at most this many messages, and at most `BYTES_MAX` bytes of them together. Five are always allowed.
const MESSAGES_MAX: usize = 300;
const BYTES_MAX: u64 = 16 << 30;
/// Members of the board: the subscriber, with its results; and the pinned memory that each message passes.
const RESULTS: usize = 0;
const BYTES: usize = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CopiedPlan {
    gpu: GpuUuid,
    size: u64,
    messages: usize,
    wait: Wait,
}

/// Times from the start of the publisher's copy until the subscriber's copy is complete.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Copied {
    #[serde(flatten)]
    pub time: Micros,
    pub messages: usize,
    pub corrupt: u64,
}

/// Times up to `messages` messages.
pub fn copied(
    stage: &Stage,
    uuid: GpuUuid,
    size: u64,
    messages: usize,
    wait: Wait,
) -> anyhow::Result<Copied> {
    let fit = (BYTES_MAX / size.max(1)).clamp(5, MESSAGES_MAX as u64) as usize;
    let plan = CopiedPlan {
        gpu: uuid,
        size,
        messages: messages.min(fit),
        wait,
    };
    let total = WARM_UP + plan.messages;
    let geometry = Geometry {
        members: 2,
        samples: total.max(size.div_ceil(8) as usize / AREAS + 1),
    };
    let board = Board::create(geometry)?;
    let orders = Orders {
        member: RESULTS,
        geometry,
        config: stage.config.clone(),
        topic: String::new(),
        job: Job::CopyIn(plan.clone()),
    };
    let mut crew = Crew::default();
    crew.add(&orders, &board)?;
    let gpu = Gpu::open(uuid)?;
    let message = gpu.buffer(size)?;
    let shared = board.register(gpu.context())?;
    let done = |count: u64| board.field(RESULTS, Field::Done).load(Ordering::Acquire) >= count;
    crew.wait_until("the subscriber", || done(1))?;
    for number in 0..total {
        gpu.fill_buffer(&message, seed(0, number as u64))?;
        gpu.finish("a message's bytes")?;
        let begun = monotonic_ns();
        gpu.copy_out(&shared, board.data_offset(BYTES, 0), &message)?;
        gpu.finish("a copy to the host")?;
        floor::send(
            &board,
            0,
            number as u64 + 1,
            begun,
            wait,
            RESULTS..RESULTS + 1,
        );
        crew.wait_until("the subscriber", || done(number as u64 + 2))?;
    }
    crew.finish()?;
    let times = board.results(RESULTS, 0, total);
    Ok(Copied {
        time: Micros::of(times[WARM_UP..].to_vec()),
        messages: plan.messages,
        corrupt: board.field(RESULTS, Field::Corrupt).load(Ordering::Acquire),
    })
}

/// Runs the subscriber: copies each message into its GPU memory, notes the time and checks the bytes.
pub fn copy_in(orders: &Orders, plan: &CopiedPlan, board: &Board) -> anyhow::Result<()> {
    let gpu = Gpu::open(plan.gpu)?;
    let message = gpu.buffer(plan.size)?;
    let shared = board.register(gpu.context())?;
    let total = WARM_UP + plan.messages;
    let wrong = gpu.numbers(total)?;
    let done = || {
        board
            .field(orders.member, Field::Done)
            .fetch_add(1, Ordering::AcqRel)
    };
    done();
    for number in 0..total {
        let begun = floor::receive(board, 0, number as u64 + 1, plan.wait, orders.member)?;
        gpu.copy_in(&message, &shared, board.data_offset(BYTES, 0))?;
        gpu.finish("a copy from the host")?;
        let took = monotonic_ns() - begun;
        board.data(orders.member, 0)[number].store(took, Ordering::Relaxed);
        gpu.check_buffer(&message, seed(0, number as u64), &wrong, number)?;
        gpu.finish("the check of the bytes")?;
        done();
    }
    let wrong = gpu.read_numbers(&wrong)?;
    let corrupt = wrong.iter().filter(|words| **words > 0).count() as u64;
    board
        .field(orders.member, Field::Corrupt)
        .store(corrupt, Ordering::Release);
    Ok(())
}

//! What one operation on a stream costs the CPU that queues it. Publishing with work in flight queues the write of a
//! number; making a stream wait for a message queues a wait.

use crate::board::{Board, Geometry};
use crate::gpu::Gpu;
use crate::summary::{Micros, Short};
use rgaps_sync::monotonic_ns;
use serde::Serialize;

/// Operations of each kind; a driver's queue has room for about a thousand.
const COUNT: u64 = 200;
/// How long the kernel in flight runs.
const KERNEL_NS: u64 = 20_000_000;

/// Bare calls of the driver on a stream with a kernel in flight.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Enqueue {
    /// Asking whether the stream has work, when it has.
    pub query: Short,
    /// The same when it has none.
    pub query_idle: Short,
    pub write: Short,
    pub wait: Short,
}

/// Times the calls.
pub fn enqueue(gpu: &Gpu) -> anyhow::Result<Enqueue> {
    let board = Board::create(Geometry {
        members: 1,
        samples: 1,
    })?;
    let words = board.register(gpu.context())?;
    let time = |kernel_ns, operation: &dyn Fn(u64) -> anyhow::Result<()>| {
        gpu.spin(kernel_ns)?;
        let mut times = Vec::new();
        for number in 1..=COUNT {
            let begun = monotonic_ns();
            operation(number)?;
            times.push(monotonic_ns() - begun);
        }
        gpu.finish("numbers")?;
        anyhow::Ok(Micros::of(times).short())
    };
    gpu.finish("the work queued before")?;
    let is_idle = |_| {
        anyhow::ensure!(gpu.is_idle()?, "a stream without work is not idle");
        Ok(())
    };
    Ok(Enqueue {
        query_idle: time(0, &is_idle)?,
        query: time(KERNEL_NS, &|_| gpu.is_idle().map(drop))?,
        write: time(KERNEL_NS, &|number| gpu.write(&words, 0, number))?,
        // The number is there already, but the driver queues the wait all the same.
        wait: time(KERNEL_NS, &|_| gpu.wait(&words, 0, COUNT))?,
    })
}

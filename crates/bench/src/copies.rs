//! `bench copies`: copies between a GPU and host memory, pinned or pageable (Figure 2.2 of the thesis).

use crate::gpu::{CopyMemory, Gpu};
use crate::machine::Machine;
use crate::summary::{median, round};
use rgaps::Domain;
use rgaps_cuda::DeviceBuffer;
use rgaps_sync::monotonic_ns;
use serde::Serialize;

/// Copies of each kind that warm up and are not timed.
const WARM_UP: usize = 2;
/// Bytes after which no more copies of a size are made, beyond three.
const BYTES_MAX: u64 = 16 << 30;

/// What `bench copies` reports.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Copies {
    pub gpu: String,
    pub copies: Vec<Copied>,
    pub corrupt: u64,
    pub machine: Machine,
}

/// Medians for one size, measured pinned and pageable in turns.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Copied {
    pub size: u64,
    pub count: usize,
    pub d2h_pinned_us: f64,
    pub d2h_pageable_us: f64,
    pub d2h_ratio: f64,
    pub h2d_pinned_us: f64,
    pub h2d_pageable_us: f64,
    pub h2d_ratio: f64,
}

/// Times `count` copies of each size, fewer of large ones. Checks the bytes of each round trip through pageable memory.
pub fn copies(domain: Domain, sizes: &[u64], count: usize) -> anyhow::Result<Copies> {
    let Some(gpu) = Gpu::of(domain)? else {
        anyhow::bail!("'bench copies' is about a GPU: name one with --domain");
    };
    let mut report = Copies {
        gpu: gpu.name().to_owned(),
        copies: Vec::new(),
        corrupt: 0,
        machine: Machine::describe(),
    };
    let wrong = gpu.numbers(1)?;
    for &size in sizes {
        anyhow::ensure!(
            size > 0 && size % 8 == 0,
            "sizes are whole words of 8 bytes"
        );
        let count = count.min((BYTES_MAX / size).max(3) as usize);
        let took = copies_of(&gpu, domain, size, count, &wrong)?;
        let [d2h_pinned, d2h_pageable, h2d_pinned, h2d_pageable] = took.map(median);
        report.copies.push(Copied {
            size,
            count,
            d2h_pinned_us: round(d2h_pinned, 2),
            d2h_pageable_us: round(d2h_pageable, 2),
            d2h_ratio: round(d2h_pageable / d2h_pinned.max(1e-3), 3),
            h2d_pinned_us: round(h2d_pinned, 2),
            h2d_pageable_us: round(h2d_pageable, 2),
            h2d_ratio: round(h2d_pageable / h2d_pinned.max(1e-3), 3),
        });
    }
    report.corrupt = gpu.read_numbers(&wrong)?[0];
    Ok(report)
}

/// Returns the times in microseconds of copies to the host, pinned and pageable, and of copies back, pinned and pageable.
fn copies_of(
    gpu: &Gpu,
    domain: Domain,
    size: u64,
    count: usize,
    wrong: &DeviceBuffer,
) -> anyhow::Result<[Vec<f64>; 4]> {
    let device = CopyMemory::new(domain, gpu, size)?;
    let pinned = CopyMemory::new(Domain::Host, gpu, size)?;
    let buffer = gpu.buffer(size)?;
    let mut pageable = vec![1u8; size as usize];
    let mut took: [Vec<f64>; 4] = Default::default();
    for number in 0..WARM_UP + count {
        let seed = crate::contents::seed(1, number as u64);
        gpu.fill_buffer(&buffer, seed)?;
        gpu.finish("bytes to copy")?;
        let timed = |work: &mut dyn FnMut() -> anyhow::Result<()>| -> anyhow::Result<f64> {
            let begun = monotonic_ns();
            work()?;
            Ok((monotonic_ns() - begun) as f64 / 1e3)
        };
        let copy = |to: &CopyMemory, from: &CopyMemory| {
            gpu.copy_between(to, from, size)?;
            gpu.finish("a pinned copy")
        };
        let times = [
            timed(&mut || copy(&pinned, &device))?,
            timed(&mut || gpu.copy_out_pageable(&mut pageable, &buffer))?,
            timed(&mut || copy(&device, &pinned))?,
            timed(&mut || gpu.copy_in_pageable(&buffer, &pageable))?,
        ];
        gpu.check_buffer(&buffer, seed, wrong, 0)?;
        gpu.finish("the check of the bytes")?;
        if number >= WARM_UP {
            took.iter_mut()
                .zip(times)
                .for_each(|(all, one)| all.push(one));
        }
    }
    Ok(took)
}

//! What the thesis compares RGAPS with, and RGAPS's own order, over TCP both of them: each stage is over
//! before the next begins.
//!
//! *Baseline*: from the GPU into pageable memory; whole through a Unix socket to the sending relay; whole
//! through one connection into shared memory of the other host; each subscriber copies from there to memory of
//! its own on the GPU, all at once. *RGAPS's order*: from the GPU into pinned shared memory; through as many
//! connections as rgaps has into pinned shared memory; once to the GPU; then subscribers are told. On the host
//! memory of a process stands in for the GPU's, and plain copies for CUDA's.

use crate::board::Board;
use crate::contents;
use crate::gpu::Gpu;
use rgaps::Domain;
use rgaps_cuda::{DeviceBuffer, Registered};
use serde::Serialize;

/// Memory of a GPU for one message.
pub enum Device {
    Host(Vec<u8>),
    Cuda {
        // Fields drop in this order.
        registered: Option<Registered>,
        buffer: DeviceBuffer,
        wrong: DeviceBuffer,
        gpu: Box<Gpu>,
    },
}

impl Device {
    /// That knows pageable memory only.
    pub fn new(domain: Domain, size: u64) -> anyhow::Result<Device> {
        let Some(gpu) = Gpu::of(domain)? else {
            return Ok(Device::Host(vec![0; size as usize]));
        };
        anyhow::ensure!(
            size % 8 == 0,
            "--baseline on a GPU takes whole words of 8 bytes"
        );
        Ok(Device::Cuda {
            registered: None,
            buffer: gpu.buffer(size)?,
            wrong: gpu.numbers(1)?,
            gpu: Box::new(gpu),
        })
    }

    /// To which the bytes of a board are pinned.
    pub fn pinned(domain: Domain, size: u64, bytes: &Board) -> anyhow::Result<Device> {
        let mut device = Device::new(domain, size)?;
        if let Device::Cuda {
            registered, gpu, ..
        } = &mut device
        {
            *registered = Some(bytes.register(gpu.context())?);
        }
        Ok(device)
    }

    pub fn fill(&mut self, seed: u64) -> anyhow::Result<()> {
        match self {
            Device::Host(memory) => contents::make(seed, 0, memory),
            Device::Cuda { buffer, gpu, .. } => {
                gpu.fill_buffer(buffer, seed)?;
                gpu.finish("a message's bytes")?;
            }
        }
        Ok(())
    }

    pub fn is(&mut self, seed: u64) -> anyhow::Result<bool> {
        match self {
            Device::Host(memory) => Ok(contents::is(seed, 0, memory)),
            Device::Cuda {
                buffer, wrong, gpu, ..
            } => {
                let before = gpu.read_numbers(wrong)?[0];
                gpu.check_buffer(buffer, seed, wrong, 0)?;
                Ok(gpu.read_numbers(wrong)?[0] == before)
            }
        }
    }

    /// From a pinned board, and waits.
    pub fn copy_in(&mut self, bytes: &Board, at: u64) -> anyhow::Result<()> {
        match self {
            Device::Host(memory) => {
                bytes.bytes(at, memory.len() as u64, |from| memory.copy_from_slice(from))
            }
            Device::Cuda {
                registered: Some(pinned),
                buffer,
                gpu,
                ..
            } => {
                gpu.copy_in(buffer, pinned, at)?;
                gpu.finish("a copy to the GPU")?;
            }
            Device::Cuda { .. } => anyhow::bail!("the board is not pinned"),
        }
        Ok(())
    }

    /// To a pinned board, and waits.
    pub fn copy_out(&mut self, bytes: &Board, at: u64) -> anyhow::Result<()> {
        match self {
            Device::Host(memory) => {
                bytes.bytes(at, memory.len() as u64, |to| to.copy_from_slice(memory))
            }
            Device::Cuda {
                registered: Some(pinned),
                buffer,
                gpu,
                ..
            } => {
                gpu.copy_out(pinned, at, buffer)?;
                gpu.finish("a copy from the GPU")?;
            }
            Device::Cuda { .. } => anyhow::bail!("the board is not pinned"),
        }
        Ok(())
    }

    pub fn copy_in_pageable(&mut self, from: &[u8]) -> anyhow::Result<()> {
        match self {
            Device::Host(memory) => memory.copy_from_slice(from),
            Device::Cuda { buffer, gpu, .. } => gpu.copy_in_pageable(buffer, from)?,
        }
        Ok(())
    }

    pub fn copy_out_pageable(&mut self, to: &mut [u8]) -> anyhow::Result<()> {
        match self {
            Device::Host(memory) => to.copy_from_slice(memory),
            Device::Cuda { buffer, gpu, .. } => gpu.copy_out_pageable(to, buffer)?,
        }
        Ok(())
    }
}

/// Medians of both, in microseconds.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Thesis {
    pub messages: usize,
    /// From the begin of the first copy until the last subscriber has its bytes on the GPU.
    pub baseline_us: f64,
    /// Mean of all subscribers, as the thesis has it.
    pub baseline_mean_us: f64,
    pub baseline_stages: BaselineStages,
    pub series_us: f64,
    pub series_mean_us: f64,
    pub series_stages: SeriesStages,
    /// By the median latency of rgaps.
    pub baseline_of_rgaps: f64,
    pub series_of_rgaps: f64,
}

/// The baseline's.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct BaselineStages {
    pub d2h_pageable_us: f64,
    pub unix_socket_us: f64,
    pub wire_us: f64,
    /// Of each subscriber's own copy.
    pub h2d_each_us: Vec<f64>,
}

/// Those of RGAPS's order.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct SeriesStages {
    pub d2h_pinned_us: f64,
    pub wire_us: f64,
    pub h2d_once_us: f64,
}

/// What the publisher's side noted of each message.
#[derive(Clone, Copy, Debug)]
pub struct Noted {
    pub begun_ns: u64,
    /// The copy from the GPU was over.
    pub copied_ns: u64,
    /// The sending relay had all of it, or began.
    pub relay_ns: u64,
    /// It had crossed; of RGAPS's order it was on the GPU.
    pub crossed_ns: u64,
    pub on_gpu_ns: u64,
}

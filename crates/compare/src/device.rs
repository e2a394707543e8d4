//! Memory of a GPU for one message, and the copies to and from it. On the host, memory of a process stands in
//! for the GPU's, and plain copies for CUDA's.

use rgaps::Domain;
use rgaps_bench::board::{Board, PinnedBoard};
use rgaps_bench::contents;
use rgaps_bench::gpu::Gpu;
use rgaps_cuda::DeviceBuffer;

/// The memory for one message.
pub enum Device {
    Host(Vec<u8>),
    Cuda {
        // Fields drop in this order: the memory before the GPU's context.
        registered: Option<PinnedBoard>,
        buffer: DeviceBuffer,
        wrong: DeviceBuffer,
        gpu: Box<Gpu>,
    },
}

impl Device {
    /// Allocates memory for copies to and from pageable memory.
    pub fn new(domain: Domain, size: u64) -> anyhow::Result<Device> {
        let Some(gpu) = Gpu::of(domain)? else {
            return Ok(Device::Host(vec![0; size as usize]));
        };
        anyhow::ensure!(
            size % 8 == 0,
            "on a GPU a message has whole words of 8 bytes"
        );
        Ok(Device::Cuda {
            registered: None,
            buffer: gpu.buffer(size)?,
            wrong: gpu.numbers(1)?,
            gpu: Box::new(gpu),
        })
    }

    /// Allocates memory for copies to and from the board `bytes`, which it pins.
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

    /// Whether it holds the contents of `seed`.
    pub fn holds(&mut self, seed: u64) -> anyhow::Result<bool> {
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

    /// Copies from offset `at` of the pinned board, and waits.
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

    /// Copies to offset `at` of the pinned board, and waits.
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

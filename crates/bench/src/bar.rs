//! Copies between a GPU and the host by the CPU, through the GPU's BAR, by the kernel module dmaplane: the tier of the dmaplane paper
//! that stands beside CUDA's copies ([`copies`](crate::copies)).

use anyhow::Context as _;
use rgaps_cuda::{CudaMapping, CudaSource, Driver};
use rgaps_dmaplane::{BufferKind, Device, GpuBenchParams, GpuPinParams, GpuUnpinParams};
use rgaps_layout::GpuUuid;
use rgaps_pool::{Access, Mapping, SegmentSource};
use serde::Serialize;
use std::os::fd::AsFd;

/// Rates of the copies in both directions.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Bar {
    pub bytes: u64,
    pub host_to_gpu_mb_per_s: u64,
    pub gpu_to_host_mb_per_s: u64,
}

/// Copies `bytes` bytes to the GPU and back `count` times, through a write-combining mapping.
pub fn bar(device: &Device, gpu: GpuUuid, bytes: u64, count: u32) -> anyhow::Result<Bar> {
    let driver = Driver::load()?;
    let mut source = CudaSource::new(driver.clone(), gpu)?;
    let unit = source.granularity();
    let segment = source.create(bytes.next_multiple_of(unit))?;
    let mapping = CudaMapping::new(driver, gpu, segment.bytes, Access::ReadWrite)?;
    mapping.extend(segment.fd.as_fd(), segment.bytes)?;
    let wanted = GpuPinParams {
        gpu_va: mapping.base(),
        size: segment.bytes,
        ..GpuPinParams::default()
    };
    // SAFETY: `mapping` keeps the memory at this address until this function returns, and `gpu_unpin` below ends the pin before
    // that. No other code knows the mapping, so nobody relies on its bytes.
    let pinned = unsafe { device.gpu_pin(wanted) }.context("pinning the GPU's memory")?;
    let measured = copied(device, pinned.handle, bytes, count);
    device.gpu_unpin(GpuUnpinParams {
        handle: pinned.handle,
    })?;
    measured
}

fn copied(device: &Device, pin: u32, bytes: u64, count: u32) -> anyhow::Result<Bar> {
    let host = device.buffer(BufferKind::Pages, bytes, None)?;
    let found = device.gpu_bench(GpuBenchParams {
        gpu_handle: pin,
        host_handle: host.buf_id,
        size: bytes,
        iterations: count,
        ..GpuBenchParams::default()
    });
    device.destroy_buffer(host.buf_id)?;
    let found = found?;
    Ok(Bar {
        bytes,
        host_to_gpu_mb_per_s: found.h2g_bandwidth_mbps,
        gpu_to_host_mb_per_s: found.g2h_bandwidth_mbps,
    })
}

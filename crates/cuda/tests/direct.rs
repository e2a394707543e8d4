//! GPU memory for network cards: dma-bufs of ranges of pools, and the order of cards' writes.
mod support;

use rgaps_cuda::{CudaMapping, CudaSource, Driver, WritesOrder};
use rgaps_pool::{Access, Mapping, PoolError, SegmentSource};
use std::os::fd::{AsFd, AsRawFd};
use support::{Gpu, UNIT};

/// A mapping with two segments.
fn pool(gpu: &Gpu) -> CudaMapping {
    let (mapping, _segment) = gpu.pool(Access::ReadWrite);
    let second = gpu.source().unwrap().create(UNIT).unwrap();
    mapping.extend(second.fd.as_fd(), UNIT).unwrap();
    mapping
}

fn refusal(mapping: &CudaMapping) -> String {
    let refused = mapping.dmabuf(0, UNIT);
    refused.expect_err("it is refused").to_string()
}

#[test]
fn a_range_of_a_pool_is_exported_also_over_segments() {
    let gpu = Gpu::new("");
    let mapping = pool(&gpu);
    for (offset, bytes) in [(0, UNIT), (0, 2 * UNIT), (UNIT, UNIT), (UNIT / 2, UNIT)] {
        let fd = mapping.dmabuf(offset, bytes).unwrap();
        // Programs that this process starts must not inherit it.
        let flags =
            std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).unwrap();
        let flags = flags.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = u32::from_str_radix(flags.unwrap().trim(), 8).unwrap();
        assert_ne!(flags & 0o2_000_000, 0, "{flags:o}");
    }
    let beyond = mapping.dmabuf(UNIT, 2 * UNIT);
    assert!(matches!(beyond, Err(PoolError::OutOfRange { .. })));
    drop(mapping);
    gpu.assert_nothing_held("it is over");
}

#[test]
fn what_is_lacking_is_said() {
    for (settings, said) in [
        ("lack=rdma", "no GPUDirect RDMA"),
        ("lack=dmabuf", "dma-buf"),
        ("lack=flush", "flushed"),
        (
            "fail=cuMemGetHandleForAddressRange:1:CUDA_ERROR_NOT_SUPPORTED",
            "cuMemGetHandleForAddressRange failed: CUDA_ERROR_NOT_SUPPORTED",
        ),
    ] {
        let gpu = Gpu::new(settings);
        let (mapping, _segment) = gpu.pool(Access::ReadWrite);
        let refused = refusal(&mapping);
        assert!(refused.contains(said), "{refused}");
    }
    // Hardware that keeps the order needs no flush.
    let gpu = Gpu::new("lack=flush;rdma_order=all");
    let (mapping, _segment) = gpu.pool(Access::ReadWrite);
    mapping.dmabuf(0, UNIT).unwrap();
}

#[test]
fn writes_are_flushed_where_the_machine_keeps_no_order() {
    for (order, expected, flushes) in [
        ("none", WritesOrder::None, 1),
        ("owner", WritesOrder::Owner, 1),
        ("all", WritesOrder::AllDevices, 0),
    ] {
        let gpu = Gpu::new(&format!("rdma_order={order}"));
        let (mapping, _segment) = gpu.pool(Access::ReadWrite);
        assert_eq!(gpu.device.writes_order, expected);
        mapping.context().order_direct_writes().unwrap();
        assert_eq!(gpu.control.calls("cuFlushGPUDirectRDMAWrites"), flushes);
    }
    let gpu = Gpu::new("fail=cuFlushGPUDirectRDMAWrites:1:CUDA_ERROR_NOT_SUPPORTED");
    let (mapping, _segment) = gpu.pool(Access::ReadWrite);
    assert!(mapping.context().order_direct_writes().is_err());
}

/// Runs on a real GPU if `RGAPS_TEST_GPU=1`. `--nocapture` shows the driver's attributes.
#[test]
fn memory_of_a_real_gpu_is_exported_where_its_driver_says_so() {
    if std::env::var_os("RGAPS_TEST_GPU").is_none() {
        return;
    }
    let driver = Driver::load().expect("the system has a CUDA driver");
    let device = driver.devices().expect("it lists its GPUs").remove(0);
    println!(
        "GPUDirect: {}: for NICs {}, dma-buf {}, order {:?}, flushes {}: {:?}",
        device.name,
        device.gpu_direct_rdma,
        device.dma_buf,
        device.writes_order,
        device.flushes_writes,
        device.require_direct()
    );
    let mut source = CudaSource::new(driver.clone(), device.uuid).unwrap();
    let unit = source.granularity();
    let segments = [(); 2].map(|()| source.create(unit).unwrap());
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let mapping = CudaMapping::new(driver.clone(), device.uuid, 4 * unit, access).unwrap();
        for segment in &segments {
            mapping.extend(segment.fd.as_fd(), unit).unwrap();
        }
        for (offset, bytes) in [(0, unit), (unit, unit), (0, 2 * unit)] {
            let exported = mapping.dmabuf(offset, bytes);
            println!("GPUDirect: {access:?}, {bytes} bytes at {offset}: {exported:?}");
            assert_eq!(exported.is_ok(), device.require_direct().is_ok());
        }
        if device.require_direct().is_ok() {
            mapping.context().order_direct_writes().unwrap();
        }
    }
}

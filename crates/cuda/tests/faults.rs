//! Fault injection: every call to the driver fails once. The error names the call, no resource leaks,
//! and the pool works afterwards.
mod support;

use rgaps_pool::{Access, Mapping, PageSize, PoolError, SegmentSource, Stream};
use std::os::fd::AsFd;
use support::{cuda_code, read, Gpu, UNIT};

/// Calls whose failure makes the pool's operation fail.
const FATAL: [&str; 25] = [
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem",
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo",
    "cuMemGetAllocationGranularity",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuPointerGetAttribute",
    "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync",
    "cuMemcpyAsync",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamIsCapturing",
];

/// Calls that free a resource. If the driver refuses, only that resource stays, and all operations
/// go on.
const RELEASING: [&str; 5] = [
    "cuDevicePrimaryCtxRelease",
    "cuMemRelease",
    "cuMemUnmap",
    "cuMemAddressFree",
    "cuStreamDestroy",
];

/// Does everything with a pool that the daemon and clients do.
fn use_a_pool(gpu: &Gpu) -> Result<(), PoolError> {
    let mut source = gpu.source()?;
    let segment = source.create(UNIT)?;
    let kept = segment
        .fd
        .try_clone()
        .expect("a descriptor can be duplicated");
    let segment = source.adopt(kept, UNIT, segment.inode)?;

    let writer = gpu.mapping(2 * UNIT, Access::ReadWrite)?;
    let reader = gpu.mapping(2 * UNIT, Access::ReadOnly)?;
    for mapping in [&writer, &reader] {
        mapping.extend(segment.fd.as_fd(), UNIT)?;
    }
    writer.write(0, &[1; 5000])?;
    let host = vec![2u8; 3000];
    // SAFETY: the sources are a live buffer of 3000 bytes, and the first 5000 bytes of the mapped pool.
    unsafe {
        writer.write_from(1000, host.as_ptr() as u64, 3000)?;
        writer.write_from(10_000, writer.base(), 5000)?;
    }
    let fail = |error: rgaps_cuda::CudaError| error.into_pool(gpu.device.uuid);
    assert!(writer.context().memory().map_err(fail)?.total_bytes > 0);
    writer.context().synchronize().map_err(fail)?;
    writer.synchronize(Stream(0))?;
    let mut found = vec![0; 5000];
    reader.read(10_000, &mut found)?;
    assert!(found[..1000] == [1; 1000] && found[1000..4000] == [2; 3000]);
    Ok(())
}

fn calls_of_a_good_run(gpu: &Gpu, calls: &[&'static str]) -> Vec<(&'static str, u64)> {
    gpu.control.configure("fail=");
    use_a_pool(gpu).expect("without failures all works");
    gpu.assert_nothing_held("after a good run");
    calls
        .iter()
        .map(|call| (*call, gpu.control.calls(call)))
        .collect()
}

#[test]
fn a_failing_call_is_told_and_leaves_nothing_behind() {
    let gpu = Gpu::new("");
    for (call, count) in calls_of_a_good_run(&gpu, &FATAL) {
        assert!(count > 0, "{call} is never called: the list is out of date");
        for nth in 1..=count {
            gpu.control
                .configure(&format!("fail={call}:{nth}:CUDA_ERROR_OUT_OF_MEMORY"));
            let result = use_a_pool(&gpu);
            // The last calls come from dropping the two mappings, which can return no error: each waits
            // for its copies and destroys its stream.
            let unnoticed = match call {
                "cuCtxPushCurrent" => 4,
                "cuStreamSynchronize" => 2,
                _ => 0,
            };
            match result {
                Ok(()) => assert!(
                    nth > count - unnoticed,
                    "nobody noticed that {call} number {nth} of {count} failed"
                ),
                failed => assert_eq!(cuda_code(failed), (call, 2), "call number {nth}"),
            }
            gpu.assert_nothing_held(&format!("after {call} number {nth} failed"));
        }
        gpu.control.configure("fail=");
        use_a_pool(&gpu).unwrap_or_else(|error| panic!("after failures of {call}: {error}"));
    }
}

/// Random failures, also of the clean-up after failures.
#[test]
fn many_failures_leave_nothing_behind() {
    let gpu = Gpu::new("");
    let rules: Vec<_> = FATAL
        .iter()
        .map(|call| format!("{call}:4%:CUDA_ERROR_UNKNOWN"))
        .collect();
    let rules = rules.join(",");
    let mut failed = 0;
    for seed in 1..=200 {
        gpu.control.configure(&format!("seed={seed};fail={rules}"));
        failed += u32::from(use_a_pool(&gpu).is_err());
        gpu.assert_nothing_held(&format!("after failures with seed {seed}"));
    }
    assert!(failed > 100, "only {failed} of 200 runs met a failure");
    gpu.control.configure("fail=");
    use_a_pool(&gpu).expect("afterwards all works");
}

#[test]
fn a_failing_release_leaves_no_more_than_that() {
    for call in RELEASING {
        let gpu = Gpu::new("");
        let (_, count) = calls_of_a_good_run(&gpu, &[call])[0];
        assert!(count > 0, "{call} is never called");
        for nth in 1..=count {
            gpu.control
                .configure(&format!("fail={call}:{nth}:CUDA_ERROR_UNKNOWN"));
            use_a_pool(&gpu).unwrap_or_else(|error| panic!("{call} number {nth}: {error}"));
        }
        gpu.control.configure("fail=");
        use_a_pool(&gpu).unwrap_or_else(|error| panic!("after failures of {call}: {error}"));
        // A refused unmapping leaves the mapping and the reservation that contains it.
        for (what, left) in gpu.held() {
            assert!(
                left <= count,
                "{left} {what} left after {count} failures of {call}"
            );
        }
    }
}

#[test]
fn an_unmapping_refused_in_the_middle_is_made_good_by_the_next_segment() {
    let gpu = Gpu::new("");
    let mut source = gpu.source().unwrap();
    let (first, second) = (source.create(UNIT).unwrap(), source.create(UNIT).unwrap());
    let mapping = gpu.mapping(2 * UNIT, Access::ReadWrite).unwrap();
    gpu.control.configure(
        "fail=cuMemSetAccess:1:CUDA_ERROR_OUT_OF_MEMORY,cuMemUnmap:1:CUDA_ERROR_UNKNOWN",
    );
    assert_eq!(
        cuda_code(mapping.extend(first.fd.as_fd(), UNIT)),
        ("cuMemSetAccess", 2)
    );
    assert_eq!(mapping.mapped(), 0);
    mapping
        .extend(first.fd.as_fd(), UNIT)
        .expect("the second attempt works");
    mapping
        .extend(second.fd.as_fd(), UNIT)
        .expect("and so does what follows");
    mapping.write(UNIT - 1, &[7, 8]).unwrap();
    assert_eq!(read(&mapping, UNIT - 1, 2), [7, 8]);
}

#[test]
fn memory_that_no_nic_can_use_is_the_fall_back() {
    let gpu = Gpu::new("devices=1;fail=cuMemCreate:1:CUDA_ERROR_NOT_SUPPORTED");
    let segment = gpu
        .source()
        .unwrap()
        .create(UNIT)
        .expect("plain memory is made");
    assert_eq!(segment.placement.pages, PageSize::Device);
    let warnings = &segment.placement.warnings;
    assert!(
        warnings.len() == 1 && warnings[0].contains("NIC"),
        "{warnings:?}"
    );

    let plain = Gpu::new("lack=rdma");
    let segment = plain.source().unwrap().create(UNIT).unwrap();
    assert!(
        segment.placement.warnings.is_empty(),
        "nothing was to be had, nothing is missing"
    );
}

#[test]
fn a_gpu_that_is_full_says_so() {
    let gpu = Gpu::new("memory_mb=4");
    let mut source = gpu.source().unwrap();
    let refused = source.create(8 << 20);
    assert!(refused
        .as_ref()
        .is_err_and(|error| error.to_string().contains("rgaps.toml")));
    assert_eq!(cuda_code(refused), ("cuMemCreate", 2));
    source
        .create(4 << 20)
        .expect("what there is can still be had");
}

/// If a driver requires a context for mapping, a segment is adopted with its size unverified.
#[test]
fn adoption_does_without_the_size_where_it_must() {
    let gpu = Gpu::new("");
    let mut source = gpu.source().unwrap();
    let segment = source.create(UNIT).unwrap();
    gpu.control
        .configure("fail=cuMemMap:1:CUDA_ERROR_INVALID_CONTEXT");
    let adopted = source
        .adopt(segment.fd, UNIT, 0)
        .expect("it is adopted all the same");
    assert!(adopted.placement.warnings[0].contains("not verified"));
    gpu.control.configure("fail=");
    gpu.assert_nothing_held("by the daemon's side");
}

#[test]
fn a_lost_context_is_told_and_spares_other_gpus() {
    let gpu = Gpu::new("devices=2");
    let (lost, _segment) = gpu.pool(Access::ReadWrite);
    let other = gpu.driver.devices().unwrap()[1].uuid;
    let other = rgaps_cuda::CudaMapping::new(gpu.driver.clone(), other, UNIT, Access::ReadWrite);
    let other = other.unwrap();

    gpu.control.lose_context(0);
    let refused = lost.write(0, &[1]);
    assert!(refused
        .as_ref()
        .is_err_and(|error| error.to_string().contains("restart")));
    assert_eq!(cuda_code(refused), ("cuMemcpyHtoDAsync", 700));
    assert_eq!(
        cuda_code(lost.read(0, &mut [0])),
        ("cuMemcpyDtoHAsync", 700)
    );
    assert_eq!(cuda_code(lost.synchronize(Stream(0))).1, 700);
    other
        .synchronize(Stream(0))
        .expect("the other GPU's context lives");
    drop((lost, other));
    gpu.assert_nothing_held("of a context that was lost");
    use_a_pool(&gpu).expect("a new context works");
}

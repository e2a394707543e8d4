//! Registered host pools: GPUs copy from and to them, or read them in place.
mod support;

use rgaps_cuda::{Context, CudaStream, RegisteredMapping};
use rgaps_pool::{create_sealed_memfd, Access, Mapping};
use std::os::fd::AsFd;
use support::{Gpu, UNIT};

fn mapping(gpu: &Gpu, access: Access) -> RegisteredMapping {
    let context = Context::retain(gpu.driver.clone(), gpu.device.uuid).expect("a context");
    RegisteredMapping::new(context, 4 * UNIT, access).expect("a mapping")
}

#[test]
fn an_integrated_gpu_reads_a_host_pool_where_it_is() {
    let gpu = Gpu::new("integrated=0");
    assert!(gpu.device.integrated && gpu.device.reads_host_memory());
    let (writer, reader) = (
        mapping(&gpu, Access::ReadWrite),
        mapping(&gpu, Access::ReadOnly),
    );
    for segment in 1..=2 {
        let pages = create_sealed_memfd("a-pool", UNIT).unwrap();
        for mapping in [&writer, &reader] {
            mapping.extend(pages.as_fd(), UNIT).unwrap();
            assert_eq!(mapping.reached(), segment * UNIT);
        }
    }
    // The GPU copies bytes that the CPU wrote, across the seam of two segments.
    writer.write(UNIT - 2, b"here").unwrap();
    let stream = CudaStream::new(reader.context().clone()).unwrap();
    let copy = |to: u64, from: u64| {
        // SAFETY: both ranges stay mapped while this test runs, and nothing else uses them.
        unsafe { stream.copy(to, from, 4) }
    };
    copy(writer.base(), reader.base() + UNIT - 2).unwrap();
    stream.synchronize().unwrap();
    let mut found = [0; 4];
    reader.read(0, &mut found).unwrap();
    assert_eq!(&found, b"here");
    // The GPU cannot write through the read-only mapping.
    let refused = copy(reader.base(), writer.base()).and_then(|()| stream.synchronize());
    assert!(refused.is_err(), "{refused:?}");
    drop((writer, reader, stream));
}

#[test]
fn what_the_driver_refuses_to_know_is_mapped_and_not_reached() {
    for settings in [
        "integrated=0;lack=readonly",
        "integrated=0;lack=register",
        "integrated=0;fail=cuMemHostRegister:1:CUDA_ERROR_OUT_OF_MEMORY",
    ] {
        let gpu = Gpu::new(settings);
        assert_eq!(
            gpu.device.reads_host_memory(),
            !settings.contains("readonly")
        );
        let reader = mapping(&gpu, Access::ReadOnly);
        for segment in 1..=2 {
            let pages = create_sealed_memfd("a-pool", UNIT).unwrap();
            reader.extend(pages.as_fd(), UNIT).unwrap();
            assert_eq!((reader.mapped(), reader.reached()), (segment * UNIT, 0));
        }
        let mut found = [1; 4];
        reader.read(2 * UNIT - 4, &mut found).unwrap();
        assert_eq!(found, [0; 4]);
        drop(reader);
        gpu.assert_nothing_held(settings);
    }
    let discrete = Gpu::new("");
    assert!(!discrete.device.integrated && !discrete.device.reads_host_memory());
}

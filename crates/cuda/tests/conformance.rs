//! The pool's conformance suite on GPU memory.
//!
//! Runs on the test driver, or with `RGAPS_TEST_GPU=1` on the first GPU of the system's driver.
mod support;

use rgaps_cuda::{CudaMapping, CudaSource, Driver};
use rgaps_layout::GpuUuid;
use rgaps_pool::conformance::{run_all, Fixture};
use rgaps_pool::{create_sealed_memfd, Access, Mapping, PoolError, SegmentSource};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use support::{Gpu, UNIT};

fn fixture(driver: &Arc<Driver>, uuid: GpuUuid, foreign: Vec<(&'static str, OwnedFd)>) -> Fixture {
    let source = CudaSource::new(driver.clone(), uuid).expect("the GPU holds pools");
    let driver = driver.clone();
    let mapping = move |cap: u64, access: Access| -> Result<Box<dyn Mapping>, PoolError> {
        Ok(Box::new(CudaMapping::new(
            driver.clone(),
            uuid,
            cap,
            access,
        )?))
    };
    Fixture {
        source: Box::new(source),
        mapping: Box::new(mapping),
        foreign,
    }
}

#[test]
fn gpu_memory_conforms() {
    if std::env::var_os("RGAPS_TEST_GPU").is_some() {
        let driver = Driver::load().expect("the system has a CUDA driver");
        let uuid = driver.devices().expect("it lists its GPUs")[0].uuid;
        return run_all(&mut || fixture(&driver, uuid, Vec::new()));
    }
    let gpu = Gpu::new("devices=2");
    let other = gpu.driver.devices().unwrap()[1].uuid;
    let mut elsewhere = CudaSource::new(gpu.driver.clone(), other).unwrap();
    run_all(&mut || {
        let foreign = vec![
            ("host memory", create_sealed_memfd("a-pool", UNIT).unwrap()),
            ("memory of another GPU", elsewhere.create(UNIT).unwrap().fd),
        ];
        fixture(&gpu.driver, gpu.device.uuid, foreign)
    });
    gpu.assert_nothing_held("after the suite");
}

/// The suite with slow GPU work, which fails if a call does not wait for its copy.
#[test]
fn gpu_memory_conforms_when_streams_are_slow() {
    let gpu = Gpu::new("delay_us=3000;seed=1");
    run_all(&mut || fixture(&gpu.driver, gpu.device.uuid, Vec::new()));
    gpu.assert_nothing_held("after the suite");
}

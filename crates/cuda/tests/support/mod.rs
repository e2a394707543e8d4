//! A GPU for a test: the first GPU of a private test driver.
#![allow(dead_code, reason = "every test program uses a part of it")]

use rgaps_cuda::{CudaMapping, CudaSource, CudaStream, Device, Driver};
use rgaps_pool::{Access, Mapping, PoolError, Segment, SegmentSource};
use rgaps_test_driver::TestDriver;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The granularity of the test driver.
pub const UNIT: u64 = 2 << 20;

/// A test driver that no other test uses, and its first GPU.
pub struct Gpu {
    pub driver: Arc<Driver>,
    pub device: Device,
    pub control: TestDriver,
}

impl Gpu {
    pub fn new(settings: &str) -> Gpu {
        let control = TestDriver::private();
        // Injected failures apply to the test's calls, not to this setup.
        control.configure(settings.split(";fail=").next().unwrap_or_default());
        let driver = Driver::load_from(control.path()).expect("the test driver loads");
        let device = driver.devices().expect("it has GPUs").remove(0);
        control.configure(settings);
        Gpu {
            driver,
            device,
            control,
        }
    }

    pub fn source(&self) -> Result<CudaSource, PoolError> {
        CudaSource::new(self.driver.clone(), self.device.uuid)
    }

    pub fn mapping(&self, cap: u64, access: Access) -> Result<CudaMapping, PoolError> {
        CudaMapping::new(self.driver.clone(), self.device.uuid, cap, access)
    }

    /// A mapping with one segment, and the segment.
    pub fn pool(&self, access: Access) -> (CudaMapping, Segment) {
        let segment = self.source().unwrap().create(UNIT).expect("a segment");
        let mapping = self.mapping(4 * UNIT, access).expect("a mapping");
        mapping
            .extend(segment.fd.as_fd(), UNIT)
            .expect("it can be mapped");
        (mapping, segment)
    }

    /// A stream in the mapping's context.
    pub fn stream(&self, mapping: &CudaMapping) -> CudaStream {
        CudaStream::new(mapping.context().clone()).expect("a stream")
    }

    /// The number of live resources in the driver, by kind.
    pub fn held(&self) -> Vec<(&'static str, u64)> {
        let sorts = [
            "handles",
            "reservations",
            "mappings",
            "allocations",
            "registrations",
            "contexts",
            "streams",
        ];
        sorts
            .into_iter()
            .map(|what| (what, self.control.live(what)))
            .collect()
    }

    pub fn assert_nothing_held(&self, when: &str) {
        let left: Vec<_> = self
            .held()
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .collect();
        assert!(left.is_empty(), "left in the driver {when}: {left:?}");
    }
}

/// The failed call and the code of a driver error.
pub fn cuda_code<T: std::fmt::Debug>(result: Result<T, PoolError>) -> (&'static str, i32) {
    match result {
        Err(PoolError::Cuda { call, code, .. }) => (call, code),
        other => panic!("expected a driver error, got {other:?}"),
    }
}

/// Reads `bytes` bytes.
pub fn read(mapping: &CudaMapping, offset: u64, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    mapping
        .read(offset, &mut found)
        .expect("a mapped range can be read");
    found
}

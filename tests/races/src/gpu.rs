//! A GPU with kernels.

use crate::plan::Spec;
use anyhow::Context as _;
use rgaps::{Domain, Node};
use rgaps_cuda::{Context, CudaMapping, CudaSource, CudaStream, Driver};
use rgaps_kernels::Kernels;
use rgaps_pool::{Access, Mapping, SegmentSource};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// How long anything may take that is not a kernel of ours.
pub const SOON: Duration = Duration::from_secs(60);

pub struct Gpu {
    driver: Arc<Driver>,
    context: Arc<Context>,
    pub kernels: Kernels,
    pub domain: Domain,
}

impl Gpu {
    pub fn open(ordinal: usize) -> anyhow::Result<Gpu> {
        let driver = Driver::load()?;
        let devices = driver.devices()?;
        let device = devices
            .get(ordinal)
            .with_context(|| format!("there is no GPU {ordinal}, only {}", devices.len()))?;
        let context = Context::retain(driver.clone(), device.uuid)?;
        Ok(Gpu {
            driver,
            kernels: Kernels::load(context.clone())?,
            domain: Domain::Cuda(device.uuid),
            context,
        })
    }

    pub fn stream(&self) -> anyhow::Result<CudaStream> {
        Ok(CudaStream::new(self.context.clone())?)
    }

    /// Memory of this process's own, zeroed, for `count` numbers.
    pub fn numbers(&self, count: u64) -> anyhow::Result<CudaMapping> {
        let uuid = self.context.device().uuid;
        let mut source = CudaSource::new(self.driver.clone(), uuid)?;
        let bytes = (count * 8).next_multiple_of(source.granularity());
        let memory = CudaMapping::new(self.driver.clone(), uuid, bytes, Access::ReadWrite)?;
        let segment = source.create(bytes)?;
        memory.extend(segment.fd.as_fd(), bytes)?;
        memory.write(0, &vec![0; bytes as usize])?;
        Ok(memory)
    }
}

/// A connection to the run's daemon.
pub fn node(spec: &Spec, name: &str) -> anyhow::Result<Node> {
    let config = crate::daemon::config(&spec.socket, spec.words * 8, spec.across);
    Ok(Node::builder(name).config(config).build()?)
}

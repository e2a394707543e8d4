//! Where the memory of pools comes from.

use rgaps_cuda::{CudaSource, Driver};
use rgaps_layout::{Domain, GpuUuid};
use rgaps_pool::{HostConfig, HostSource, HugePages, PoolError, SegmentSource};
use rgaps_session::{segment_bytes, CudaUse, HugePages as ConfiguredHugePages, Pools};
use std::sync::Arc;

/// A source of segments, and how large the pool that is made of them may be.
pub struct Opened {
    /// Makes the segments.
    pub source: Box<dyn SegmentSource>,
    /// Most bytes of a pool.
    pub cap_bytes: u64,
    /// The least that a pool grows by.
    pub segment_bytes: u64,
}

/// Opens sources of segments; the engine asks for one per pool.
pub trait Sources: Send {
    /// A source for `domain`.
    fn open(&mut self, domain: Domain) -> Result<Opened, PoolError>;
}

/// Host memory and GPUs, as the configuration wants them.
pub struct SystemSources {
    pools: Pools,
    /// Loaded when a GPU is first asked for.
    driver: Option<Arc<Driver>>,
}

impl SystemSources {
    /// Sources for these settings.
    pub fn new(pools: Pools) -> SystemSources {
        SystemSources {
            pools,
            driver: None,
        }
    }

    fn host(&self) -> Opened {
        let host = &self.pools.host;
        let source = HostSource::new(HostConfig {
            huge_pages: match host.hugepages {
                ConfiguredHugePages::Off => HugePages::Off,
                ConfiguredHugePages::Try => HugePages::Try,
                ConfiguredHugePages::Require => HugePages::Require,
            },
            numa_node: host.numa_node,
            prefault: host.prefault,
        });
        Opened {
            source: Box::new(source),
            cap_bytes: host.cap_bytes(),
            segment_bytes: host.segment_bytes(),
        }
    }

    fn gpu(&mut self, uuid: GpuUuid) -> Result<Opened, PoolError> {
        if self.pools.cuda.enabled == CudaUse::Off {
            return Err(PoolError::Unavailable {
                domain: Domain::Cuda(uuid),
                reason: "GPUs are switched off by pool.cuda.enabled in rgaps.toml".to_owned(),
            });
        }
        let driver = match &self.driver {
            Some(driver) => driver.clone(),
            None => {
                let driver = Driver::load().map_err(|error| error.into_pool(uuid))?;
                self.driver.insert(driver).clone()
            }
        };
        let source = CudaSource::new(driver, uuid)?;
        let half = source.device().total_bytes / 2;
        let cap_bytes = self.pools.cuda.cap.map_or(half, |cap| cap.0);
        let segment_bytes = segment_bytes(self.pools.cuda.segment, cap_bytes);
        Ok(Opened {
            source: Box::new(source),
            cap_bytes,
            segment_bytes,
        })
    }
}

impl Sources for SystemSources {
    fn open(&mut self, domain: Domain) -> Result<Opened, PoolError> {
        match domain {
            Domain::Host => Ok(self.host()),
            Domain::Cuda(uuid) => self.gpu(uuid),
        }
    }
}

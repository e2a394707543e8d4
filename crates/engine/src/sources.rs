//! Where the memory of pools comes from.

use crate::numa;
use rgaps_cuda::{CudaError, CudaSource, Driver};
use rgaps_layout::{Domain, GpuUuid};
use rgaps_pool::{HostConfig, HostSource, HugePages, PoolError, Provider, SegmentSource};
use rgaps_session::{
    segment_bytes, Config, CudaUse, HostProvider, HugePages as ConfiguredHugePages, NumaChoice,
    Pools,
};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// A source of segments, and how large the pool that is made of them may be.
pub struct Opened {
    /// Makes the segments.
    pub source: Box<dyn SegmentSource>,
    /// The cap of a pool, in bytes.
    pub cap_bytes: u64,
    /// Bytes of a new segment, as a rule.
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
    /// The address at which the links listen for lanes of other hosts, if one is configured.
    lanes: Option<IpAddr>,
    /// Loaded when a GPU is first asked for.
    driver: Option<Arc<Driver>>,
}

impl SystemSources {
    /// Sources for these settings.
    pub fn new(config: &Config) -> SystemSources {
        SystemSources {
            pools: config.pool.clone(),
            lanes: config.links.listen.map(|address| address.ip()),
            driver: None,
        }
    }

    fn driver(&mut self) -> Result<Arc<Driver>, CudaError> {
        match &self.driver {
            Some(driver) => Ok(driver.clone()),
            None => Ok(self.driver.insert(Driver::load()?).clone()),
        }
    }

    /// The number of the NUMA node that the configuration names, or why it is unknown.
    fn numa_node(&mut self, choice: NumaChoice) -> Result<u32, String> {
        let sys = Path::new(numa::SYS);
        match choice {
            NumaChoice::Node(node) => Ok(node),
            NumaChoice::Nic => {
                let address = self.lanes.ok_or("links.listen names no address")?;
                numa::of_address(sys, address)
            }
            NumaChoice::Gpu(_) if self.pools.cuda.enabled == CudaUse::Off => {
                Err("GPUs are switched off by pool.cuda.enabled in rgaps.toml".to_owned())
            }
            NumaChoice::Gpu(number) => {
                let driver = self.driver().map_err(|error| error.to_string())?;
                let devices = driver.devices().map_err(|error| error.to_string())?;
                let seen = devices.len();
                let device = devices.into_iter().nth(number as usize);
                let device = device
                    .ok_or_else(|| format!("there is no GPU {number}; the daemon sees {seen}"))?;
                let address = driver.pci_bus_id(&device);
                numa::of_pci(sys, &address.map_err(|error| error.to_string())?)
            }
        }
    }

    fn host(&mut self) -> Opened {
        let choice = self.pools.host.numa_node;
        let node = choice.map(|choice| (choice, self.numa_node(choice)));
        let (numa_node, unknown) = match node {
            None => (None, None),
            Some((_, Ok(node))) => (Some(node), None),
            Some((choice, Err(why))) => (None, Some((choice, why))),
        };
        let host = &self.pools.host;
        let mut source = HostSource::new(HostConfig {
            provider: match host.provider {
                HostProvider::Memfd => Provider::Memfd,
                HostProvider::Udmabuf => Provider::Udmabuf,
                HostProvider::Dmaplane => Provider::Dmaplane,
            },
            huge_pages: match host.hugepages {
                ConfiguredHugePages::Off => HugePages::Off,
                ConfiguredHugePages::Try => HugePages::Try,
                ConfiguredHugePages::Require => HugePages::Require,
            },
            numa_node,
            prefault: host.prefault,
            quota_bytes: Some(host.cap_bytes()),
        });
        if let Some((choice, why)) = unknown {
            source = source.warning(format!(
                "pool.host.numa_node = \"{choice}\" has no effect: {why}; write the number of the node"
            ));
        }
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
        let driver = self.driver().map_err(|error| error.into_pool(uuid))?;
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

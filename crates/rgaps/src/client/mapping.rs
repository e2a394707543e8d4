//! A pool as this process maps it.

use super::fork::ForkGuard;
use rgaps_cuda::{CudaMapping, Driver};
use rgaps_layout::Domain;
use rgaps_pool::{Access, HostMapping, Mapping, PoolError, Stream};
use rgaps_session::{CudaUse, PoolGrant};
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A mapping of either domain that a forked child leaves alone: it has no such mapping, and may
/// have something else at those addresses.
pub(crate) struct PoolMapping {
    inner: ManuallyDrop<Box<dyn Mapping>>,
    guard: ForkGuard,
}

impl fmt::Debug for PoolMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolMapping")
            .field("domain", &self.domain())
            .field("access", &self.access())
            .field("mapped", &self.mapped())
            .finish_non_exhaustive()
    }
}

/// The CUDA driver of this process, loaded when a topic first needs it.
#[derive(Default)]
pub(super) struct LazyDriver(Option<Arc<Driver>>);

impl LazyDriver {
    fn get(&mut self, domain: Domain, wanted: CudaUse) -> Result<Arc<Driver>, PoolError> {
        let unavailable = |reason: String| PoolError::Unavailable { domain, reason };
        if wanted == CudaUse::Off {
            return Err(unavailable(
                "pool.cuda.enabled is \"off\" in the configuration; set it to \"auto\"".to_owned(),
            ));
        }
        if let Some(driver) = &self.0 {
            return Ok(driver.clone());
        }
        let driver = Driver::load().map_err(|error| unavailable(error.to_string()))?;
        self.0 = Some(driver.clone());
        Ok(driver)
    }
}

impl PoolMapping {
    /// Reserves addresses for the pool's cap; nothing is mapped yet.
    pub(super) fn new(
        grant: &PoolGrant,
        access: Access,
        driver: &mut LazyDriver,
        cuda: CudaUse,
        guard: ForkGuard,
    ) -> Result<PoolMapping, PoolError> {
        let inner: Box<dyn Mapping> = match grant.domain {
            Domain::Host => Box::new(HostMapping::new(grant.cap_bytes, access)?),
            Domain::Cuda(uuid) => {
                let driver = driver.get(grant.domain, cuda)?;
                Box::new(CudaMapping::new(driver, uuid, grant.cap_bytes, access)?)
            }
        };
        Ok(PoolMapping {
            inner: ManuallyDrop::new(inner),
            guard,
        })
    }
}

impl Drop for PoolMapping {
    fn drop(&mut self) {
        if !self.guard.is_child() {
            // SAFETY: dropped once, here, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

impl Mapping for PoolMapping {
    fn domain(&self) -> Domain {
        self.inner.domain()
    }
    fn access(&self) -> Access {
        self.inner.access()
    }
    fn base(&self) -> u64 {
        self.inner.base()
    }
    fn cap(&self) -> u64 {
        self.inner.cap()
    }
    fn mapped(&self) -> u64 {
        self.inner.mapped()
    }
    fn extend(&self, fd: BorrowedFd<'_>, bytes: u64) -> Result<(), PoolError> {
        self.inner.extend(fd, bytes)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        self.inner.write(offset, bytes)
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), PoolError> {
        self.inner.read(offset, bytes)
    }
    unsafe fn write_from(&self, offset: u64, source: u64, bytes: u64) -> Result<(), PoolError> {
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { self.inner.write_from(offset, source, bytes) }
    }
    fn synchronize(&self, stream: Stream) -> Result<(), PoolError> {
        self.inner.synchronize(stream)
    }
}

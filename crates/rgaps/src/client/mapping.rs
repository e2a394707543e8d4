//! A pool as this process maps it.

use super::fork::ForkGuard;
use super::{Conductor, ZoneView};
use rgaps_cuda::{CudaError, CudaMapping, Driver};
use rgaps_layout::Domain;
use rgaps_pool::{Access, HostMapping, Mapping, PoolError, Stream};
use rgaps_session::{CudaUse, PoolGrant};
use rgaps_topic::Point;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A mapping of either domain that a forked child leaves alone: it has no such mapping, and may
/// have something else at those addresses.
pub(crate) struct PoolMapping {
    inner: ManuallyDrop<Place>,
    guard: ForkGuard,
}

enum Place {
    Host(HostMapping),
    Cuda(CudaMapping),
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
        let inner = match grant.domain {
            Domain::Host => Place::Host(HostMapping::new(grant.cap_bytes, access)?),
            Domain::Cuda(uuid) => {
                let driver = driver.get(grant.domain, cuda)?;
                Place::Cuda(CudaMapping::new(driver, uuid, grant.cap_bytes, access)?)
            }
        };
        Ok(PoolMapping {
            inner: ManuallyDrop::new(inner),
            guard,
        })
    }

    /// The mapping, of a pool in GPU memory.
    #[inline]
    pub(crate) fn cuda(&self) -> Option<&CudaMapping> {
        match &*self.inner {
            Place::Host(_) => None,
            Place::Cuda(mapping) => Some(mapping),
        }
    }

    /// Finds out whether streams can be ordered. That waits for work on the GPU, so it is done when
    /// a member joins, and not when it publishes behind work that may wait for others.
    pub(crate) fn prepare(&self, zone: &ZoneView) {
        if let Some(cuda) = self.cuda() {
            let _: Option<_> = zone.order(cuda.context());
        }
    }

    /// A point behind all work queued on a stream so far; none if there is none, or where it had to
    /// be waited for on the CPU. Host memory has no streams.
    pub(crate) fn point(
        &self,
        zone: &ZoneView,
        conductor: &Conductor,
        stream: Stream,
    ) -> Result<Point, CudaError> {
        let Some(cuda) = self.cuda() else {
            return Ok(Point::NONE);
        };
        let point = || {
            let on = cuda.on_stream(stream)?;
            match zone.order(cuda.context()) {
                Some(order) => order.point(conductor, &on),
                None => on.synchronize().map(|()| Point::NONE),
            }
        };
        point().inspect_err(|error| {
            if error.is_lost() {
                zone.gpu_is_lost(conductor);
            }
        })
    }

    /// As an error of this pool.
    pub(crate) fn fail(&self, error: CudaError) -> PoolError {
        match self.domain() {
            Domain::Cuda(uuid) => error.into_pool(uuid),
            Domain::Host => PoolError::Unavailable {
                domain: Domain::Host,
                reason: error.to_string(),
            },
        }
    }

    /// Asks the driver whether the context is lost, for who waits for its work.
    pub(crate) fn notice_loss(&self, zone: &ZoneView, conductor: &Conductor) {
        if let Some(cuda) = self.cuda() {
            if cuda.context().is_lost() {
                zone.gpu_is_lost(conductor);
            }
        }
    }

    /// Has a stream wait until a point has passed or is aborted. Where that cannot be done on the
    /// GPU, `wait` does it on the CPU.
    pub(crate) fn wait_on(
        &self,
        zone: &ZoneView,
        conductor: &Conductor,
        stream: Stream,
        point: Point,
        wait: impl FnOnce(),
    ) -> Result<(), CudaError> {
        let Some(cuda) = self.cuda() else {
            return Ok(());
        };
        let queue = || {
            let on = cuda.on_stream(stream)?;
            match zone.order(cuda.context()) {
                Some(order) => order.wait_on(&on, point),
                None => {
                    wait();
                    Ok(())
                }
            }
        };
        queue().inspect_err(|error| {
            if error.is_lost() {
                zone.gpu_is_lost(conductor);
            }
        })
    }

    #[inline]
    fn place(&self) -> &dyn Mapping {
        match &*self.inner {
            Place::Host(mapping) => mapping,
            Place::Cuda(mapping) => mapping,
        }
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
        self.place().domain()
    }
    fn access(&self) -> Access {
        self.place().access()
    }
    fn base(&self) -> u64 {
        self.place().base()
    }
    fn cap(&self) -> u64 {
        self.place().cap()
    }
    fn mapped(&self) -> u64 {
        self.place().mapped()
    }
    fn extend(&self, fd: BorrowedFd<'_>, bytes: u64) -> Result<(), PoolError> {
        self.place().extend(fd, bytes)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        self.place().write(offset, bytes)
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), PoolError> {
        self.place().read(offset, bytes)
    }
    unsafe fn write_from(&self, offset: u64, source: u64, bytes: u64) -> Result<(), PoolError> {
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { self.place().write_from(offset, source, bytes) }
    }
    fn synchronize(&self, stream: Stream) -> Result<(), PoolError> {
        self.place().synchronize(stream)
    }
}

//! A pool as this process maps it.

use super::fork::ForkGuard;
use super::host_memory::DmaBufs;
use super::{ClientContext, GpuRange, HostMemory, MappedRange, ZoneView};
use rgaps_cuda::{
    Context, CudaError, CudaMapping, Driver, OnStream, PinnedBuffer, RegisteredMapping,
};
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
    inner: ManuallyDrop<PoolBacking>,
    at: Domain,
    guard: ForkGuard,
    /// Who hears of host memory that is mapped.
    watch: Option<Arc<dyn HostMemory>>,
    dma_bufs: DmaBufs,
}

enum PoolBacking {
    Host(HostMapping),
    Cuda(CudaMapping),
    /// Host memory, as a GPU copies from it and to it, or reads it where it is.
    Registered(RegisteredMapping),
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

/// What came of asking when a stream's work ends.
pub(crate) enum WorkEnd {
    /// It has, or its context is lost.
    Done,
    /// When this point has passed.
    At(Point),
    /// It captures a graph: ask later.
    Later,
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
    /// Reserves addresses for the pool's cap, as the CPU or a GPU uses it that `at` names; nothing is
    /// mapped yet. GPU memory is used by its own GPU or a peer of that.
    pub(super) fn new(
        grant: &PoolGrant,
        at: Domain,
        access: Access,
        driver: &mut LazyDriver,
        cuda: CudaUse,
        guard: ForkGuard,
        watch: Option<Arc<dyn HostMemory>>,
    ) -> Result<PoolMapping, PoolError> {
        let inner = match (grant.domain, at) {
            (Domain::Host, Domain::Host) => {
                PoolBacking::Host(HostMapping::new(grant.cap_bytes, access)?)
            }
            (Domain::Host, Domain::Cuda(uuid)) => {
                let driver = driver.get(at, cuda)?;
                let context =
                    Context::retain(driver, uuid).map_err(|error| error.into_pool(uuid))?;
                PoolBacking::Registered(RegisteredMapping::new(context, grant.cap_bytes, access)?)
            }
            (Domain::Cuda(_), Domain::Cuda(uuid)) => {
                let driver = driver.get(at, cuda)?;
                PoolBacking::Cuda(CudaMapping::new(driver, uuid, grant.cap_bytes, access)?)
            }
            (Domain::Cuda(_), Domain::Host) => {
                return Err(PoolError::Unavailable {
                    domain: grant.domain,
                    reason: "the CPU cannot map a GPU's memory".to_owned(),
                })
            }
        };
        Ok(PoolMapping {
            inner: ManuallyDrop::new(inner),
            at,
            guard,
            watch,
            dma_bufs: DmaBufs::default(),
        })
    }

    /// Maps the next segment, and tells of it.
    pub(super) fn extend_reported(
        self: &Arc<PoolMapping>,
        fd: BorrowedFd<'_>,
        bytes: u64,
    ) -> Result<(), PoolError> {
        let offset = self.mapped();
        self.extend(fd, bytes)?;
        if self.watch.is_some() && self.is_host() {
            self.dma_bufs.keep(fd, offset, bytes);
        }
        if self.access() == Access::ReadWrite {
            // Written where it is leased, and read in a mapping of its own.
            return Ok(());
        }
        let Some(watch) = &self.watch else {
            return Ok(());
        };
        MappedRange::new(self, offset, bytes).inspect(|range| watch.mapped(range.clone()));
        GpuRange::new(self, offset, bytes).inspect(|range| watch.gpu_mapped(range.clone()));
        Ok(())
    }

    /// Tells of a range that a publisher leases, until the answer is dropped.
    pub(crate) fn report_leased(
        self: &Arc<PoolMapping>,
        offset: u64,
        bytes: u64,
    ) -> Option<Box<dyn Send + Sync>> {
        let watch = self.watch.as_ref()?;
        let host = MappedRange::new(self, offset, bytes).map(|range| watch.leased(range));
        host.or_else(|| Some(watch.gpu_leased(GpuRange::new(self, offset, bytes)?)))
    }

    /// Tells of memory that a publisher's messages are copied from to here, until the answer is dropped.
    pub(crate) fn report_staging(&self, pages: &Arc<PinnedBuffer>) -> Option<Box<dyn Send + Sync>> {
        let watch = self.watch.as_ref()?;
        Some(watch.leased(MappedRange::pinned(pages)))
    }

    /// Does something while a range can be written; none where that cannot be.
    pub(super) fn writable_while<T>(
        &self,
        offset: u64,
        bytes: u64,
        then: impl FnOnce() -> T,
    ) -> Option<T> {
        let PoolBacking::Host(mapping) = &*self.inner else {
            return None;
        };
        let done = mapping.writable_while(offset, bytes, then);
        done.inspect_err(|error| tracing::debug!(%error)).ok()
    }

    pub(super) fn dma_bufs(&self) -> &DmaBufs {
        &self.dma_bufs
    }

    /// Whether it is host memory as the CPU uses it.
    pub(super) fn is_host(&self) -> bool {
        matches!(&*self.inner, PoolBacking::Host(_))
    }

    /// The mapping of GPU memory, if it is one.
    pub(super) fn gpu(&self) -> Option<&CudaMapping> {
        match &*self.inner {
            PoolBacking::Cuda(mapping) => Some(mapping),
            PoolBacking::Host(_) | PoolBacking::Registered(_) => None,
        }
    }

    /// The CPU or GPU whose use of the pool this is.
    #[inline]
    pub(crate) fn at(&self) -> Domain {
        self.at
    }

    /// The context of the GPU that uses the pool here, if it is one.
    #[inline]
    pub(crate) fn context(&self) -> Option<&Arc<Context>> {
        match &*self.inner {
            PoolBacking::Host(_) => None,
            PoolBacking::Cuda(mapping) => Some(mapping.context()),
            PoolBacking::Registered(mapping) => Some(mapping.context()),
        }
    }

    /// Whether the CPU or GPU that uses the pool here can read a message that ends at `end` in place. Host memory that the GPU's driver
    /// refused to register has to be copied.
    #[inline]
    pub(crate) fn is_reached_to(&self, end: u64) -> bool {
        match &*self.inner {
            PoolBacking::Host(_) | PoolBacking::Cuda(_) => true,
            PoolBacking::Registered(mapping) => end <= mapping.reached(),
        }
    }

    /// How many of `bytes` bytes from an address on one copy may take, so that it stays within one range that the driver has pinned.
    pub(crate) fn bytes_at_once(&self, address: u64, bytes: u64) -> u64 {
        let end = match &*self.inner {
            PoolBacking::Host(_) | PoolBacking::Cuda(_) => None,
            PoolBacking::Registered(mapping) => mapping.registered_end(address),
        };
        end.map_or(bytes, |end| bytes.min(end - address))
    }

    /// A stream of that GPU. None: it is the CPU.
    pub(crate) fn on_stream(&self, stream: Stream) -> Option<Result<OnStream<'_>, CudaError>> {
        match &*self.inner {
            PoolBacking::Host(_) => None,
            PoolBacking::Cuda(mapping) => Some(mapping.on_stream(stream)),
            PoolBacking::Registered(mapping) => Some(mapping.on_stream(stream)),
        }
    }

    /// Finds out whether streams can be ordered. That waits for work on the GPU, so it is done when
    /// a member joins, and not when it publishes behind work that may wait for others.
    pub(crate) fn prepare(&self, zone: &ZoneView) {
        if let Some(context) = self.context() {
            let _: Option<_> = zone.order(context);
        }
    }

    /// A point behind all work queued on a stream so far; none if there is none, or where it had to
    /// be waited for on the CPU. Host memory has no streams.
    pub(crate) fn point(&self, client: &ClientContext, stream: Stream) -> Result<Point, CudaError> {
        self.point_if(client, stream, |on| Ok(!on.is_idle()?))
    }

    /// The same also where no work is queued: for points that follow each other.
    pub(crate) fn next_point(
        &self,
        client: &ClientContext,
        stream: Stream,
    ) -> Result<Point, CudaError> {
        self.point_if(client, stream, |_| Ok(true))
    }

    fn point_if(
        &self,
        client: &ClientContext,
        stream: Stream,
        is_needed: impl FnOnce(&OnStream<'_>) -> Result<bool, CudaError>,
    ) -> Result<Point, CudaError> {
        if stream == Stream::NONE {
            return Ok(Point::NONE);
        }
        let (Some(on), Some(context)) = (self.on_stream(stream), self.context()) else {
            return Ok(Point::NONE);
        };
        let point = || {
            let on = on?;
            if !is_needed(&on)? {
                return Ok(Point::NONE);
            }
            match client.zone.order(context) {
                Some(order) => order.point(client, &on),
                None => on.synchronize().map(|()| Point::NONE),
            }
        };
        point().inspect_err(|error| self.note(client, error))
    }

    /// Tells where an error means that a context is lost.
    fn note(&self, client: &ClientContext, error: &CudaError) {
        if error.is_lost_stream() {
            // Maybe it is only the stream that is gone.
            self.notice_loss(client);
        } else if error.is_lost() {
            client.gpu_is_lost();
        }
    }

    /// For who has to know when the work queued on a stream so far has ended, and whom no error helps.
    pub(crate) fn ask(&self, client: &ClientContext, stream: Stream) -> WorkEnd {
        match self.point(client, stream) {
            Ok(point) if point.is_none() => WorkEnd::Done,
            Ok(point) => WorkEnd::At(point),
            Err(CudaError::Capturing) => WorkEnd::Later,
            Err(_) if client.zone.is_gpu_lost() => WorkEnd::Done,
            Err(error) => {
                // A stream that was destroyed with work queued: the context knows of that work.
                tracing::warn!(%error, "queueing a point failed; a block is kept until all work on the GPU has finished");
                self.ask_all(&client.zone)
            }
        }
    }

    /// Waits on the CPU for all work of this process on the GPU.
    pub(crate) fn ask_all(&self, zone: &ZoneView) -> WorkEnd {
        match self.context().map(|context| context.synchronize()) {
            Some(Err(_)) if !zone.is_gpu_lost() => WorkEnd::Later,
            _ => WorkEnd::Done,
        }
    }

    /// As an error of this pool.
    pub(crate) fn fail(&self, error: CudaError) -> PoolError {
        match self.at {
            Domain::Cuda(uuid) => error.into_pool(uuid),
            Domain::Host => PoolError::Unavailable {
                domain: Domain::Host,
                reason: error.to_string(),
            },
        }
    }

    /// Asks the driver whether the context is lost, for who waits for its work.
    pub(crate) fn notice_loss(&self, client: &ClientContext) {
        if self.context().is_some_and(|context| context.is_lost()) {
            client.gpu_is_lost();
        }
    }

    /// Has a stream wait until a point has passed or is aborted. Where that cannot be done on the
    /// GPU, `wait` does it on the CPU.
    pub(crate) fn wait_on(
        &self,
        client: &ClientContext,
        stream: Stream,
        point: Point,
        wait: impl FnOnce(),
    ) -> Result<(), CudaError> {
        let (Some(on), Some(context)) = (self.on_stream(stream), self.context()) else {
            return Ok(());
        };
        let queue = || {
            let on = on?;
            match client.zone.order(context) {
                Some(order) => order.wait_on(&on, point),
                None => {
                    wait();
                    Ok(())
                }
            }
        };
        queue().inspect_err(|error| self.note(client, error))
    }

    #[inline]
    fn backing(&self) -> &dyn Mapping {
        match &*self.inner {
            PoolBacking::Host(mapping) => mapping,
            PoolBacking::Cuda(mapping) => mapping,
            PoolBacking::Registered(mapping) => mapping,
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
        self.backing().domain()
    }
    fn access(&self) -> Access {
        self.backing().access()
    }
    fn base(&self) -> u64 {
        self.backing().base()
    }
    fn cap(&self) -> u64 {
        self.backing().cap()
    }
    #[inline]
    fn mapped(&self) -> u64 {
        // WorkEnd for every message.
        match &*self.inner {
            PoolBacking::Host(mapping) => mapping.mapped(),
            PoolBacking::Cuda(mapping) => mapping.mapped(),
            PoolBacking::Registered(mapping) => mapping.mapped(),
        }
    }
    fn extend(&self, fd: BorrowedFd<'_>, bytes: u64) -> Result<(), PoolError> {
        self.backing().extend(fd, bytes)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        self.backing().write(offset, bytes)
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), PoolError> {
        self.backing().read(offset, bytes)
    }
    unsafe fn write_from(&self, offset: u64, source: u64, bytes: u64) -> Result<(), PoolError> {
        // SAFETY: our caller promises `bytes` bytes that can be read at `source` until we return.
        unsafe { self.backing().write_from(offset, source, bytes) }
    }
    fn synchronize(&self, stream: Stream) -> Result<(), PoolError> {
        self.backing().synchronize(stream)
    }
}

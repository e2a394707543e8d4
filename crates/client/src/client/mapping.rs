//! [`PoolMapping`]: a pool as this process maps it for the CPU or a GPU, with the streams of that GPU.

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

/// The mapping of a pool. A forked child does not drop it: the child has no such mapping, and may have other memory at its
/// addresses.
pub(crate) struct PoolMapping {
    inner: ManuallyDrop<PoolBacking>,
    /// The CPU or GPU that uses the pool through this mapping.
    at: Domain,
    guard: ForkGuard,
    /// The observer of mapped memory. None: nothing is reported.
    watch: Option<Arc<dyn HostMemory>>,
    dma_bufs: DmaBufs,
}

enum PoolBacking {
    Host(HostMapping),
    Cuda(CudaMapping),
    /// Host memory that a GPU copies from and to, or reads in place.
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

/// When the work queued on a stream ends.
pub(crate) enum WorkEnd {
    /// It has ended, or its context is lost.
    Done,
    /// It ends when this point has passed.
    At(Point),
    /// Unknown, mostly because the stream is capturing a graph: ask again later.
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
    /// Reserves addresses for the pool's cap, and maps nothing yet. `at`: the CPU or GPU that will use the pool; memory of a GPU can
    /// be used by that GPU or a peer of it.
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

    /// Maps the next segment, and reports it to the observer.
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
            // The observer hears of ranges to write as they are leased, and of ranges to read from the read-only mapping.
            return Ok(());
        }
        let Some(watch) = &self.watch else {
            return Ok(());
        };
        MappedRange::new(self, offset, bytes).inspect(|range| watch.mapped(range.clone()));
        GpuRange::new(self, offset, bytes).inspect(|range| watch.gpu_mapped(range.clone()));
        Ok(())
    }

    /// Reports a range that a publisher leases; dropping the result ends the report. None: there is no observer, or the range cannot
    /// be reported.
    pub(crate) fn report_leased(
        self: &Arc<PoolMapping>,
        offset: u64,
        bytes: u64,
    ) -> Option<Box<dyn Send + Sync>> {
        let watch = self.watch.as_ref()?;
        let host = MappedRange::new(self, offset, bytes).map(|range| watch.leased(range));
        host.or_else(|| Some(watch.gpu_leased(GpuRange::new(self, offset, bytes)?)))
    }

    /// Reports a publisher's staging memory; dropping the result ends the report. None: there is no observer.
    pub(crate) fn report_staging(&self, pages: &Arc<PinnedBuffer>) -> Option<Box<dyn Send + Sync>> {
        let watch = self.watch.as_ref()?;
        Some(watch.leased(MappedRange::pinned(pages)))
    }

    /// Calls `then` while a range is mapped for writing. None: it cannot be.
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

    /// Whether this is host memory mapped for the CPU.
    pub(super) fn is_host(&self) -> bool {
        matches!(&*self.inner, PoolBacking::Host(_))
    }

    /// The mapping of GPU memory. None: this is host memory.
    pub(super) fn gpu(&self) -> Option<&CudaMapping> {
        match &*self.inner {
            PoolBacking::Cuda(mapping) => Some(mapping),
            PoolBacking::Host(_) | PoolBacking::Registered(_) => None,
        }
    }

    /// The CPU or GPU that uses the pool through this mapping.
    #[inline]
    pub(crate) fn at(&self) -> Domain {
        self.at
    }

    /// The context of the GPU that uses the pool through this mapping. None: the CPU does.
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

    /// A stream of the GPU that uses the pool through this mapping. None: the CPU does.
    pub(crate) fn on_stream(&self, stream: Stream) -> Option<Result<OnStream<'_>, CudaError>> {
        match &*self.inner {
            PoolBacking::Host(_) => None,
            PoolBacking::Cuda(mapping) => Some(mapping.on_stream(stream)),
            PoolBacking::Registered(mapping) => Some(mapping.on_stream(stream)),
        }
    }

    /// Tests whether streams of this GPU can be ordered. The test waits for work on the GPU, so it must run when a member joins, and
    /// not when it publishes behind work that may itself wait for other members.
    pub(crate) fn prepare(&self, zone: &ZoneView) {
        if let Some(context) = self.context() {
            let _: Option<_> = zone.order(context);
        }
    }

    /// Queues a point behind all work queued on a stream so far. [`Point::NONE`]: there was no such work, this waited for it on the CPU,
    /// or the mapping is the CPU's, which has no streams.
    pub(crate) fn point(&self, client: &ClientContext, stream: Stream) -> Result<Point, CudaError> {
        self.point_if(client, stream, |on| Ok(!on.is_idle()?))
    }

    /// Like `point`, but queues a point also if the stream is idle, so that consecutive calls give consecutive points.
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

    /// Tells the daemon if an error means that the context is lost.
    fn note(&self, client: &ClientContext, error: &CudaError) {
        if error.is_lost_stream() {
            // Perhaps only the stream was destroyed: ask the driver.
            self.notice_loss(client);
        } else if error.is_lost() {
            client.gpu_is_lost();
        }
    }

    /// When the work queued on a stream so far ends, for callers that cannot handle an error.
    pub(crate) fn ask(&self, client: &ClientContext, stream: Stream) -> WorkEnd {
        match self.point(client, stream) {
            Ok(point) if point.is_none() => WorkEnd::Done,
            Ok(point) => WorkEnd::At(point),
            Err(CudaError::Capturing) => WorkEnd::Later,
            Err(_) if client.zone.is_gpu_lost() => WorkEnd::Done,
            Err(error) => {
                // For example, the stream was destroyed with work queued: waiting for the context covers that work.
                tracing::warn!(%error, "queueing a point failed; a block is kept until all work on the GPU has finished");
                self.ask_all(&client.zone)
            }
        }
    }

    /// Waits on the CPU for all work of this process on the GPU. [`WorkEnd::Later`]: waiting failed.
    pub(crate) fn ask_all(&self, zone: &ZoneView) -> WorkEnd {
        match self.context().map(|context| context.synchronize()) {
            Some(Err(_)) if !zone.is_gpu_lost() => WorkEnd::Later,
            _ => WorkEnd::Done,
        }
    }

    /// Converts a driver's error to one of this pool.
    pub(crate) fn fail(&self, error: CudaError) -> PoolError {
        match self.at {
            Domain::Cuda(uuid) => error.into_pool(uuid),
            Domain::Host => PoolError::Unavailable {
                domain: Domain::Host,
                reason: error.to_string(),
            },
        }
    }

    /// Asks the driver whether the context is lost, and tells the daemon if so. For callers that wait for the context's work.
    pub(crate) fn notice_loss(&self, client: &ClientContext) {
        if self.context().is_some_and(|context| context.is_lost()) {
            client.gpu_is_lost();
        }
    }

    /// Makes a stream wait until a point has passed or is aborted. If the GPU cannot do that, calls `wait`, which waits on the CPU.
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
            // SAFETY: `drop` runs once, only `drop` drops `inner`, and nothing uses `inner` afterwards.
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
        // Called for every message, so without dynamic dispatch.
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
        // SAFETY: the caller promises that `source` is readable for `bytes` bytes until this function returns.
        unsafe { self.backing().write_from(offset, source, bytes) }
    }
    fn synchronize(&self, stream: Stream) -> Result<(), PoolError> {
        self.backing().synchronize(stream)
    }
}

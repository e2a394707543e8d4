//! A pool in host memory that is registered with the driver, for copies on streams of a GPU and for an integrated GPU
//! that reads messages in place.

use crate::context::Context;
use crate::error::CudaError;
use crate::foreign::{ForeignStreams, OnStream};
use crate::registered::Registered;
use rgaps_layout::Domain;
use rgaps_pool::{Access, HostMapping, Mapping, PoolError, Stream};
use std::ffi::c_void;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A [`HostMapping`] whose pages are registered with the driver, so that copies run at the bus's speed
/// and asynchronously. If the driver refuses to register pages (for example due to a limit on locked
/// memory), copies of them go through the driver's own buffers instead.
///
/// Below [`reached`](Self::reached), the GPU uses the same addresses as the host.
pub struct RegisteredMapping {
    // Fields drop in this order: registrations before the pages.
    /// By address. Locked for writing only during a push, not while the driver registers pages: copies read this.
    registered: RwLock<Vec<Registered>>,
    /// Held during `extend`, so that segments are registered in order.
    extends: Mutex<()>,
    /// Bytes from the start that the GPU's work may access at their host addresses.
    reached: AtomicU64,
    inner: HostMapping,
    context: Arc<Context>,
    foreign: ForeignStreams,
}

impl RegisteredMapping {
    /// Reserves addresses for `cap` bytes, to be copied from and to on streams of the context's GPU; or,
    /// with [`Access::ReadOnly`], to be read by the work of a GPU that shares the host's memory.
    pub fn new(
        context: Arc<Context>,
        cap: u64,
        access: Access,
    ) -> Result<RegisteredMapping, PoolError> {
        Ok(RegisteredMapping {
            registered: RwLock::default(),
            extends: Mutex::default(),
            reached: AtomicU64::new(0),
            inner: HostMapping::new(cap, access)?,
            context,
            foreign: ForeignStreams::default(),
        })
    }

    /// The context of the GPU that copies.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The number of bytes, from the start, that the GPU's kernels may read in place.
    pub fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    /// The end of the registration that contains the address. None: no registration does. A copy should not cross the end:
    /// the driver treats a range over two registrations as pageable memory, even if they adjoin, so it copies through its own
    /// buffers and waits.
    pub fn registered_end(&self, address: u64) -> Option<u64> {
        let registered = self
            .registered
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let after = registered.partition_point(|pages| pages.start() <= address);
        let last = registered.get(after.checked_sub(1)?)?;
        (address < last.end()).then(|| last.end())
    }

    /// Opens a user's stream for work in its order. Fails if the stream is capturing a graph.
    pub fn on_stream(&self, stream: Stream) -> Result<OnStream<'_>, CudaError> {
        self.foreign.enter(&self.context, stream)
    }
}

impl Mapping for RegisteredMapping {
    fn domain(&self) -> Domain {
        Domain::Host
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
        let _alone = self.extends.lock().unwrap_or_else(PoisonError::into_inner);
        let from = self.inner.base() + self.inner.mapped();
        self.inner.extend(fd, bytes)?;
        let (context, start) = (self.context.clone(), from as usize as *mut c_void);
        // SAFETY: `inner` mapped the range just now, with the access that is registered, and keeps it so until
        // it is dropped, which is after `registered`.
        let pages = unsafe {
            match self.inner.access() {
                Access::ReadWrite => Registered::new(context, start, bytes as usize),
                Access::ReadOnly => Registered::to_read(context, start, bytes as usize),
            }
        };
        match pages {
            Ok(pages) => {
                let reached = from - self.inner.base();
                // Kernels use host addresses, so `reached` covers only an unbroken range in which the device's are the same.
                if pages.device_address() == from && self.reached() == reached {
                    self.reached.store(reached + bytes, Ordering::Release);
                }
                self.registered
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(pages);
            }
            Err(error) => tracing::warn!(
                %error,
                bytes,
                "host memory of a pool cannot be registered with the GPU's driver; copies are \
                 slower (see 'ulimit -l')"
            ),
        }
        Ok(())
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        self.inner.write(offset, bytes)
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), PoolError> {
        self.inner.read(offset, bytes)
    }
    unsafe fn write_from(&self, offset: u64, source: u64, bytes: u64) -> Result<(), PoolError> {
        // SAFETY: our caller promises `bytes` bytes that can be read at `source` until we return; `inner` asks for that.
        unsafe { self.inner.write_from(offset, source, bytes) }
    }
    fn synchronize(&self, stream: Stream) -> Result<(), PoolError> {
        let uuid = self.context.device().uuid;
        self.foreign
            .synchronize(&self.context, stream)
            .map_err(|error| error.into_pool(uuid))
    }
}

impl fmt::Debug for RegisteredMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredMapping")
            .field("gpu", &self.context.device().uuid)
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

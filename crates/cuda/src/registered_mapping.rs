//! A pool in host memory, as streams of a GPU copy from it and to it, and as an integrated GPU reads it.

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

/// A [`HostMapping`] whose pages the driver knows, so that copies run at the bus's speed and nothing
/// waits for them. Where the driver refuses to know them (a limit on locked memory, say) copies go
/// through its own buffers instead.
///
/// Its addresses are the host's, which are the device's, too; [`reached`](Self::reached) says how far.
pub struct RegisteredMapping {
    // Fields drop in this order: registrations before the pages.
    /// Written for the length of a push: copies look here, and the driver takes its time to register.
    registered: RwLock<Vec<Registered>>,
    /// Held while extending.
    extends: Mutex<()>,
    /// Bytes from the start that the GPU's work may touch at their host addresses.
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

    /// How many bytes from the start on the GPU's kernels may read where they are.
    pub fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    /// The end of the registration that an address lies in. A copy from or to more than one of them is none of pinned memory
    /// for the driver, however they lie: it goes through buffers of its own, and waits.
    pub fn registered_end(&self, address: u64) -> Option<u64> {
        let registered = self
            .registered
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let after = registered.partition_point(|pages| pages.start() <= address);
        let last = registered.get(after.checked_sub(1)?)?;
        (address < last.end()).then(|| last.end())
    }

    /// A stream of that GPU.
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
        // SAFETY: the range was mapped just now, with the access that is asked for, and stays so until
        // `inner` is dropped, which is after `registered`.
        let pages = unsafe {
            match self.inner.access() {
                Access::ReadWrite => Registered::new(context, start, bytes as usize),
                Access::ReadOnly => Registered::to_read(context, start, bytes as usize),
            }
        };
        match pages {
            Ok(pages) => {
                let reached = from - self.inner.base();
                // Kernels are given the host's address, and one unbroken range from the start on.
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

//! A pool in host memory, as streams of a GPU copy from it and to it.

use crate::context::Context;
use crate::error::CudaError;
use crate::foreign::{ForeignStreams, OnStream};
use crate::registered::Registered;
use rgaps_layout::Domain;
use rgaps_pool::{Access, HostMapping, Mapping, PoolError, Stream};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// A [`HostMapping`] whose pages the driver knows, so that copies run at the bus's speed and nothing
/// waits for them. Where the driver refuses to know them (a limit on locked memory, say) copies go
/// through its own buffers instead.
///
/// Its addresses are the host's, which are the device's, too.
pub struct RegisteredMapping {
    // Fields drop in this order: registrations before the pages.
    registered: Mutex<Vec<Registered>>,
    inner: HostMapping,
    context: Arc<Context>,
    foreign: ForeignStreams,
}

impl RegisteredMapping {
    /// Reserves addresses for `cap` bytes, to be written by copies on streams of the context's GPU.
    pub fn new(context: Arc<Context>, cap: u64) -> Result<RegisteredMapping, PoolError> {
        Ok(RegisteredMapping {
            registered: Mutex::default(),
            inner: HostMapping::new(cap, Access::ReadWrite)?,
            context,
            foreign: ForeignStreams::default(),
        })
    }

    /// The context of the GPU that copies.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
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
        let mut registered = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let from = self.inner.base() + self.inner.mapped();
        self.inner.extend(fd, bytes)?;
        // SAFETY: the range was mapped just now, for reading and writing, and stays so until
        // `inner` is dropped, which is after `registered`.
        let page = unsafe {
            Registered::new(
                self.context.clone(),
                from as usize as *mut _,
                bytes as usize,
            )
        };
        match page {
            Ok(page) => registered.push(page),
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
        // SAFETY: the caller's promise is the one that is asked for.
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

//! A pool in GPU memory, as one process sees it.

use crate::abi::*;
use crate::context::Context;
use crate::driver::Driver;
use crate::error::CudaError;
use crate::foreign::{ForeignStreams, OnStream};
use crate::handle::Reservation;
use crate::source::{check_size, import, pool_granularity, too_small};
use crate::stream::CudaStream;
use rgaps_layout::{Domain, GpuUuid, MAX_POOL_BYTES};
use rgaps_pool::{Access, Mapping, PoolError, Stream};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Segments of GPU memory mapped one behind the other into a reserved address range.
///
/// Each copy runs on the mapping's own stream, and the call returns when it has finished. Copies do not
/// wait for work on the user's streams ([`synchronize`](Mapping::synchronize) does), and that work does
/// not wait for copies. Dropping the mapping unmaps the addresses: the owner waits first for all work
/// that uses them.
pub struct CudaMapping {
    // Fields drop in this order: addresses before the stream, the stream before the context.
    addresses: Mutex<Reservation>,
    copies: CudaStream,
    context: Arc<Context>,
    foreign: ForeignStreams,
    access: Access,
    base: u64,
    cap: u64,
    granularity: u64,
    /// Bytes mapped and accessible, from the start. Only grows, under the lock of `addresses`. SYNC POINT mapped: the
    /// Release store in `extend` pairs with the Acquire load in `mapped`, so a thread that reads a size may use the
    /// bytes below it.
    mapped: AtomicU64,
}

impl CudaMapping {
    /// Reserves addresses for `cap` bytes (rounded up to the granularity) on the GPU `uuid`.
    pub fn new(
        driver: Arc<Driver>,
        uuid: GpuUuid,
        cap: u64,
        access: Access,
    ) -> Result<CudaMapping, PoolError> {
        let fail = |error: CudaError| error.into_pool(uuid);
        let device = driver.device(uuid).map_err(fail)?;
        device.require_pools().map_err(fail)?;
        let granularity = pool_granularity(&driver, &device)?;
        if cap == 0 || cap > MAX_POOL_BYTES {
            return Err(PoolError::BadSize {
                what: "pool",
                bytes: cap,
                unit: granularity,
                most: MAX_POOL_BYTES,
            });
        }
        let context = Context::retain(driver.clone(), uuid).map_err(fail)?;
        let copies = CudaStream::new(context.clone()).map_err(fail)?;
        let addresses = {
            let _entered = context.enter().map_err(fail)?;
            Reservation::new(&driver, cap.next_multiple_of(granularity), granularity)
                .map_err(fail)?
        };
        Ok(CudaMapping {
            base: addresses.base(),
            cap: addresses.bytes(),
            addresses: Mutex::new(addresses),
            copies,
            context,
            foreign: ForeignStreams::default(),
            access,
            granularity,
            mapped: AtomicU64::new(0),
        })
    }

    /// The context it lives in, in which callers may create streams.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Opens a user's stream for work in its order. Fails if the stream is capturing a graph.
    pub fn on_stream(&self, stream: Stream) -> Result<OnStream<'_>, CudaError> {
        self.foreign.enter(&self.context, stream)
    }

    fn fail(&self, error: CudaError) -> PoolError {
        error.into_pool(self.context.device().uuid)
    }

    /// The address of a range, if all of it is mapped.
    pub(crate) fn address(&self, offset: u64, bytes: u64) -> Result<u64, PoolError> {
        let mapped = self.mapped();
        let end = offset.saturating_add(bytes);
        if end > mapped || offset > mapped {
            return Err(PoolError::OutOfRange {
                offset,
                end,
                mapped,
            });
        }
        Ok(self.base + offset)
    }

    fn writable_address(&self, offset: u64, bytes: u64) -> Result<u64, PoolError> {
        match self.access {
            Access::ReadWrite => self.address(offset, bytes),
            Access::ReadOnly => Err(PoolError::ReadOnly),
        }
    }
}

impl Mapping for CudaMapping {
    fn domain(&self) -> Domain {
        Domain::Cuda(self.context.device().uuid)
    }

    fn access(&self) -> Access {
        self.access
    }

    fn base(&self) -> u64 {
        self.base
    }

    fn cap(&self) -> u64 {
        self.cap
    }

    fn mapped(&self) -> u64 {
        self.mapped.load(Ordering::Acquire) // SYNC POINT mapped
    }

    fn extend(&self, fd: BorrowedFd<'_>, bytes: u64) -> Result<(), PoolError> {
        // Only the granularity is checked here: a segment that does not fit gets `CapReached` below.
        check_size(bytes, self.granularity, u64::MAX)?;
        let mut addresses = self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mapped = self.mapped();
        if bytes > self.cap - mapped {
            return Err(PoolError::CapReached { cap: self.cap });
        }
        let device = self.context.device();
        let _entered = self.context.enter().map_err(|error| self.fail(error))?;
        // An earlier call may have mapped a segment that it could neither make accessible nor unmap again.
        while addresses.mapped() > mapped {
            addresses.unmap_last().map_err(|error| self.fail(error))?;
        }
        let memory = import(self.context.driver(), device, fd)?;
        // The GPU's ordinal is not compared here: it is the one of the process that created the
        // memory, which may count GPUs differently. `allow` grants access to our GPU only, so the
        // driver refuses memory of another GPU unless the two are peers.
        let found = memory.properties().map_err(|error| self.fail(error))?;
        if found.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(PoolError::Untrusted("it is not memory of a GPU".to_owned()));
        }
        addresses
            .map(&memory, bytes)
            .map_err(|error| match error.code() {
                Some(CUDA_ERROR_INVALID_VALUE) => too_small(bytes),
                _ => self.fail(error),
            })?;
        if let Err(error) = addresses.allow(device, self.access) {
            if let Err(unmap) = addresses.unmap_last() {
                tracing::warn!(error = %unmap, "a segment that the GPU cannot access stays mapped until the pool grows");
            }
            return Err(self.fail(error));
        }
        self.mapped.store(mapped + bytes, Ordering::Release); // SYNC POINT mapped
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        let to = self.writable_address(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: `writable_address` found the range mapped read-write, and it stays so while `self` lives.
        unsafe { self.copies.write(to, bytes) }.map_err(|error| self.fail(error))
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), PoolError> {
        let from = self.address(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: `address` found the range mapped, and it stays so while `self` lives.
        unsafe { self.copies.read(bytes, from) }.map_err(|error| self.fail(error))
    }

    unsafe fn write_from(&self, offset: u64, source: u64, bytes: u64) -> Result<(), PoolError> {
        let to = self.writable_address(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: our caller promises that the source can be read until we return; the destination is mapped read-write,
        // which `writable_address` has checked, and stays so while `self` lives.
        unsafe { self.copies.write_from(to, source, bytes as usize) }
            .map_err(|error| self.fail(error))
    }

    fn synchronize(&self, stream: Stream) -> Result<(), PoolError> {
        self.foreign
            .synchronize(&self.context, stream)
            .map_err(|error| self.fail(error))
    }
}

impl Drop for CudaMapping {
    fn drop(&mut self) {
        // A copy whose wait failed may still run, and needs its addresses until it has finished.
        if let Err(error) = self.copies.synchronize() {
            tracing::debug!(%error, "waiting for the copies of a pool failed; it is unmapped without waiting");
        }
    }
}

impl fmt::Debug for CudaMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaMapping")
            .field("domain", &self.domain())
            .field("access", &self.access)
            .field("base", &format_args!("{:#x}", self.base))
            .field("cap", &self.cap)
            .field("mapped", &self.mapped())
            .finish_non_exhaustive()
    }
}

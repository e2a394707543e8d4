//! The daemon's side of GPU pools: makes segments of GPU memory.

use crate::abi::*;
use crate::device::Device;
use crate::driver::Driver;
use crate::error::CudaError;
use crate::handle::{granularity, properties, Allocation, Reservation};
use rgaps_layout::{Domain, GpuUuid, MAX_POOL_BYTES, SEGMENT_UNIT_BYTES};
use rgaps_pool::{PageSize, Placement, PoolError, Segment, SegmentSource};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Makes segments in the memory of one GPU. Creates no context.
///
/// A segment is only its descriptor: `create` releases the driver's handle at once, and the driver keeps
/// the memory while any process has a descriptor or a mapping of it.
pub struct CudaSource {
    driver: Arc<Driver>,
    device: Device,
    granularity: u64,
}

impl CudaSource {
    /// A source for the GPU `uuid`; an error if the GPU is not there or cannot hold pools.
    pub fn new(driver: Arc<Driver>, uuid: GpuUuid) -> Result<CudaSource, PoolError> {
        let fail = |error: CudaError| error.into_pool(uuid);
        let device = driver.device(uuid).map_err(fail)?;
        device.require_pools().map_err(fail)?;
        let granularity = pool_granularity(&driver, &device)?;
        Ok(CudaSource {
            driver,
            device,
            granularity,
        })
    }

    /// The GPU.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn fail(&self, error: CudaError) -> PoolError {
        error.into_pool(self.device.uuid)
    }

    /// Allocates memory that NICs can access directly, if the GPU supports that. Some set-ups (no
    /// peer-memory module, some hypervisors) announce the support but refuse the memory; then falls back to
    /// plain memory.
    fn allocate(&self, bytes: u64, warnings: &mut Vec<String>) -> Result<Allocation, CudaError> {
        if self.device.gpu_direct_rdma {
            match Allocation::create(&self.driver, bytes, &properties(&self.device, true)) {
                Err(error) if is_refusal(&error) => {
                    tracing::warn!(%error, "no GPU memory that a NIC can use directly");
                    warnings.push(format!("no memory that a NIC can use directly: {error}"));
                }
                result => return result,
            }
        }
        Allocation::create(&self.driver, bytes, &properties(&self.device, false))
    }

    /// Checks that `memory` lies on this GPU and has at least `bytes` bytes. The driver reports no size,
    /// so we map the memory, without access rights: that needs no context and makes nothing accessible.
    fn verify(
        &self,
        memory: &Allocation,
        bytes: u64,
        warnings: &mut Vec<String>,
    ) -> Result<(), PoolError> {
        let found = memory.properties().map_err(|error| self.fail(error))?;
        let on_device = found.location.type_ == CU_MEM_LOCATION_TYPE_DEVICE
            && found.location.id == self.device.ordinal;
        if found.type_ != CU_MEM_ALLOCATION_TYPE_PINNED || !on_device {
            return Err(PoolError::Untrusted(format!(
                "it is not memory of {} but of location type {} number {}",
                self.device.uuid, found.location.type_, found.location.id
            )));
        }
        let mut probe = Reservation::new(&self.driver, bytes, self.granularity)
            .map_err(|error| self.fail(error))?;
        match probe.map(memory, bytes) {
            Ok(()) => Ok(()),
            Err(error) if error.code() == Some(CUDA_ERROR_INVALID_VALUE) => Err(too_small(bytes)),
            // The documentation does not require a context for mapping. If a driver does require one,
            // we adopt the segment unverified: losing it would be worse than a wrong size.
            Err(error) if error.code() == Some(CUDA_ERROR_INVALID_CONTEXT) => {
                warnings.push(format!(
                    "the size of an adopted segment is not verified: {error}"
                ));
                Ok(())
            }
            Err(error) => Err(self.fail(error)),
        }
    }
}

impl SegmentSource for CudaSource {
    fn domain(&self) -> Domain {
        Domain::Cuda(self.device.uuid)
    }

    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn create(&mut self, bytes: u64) -> Result<Segment, PoolError> {
        check_size(bytes, self.granularity, MAX_POOL_BYTES)?;
        let mut warnings = Vec::new();
        let memory = self
            .allocate(bytes, &mut warnings)
            .map_err(|error| self.fail(error))?;
        let fd = memory.export().map_err(|error| self.fail(error))?;
        Ok(Segment {
            fd,
            bytes,
            inode: 0,
            placement: placement(warnings),
        })
    }

    fn adopt(&mut self, fd: OwnedFd, bytes: u64, _inode: u64) -> Result<Segment, PoolError> {
        check_size(bytes, self.granularity, MAX_POOL_BYTES)?;
        let memory = import(&self.driver, &self.device, fd.as_fd())?;
        let mut warnings = Vec::new();
        self.verify(&memory, bytes, &mut warnings)?;
        Ok(Segment {
            fd,
            bytes,
            inode: 0,
            placement: placement(warnings),
        })
    }

    fn discard(&mut self, _segment: &Segment, _offset: u64, _bytes: u64) {
        // The driver frees GPU memory only with its whole segment.
    }
}

/// The granularity of a pool's segments: the driver's for mappings, at least [`SEGMENT_UNIT_BYTES`].
pub(crate) fn pool_granularity(driver: &Driver, device: &Device) -> Result<u64, PoolError> {
    let bytes = granularity(driver, device).map_err(|error| error.into_pool(device.uuid))?;
    if bytes == 0 || !bytes.is_power_of_two() {
        return Err(PoolError::Unavailable {
            domain: Domain::Cuda(device.uuid),
            reason: format!("the driver gives a granularity of {bytes} bytes"),
        });
    }
    Ok(bytes.max(SEGMENT_UNIT_BYTES))
}

/// Imports the memory behind a descriptor that another process sent.
pub(crate) fn import(
    driver: &Arc<Driver>,
    device: &Device,
    fd: BorrowedFd<'_>,
) -> Result<Allocation, PoolError> {
    Allocation::import(driver, fd).map_err(|error| match error.code() {
        Some(
            CUDA_ERROR_INVALID_VALUE
            | CUDA_ERROR_INVALID_HANDLE
            | CUDA_ERROR_OPERATING_SYSTEM
            | CUDA_ERROR_UNKNOWN,
        ) => PoolError::Untrusted(format!(
            "the driver does not know it as GPU memory: {error}"
        )),
        _ => error.into_pool(device.uuid),
    })
}

/// Whether the driver refused a property, as opposed to having no memory left.
fn is_refusal(error: &CudaError) -> bool {
    matches!(
        error.code(),
        Some(CUDA_ERROR_NOT_SUPPORTED | CUDA_ERROR_NOT_PERMITTED | CUDA_ERROR_INVALID_VALUE)
    )
}

/// Fails unless `bytes` is a multiple of the granularity, above 0 and at most `most`.
pub(crate) fn check_size(bytes: u64, granularity: u64, most: u64) -> Result<(), PoolError> {
    if bytes == 0 || bytes % granularity != 0 || bytes > most {
        return Err(PoolError::BadSize {
            what: "segment",
            bytes,
            unit: granularity,
            most,
        });
    }
    Ok(())
}

/// The error for memory that is smaller than the sender claimed.
pub(crate) fn too_small(bytes: u64) -> PoolError {
    PoolError::Untrusted(format!(
        "it is smaller than the {bytes} bytes that it was announced with"
    ))
}

fn placement(warnings: Vec<String>) -> Placement {
    Placement {
        provider: None,
        pages: PageSize::Device,
        numa: None,
        warnings,
    }
}

//! The GPUs that this process sees.

use crate::abi::*;
use crate::direct::WritesOrder;
use crate::driver::{cu, Driver};
use crate::error::CudaError;
use rgaps_layout::GpuUuid;
use std::ffi::{c_int, CStr};

/// Longest GPU name that is read, in bytes.
const NAME_BYTES: usize = 128;

/// One GPU (or MIG instance) as this process sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its position among the GPUs that this process sees; other processes may count differently.
    pub ordinal: i32,
    /// Its name in all processes and on all hosts.
    pub uuid: GpuUuid,
    /// Its product name.
    pub name: String,
    /// The size of its memory.
    pub total_bytes: u64,
    /// It shares the host's memory (Jetson and the like).
    pub integrated: bool,
    /// It can map physical memory into reserved addresses.
    pub virtual_memory: bool,
    /// Its memory can be shared as a file descriptor.
    pub fd_handles: bool,
    /// NICs can read and write memory that was allocated for GPUDirect RDMA.
    pub gpu_direct_rdma: bool,
    /// Its memory can be exported as a dma-buf.
    pub dma_buf: bool,
    /// Which GPUs see the writes of NICs in order, without a flush.
    pub writes_order: WritesOrder,
    /// This process can flush the writes of NICs.
    pub flushes_writes: bool,
    /// It can read host memory that the process itself may only read.
    pub read_only_registration: bool,
    /// The driver reports that streams can write and wait for 64-bit numbers in memory.
    pub stream_memory_operations: bool,
    /// The driver reports that this process shares the GPU with others through MPS, so that their kernels run at the same
    /// time; otherwise processes take turns. False under older drivers, which do not report it.
    pub under_mps: bool,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
}

impl Device {
    /// Whether the GPU's work should read host memory in place: GPU and host share their memory, so a
    /// copy would gain nothing.
    pub fn reads_host_memory(&self) -> bool {
        self.integrated && self.read_only_registration
    }

    /// Fails if the GPU cannot hold a pool. The error names what it lacks.
    pub fn require_pools(&self) -> Result<(), CudaError> {
        let lack = match (self.virtual_memory, self.fd_handles) {
            (false, _) => "virtual memory management",
            (true, false) => "sharing of memory by file descriptor",
            (true, true) => return Ok(()),
        };
        Err(CudaError::Unsupported {
            uuid: self.uuid,
            name: self.name.clone(),
            lack,
        })
    }
}

impl Driver {
    /// All GPUs that this process sees. Creates no context.
    pub fn devices(&self) -> Result<Vec<Device>, CudaError> {
        let mut count: c_int = 0;
        // SAFETY: the out pointer is ours.
        unsafe { cu!(self, cuDeviceGetCount(&mut count))? };
        (0..count).map(|ordinal| self.describe(ordinal)).collect()
    }

    /// The GPU with this UUID.
    pub fn device(&self, uuid: GpuUuid) -> Result<Device, CudaError> {
        let devices = self.devices()?;
        let visible = match devices.as_slice() {
            [] => "none".to_owned(),
            some => some
                .iter()
                .map(|d| d.uuid.to_string())
                .collect::<Vec<_>>()
                .join(", "),
        };
        let found = devices.into_iter().find(|device| device.uuid == uuid);
        found.ok_or(CudaError::NoSuchDevice { uuid, visible })
    }

    pub(crate) fn describe(&self, ordinal: c_int) -> Result<Device, CudaError> {
        let mut device: CUdevice = 0;
        let mut uuid = [0u8; 16];
        let mut name = [0u8; NAME_BYTES];
        let mut total_bytes = 0usize;
        // SAFETY: the out pointers are ours, and `name` has the length that is passed with it.
        unsafe {
            cu!(self, cuDeviceGet(&mut device, ordinal))?;
            cu!(self, cuDeviceGetUuid(&mut uuid, device))?;
            cu!(
                self,
                cuDeviceGetName(name.as_mut_ptr().cast(), NAME_BYTES as c_int, device)
            )?;
            cu!(self, cuDeviceTotalMem(&mut total_bytes, device))?;
        }
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        let number = |attribute| self.attribute(device, attribute);
        // For attributes that older drivers do not know: 0 then.
        let newer = |attribute| {
            number(attribute).or_else(|error| match error.code() {
                Some(CUDA_ERROR_INVALID_VALUE) => Ok(0),
                _ => Err(error),
            })
        };
        Ok(Device {
            ordinal,
            uuid: GpuUuid(uuid),
            name: name.to_string_lossy().into_owned(),
            total_bytes: total_bytes as u64,
            integrated: number(CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
            virtual_memory: number(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? != 0,
            fd_handles: number(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?
                != 0,
            gpu_direct_rdma: number(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?
                != 0,
            dma_buf: newer(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)? != 0,
            under_mps: newer(CU_DEVICE_ATTRIBUTE_MPS_ENABLED)? != 0,
            writes_order: WritesOrder::of(newer(
                CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
            )?),
            flushes_writes: newer(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?
                & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST
                != 0,
            read_only_registration: newer(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)?
                != 0,
            stream_memory_operations: newer(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)?
                != 0,
            compute_capability: (
                number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
        })
    }

    /// Whether work on `device` can access memory of `peer` (over NVLink or PCIe).
    pub fn can_access_peer(&self, device: &Device, peer: &Device) -> Result<bool, CudaError> {
        let mut can: c_int = 0;
        // SAFETY: the out pointer is ours; the ordinals are ones that the driver described in `describe`.
        unsafe {
            cu!(
                self,
                cuDeviceCanAccessPeer(&mut can, device.ordinal, peer.ordinal)
            )?
        };
        Ok(can != 0)
    }

    /// Whether work on `device` can access memory of the GPU `uuid`: its own, or a peer's.
    pub fn reaches(&self, device: &Device, uuid: GpuUuid) -> Result<bool, CudaError> {
        Ok(device.uuid == uuid || self.can_access_peer(device, &self.device(uuid)?)?)
    }

    /// The GPU's address on the PCI bus, as in `0000:3b:00.0`.
    pub fn pci_bus_id(&self, device: &Device) -> Result<String, CudaError> {
        let mut text = [0u8; NAME_BYTES];
        // SAFETY: `text` has the length that is passed with it.
        unsafe {
            cu!(
                self,
                cuDeviceGetPCIBusId(
                    text.as_mut_ptr().cast(),
                    NAME_BYTES as c_int,
                    device.ordinal
                )
            )?
        };
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    fn attribute(&self, device: CUdevice, attribute: c_int) -> Result<u32, CudaError> {
        let mut value: c_int = 0;
        // SAFETY: the out pointer is ours.
        unsafe { cu!(self, cuDeviceGetAttribute(&mut value, attribute, device))? };
        Ok(u32::try_from(value).unwrap_or(0))
    }
}

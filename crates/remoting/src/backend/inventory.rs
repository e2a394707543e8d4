//! Describes the GPUs to the client, so that it can answer most questions about them itself.

use super::api::{cu, text, Api};
use crate::call::{DeviceInfo, Inventory};
use crate::codes::Code;
use std::ffi::c_int;

/// Attributes are numbered up to here, in CUDA 13.
const ATTRIBUTE_MAX: c_int = 150;
const NAME_BYTES: usize = 256;

/// Attributes of features that do not work across hosts, which are reported as 0: a kernel cannot read the client's memory, and handles
/// of memory and events mean nothing on its host.
const FALSE_ACROSS_HOSTS: [c_int; 20] = [
    19,  // CAN_MAP_HOST_MEMORY
    86,  // HOST_NATIVE_ATOMIC_SUPPORTED
    88,  // PAGEABLE_MEMORY_ACCESS
    89,  // CONCURRENT_MANAGED_ACCESS
    91,  // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    98,  // CAN_FLUSH_REMOTE_WRITES
    100, // PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
    101, // DIRECT_MANAGED_MEM_ACCESS_FROM_HOST
    102, // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    103, // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    110, // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
    112, // SPARSE_CUDA_ARRAY_SUPPORTED
    114, // TIMELINE_SEMAPHORE_INTEROP_SUPPORTED
    116, // GPU_DIRECT_RDMA_SUPPORTED
    119, // MEMPOOL_SUPPORTED_HANDLE_TYPES
    122, // CAN_USE_64_BIT_STREAM_MEM_OPS
    124, // DMA_BUF_SUPPORTED
    125, // IPC_EVENT_SUPPORTED
    128, // HANDLE_TYPE_FABRIC_SUPPORTED
    132, // MULTICAST_SUPPORTED
];

/// An attribute that is reported as 1: the client makes managed memory of any device's memory.
const MANAGED_MEMORY: c_int = 83;

/// Everything about all GPUs that the driver sees.
pub(crate) fn inventory(api: &Api, memory_limit: Option<u64>) -> Result<Inventory, Code> {
    let (mut driver_version, mut count) = (0, 0);
    // SAFETY: both out pointers are to variables of this function.
    unsafe {
        cu!(api, driver_version(&mut driver_version))?;
        cu!(api, device_count(&mut count))?;
    }
    let devices = (0..count).map(|ordinal| device(api, ordinal, count, memory_limit));
    Ok(Inventory {
        driver_version,
        devices: devices.collect::<Result<_, _>>()?,
    })
}

fn device(
    api: &Api,
    ordinal: c_int,
    count: c_int,
    memory_limit: Option<u64>,
) -> Result<DeviceInfo, Code> {
    let (mut device, mut total_bytes, mut uuid) = (0, 0, [0; 16]);
    let (mut name, mut pci) = ([0u8; NAME_BYTES], [0u8; NAME_BYTES]);
    // SAFETY: all out pointers are to variables of this function, and the lengths are those of the buffers.
    unsafe {
        cu!(api, device_get(&mut device, ordinal))?;
        cu!(api, device_total(&mut total_bytes, device))?;
        cu!(api, device_uuid(&mut uuid, device))?;
        cu!(
            api,
            device_name(name.as_mut_ptr().cast(), NAME_BYTES as c_int, device)
        )?;
        cu!(
            api,
            device_pci(pci.as_mut_ptr().cast(), NAME_BYTES as c_int, device)
        )?;
    }
    let attribute = |number: c_int| {
        if FALSE_ACROSS_HOSTS.contains(&number) {
            return Some((number, 0));
        }
        if number == MANAGED_MEMORY {
            return Some((number, 1));
        }
        let mut value = 0;
        // SAFETY: the out pointer is to a variable of this function.
        let found = unsafe { cu!(api, device_attribute(&mut value, number, device)) };
        found.ok().map(|()| (number, value))
    };
    let reaches = |peer: c_int| {
        let mut can = 0;
        // SAFETY: the out pointer is to a variable of this function; ordinals of devices are devices.
        let found = unsafe { cu!(api, device_peer(&mut can, device, peer)) };
        found.is_ok() && can != 0
    };
    let total_bytes = total_bytes as u64;
    Ok(DeviceInfo {
        name: text(&name),
        uuid,
        total_bytes: memory_limit.map_or(total_bytes, |limit| limit.min(total_bytes)),
        pci_bus_id: text(&pci),
        attributes: (1..ATTRIBUTE_MAX).filter_map(attribute).collect(),
        peers: (0..count).map(reaches).collect(),
    })
}

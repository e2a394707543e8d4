//! Virtual memory management, and the addresses of memory of other sorts.

use crate::abi::*;
use crate::call::{call, put, trace, Global};
use crate::context::current;
use crate::memory::Place;
use crate::physical::{Physical, GRANULARITY};
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::IntoRawFd;
use std::sync::Arc;

/// Checks a description of memory; gives the position of its GPU.
///
/// # Safety
/// `wanted` is null or readable.
unsafe fn check(g: &Global, wanted: *const AllocationProperties) -> Result<(usize, bool), Code> {
    if wanted.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller's.
    let wanted = unsafe { wanted.read() };
    let config = g.config();
    if wanted.kind != PINNED || wanted.location.kind != LOCATION_DEVICE || wanted.reserved != [0; 4]
    {
        return Err(Code::INVALID_VALUE);
    }
    let fd_refused = wanted.handle_types == HANDLE_FD && !config.has_fd;
    let rdma = wanted.gpu_direct_rdma != 0;
    if !config.has_vmm || fd_refused || wanted.handle_types > HANDLE_FD || rdma && !config.has_rdma
    {
        return Err(Code::NOT_SUPPORTED);
    }
    drop(config);
    Ok((g.position(wanted.location.id)?, rdma))
}

#[no_mangle]
unsafe extern "C" fn cuMemGetAllocationGranularity(
    bytes: *mut usize,
    wanted: *const AllocationProperties,
    option: c_uint,
) -> c_int {
    call("cuMemGetAllocationGranularity", |g| {
        // SAFETY: the caller's.
        unsafe {
            check(g, wanted)?;
            match option {
                0 | 1 => put(bytes, GRANULARITY as usize),
                _ => Err(Code::INVALID_VALUE),
            }
        }
    })
}

#[no_mangle]
unsafe extern "C" fn cuMemCreate(
    handle: *mut u64,
    bytes: usize,
    wanted: *const AllocationProperties,
    flags: u64,
) -> c_int {
    call("cuMemCreate", |g| {
        // SAFETY: the caller's.
        let (position, rdma) = unsafe { check(g, wanted)? };
        let bytes = bytes as u64;
        if flags != 0 || bytes == 0 || bytes % GRANULARITY != 0 || handle.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let memory = Physical::create(g, position, bytes, rdma)?;
        // SAFETY: the caller's.
        unsafe { put(handle, g.memory_mut().add_handle(memory)) }
    })
}

#[no_mangle]
extern "C" fn cuMemRelease(handle: u64) -> c_int {
    call("cuMemRelease", |g| g.memory_mut().release(handle))
}

#[no_mangle]
unsafe extern "C" fn cuMemExportToShareableHandle(
    shareable: *mut c_void,
    handle: u64,
    kind: c_uint,
    flags: u64,
) -> c_int {
    call("cuMemExportToShareableHandle", |g| {
        if kind != HANDLE_FD || flags != 0 || shareable.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let fd = g.memory().handle(handle)?.export()?;
        // SAFETY: the caller's: for this kind it points to an int.
        unsafe { put(shareable.cast::<c_int>(), fd.into_raw_fd()) }
    })
}

#[no_mangle]
unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut u64,
    shareable: *mut c_void,
    kind: c_uint,
) -> c_int {
    call("cuMemImportFromShareableHandle", |g| {
        let fd = c_int::try_from(shareable as usize).map_err(|_| Code::INVALID_VALUE)?;
        if kind != HANDLE_FD || handle.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let memory = Physical::import(g, fd)?;
        // SAFETY: the caller's.
        unsafe { put(handle, g.memory_mut().add_handle(memory)) }
    })
}

#[no_mangle]
unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    found: *mut AllocationProperties,
    handle: u64,
) -> c_int {
    call("cuMemGetAllocationPropertiesFromHandle", |g| {
        let memory = Arc::clone(g.memory().handle(handle)?);
        let properties = AllocationProperties {
            kind: PINNED,
            handle_types: HANDLE_FD,
            location: Location {
                kind: LOCATION_DEVICE,
                id: g.ordinal(memory.position).ok_or(Code::INVALID_DEVICE)?,
            },
            win32: std::ptr::null_mut(),
            compression: 0,
            gpu_direct_rdma: memory.gpu_direct_rdma.into(),
            usage: 0,
            reserved: [0; 4],
        };
        // SAFETY: the caller's.
        unsafe { put(found, properties) }
    })
}

#[no_mangle]
unsafe extern "C" fn cuMemAddressReserve(
    address: *mut u64,
    bytes: usize,
    alignment: usize,
    _wish: u64,
    flags: u64,
) -> c_int {
    call("cuMemAddressReserve", |g| {
        if flags != 0 || address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let base = g.memory_mut().reserve(bytes as u64, alignment as u64)?;
        // SAFETY: the caller's.
        unsafe { put(address, base) }
    })
}

#[no_mangle]
extern "C" fn cuMemAddressFree(address: u64, bytes: usize) -> c_int {
    call("cuMemAddressFree", |g| {
        g.memory_mut().unreserve(address, bytes as u64)
    })
}

#[no_mangle]
extern "C" fn cuMemMap(
    address: u64,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> c_int {
    call("cuMemMap", |g| match flags {
        0 => g
            .memory_mut()
            .map(address, bytes as u64, offset as u64, handle),
        _ => Err(Code::INVALID_VALUE),
    })
}

#[no_mangle]
extern "C" fn cuMemUnmap(address: u64, bytes: usize) -> c_int {
    call("cuMemUnmap", |g| {
        g.memory_mut().unmap(address, bytes as u64)
    })
}

#[no_mangle]
unsafe extern "C" fn cuMemSetAccess(
    address: u64,
    bytes: usize,
    wanted: *const AccessDescription,
    count: usize,
) -> c_int {
    call("cuMemSetAccess", |g| {
        if wanted.is_null() || count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        for i in 0..count {
            // SAFETY: the caller's: `count` descriptions are readable.
            let wanted = unsafe { wanted.add(i).read() };
            if wanted.location.kind != LOCATION_DEVICE {
                return Err(Code::NOT_SUPPORTED);
            }
            let position = g.position(wanted.location.id)?;
            let are_peers = g.config().are_peers;
            g.memory_mut()
                .set_access(address, bytes as u64, position, wanted.flags, are_peers)?;
        }
        Ok(())
    })
}

/// A dma-buf of a mapped range: the memfd of the memory at its start.
#[no_mangle]
unsafe extern "C" fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    address: u64,
    bytes: usize,
    kind: c_int,
    flags: u64,
) -> c_int {
    call("cuMemGetHandleForAddressRange", |g| {
        current()?;
        if kind != DMA_BUF_FD || flags != 0 || handle.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        if !g.config().has_dmabuf {
            return Err(Code::NOT_SUPPORTED);
        }
        let memory = g.memory().physical(address, bytes as u64)?;
        if !memory.gpu_direct_rdma {
            return Err(Code::NOT_SUPPORTED);
        }
        // SAFETY: the caller's: for this kind it points to an int.
        unsafe { put(handle.cast::<c_int>(), memory.export()?.into_raw_fd()) }
    })
}

#[no_mangle]
extern "C" fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) -> c_int {
    call("cuFlushGPUDirectRDMAWrites", |g| {
        current()?;
        match (target, scope) {
            (0, 100 | 200) if g.config().has_rdma_flush => Ok(()),
            (0, 100 | 200) => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_VALUE),
        }
    })
}

#[no_mangle]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    call("cuMemGetInfo", |g| {
        current()?;
        let bytes = g.config().memory_bytes as usize;
        // SAFETY: the caller's.
        unsafe {
            put(free, bytes)?;
            put(total, bytes)
        }
    })
}

#[no_mangle]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    call("cuMemAlloc", |g| {
        let context = current()?;
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        if bytes as u64 > g.config().memory_bytes {
            return Err(Code::OUT_OF_MEMORY);
        }
        let at = g.memory_mut().allocate(bytes as u64, context.position)?;
        // SAFETY: the caller's.
        unsafe { put(address, at) }
    })
}

#[no_mangle]
extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    call("cuMemFree", |g| {
        // Freeing waits for all work, as the driver's does.
        current()?.synchronize(g)?;
        g.memory_mut().free(address)
    })
}

#[no_mangle]
extern "C" fn cuMemHostRegister_v2(address: u64, bytes: usize, flags: c_uint) -> c_int {
    call("cuMemHostRegister", |g| {
        let context = current()?;
        if flags & !REGISTER_FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if flags & REGISTER_IO_MEMORY != 0 || !g.config().has_registration {
            return Err(Code::NOT_SUPPORTED);
        }
        let is_read_only = flags & REGISTER_READ_ONLY != 0;
        if is_read_only && !g.config().has_read_only_registration {
            return Err(Code::NOT_SUPPORTED);
        }
        let context = Arc::as_ptr(&context) as usize;
        let mut memory = g.memory_mut();
        memory.register(address, bytes as u64, context, is_read_only)?;
        trace("cuMemHostRegister", bytes);
        Ok(())
    })
}

#[no_mangle]
extern "C" fn cuMemHostUnregister(address: u64) -> c_int {
    call("cuMemHostUnregister", |g| {
        current()?.synchronize(g)?;
        g.memory_mut().unregister(address)
    })
}

/// With unified addressing all registered memory is mapped for all GPUs, at the host's addresses.
#[no_mangle]
unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    device: *mut u64,
    host: u64,
    flags: c_uint,
) -> c_int {
    call("cuMemHostGetDevicePointer", |g| {
        current()?;
        if flags != 0 || g.memory().place(host) != Place::Pinned {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's.
        unsafe { put(device, host) }
    })
}

#[no_mangle]
unsafe extern "C" fn cuPointerGetAttribute(
    value: *mut c_void,
    attribute: c_int,
    address: u64,
) -> c_int {
    call("cuPointerGetAttribute", |g| {
        current()?;
        let memory = g.memory();
        let (kind, position) = match memory.place(address) {
            Place::Device(position) => (MEMORY_DEVICE, Some(position)),
            Place::Pinned => (MEMORY_HOST, None),
            Place::Pageable | Place::Nothing => return Err(Code::INVALID_VALUE),
        };
        let (start, bytes) = memory.extent(address).ok_or(Code::INVALID_VALUE)?;
        let ordinal = position
            .and_then(|position| g.ordinal(position))
            .unwrap_or(-1);
        // SAFETY: the caller's: the output has the attribute's type.
        unsafe {
            match attribute {
                2 => put(value.cast::<c_uint>(), kind),   // MEMORY_TYPE
                3 => put(value.cast::<u64>(), address),   // DEVICE_POINTER
                8 => put(value.cast::<c_uint>(), 0),      // IS_MANAGED
                9 => put(value.cast::<c_int>(), ordinal), // DEVICE_ORDINAL
                11 => put(value.cast::<u64>(), start),    // RANGE_START_ADDR
                12 => put(value.cast::<usize>(), bytes as usize), // RANGE_SIZE
                _ => Err(Code::INVALID_VALUE),
            }
        }
    })
}

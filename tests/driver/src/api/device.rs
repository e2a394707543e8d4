//! Start-up, errors, devices.

use crate::abi::Code;
use crate::call::{call, call_early, initialise, put};
use std::ffi::{c_char, c_int, c_uint};

/// CUDA 12.4: new enough for everything that rgaps asks for, old enough to be common.
const VERSION: c_int = 12040;
const NAME: &[u8] = b"rgaps test GPU\0";

#[no_mangle]
extern "C" fn cuInit(flags: c_uint) -> c_int {
    call_early("cuInit", |g| match flags {
        0 => initialise(g),
        _ => Err(Code::INVALID_VALUE),
    })
}

#[no_mangle]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller's.
    call_early("cuDriverGetVersion", |_| unsafe { put(version, VERSION) })
}

#[no_mangle]
unsafe extern "C" fn cuGetErrorName(code: c_int, text: *mut *const c_char) -> c_int {
    let name = match code {
        0 => Some("CUDA_SUCCESS\0"),
        code => Code(code).name(),
    };
    call_early("cuGetErrorName", |_| {
        let name = name.ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the caller's; the names are static and end in NUL.
        unsafe { put(text, name.as_ptr().cast()) }
    })
}

#[no_mangle]
unsafe extern "C" fn cuGetErrorString(code: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: the caller's. The stand-in has no prose for its codes, so their names do.
    unsafe { cuGetErrorName(code, text) }
}

#[no_mangle]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: the caller's.
    call("cuDeviceGetCount", |g| unsafe {
        put(count, g.config().visible.len() as c_int)
    })
}

#[no_mangle]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    call("cuDeviceGet", |g| {
        g.position(ordinal)?;
        // SAFETY: the caller's.
        unsafe { put(device, ordinal) }
    })
}

#[no_mangle]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> c_int {
    call("cuDeviceGetUuid", |g| {
        let position = g.position(device)?;
        // SAFETY: the caller's.
        unsafe { put(uuid, g.config().gpus[position].uuid) }
    })
}

#[no_mangle]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, bytes: c_int, device: c_int) -> c_int {
    call("cuDeviceGetName", |g| {
        g.position(device)?;
        let room = usize::try_from(bytes)
            .ok()
            .filter(|room| *room > 0 && !name.is_null());
        let length = room.ok_or(Code::INVALID_VALUE)?.min(NAME.len());
        // SAFETY: the caller's: `name` has room for `bytes` bytes.
        unsafe {
            name.cast::<u8>().copy_from(NAME.as_ptr(), length);
            name.add(length - 1).write(0);
        }
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> c_int {
    call("cuDeviceTotalMem", |g| {
        g.position(device)?;
        // SAFETY: the caller's.
        unsafe { put(bytes, g.config().memory_bytes as usize) }
    })
}

#[no_mangle]
unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    device: c_int,
) -> c_int {
    call("cuDeviceGetAttribute", |g| {
        let position = g.position(device)?;
        let config = g.config();
        let found = match attribute {
            1 => 1024,     // MAX_THREADS_PER_BLOCK
            2 | 3 => 1024, // MAX_BLOCK_DIM
            4 => 64,
            5 => i32::MAX, // MAX_GRID_DIM
            6 | 7 => 65535,
            8 => 48 << 10,                              // MAX_SHARED_MEMORY_PER_BLOCK
            9 => 64 << 10,                              // TOTAL_CONSTANT_MEMORY
            10 => 32,                                   // WARP_SIZE
            11 => i32::MAX,                             // MAX_PITCH
            12 | 82 => 65536,                           // MAX_REGISTERS
            14 => 512,                                  // TEXTURE_ALIGNMENT
            15 | 31 | 40 | 78..=80 => 1, // GPU_OVERLAP, CONCURRENT_KERNELS, ASYNC_ENGINE_COUNT, priorities, L1
            16 => 2,                     // MULTIPROCESSOR_COUNT
            17 | 19 | 20 | 32 | 35 => 0, // limits and modes that it does not have
            33 => position as c_int + 1, // PCI_BUS_ID
            34 | 50 => 0,                // PCI_DEVICE_ID, PCI_DOMAIN_ID
            38 => 1 << 20,               // L2_CACHE_SIZE
            39 => 2048,                  // MAX_THREADS_PER_MULTIPROCESSOR
            81 => 228 << 10,             // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
            83..=86 | 88..=91 => 0,      // managed memory, boards, access to the host's memory
            95 | 115 => 1,               // COOPERATIVE_LAUNCH, MEMORY_POOLS_SUPPORTED
            97 => 227 << 10,             // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
            99 => c_int::from(config.has_registration), // HOST_REGISTER_SUPPORTED
            106 => 32,                   // MAX_BLOCKS_PER_MULTIPROCESSOR
            18 => c_int::from(config.gpus[position].is_integrated), // INTEGRATED
            41 => 1,                     // UNIFIED_ADDRESSING
            75 => 9,                     // COMPUTE_CAPABILITY_MAJOR
            76 => 0,                     // COMPUTE_CAPABILITY_MINOR
            92..=94 => 0,                // stream memory operations, version 1
            102 => c_int::from(config.has_vmm), // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
            103 => c_int::from(config.has_fd), // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
            110 => c_int::from(config.has_rdma), // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
            113 => c_int::from(config.has_read_only_registration), // READ_ONLY_HOST_REGISTER_SUPPORTED
            // GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: by the host; GPU_DIRECT_RDMA_WRITES_ORDERING
            117 => c_int::from(config.has_rdma_flush),
            118 => config.rdma_order,
            122 => c_int::from(config.has_memory_operations), // CAN_USE_64_BIT_STREAM_MEM_OPS
            123 => c_int::from(config.has_memory_operations), // CAN_USE_STREAM_WAIT_VALUE_NOR
            124 => c_int::from(config.has_dmabuf),            // DMA_BUF_SUPPORTED
            _ => return Err(Code::INVALID_VALUE),
        };
        // SAFETY: the caller's.
        unsafe { put(value, found) }
    })
}

#[no_mangle]
unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> c_int {
    call("cuDeviceCanAccessPeer", |g| {
        let (device, peer) = (g.position(device)?, g.position(peer)?);
        // SAFETY: the caller's. No GPU is a peer of itself.
        unsafe { put(can, c_int::from(g.config().are_peers && device != peer)) }
    })
}

#[no_mangle]
unsafe extern "C" fn cuDeviceGetPCIBusId(text: *mut c_char, bytes: c_int, device: c_int) -> c_int {
    call("cuDeviceGetPCIBusId", |g| {
        let found = format!("0000:{:02x}:00.0\0", g.position(device)? + 1);
        let room = usize::try_from(bytes).ok().filter(|_| !text.is_null());
        if room.is_none_or(|room| room < found.len()) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's: `text` has room for `bytes` bytes.
        unsafe { text.cast::<u8>().copy_from(found.as_ptr(), found.len()) };
        Ok(())
    })
}

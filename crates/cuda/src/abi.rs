//! The parts of `cuda.h` that we use: types, constants, structures.
//!
//! Names are CUDA's. Values are fixed by the driver's binary interface, which NVIDIA keeps stable
//! within a major symbol version; they are the same from CUDA 11.4 to 13.
#![allow(non_camel_case_types)]

use std::ffi::{c_int, c_uint, c_void};

pub(crate) type CUresult = c_int;
pub(crate) type CUdevice = c_int;
pub(crate) type CUdeviceptr = u64;
pub(crate) type CUmemGenericAllocationHandle = u64;
/// A pointer in C. An integer here, since we never dereference it.
pub(crate) type CUcontext = usize;
/// A pointer in C, or one of the special values below.
pub(crate) type CUstream = usize;
pub(crate) type CUmodule = usize;
pub(crate) type CUfunction = usize;

pub(crate) const CUDA_SUCCESS: CUresult = 0;
pub(crate) const CUDA_ERROR_INVALID_VALUE: CUresult = 1;
pub(crate) const CUDA_ERROR_OUT_OF_MEMORY: CUresult = 2;
pub(crate) const CUDA_ERROR_NOT_INITIALIZED: CUresult = 3;
pub(crate) const CUDA_ERROR_DEINITIALIZED: CUresult = 4;
pub(crate) const CUDA_ERROR_STUB_LIBRARY: CUresult = 34;
pub(crate) const CUDA_ERROR_NO_DEVICE: CUresult = 100;
pub(crate) const CUDA_ERROR_INVALID_CONTEXT: CUresult = 201;
pub(crate) const CUDA_ERROR_ECC_UNCORRECTABLE: CUresult = 214;
pub(crate) const CUDA_ERROR_NVLINK_UNCORRECTABLE: CUresult = 220;
pub(crate) const CUDA_ERROR_CONTAINED: CUresult = 226;
pub(crate) const CUDA_ERROR_OPERATING_SYSTEM: CUresult = 304;
pub(crate) const CUDA_ERROR_INVALID_HANDLE: CUresult = 400;
pub(crate) const CUDA_ERROR_NOT_READY: CUresult = 600;
pub(crate) const CUDA_ERROR_ILLEGAL_ADDRESS: CUresult = 700;
pub(crate) const CUDA_ERROR_LAUNCH_TIMEOUT: CUresult = 702;
pub(crate) const CUDA_ERROR_CONTEXT_IS_DESTROYED: CUresult = 709;
pub(crate) const CUDA_ERROR_ASSERT: CUresult = 710;
pub(crate) const CUDA_ERROR_HARDWARE_STACK_ERROR: CUresult = 714;
pub(crate) const CUDA_ERROR_ILLEGAL_INSTRUCTION: CUresult = 715;
pub(crate) const CUDA_ERROR_MISALIGNED_ADDRESS: CUresult = 716;
pub(crate) const CUDA_ERROR_INVALID_ADDRESS_SPACE: CUresult = 717;
pub(crate) const CUDA_ERROR_INVALID_PC: CUresult = 718;
pub(crate) const CUDA_ERROR_LAUNCH_FAILED: CUresult = 719;
pub(crate) const CUDA_ERROR_NOT_PERMITTED: CUresult = 800;
pub(crate) const CUDA_ERROR_NOT_SUPPORTED: CUresult = 801;
pub(crate) const CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: CUresult = 803;
pub(crate) const CUDA_ERROR_MPS_RPC_FAILURE: CUresult = 806;
pub(crate) const CUDA_ERROR_MPS_CLIENT_TERMINATED: CUresult = 810;
pub(crate) const CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: CUresult = 900;
pub(crate) const CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: CUresult = 906;
pub(crate) const CUDA_ERROR_UNKNOWN: CUresult = 999;

pub(crate) const CU_DEVICE_ATTRIBUTE_INTEGRATED: c_int = 18;
pub(crate) const CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: c_int = 75;
pub(crate) const CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: c_int = 76;
pub(crate) const CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: c_int = 102;
pub(crate) const CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: c_int = 103;
pub(crate) const CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: c_int = 110;
pub(crate) const CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED: c_int = 113;
/// For the second version of these operations, which drivers for CUDA 11.7 and later have. (The
/// attribute for the first version, which ended with CUDA 12, is 93.)
pub(crate) const CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: c_int = 122;

pub(crate) const CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: c_int = 117;
pub(crate) const CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING: c_int = 118;
pub(crate) const CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: c_int = 124;
pub(crate) const CU_DEVICE_ATTRIBUTE_MPS_ENABLED: c_int = 133;

/// A bit of `..._FLUSH_WRITES_OPTIONS`: the host can flush.
pub(crate) const CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST: u32 = 1;
pub(crate) const CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER: u32 = 100;
pub(crate) const CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES: u32 = 200;
pub(crate) const CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX: c_int = 0;
pub(crate) const CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES: c_int = 200;
pub(crate) const CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD: c_int = 1;

pub(crate) const CU_MEM_ALLOCATION_TYPE_PINNED: c_uint = 1;
pub(crate) const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: c_uint = 1;
pub(crate) const CU_MEM_LOCATION_TYPE_DEVICE: c_uint = 1;
pub(crate) const CU_MEM_ACCESS_FLAGS_PROT_READ: c_uint = 1;
pub(crate) const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: c_uint = 3;
pub(crate) const CU_MEM_ALLOC_GRANULARITY_MINIMUM: c_uint = 0;

pub(crate) const CU_POINTER_ATTRIBUTE_MEMORY_TYPE: c_int = 2;
pub(crate) const CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: c_int = 9;
pub(crate) const CU_MEMORYTYPE_HOST: c_uint = 1;

pub(crate) const CU_STREAM_NON_BLOCKING: c_uint = 1;
/// Handles up to this one (default, legacy, per-thread) mean a stream of the current context.
pub(crate) const CU_STREAM_PER_THREAD: CUstream = 2;
pub(crate) const CU_STREAM_CAPTURE_STATUS_NONE: c_int = 0;
/// The wait ends when the value is greater or equal, in the cyclic order of 64-bit numbers.
pub(crate) const CU_STREAM_WAIT_VALUE_GEQ: c_uint = 0;
/// The whole system sees the write only after all memory effects of the work queued before it.
pub(crate) const CU_STREAM_WRITE_VALUE_DEFAULT: c_uint = 0;

pub(crate) const CU_MEMHOSTREGISTER_PORTABLE: c_uint = 1;
pub(crate) const CU_MEMHOSTREGISTER_DEVICEMAP: c_uint = 2;
/// For pages that the process may only read.
pub(crate) const CU_MEMHOSTREGISTER_READ_ONLY: c_uint = 8;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct CUmemLocation {
    pub(crate) type_: c_uint,
    pub(crate) id: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct CUmemAllocationFlags {
    pub(crate) compression_type: u8,
    pub(crate) gpu_direct_rdma_capable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CUmemAllocationProp {
    pub(crate) type_: c_uint,
    pub(crate) requested_handle_types: c_uint,
    pub(crate) location: CUmemLocation,
    pub(crate) win32_handle_meta_data: *mut c_void,
    pub(crate) alloc_flags: CUmemAllocationFlags,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CUmemAccessDesc {
    pub(crate) location: CUmemLocation,
    pub(crate) flags: c_uint,
}

const _: () = assert!(size_of::<CUmemAllocationProp>() == 32);
const _: () = assert!(std::mem::offset_of!(CUmemAllocationProp, location) == 8);
const _: () = assert!(std::mem::offset_of!(CUmemAllocationProp, alloc_flags) == 24);
const _: () = assert!(size_of::<CUmemAccessDesc>() == 12);

//! The driver functions that we call, by exact symbol and version.
//!
//! `libcuda.so.1` keeps every old version of a function under its own symbol (`cuStreamDestroy` is
//! CUDA 3's, `cuStreamDestroy_v2` CUDA 4's). We name symbols with their suffix, as the header's macros
//! do, so we do not need `cuGetProcAddress`.
#![allow(non_snake_case)]

use crate::abi::*;
use crate::library::Library;
use std::ffi::{c_char, c_int, c_uint, c_void};

macro_rules! table {
    (
        required { $( $name:ident = $symbol:literal ( $($argument:ty),* ); )* }
        newer { $( $newer:ident = $newer_symbol:literal ( $($newer_argument:ty),* ); )* }
    ) => {
        /// Functions of a loaded driver.
        pub(crate) struct Table {
            $( pub(crate) $name: unsafe extern "C" fn($($argument),*) -> CUresult, )*
            $( pub(crate) $newer: Option<unsafe extern "C" fn($($newer_argument),*) -> CUresult>, )*
        }

        impl Table {
            /// Finds the functions. Fails with the name of the first required one that is missing; the
            /// newer ones may be missing.
            pub(crate) fn resolve(library: &Library) -> Result<Table, &'static str> {
                Ok(Table {
                    $( $name: {
                        let address = library.symbol($symbol).ok_or_else(|| {
                            $symbol.to_str().expect("the symbols in this file are ASCII")
                        })?;
                        // SAFETY: the address is that of the driver's function of this name, and
                        // the signature is the one that cuda.h declares for that symbol.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> CUresult,
                            >(address)
                        }
                    }, )*
                    $( $newer: library.symbol($newer_symbol).map(|address| {
                        // SAFETY: the address is that of the driver's function of this name, and
                        // the signature is the one that cuda.h declares for that symbol.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($newer_argument),*) -> CUresult,
                            >(address)
                        }
                    }), )*
                })
            }
        }
    };
}

table! {
    required {
        cuInit = c"cuInit"(c_uint);
        cuGetErrorName = c"cuGetErrorName"(CUresult, *mut *const c_char);

        cuDeviceGet = c"cuDeviceGet"(*mut CUdevice, c_int);
        cuDeviceGetCount = c"cuDeviceGetCount"(*mut c_int);
        cuDeviceGetName = c"cuDeviceGetName"(*mut c_char, c_int, CUdevice);
        cuDeviceGetUuid = c"cuDeviceGetUuid_v2"(*mut [u8; 16], CUdevice);
        cuDeviceGetAttribute = c"cuDeviceGetAttribute"(*mut c_int, c_int, CUdevice);
        cuDeviceTotalMem = c"cuDeviceTotalMem_v2"(*mut usize, CUdevice);

        cuDevicePrimaryCtxRetain = c"cuDevicePrimaryCtxRetain"(*mut CUcontext, CUdevice);
        cuDevicePrimaryCtxRelease = c"cuDevicePrimaryCtxRelease_v2"(CUdevice);
        cuDevicePrimaryCtxGetState = c"cuDevicePrimaryCtxGetState"(CUdevice, *mut c_uint, *mut c_int);
        cuCtxPushCurrent = c"cuCtxPushCurrent_v2"(CUcontext);
        cuCtxPopCurrent = c"cuCtxPopCurrent_v2"(*mut CUcontext);
        cuCtxGetCurrent = c"cuCtxGetCurrent"(*mut CUcontext);
        cuCtxGetDevice = c"cuCtxGetDevice"(*mut CUdevice);
        cuCtxSynchronize = c"cuCtxSynchronize"();

        cuMemGetInfo = c"cuMemGetInfo_v2"(*mut usize, *mut usize);
        cuMemAlloc = c"cuMemAlloc_v2"(*mut CUdeviceptr, usize);
        cuMemFree = c"cuMemFree_v2"(CUdeviceptr);
        cuMemGetAllocationGranularity =
            c"cuMemGetAllocationGranularity"(*mut usize, *const CUmemAllocationProp, c_uint);
        cuMemCreate =
            c"cuMemCreate"(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, u64);
        cuMemRelease = c"cuMemRelease"(CUmemGenericAllocationHandle);
        cuMemExportToShareableHandle =
            c"cuMemExportToShareableHandle"(*mut c_void, CUmemGenericAllocationHandle, c_uint, u64);
        cuMemImportFromShareableHandle =
            c"cuMemImportFromShareableHandle"(*mut CUmemGenericAllocationHandle, *mut c_void, c_uint);
        cuMemGetAllocationPropertiesFromHandle = c"cuMemGetAllocationPropertiesFromHandle"(
            *mut CUmemAllocationProp, CUmemGenericAllocationHandle);
        cuMemAddressReserve =
            c"cuMemAddressReserve"(*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
        cuMemAddressFree = c"cuMemAddressFree"(CUdeviceptr, usize);
        cuMemMap = c"cuMemMap"(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, u64);
        cuMemUnmap = c"cuMemUnmap"(CUdeviceptr, usize);
        cuMemSetAccess = c"cuMemSetAccess"(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        cuPointerGetAttribute = c"cuPointerGetAttribute"(*mut c_void, c_int, CUdeviceptr);

        cuMemcpyHtoDAsync = c"cuMemcpyHtoDAsync_v2"(CUdeviceptr, *const c_void, usize, CUstream);
        cuMemcpyDtoHAsync = c"cuMemcpyDtoHAsync_v2"(*mut c_void, CUdeviceptr, usize, CUstream);
        cuMemcpyAsync = c"cuMemcpyAsync"(CUdeviceptr, CUdeviceptr, usize, CUstream);
        cuMemsetD8Async = c"cuMemsetD8Async"(CUdeviceptr, u8, usize, CUstream);
        cuMemsetD32Async = c"cuMemsetD32Async"(CUdeviceptr, c_uint, usize, CUstream);

        cuStreamCreate = c"cuStreamCreate"(*mut CUstream, c_uint);
        cuStreamDestroy = c"cuStreamDestroy_v2"(CUstream);
        cuStreamSynchronize = c"cuStreamSynchronize"(CUstream);
        cuStreamQuery = c"cuStreamQuery"(CUstream);
        cuStreamIsCapturing = c"cuStreamIsCapturing"(CUstream, *mut c_int);
        cuStreamGetCtx = c"cuStreamGetCtx"(CUstream, *mut CUcontext);

        cuMemHostRegister = c"cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
        cuMemHostUnregister = c"cuMemHostUnregister"(*mut c_void);
        cuMemHostGetDevicePointer =
            c"cuMemHostGetDevicePointer_v2"(*mut CUdeviceptr, *mut c_void, c_uint);

        cuModuleLoadData = c"cuModuleLoadData"(*mut CUmodule, *const c_void);
        cuModuleUnload = c"cuModuleUnload"(CUmodule);
        cuModuleGetFunction = c"cuModuleGetFunction"(*mut CUfunction, CUmodule, *const c_char);
        cuLaunchKernel = c"cuLaunchKernel"(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
            *mut *mut c_void, *mut *mut c_void);

        cuDeviceCanAccessPeer = c"cuDeviceCanAccessPeer"(*mut c_int, CUdevice, CUdevice);
        cuDeviceGetPCIBusId = c"cuDeviceGetPCIBusId"(*mut c_char, c_int, CUdevice);
    }

    newer {
        // CUDA 12.0
        cuStreamGetId = c"cuStreamGetId"(CUstream, *mut u64);
        // CUDA 11.3
        cuFlushGPUDirectRDMAWrites = c"cuFlushGPUDirectRDMAWrites"(c_int, c_int);
        // CUDA 11.7
        cuMemGetHandleForAddressRange =
            c"cuMemGetHandleForAddressRange"(*mut c_void, CUdeviceptr, usize, c_int, u64);
        cuStreamWriteValue64 = c"cuStreamWriteValue64_v2"(CUstream, CUdeviceptr, u64, c_uint);
        cuStreamWaitValue64 = c"cuStreamWaitValue64_v2"(CUstream, CUdeviceptr, u64, c_uint);
    }
}

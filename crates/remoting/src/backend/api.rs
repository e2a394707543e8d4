//! The driver's functions that the backend calls, found when it starts.
//!
//! `cu!` calls one, and gives the driver's code as an error. It checks nothing: `session` and the modules of its calls check addresses,
//! lengths and handles before.
#![allow(non_snake_case)]

use crate::array::{SAMPLER_BYTES, VIEW_BYTES};
use crate::codes::Code;
use crate::driver_abi::{ArrayDescription, Copy3d, ResourceDescription};
use rgaps_cuda::Library;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};

/// `CUDA_TEXTURE_DESC` and `CUDA_RESOURCE_VIEW_DESC`, as the client sent them.
pub(crate) type Sampler = [u64; SAMPLER_BYTES / 8];
pub(crate) type View = [u64; VIEW_BYTES / 8];

/// `CUlaunchAttribute`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct LaunchAttribute {
    pub(crate) id: c_uint,
    pub(crate) pad: c_uint,
    pub(crate) value: [u8; 64],
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: usize,
    pub(crate) attributes: *mut LaunchAttribute,
    pub(crate) attribute_count: c_uint,
}

const _: () = assert!(size_of::<LaunchConfig>() == 56);

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct GraphUpdated {
    pub(crate) result: c_uint,
    pub(crate) node: usize,
    pub(crate) from: usize,
}

const _: () = assert!(size_of::<GraphUpdated>() == 24);

/// `CUmemPoolProps`.
#[repr(C)]
pub(crate) struct PoolProperties {
    pub(crate) allocation: c_int,
    pub(crate) handles: c_int,
    pub(crate) location_kind: c_int,
    pub(crate) device: c_int,
    pub(crate) security: *mut c_void,
    pub(crate) bytes_max: usize,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 54],
}

const _: () = assert!(size_of::<PoolProperties>() == 88);

macro_rules! api {
    ($( $name:ident = $symbol:literal ( $($argument:ty),* ); )*) => {
        /// Functions of the driver; `None` for one that the driver lacks, whose calls fail with "not supported".
        #[derive(Default)]
        pub(crate) struct Api {
            $( pub(crate) $name: Option<unsafe extern "C" fn($($argument),*) -> c_int>, )*
        }

        impl Api {
            /// Finds the functions that the driver has.
            pub(crate) fn resolve(library: &Library) -> Api {
                Api {
                    $( $name: library.symbol($symbol).map(|address| {
                        // SAFETY: the address is that of the driver's function of this name, and the signature is the
                        // one that cuda.h declares for that symbol.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(address)
                        }
                    }), )*
                }
            }
        }
    };
}

/// Calls a function of the driver; needs an `unsafe` block around it.
macro_rules! cu {
    ($api:expr, $name:ident($($argument:expr),* $(,)?)) => {
        match $api.$name {
            Some(function) => $crate::codes::Code(function($($argument),*)).check(),
            None => Err($crate::codes::Code::NOT_SUPPORTED),
        }
    };
}
pub(crate) use cu;

api! {
    init = c"cuInit"(c_uint);
    driver_version = c"cuDriverGetVersion"(*mut c_int);
    device_count = c"cuDeviceGetCount"(*mut c_int);
    device_get = c"cuDeviceGet"(*mut c_int, c_int);
    device_name = c"cuDeviceGetName"(*mut c_char, c_int, c_int);
    device_uuid = c"cuDeviceGetUuid_v2"(*mut [u8; 16], c_int);
    device_total = c"cuDeviceTotalMem_v2"(*mut usize, c_int);
    device_attribute = c"cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
    device_pci = c"cuDeviceGetPCIBusId"(*mut c_char, c_int, c_int);
    device_peer = c"cuDeviceCanAccessPeer"(*mut c_int, c_int, c_int);
    primary_retain = c"cuDevicePrimaryCtxRetain"(*mut usize, c_int);
    primary_release = c"cuDevicePrimaryCtxRelease_v2"(c_int);
    primary_reset = c"cuDevicePrimaryCtxReset_v2"(c_int);
    context_set = c"cuCtxSetCurrent"(usize);
    context_synchronize = c"cuCtxSynchronize"();
    context_limit = c"cuCtxGetLimit"(*mut usize, c_uint);
    context_limit_set = c"cuCtxSetLimit"(c_uint, usize);
    context_peer_enable = c"cuCtxEnablePeerAccess"(usize, c_uint);
    context_peer_disable = c"cuCtxDisablePeerAccess"(usize);
    context_priorities = c"cuCtxGetStreamPriorityRange"(*mut c_int, *mut c_int);
    memory_info = c"cuMemGetInfo_v2"(*mut usize, *mut usize);
    allocate = c"cuMemAlloc_v2"(*mut u64, usize);
    allocate_async = c"cuMemAllocAsync"(*mut u64, usize, usize);
    allocate_from = c"cuMemAllocFromPoolAsync"(*mut u64, usize, usize, usize);
    pool_default = c"cuDeviceGetDefaultMemPool"(*mut usize, c_int);
    pool_use = c"cuDeviceSetMemPool"(c_int, usize);
    pool_create = c"cuMemPoolCreate"(*mut usize, *const PoolProperties);
    pool_destroy = c"cuMemPoolDestroy"(usize);
    pool_set = c"cuMemPoolSetAttribute"(usize, c_uint, *mut c_void);
    pool_get = c"cuMemPoolGetAttribute"(usize, c_uint, *mut c_void);
    pool_trim = c"cuMemPoolTrimTo"(usize, usize);
    free = c"cuMemFree_v2"(u64);
    free_async = c"cuMemFreeAsync"(u64, usize);
    host_register = c"cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
    host_unregister = c"cuMemHostUnregister"(*mut c_void);
    copy_in = c"cuMemcpyHtoDAsync_v2"(u64, *const c_void, usize, usize);
    copy_out = c"cuMemcpyDtoHAsync_v2"(*mut c_void, u64, usize, usize);
    copy = c"cuMemcpyAsync"(u64, u64, usize, usize);
    copy_3d = c"cuMemcpy3DAsync_v2"(*const Copy3d, usize);
    array_create = c"cuArray3DCreate_v2"(*mut usize, *const ArrayDescription);
    array_destroy = c"cuArrayDestroy"(usize);
    mipmap_create = c"cuMipmappedArrayCreate"(*mut usize, *const ArrayDescription, c_uint);
    mipmap_level = c"cuMipmappedArrayGetLevel"(*mut usize, usize, c_uint);
    mipmap_destroy = c"cuMipmappedArrayDestroy"(usize);
    texture_create = c"cuTexObjectCreate"(*mut u64, *const ResourceDescription, *const Sampler, *const View);
    texture_destroy = c"cuTexObjectDestroy"(u64);
    texture_sampler = c"cuTexObjectGetTextureDesc"(*mut Sampler, u64);
    surface_create = c"cuSurfObjectCreate"(*mut u64, *const ResourceDescription);
    surface_destroy = c"cuSurfObjectDestroy"(u64);
    fill_8 = c"cuMemsetD8Async"(u64, u8, usize, usize);
    fill_16 = c"cuMemsetD16Async"(u64, u16, usize, usize);
    fill_32 = c"cuMemsetD32Async"(u64, c_uint, usize, usize);
    fill_2d_8 = c"cuMemsetD2D8Async"(u64, usize, u8, usize, usize, usize);
    fill_2d_16 = c"cuMemsetD2D16Async"(u64, usize, u16, usize, usize, usize);
    fill_2d_32 = c"cuMemsetD2D32Async"(u64, usize, c_uint, usize, usize, usize);
    stream_create = c"cuStreamCreateWithPriority"(*mut usize, c_uint, c_int);
    stream_destroy = c"cuStreamDestroy_v2"(usize);
    stream_synchronize = c"cuStreamSynchronize"(usize);
    stream_query = c"cuStreamQuery"(usize);
    stream_wait_event = c"cuStreamWaitEvent"(usize, usize, c_uint);
    stream_is_capturing = c"cuStreamIsCapturing"(usize, *mut c_int);
    capture_info = c"cuStreamGetCaptureInfo_v2"(usize, *mut c_int, *mut u64, *mut usize, *mut usize, *mut usize);
    capture_begin = c"cuStreamBeginCapture_v2"(usize, c_int);
    capture_end = c"cuStreamEndCapture"(usize, *mut usize);
    graph_nodes = c"cuGraphGetNodes"(usize, *mut usize, *mut usize);
    graph_instantiate = c"cuGraphInstantiateWithFlags"(*mut usize, usize, u64);
    graph_update = c"cuGraphExecUpdate_v2"(usize, usize, *mut GraphUpdated);
    graph_upload = c"cuGraphUpload"(usize, usize);
    graph_launch = c"cuGraphLaunch"(usize, usize);
    graph_destroy = c"cuGraphDestroy"(usize);
    graph_exec_destroy = c"cuGraphExecDestroy"(usize);
    event_create = c"cuEventCreate"(*mut usize, c_uint);
    event_destroy = c"cuEventDestroy_v2"(usize);
    event_record = c"cuEventRecord"(usize, usize);
    event_record_with_flags = c"cuEventRecordWithFlags"(usize, usize, c_uint);
    event_synchronize = c"cuEventSynchronize"(usize);
    event_query = c"cuEventQuery"(usize);
    event_elapsed = c"cuEventElapsedTime"(*mut f32, usize, usize);
    library_load = c"cuLibraryLoadData"(
        *mut usize, *const c_void, *const c_void, *const c_void, c_uint, *const c_void, *const c_void, c_uint);
    library_module = c"cuLibraryGetModule"(*mut usize, usize);
    library_unload = c"cuLibraryUnload"(usize);
    library_kernel = c"cuLibraryGetKernel"(*mut usize, usize, *const c_char);
    library_global = c"cuLibraryGetGlobal"(*mut u64, *mut usize, usize, *const c_char);
    library_managed = c"cuLibraryGetManaged"(*mut u64, *mut usize, usize, *const c_char);
    kernel_parameter = c"cuKernelGetParamInfo"(usize, usize, *mut usize, *mut usize);
    kernel_attribute = c"cuKernelGetAttribute"(*mut c_int, c_int, usize, c_int);
    kernel_attribute_set = c"cuKernelSetAttribute"(c_int, c_int, usize, c_int);
    launch = c"cuLaunchKernel"(
        usize, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, usize, *mut *mut c_void, *mut *mut c_void);
    launch_cooperative = c"cuLaunchCooperativeKernel"(
        usize, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, usize, *mut *mut c_void);
    launch_host = c"cuLaunchHostFunc"(usize, extern "C" fn(*mut c_void), *mut c_void);
    launch_ex = c"cuLaunchKernelEx"(*const LaunchConfig, usize, *mut *mut c_void, *mut *mut c_void);
    occupancy = c"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"(*mut c_int, usize, c_int, usize, c_uint);
    occupancy_shared = c"cuOccupancyAvailableDynamicSMemPerBlock"(*mut usize, usize, c_int, c_int);
}

/// The C string in a buffer that the driver filled.
pub(crate) fn text(buffer: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(buffer).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

impl Api {
    /// Makes the context of a device current on this thread.
    pub(crate) fn enter(&self, context: usize) -> Result<(), Code> {
        // SAFETY: `Session::enter` has retained this primary context. Only `Session::reset` releases it; a thread that still has its
        // handle then gets the driver's error.
        unsafe { cu!(self, context_set(context)) }
    }
}

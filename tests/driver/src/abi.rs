//! Codes and structures of `cuda.h`, written down apart from those in `rgaps-cuda`, so that a
//! mistake in one does not cancel out.
#![allow(non_camel_case_types)]

use std::ffi::{c_int, c_uint, c_void};

/// What a driver function returns when it fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Code(pub(crate) c_int);

macro_rules! codes {
    ($($name:ident = $number:literal),* $(,)?) => {
        #[allow(dead_code, reason = "most codes only come up by name, in injected failures")]
        impl Code {
            $( pub(crate) const $name: Code = Code($number); )*
        }
        /// All codes with their names as C strings.
        pub(crate) const NAMES: &[(Code, &str)] = &[
            $( (Code($number), concat!("CUDA_ERROR_", stringify!($name), "\0")), )*
        ];
    };
}

codes! {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEINITIALIZED = 4,
    STUB_LIBRARY = 34,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    MAP_FAILED = 205,
    NO_BINARY_FOR_GPU = 209,
    UNMAP_FAILED = 206,
    ECC_UNCORRECTABLE = 214,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_PTX = 218,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_TIMEOUT = 702,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    PRIMARY_CONTEXT_ACTIVE = 708,
    CONTEXT_IS_DESTROYED = 709,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    MISALIGNED_ADDRESS = 716,
    LAUNCH_FAILED = 719,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    SYSTEM_NOT_READY = 802,
    SYSTEM_DRIVER_MISMATCH = 803,
    MPS_CONNECTION_FAILED = 805,
    MPS_CLIENT_TERMINATED = 810,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    STREAM_CAPTURE_MERGE = 902,
    STREAM_CAPTURE_UNMATCHED = 903,
    STREAM_CAPTURE_ISOLATION = 905,
    STREAM_CAPTURE_IMPLICIT = 906,
    GRAPH_EXEC_UPDATE_FAILURE = 910,
    UNKNOWN = 999,
}

impl Code {
    /// Name of the code, with the terminating NUL.
    pub(crate) fn name(self) -> Option<&'static str> {
        NAMES
            .iter()
            .find(|(code, _)| *code == self)
            .map(|(_, name)| *name)
    }

    /// The code with this name.
    pub(crate) fn named(name: &str) -> Option<Code> {
        NAMES
            .iter()
            .find(|(_, known)| known.trim_end_matches('\0') == name)
            .map(|(code, _)| *code)
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub(crate) kind: c_uint,
    pub(crate) id: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AllocationProperties {
    pub(crate) kind: c_uint,
    pub(crate) handle_types: c_uint,
    pub(crate) location: Location,
    pub(crate) win32: *mut c_void,
    pub(crate) compression: u8,
    pub(crate) gpu_direct_rdma: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AccessDescription {
    pub(crate) location: Location,
    pub(crate) flags: c_uint,
}

const _: () = assert!(size_of::<AllocationProperties>() == 32);
const _: () = assert!(size_of::<AccessDescription>() == 12);

pub(crate) const PINNED: c_uint = 1;
pub(crate) const HANDLE_FD: c_uint = 1;
pub(crate) const DMA_BUF_FD: c_int = 1;
pub(crate) const LOCATION_DEVICE: c_uint = 1;
pub(crate) const ACCESS_NONE: c_uint = 0;
pub(crate) const ACCESS_READ: c_uint = 1;
pub(crate) const ACCESS_READ_WRITE: c_uint = 3;

pub(crate) const MEMORY_HOST: c_uint = 1;
pub(crate) const MEMORY_DEVICE: c_uint = 2;
pub(crate) const MEMORY_ARRAY: c_uint = 3;

pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
pub(crate) const WAIT_GEQ: c_uint = 0;
pub(crate) const WAIT_EQ: c_uint = 1;
pub(crate) const WAIT_AND: c_uint = 2;
pub(crate) const WAIT_NOR: c_uint = 3;
pub(crate) const WRITE_DEFAULT: c_uint = 0;
pub(crate) const WRITE_NO_MEMORY_BARRIER: c_uint = 1;

/// All flags of `cuMemHostRegister`: portable, device map, I/O memory, read-only.
pub(crate) const REGISTER_FLAGS: c_uint = 15;
pub(crate) const REGISTER_IO_MEMORY: c_uint = 4;
pub(crate) const REGISTER_READ_ONLY: c_uint = 8;

pub(crate) const STREAM_LEGACY: usize = 1;
pub(crate) const STREAM_PER_THREAD: usize = 2;

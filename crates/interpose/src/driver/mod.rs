//! The functions of CUDA's driver, for programs that call it themselves.
//!
//! A program has the primary context of each device, and no other: a context that it creates is that one. A context's handle names its
//! device.
mod array;
mod context;
mod copy;
mod entry;
mod module;
mod stream;
mod texture;

pub(crate) use context::runtime_is_used;
pub(crate) use entry::address_of;

use crate::notice;
use rgaps_remoting::Code;
use std::ffi::{c_char, c_int, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};

fn finish(body: impl FnOnce() -> Result<(), Code>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Code::UNKNOWN));
    result.err().unwrap_or(Code::SUCCESS).0
}

/// Exports functions of the driver, each under `rgaps_cu_` and its name.
macro_rules! driver {
    ($( fn $name:ident ( $($argument:ident : $kind:ty),* $(,)? ) $body:block )*) => { $(
        const _: () = {
            #[allow(clippy::too_many_arguments, reason = "they are CUDA's")]
            fn body($($argument: $kind),*) -> Result<(), rgaps_remoting::Code> $body

            #[export_name = concat!("rgaps_cu_", stringify!($name))]
            extern "C" fn exported($($argument: $kind),*) -> std::ffi::c_int {
                $crate::driver::finish(|| body($($argument),*))
            }
        };
    )* };
}
pub(crate) use driver;

/// Exports functions that have a form for the calling thread's default stream, with this ending. The first parameter is the stream
/// that 0 means.
macro_rules! driver_on_stream {
    ($( fn $name:ident $ending:literal ( $default:ident; $($argument:ident : $kind:ty),* $(,)? ) $body:block )*) => { $(
        const _: () = {
            #[allow(clippy::too_many_arguments, reason = "they are CUDA's")]
            fn body($default: u64, $($argument: $kind),*) -> Result<(), rgaps_remoting::Code> $body

            #[export_name = concat!("rgaps_cu_", stringify!($name))]
            extern "C" fn exported($($argument: $kind),*) -> std::ffi::c_int {
                $crate::driver::finish(|| body(0, $($argument),*))
            }

            #[export_name = concat!("rgaps_cu_", stringify!($name), $ending)]
            extern "C" fn per_thread($($argument: $kind),*) -> std::ffi::c_int {
                $crate::driver::finish(|| body($crate::handles::streams::PER_THREAD, $($argument),*))
            }
        };
    )* };
}
pub(crate) use driver_on_stream;

/// Called in place of each function of the driver that is not forwarded.
#[no_mangle]
extern "C" fn rgaps_cu_unsupported(name: *const c_char) -> c_int {
    // SAFETY: only the library that `tools/gpu-libs.py` makes calls this. It passes the function's name, a C string in its own read-only
    // data.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    notice::unsupported(&name);
    Code::NOT_SUPPORTED.0
}

//! The functions of CUDA's runtime.
//!
//! Their names, parameters and errors are CUDA's (`cuda_runtime_api.h`). A function whose name ends in `_ptsz` or `_ptds` takes
//! the calling thread's default stream where the plain one takes the legacy default stream.
mod array;
mod asked;
mod copy;
mod device;
mod error;
mod event;
mod graph;
mod host;
mod launch;
mod memory;
mod node;
mod pool;
mod registration;
mod stream;
mod symbol;
mod texture;

use crate::handles::streams;
use crate::{driver, notice, thread};
use rgaps_remoting::Code;
use std::ffi::{c_char, c_int, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Runs a function of the runtime; keeps its error for `cudaGetLastError`.
fn finish(body: impl FnOnce() -> Result<(), Code>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Code::UNKNOWN));
    let code = result.err().unwrap_or(Code::SUCCESS);
    if code == Code::SUCCESS {
        driver::runtime_is_used();
    }
    // CUDA keeps no error of a query.
    if code != Code::NOT_READY {
        thread::note(code);
    }
    code.0
}

/// Exports functions of the runtime, each under `rgaps_rt_` and its name.
macro_rules! runtime {
    ($( fn $name:ident ( $($argument:ident : $kind:ty),* $(,)? ) $body:block )*) => { $(
        const _: () = {
            #[allow(clippy::too_many_arguments, reason = "they are CUDA's")]
            fn body($($argument: $kind),*) -> Result<(), rgaps_remoting::Code> $body

            #[export_name = concat!("rgaps_rt_", stringify!($name))]
            extern "C" fn exported($($argument: $kind),*) -> std::ffi::c_int {
                $crate::runtime::finish(|| body($($argument),*))
            }
        };
    )* };
}
pub(crate) use runtime;

/// Exports functions as CUDA 12 has them, where CUDA 13 has others.
macro_rules! runtime_12 {
    ($( fn $name:ident ( $($argument:ident : $kind:ty),* $(,)? ) $body:block )*) => { $(
        const _: () = {
            fn body($($argument: $kind),*) -> Result<(), rgaps_remoting::Code> $body

            #[export_name = concat!("rgaps_rt12_", stringify!($name))]
            extern "C" fn exported($($argument: $kind),*) -> std::ffi::c_int {
                $crate::runtime::finish(|| body($($argument),*))
            }
        };
    )* };
}
pub(crate) use runtime_12;

/// Exports functions that have a form for the calling thread's default stream, with this ending. The first parameter is the stream
/// that 0 means.
macro_rules! runtime_on_stream {
    ($( fn $name:ident $ending:literal ( $default:ident; $($argument:ident : $kind:ty),* $(,)? ) $body:block )*) => { $(
        const _: () = {
            #[allow(clippy::too_many_arguments, reason = "they are CUDA's")]
            fn body($default: u64, $($argument: $kind),*) -> Result<(), rgaps_remoting::Code> $body

            #[export_name = concat!("rgaps_rt_", stringify!($name))]
            extern "C" fn exported($($argument: $kind),*) -> std::ffi::c_int {
                $crate::runtime::finish(|| body(0, $($argument),*))
            }

            #[export_name = concat!("rgaps_rt_", stringify!($name), $ending)]
            extern "C" fn per_thread($($argument: $kind),*) -> std::ffi::c_int {
                $crate::runtime::finish(|| body($crate::handles::streams::PER_THREAD, $($argument),*))
            }
        };
    )* };
}
pub(crate) use runtime_on_stream;

/// The stream that a program means, where 0 means `default`.
fn stream_of(stream: usize, default: u64) -> u64 {
    streams::meant(stream as u64, default)
}

/// Called in place of each function of the runtime that is not forwarded.
#[no_mangle]
extern "C" fn rgaps_rt_unsupported(name: *const c_char) -> c_int {
    // SAFETY: only the libraries that `tools/gpu-libs.py` makes call this. They pass the function's name, a C string in their own
    // read-only data.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    notice::unsupported(&name);
    finish(|| Err(Code::NOT_SUPPORTED))
}

//! What libraries above the runtime ask it: functions of the driver, and whether a stream records.

use super::{runtime, runtime_on_stream, stream_of};
use crate::abi::{Out, Text};
use crate::driver::address_of;
use crate::handles::{captures, graphs};
use crate::notice;
use rgaps_remoting::Code;
use std::ffi::{c_int, c_uint, c_void, CStr};

/// `cudaDriverEntryPointQueryResult`.
const FOUND: c_int = 0;
const NOT_FOUND: c_int = 1;
/// `cudaEnablePerThreadDefaultStream`.
const PER_THREAD: u64 = 2;
const RECORDING: c_int = 1;

fn entry_point(
    name: Text,
    function: Out<*mut c_void>,
    flags: u64,
    status: Out<c_int>,
) -> Result<(), Code> {
    function.check()?;
    let name = name.get()?;
    let found = address_of(&name.to_string_lossy(), flags).or_else(|| refusing(name));
    function.put(found.unwrap_or(std::ptr::null_mut()))?;
    let result = if found.is_some() { FOUND } else { NOT_FOUND };
    status.put_if_wanted(result);
    Ok(())
}

/// The function of a name that says that it is not supported. Programs that ask for many, and call few, go on.
fn refusing(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string; the library is that of this folder, which this one has loaded or is loaded by.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the handle is of a library that stays loaded.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

fn capture_info(
    stream: u64,
    status: Out<c_int>,
    id: Out<u64>,
    is_more_wanted: bool,
) -> Result<(), Code> {
    status.check()?;
    let found = graphs::status(stream)?;
    if found == RECORDING {
        if is_more_wanted {
            notice::unsupported("cudaStreamGetCaptureInfo with the graph and its nodes");
            return Err(Code::NOT_SUPPORTED);
        }
        id.put_if_wanted(captures::number(stream));
    }
    status.put(found)
}

runtime! {
    fn cudaGetDriverEntryPoint(name: Text, function: Out<*mut c_void>, flags: u64, status: Out<c_int>) {
        entry_point(name, function, flags, status)
    }
    fn cudaGetDriverEntryPoint_ptsz(name: Text, function: Out<*mut c_void>, flags: u64, status: Out<c_int>) {
        entry_point(name, function, flags | PER_THREAD, status)
    }
    fn cudaGetDriverEntryPointByVersion(name: Text, function: Out<*mut c_void>, _version: c_uint, flags: u64, status: Out<c_int>) {
        entry_point(name, function, flags, status)
    }
    fn cudaGetDriverEntryPointByVersion_ptsz(name: Text, function: Out<*mut c_void>, _version: c_uint, flags: u64, status: Out<c_int>) {
        entry_point(name, function, flags | PER_THREAD, status)
    }
}

runtime_on_stream! {
    fn cudaStreamGetCaptureInfo_v2 "_ptsz" (
        default; stream: usize, status: Out<c_int>, id: Out<u64>, graph: usize, nodes: usize, count: usize
    ) {
        capture_info(stream_of(stream, default), status, id, graph | nodes | count != 0)
    }
    fn cudaStreamGetCaptureInfo_v3 "_ptsz" (
        default; stream: usize, status: Out<c_int>, id: Out<u64>, graph: usize, nodes: usize, edges: usize, count: usize
    ) {
        capture_info(stream_of(stream, default), status, id, graph | nodes | edges | count != 0)
    }
}

/// Exports a form of `cudaStreamGetCaptureInfo`, which CUDA 13 gave more parameters.
macro_rules! capture_info {
    ($name:ident, $symbol:literal, $default:expr $(, $more:ident)*) => {
        #[export_name = $symbol]
        extern "C" fn $name(stream: usize, status: Out<c_int>, id: Out<u64> $(, $more: usize)*) -> c_int {
            let is_more_wanted = 0 $(| $more)* != 0;
            super::finish(|| capture_info(stream_of(stream, $default), status, id, is_more_wanted))
        }
    };
}
capture_info!(
    capture_info_13,
    "rgaps_rt13_cudaStreamGetCaptureInfo",
    0,
    graph,
    nodes,
    edges,
    count
);
capture_info!(
    capture_info_13_ptsz,
    "rgaps_rt13_cudaStreamGetCaptureInfo_ptsz",
    PER_THREAD,
    graph,
    nodes,
    edges,
    count
);
capture_info!(capture_info_12, "rgaps_rt12_cudaStreamGetCaptureInfo", 0);
capture_info!(
    capture_info_12_ptsz,
    "rgaps_rt12_cudaStreamGetCaptureInfo_ptsz",
    PER_THREAD
);

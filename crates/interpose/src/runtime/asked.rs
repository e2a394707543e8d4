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
    (status, id, graph): (Out<c_int>, Out<u64>, Out<u64>),
    nodes: usize,
) -> Result<(), Code> {
    status.check()?;
    let found = graphs::status(stream)?;
    if found == RECORDING {
        if nodes != 0 {
            notice::unsupported("cudaStreamGetCaptureInfo with the nodes of the graph");
            return Err(Code::NOT_SUPPORTED);
        }
        let capture = captures::of(stream);
        id.put_if_wanted(capture.number);
        graph.put_if_wanted(capture.graph);
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
        default; stream: usize, status: Out<c_int>, id: Out<u64>, graph: Out<u64>, nodes: usize, count: usize
    ) {
        capture_info(stream_of(stream, default), (status, id, graph), nodes | count)
    }
    fn cudaStreamGetCaptureInfo_v3 "_ptsz" (
        default; stream: usize, status: Out<c_int>, id: Out<u64>, graph: Out<u64>, nodes: usize, edges: usize, count: usize
    ) {
        capture_info(stream_of(stream, default), (status, id, graph), nodes | edges | count)
    }
}

/// Exports the form that CUDA 13 has under the plain name.
macro_rules! capture_info_13 {
    ($name:ident, $symbol:literal, $default:expr) => {
        #[export_name = $symbol]
        extern "C" fn $name(
            stream: usize,
            status: Out<c_int>,
            id: Out<u64>,
            graph: Out<u64>,
            nodes: usize,
            edges: usize,
            count: usize,
        ) -> c_int {
            let out = (status, id, graph);
            super::finish(|| capture_info(stream_of(stream, $default), out, nodes | edges | count))
        }
    };
}
capture_info_13!(capture_info_plain, "rgaps_rt13_cudaStreamGetCaptureInfo", 0);
capture_info_13!(
    capture_info_ptsz,
    "rgaps_rt13_cudaStreamGetCaptureInfo_ptsz",
    PER_THREAD
);

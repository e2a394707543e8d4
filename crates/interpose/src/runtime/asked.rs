//! Functions of the driver, which libraries above the runtime ask the runtime for.

use super::runtime;
use crate::abi::{Out, Text};
use crate::driver::address_of;
use rgaps_remoting::Code;
use std::ffi::{c_int, c_uint, c_void, CStr};

/// `cudaDriverEntryPointQueryResult`.
const FOUND: c_int = 0;
const NOT_FOUND: c_int = 1;
/// `cudaEnablePerThreadDefaultStream`.
const PER_THREAD: u64 = 2;

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

/// The function of `libcuda.so.1` for a driver function that is not forwarded: it fails when it is called. So programs that look up many
/// functions and call few go on.
fn refusing(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string. The library is the one beside this one (`tools/gpu-libs.py`), which contains only jumps, so loading
    // it runs no code of its own.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return None;
    }
    // SAFETY: `dlopen` has just returned the handle, and nobody closes it; the name is a C string of the program's call.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
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

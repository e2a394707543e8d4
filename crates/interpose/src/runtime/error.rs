//! Errors and versions.

use super::runtime;
use crate::abi::Out;
use crate::errors::ERRORS;
use crate::{session, thread};
use std::ffi::{c_char, c_int};

/// The CUDA versions that these libraries implement.
const VERSION_13: c_int = 13000;
const VERSION_12: c_int = 12080;

#[export_name = "rgaps_rt_cudaGetLastError"]
extern "C" fn get_last_error() -> c_int {
    session::answered_locally();
    let code = thread::error();
    thread::clear();
    code.0
}

#[export_name = "rgaps_rt_cudaPeekAtLastError"]
extern "C" fn peek_at_last_error() -> c_int {
    session::answered_locally();
    thread::error().0
}

const UNRECOGNIZED: &str = "unrecognized error code\0";

#[export_name = "rgaps_rt_cudaGetErrorName"]
extern "C" fn get_error_name(code: c_int) -> *const c_char {
    let found = ERRORS.iter().find(|(number, ..)| *number == code);
    found
        .map_or(UNRECOGNIZED, |(_, name, ..)| name)
        .as_ptr()
        .cast()
}

#[export_name = "rgaps_rt_cudaGetErrorString"]
extern "C" fn get_error_string(code: c_int) -> *const c_char {
    let found = ERRORS.iter().find(|(number, ..)| *number == code);
    found
        .map_or(UNRECOGNIZED, |(.., text)| text)
        .as_ptr()
        .cast()
}

#[export_name = "rgaps_rt12_cudaRuntimeGetVersion"]
extern "C" fn runtime_get_version_12(version: Out<c_int>) -> c_int {
    super::finish(|| version.put(VERSION_12))
}

runtime! {
    fn cudaRuntimeGetVersion(version: Out<c_int>) {
        version.put(VERSION_13)
    }

    // Never above what is implemented, whatever the server's driver supports.
    fn cudaDriverGetVersion(version: Out<c_int>) {
        version.check()?;
        let driver = session::driver_version();
        version.put(driver.min(VERSION_13))
    }
}

//! The library's version.

use std::ffi::{c_char, CStr};

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version has no NUL in it"),
    };

/// The library's version.
#[no_mangle]
pub extern "C" fn rgaps_version() -> *const c_char {
    VERSION.as_ptr()
}

//! Copies and fills.

use crate::call::{call, trace};
use crate::transfer::{copy, fill, Form};
use std::ffi::{c_int, c_uint};

/// One driver function that copies. Addresses of host and device are one space, so the functions
/// differ in name only.
macro_rules! copies {
    ($( $symbol:ident as $name:literal, $asynchronous:ident as $name_async:literal; )*) => { $(
        #[no_mangle]
        unsafe extern "C" fn $symbol(to: u64, from: u64, bytes: usize) -> c_int {
            // SAFETY: the caller's.
            call($name, |g| unsafe { copy(g, to, from, bytes as u64, Form::Plain) })
        }

        #[no_mangle]
        unsafe extern "C" fn $asynchronous(to: u64, from: u64, bytes: usize, stream: usize) -> c_int {
            // SAFETY: the caller's.
            call($name_async, |g| unsafe {
                copy(g, to, from, bytes as u64, Form::Async(stream))?;
                trace($name_async, bytes);
                Ok(())
            })
        }
    )* };
}

copies! {
    cuMemcpy as "cuMemcpy", cuMemcpyAsync as "cuMemcpyAsync";
    cuMemcpyHtoD_v2 as "cuMemcpyHtoD", cuMemcpyHtoDAsync_v2 as "cuMemcpyHtoDAsync";
    cuMemcpyDtoH_v2 as "cuMemcpyDtoH", cuMemcpyDtoHAsync_v2 as "cuMemcpyDtoHAsync";
    cuMemcpyDtoD_v2 as "cuMemcpyDtoD", cuMemcpyDtoDAsync_v2 as "cuMemcpyDtoDAsync";
}

#[no_mangle]
extern "C" fn cuMemsetD8_v2(to: u64, value: u8, count: usize) -> c_int {
    call("cuMemsetD8", |g| {
        fill(g, to, (value.into(), 1), count as u64, Form::Plain)
    })
}

#[no_mangle]
extern "C" fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) -> c_int {
    call("cuMemsetD8Async", |g| {
        fill(g, to, (value.into(), 1), count as u64, Form::Async(stream))
    })
}

#[no_mangle]
extern "C" fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) -> c_int {
    call("cuMemsetD32", |g| {
        fill(g, to, (value, 4), count as u64, Form::Plain)
    })
}

#[no_mangle]
extern "C" fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: usize) -> c_int {
    call("cuMemsetD32Async", |g| {
        fill(g, to, (value, 4), count as u64, Form::Async(stream))
    })
}

//! Fills of rows, and allocation in a stream's order.

use crate::abi::Code;
use crate::call::{call, put, Global};
use crate::context::current;
use crate::transfer::{fill, Form};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

#[no_mangle]
extern "C" fn cuMemsetD2D8Async(
    to: u64,
    pitch: usize,
    value: u8,
    width: usize,
    height: usize,
    stream: usize,
) -> c_int {
    call("cuMemsetD2D8Async", |g| {
        for row in 0..height {
            let to = to + (row * pitch) as u64;
            fill(g, to, (value.into(), 1), width as u64, Form::Async(stream))?;
        }
        Ok(())
    })
}

/// Fills with elements of 16 bits.
fn fill_16(g: &Global, to: u64, value: u16, count: usize, stream: usize) -> Result<(), Code> {
    let [low, high] = value.to_le_bytes();
    for at in 0..count as u64 {
        fill(g, to + at * 2, (low.into(), 1), 1, Form::Async(stream))?;
        fill(g, to + at * 2 + 1, (high.into(), 1), 1, Form::Async(stream))?;
    }
    Ok(())
}

#[no_mangle]
extern "C" fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: usize) -> c_int {
    call("cuMemsetD16Async", |g| match to % 2 {
        0 => fill_16(g, to, value, count, stream),
        _ => Err(Code::INVALID_VALUE),
    })
}

#[no_mangle]
extern "C" fn cuMemsetD2D16Async(
    to: u64,
    pitch: usize,
    value: u16,
    width: usize,
    height: usize,
    stream: usize,
) -> c_int {
    call("cuMemsetD2D16Async", |g| {
        (0..height).try_for_each(|row| fill_16(g, to + (row * pitch) as u64, value, width, stream))
    })
}

#[no_mangle]
extern "C" fn cuMemsetD2D32Async(
    to: u64,
    pitch: usize,
    value: c_uint,
    width: usize,
    height: usize,
    stream: usize,
) -> c_int {
    call("cuMemsetD2D32Async", |g| {
        (0..height).try_for_each(|row| {
            let to = to + (row * pitch) as u64;
            fill(g, to, (value, 4), width as u64, Form::Async(stream))
        })
    })
}

/// The memory is there at once, which is earlier than the driver promises.
#[no_mangle]
unsafe extern "C" fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: usize) -> c_int {
    call("cuMemAllocAsync", |g| {
        let context = current()?;
        context.stream(g, stream)?;
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        if bytes as u64 > g.config().memory_bytes {
            return Err(Code::OUT_OF_MEMORY);
        }
        let at = g.memory_mut().allocate(bytes as u64, context.position)?;
        // SAFETY: the caller's.
        unsafe { put(address, at) }
    })
}

#[no_mangle]
extern "C" fn cuMemFreeAsync(address: u64, stream: usize) -> c_int {
    call("cuMemFreeAsync", |g| {
        let context = current()?;
        let stream = context.stream(g, stream)?;
        if g.memory()
            .extent(address)
            .is_none_or(|(start, _)| start != address)
        {
            return Err(Code::INVALID_VALUE);
        }
        let owner = Arc::downgrade(&context);
        let work = move || {
            if crate::call::global().memory_mut().free(address).is_err() {
                if let Some(context) = owner.upgrade() {
                    context.lose(Code::ILLEGAL_ADDRESS);
                }
            }
        };
        context.submit(g, &stream, Vec::new(), work).map(drop)
    })
}

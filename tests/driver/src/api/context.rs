//! Contexts.

use crate::abi::Code;
use crate::call::{call, put};
use crate::context::{current, with_stack};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

#[no_mangle]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> c_int {
    call("cuDevicePrimaryCtxRetain", |g| {
        let position = g.position(device)?;
        if context.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's.
        unsafe { put(context, g.contexts.retain(position)) }
    })
}

#[no_mangle]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
    call("cuDevicePrimaryCtxRelease", |g| {
        g.contexts.release(g, g.position(device)?)
    })
}

#[no_mangle]
unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: c_int,
    flags: *mut c_uint,
    active: *mut c_int,
) -> c_int {
    call("cuDevicePrimaryCtxGetState", |g| {
        let position = g.position(device)?;
        // SAFETY: the caller's.
        unsafe {
            put(flags, 0)?;
            put(active, c_int::from(g.contexts.primary(position).is_some()))
        }
    })
}

#[no_mangle]
unsafe extern "C" fn cuCtxCreate_v2(context: *mut usize, _flags: c_uint, device: c_int) -> c_int {
    call("cuCtxCreate", |g| {
        let position = g.position(device)?;
        if context.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let created = g.contexts.create(position);
        let handle = Arc::as_ptr(&created) as usize;
        with_stack(|stack| stack.push(created));
        // SAFETY: the caller's.
        unsafe { put(context, handle) }
    })
}

#[no_mangle]
extern "C" fn cuCtxDestroy_v2(context: usize) -> c_int {
    call("cuCtxDestroy", |g| {
        g.contexts.destroy(g, context)?;
        // Where it is current it is popped.
        with_stack(|stack| {
            if stack
                .last()
                .is_some_and(|top| Arc::as_ptr(top) as usize == context)
            {
                stack.pop();
            }
        });
        Ok(())
    })
}

#[no_mangle]
extern "C" fn cuCtxPushCurrent_v2(context: usize) -> c_int {
    call("cuCtxPushCurrent", |g| {
        let context = g.contexts.get(context)?;
        with_stack(|stack| stack.push(context));
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut usize) -> c_int {
    call("cuCtxPopCurrent", |_| {
        let popped = with_stack(Vec::pop).ok_or(Code::INVALID_CONTEXT)?;
        if context.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's.
        unsafe { put(context, Arc::as_ptr(&popped) as usize) }
    })
}

#[no_mangle]
unsafe extern "C" fn cuCtxGetCurrent(context: *mut usize) -> c_int {
    call("cuCtxGetCurrent", |_| {
        let top = with_stack(|stack| stack.last().map_or(0, |top| Arc::as_ptr(top) as usize));
        // SAFETY: the caller's.
        unsafe { put(context, top) }
    })
}

#[no_mangle]
extern "C" fn cuCtxSetCurrent(context: usize) -> c_int {
    call("cuCtxSetCurrent", |g| {
        let context = (context != 0)
            .then(|| g.contexts.get(context))
            .transpose()?;
        with_stack(|stack| {
            stack.pop();
            stack.extend(context);
        });
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> c_int {
    call("cuCtxGetDevice", |g| {
        let ordinal = g.ordinal(current()?.position).ok_or(Code::INVALID_DEVICE)?;
        // SAFETY: the caller's.
        unsafe { put(device, ordinal) }
    })
}

#[no_mangle]
extern "C" fn cuCtxSynchronize() -> c_int {
    call("cuCtxSynchronize", |g| current()?.synchronize(g))
}

//! Contexts.

use crate::abi::Code;
use crate::call::{call, put};
use crate::context::{current, with_stack};
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, PoisonError};

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

#[no_mangle]
extern "C" fn cuDevicePrimaryCtxReset_v2(device: c_int) -> c_int {
    call("cuDevicePrimaryCtxReset", |g| {
        g.contexts.reset(g, g.position(device)?);
        Ok(())
    })
}

/// Limits by number, as a GPU has them at first. They can be set and change nothing.
const LIMITS: [usize; 7] = [1024, 1 << 20, 8 << 20, 0, 2048, 64, 0];

#[no_mangle]
unsafe extern "C" fn cuCtxGetLimit(value: *mut usize, limit: c_uint) -> c_int {
    call("cuCtxGetLimit", |_| {
        let context = current()?;
        let limit = limit as usize;
        let first = LIMITS.get(limit).ok_or(Code::INVALID_VALUE)?;
        let set = context
            .limits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&limit)
            .copied();
        // SAFETY: the caller's.
        unsafe { put(value, set.unwrap_or(*first)) }
    })
}

#[no_mangle]
extern "C" fn cuCtxSetLimit(limit: c_uint, value: usize) -> c_int {
    call("cuCtxSetLimit", |_| {
        let context = current()?;
        if limit as usize >= LIMITS.len() {
            return Err(Code::INVALID_VALUE);
        }
        context
            .limits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(limit as usize, value);
        Ok(())
    })
}

/// Which peers are enabled, is kept; memory of peers can be reached if the configuration says so.
#[no_mangle]
extern "C" fn cuCtxEnablePeerAccess(peer: usize, flags: c_uint) -> c_int {
    call("cuCtxEnablePeerAccess", |g| {
        let (context, peer) = (current()?, g.contexts.get(peer)?);
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if !g.config().are_peers || peer.position == context.position {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        let mut peers = context.peers.lock().unwrap_or_else(PoisonError::into_inner);
        match peers.insert(peer.position) {
            true => Ok(()),
            false => Err(Code::PEER_ACCESS_ALREADY_ENABLED),
        }
    })
}

#[no_mangle]
extern "C" fn cuCtxDisablePeerAccess(peer: usize) -> c_int {
    call("cuCtxDisablePeerAccess", |g| {
        let (context, peer) = (current()?, g.contexts.get(peer)?);
        let mut peers = context.peers.lock().unwrap_or_else(PoisonError::into_inner);
        match peers.remove(&peer.position) {
            true => Ok(()),
            false => Err(Code::PEER_ACCESS_NOT_ENABLED),
        }
    })
}

#[no_mangle]
unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> c_int {
    call("cuCtxGetStreamPriorityRange", |_| {
        current()?;
        // SAFETY: the caller's.
        unsafe {
            put(least, 0)?;
            put(greatest, -5)
        }
    })
}

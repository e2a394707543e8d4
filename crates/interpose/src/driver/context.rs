//! Contexts: the primary one of each device. The current context of a thread is the runtime's current device.

use super::driver;
use crate::abi::Out;
use crate::{session, thread, waits};
use rgaps_remoting::{Call, Code, Value};
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_uint};

/// A context's handle is this and sixteen times its device's number.
const HANDLE: u64 = 0x5247_c000_0010;
/// Contexts that a thread has pushed.
const STACK_MAX: usize = 64;

thread_local! {
    static STACK: RefCell<Vec<Option<u16>>> = const { RefCell::new(Vec::new()) };
    static IS_RUNTIME_USED: Cell<bool> = const { Cell::new(false) };
}

/// The thread has used the runtime, which makes its device's primary context current.
pub(crate) fn runtime_is_used() {
    IS_RUNTIME_USED.set(true);
}

fn handle(device: u16) -> u64 {
    HANDLE + u64::from(device) * 16
}

fn device_of(context: u64) -> Result<u16, Code> {
    let number = context
        .checked_sub(HANDLE)
        .filter(|rest| rest % 16 == 0)
        .ok_or(INVALID_CONTEXT)?
        / 16;
    session::device(i32::try_from(number).map_err(|_| INVALID_CONTEXT)?)
        .map_err(|_| INVALID_CONTEXT)?;
    Ok(number as u16)
}

const INVALID_CONTEXT: Code = Code(201);

fn set(context: u64) -> Result<(), Code> {
    let device = match context {
        0 => None,
        context => Some(device_of(context)?),
    };
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        stack.push(device);
    });
    thread::set_device(device.unwrap_or(0));
    Ok(())
}

fn current() -> Option<u16> {
    STACK.with_borrow(|stack| match stack.last() {
        Some(device) => *device,
        None => IS_RUNTIME_USED.get().then(thread::device),
    })
}

driver! {
    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: c_int) {
        session::device(device)?;
        context.put(handle(device as u16))
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        session::device(device).map(drop)
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        session::device(device)?;
        flags.put(0)?;
        active.put(1)
    }

    fn cuCtxSetCurrent(context: u64) {
        set(context)
    }

    fn cuCtxGetCurrent(context: Out<u64>) {
        session::devices()?;
        context.put(current().map_or(0, handle))
    }

    fn cuCtxPushCurrent_v2(context: u64) {
        let device = device_of(context)?;
        // The runtime's stays below.
        let below = current();
        STACK.with_borrow_mut(|stack| {
            if stack.is_empty() && below.is_some() {
                stack.push(below);
            }
            if stack.len() >= STACK_MAX {
                return Err(Code::OUT_OF_MEMORY);
            }
            stack.push(Some(device));
            Ok(())
        })?;
        thread::set_device(device);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<u64>) {
        let popped = STACK.with_borrow_mut(Vec::pop).flatten().ok_or(INVALID_CONTEXT)?;
        thread::set_device(current().unwrap_or(0));
        context.put_if_wanted(handle(popped));
        Ok(())
    }

    fn cuCtxGetDevice(device: Out<c_int>) {
        device.put(current().ok_or(INVALID_CONTEXT)?.into())
    }

    fn cuCtxSynchronize() {
        waits::device()
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: c_uint) {
        value.put(session::number(&Call::Limit { limit })? as usize)
    }

    fn cuCtxSetLimit(limit: c_uint, value: usize) {
        session::call(&Call::LimitSet { limit, value: value as u64 }, &[]).map(drop)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        let Value::Pair(low, high) = session::call(&Call::StreamPriorities, &[])? else {
            return Err(Code::UNKNOWN);
        };
        least.put_if_wanted(low as c_int);
        greatest.put_if_wanted(high as c_int);
        Ok(())
    }
}

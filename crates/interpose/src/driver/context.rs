//! Contexts: the primary one of each device. The current context of a thread is the runtime's current device.

use super::driver;
use crate::abi::{Address, Out};
use crate::reset::reset;
use crate::{session, thread, waits};
use rgaps_remoting::{Call, CallValue, Code};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// A context's handle is this plus 16 times its device's number.
const HANDLE: u64 = 0x5247_c000_0010;
/// What `cuCtxGetApiVersion` gives for all contexts.
const API_VERSION: c_uint = 3020;
/// Most contexts that a thread may push.
const STACK_MAX: usize = 64;

thread_local! {
    static STACK: RefCell<Vec<Option<u16>>> = const { RefCell::new(Vec::new()) };
    static IS_RUNTIME_USED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a thread has used the runtime, which may have memory in the primary contexts.
static HAS_RUNTIME: AtomicBool = AtomicBool::new(false);
/// For each device, how often the program has retained the primary context, and how many contexts it has created.
static USES: Mutex<BTreeMap<u16, (u32, u32)>> = Mutex::new(BTreeMap::new());

/// Call when this thread has used the runtime: that makes the primary context of its device current.
pub(crate) fn runtime_is_used() {
    if !IS_RUNTIME_USED.replace(true) {
        HAS_RUNTIME.store(true, Ordering::Relaxed);
    }
}

fn with_uses<T>(device: u16, act: impl FnOnce(&mut (u32, u32)) -> T) -> T {
    let mut uses = USES.lock().unwrap_or_else(PoisonError::into_inner);
    act(uses.entry(device).or_default())
}

/// Creates a context: gives the program the device's primary one, which becomes current.
fn create(context: Out<u64>, device: c_int) -> Result<(), Code> {
    context.check()?;
    session::device(device)?;
    let device = device as u16;
    push(device)?;
    with_uses(device, |(_, created)| *created += 1);
    context.put(context_of(device))
}

/// Destroys a context that the program created. With the last one of a device, resets the device, unless the program also uses the
/// primary context.
fn destroy(context: u64) -> Result<(), Code> {
    let device = device_of(context)?;
    let (retained, left) = with_uses(device, |(retained, created)| {
        let left = created.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        *created = left;
        Ok::<_, Code>((*retained, left))
    })?;
    STACK.with_borrow_mut(|stack| {
        if stack.last() == Some(&Some(device)) {
            stack.pop();
        }
    });
    let is_unused = retained == 0 && left == 0 && !HAS_RUNTIME.load(Ordering::Relaxed);
    let ended = match is_unused {
        true => thread::with_device(device, reset),
        false => Ok(()),
    };
    thread::set_device(current().unwrap_or(0));
    ended
}

fn push(device: u16) -> Result<(), Code> {
    // The runtime's context stays below the pushed one.
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

/// The handle of a device's context.
pub(super) fn context_of(device: u16) -> u64 {
    HANDLE + u64::from(device) * 16
}

/// The device of a context.
pub(super) fn device_of(context: u64) -> Result<u16, Code> {
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
        context.put(context_of(device as u16))?;
        with_uses(device as u16, |(retained, _)| *retained += 1);
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        session::device(device)?;
        with_uses(device as u16, |(retained, _)| *retained = retained.saturating_sub(1));
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        session::device(device)?;
        thread::with_device(device as u16, reset)
    }

    // How a thread waits is a hint.
    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) {
        session::device(device).map(drop)
    }

    fn cuCtxCreate_v2(context: Out<u64>, _flags: c_uint, device: c_int) {
        create(context, device)
    }

    fn cuCtxCreate_v3(context: Out<u64>, _affinity: Address, count: c_int, _flags: c_uint, device: c_int) {
        match count {
            0 => create(context, device),
            _ => Err(Code::NOT_SUPPORTED),
        }
    }

    fn cuCtxCreate_v4(context: Out<u64>, parameters: Address, _flags: c_uint, device: c_int) {
        match parameters.is_null() {
            true => create(context, device),
            false => Err(Code::NOT_SUPPORTED),
        }
    }

    fn cuCtxDestroy_v2(context: u64) {
        destroy(context)
    }

    fn cuCtxGetFlags(flags: Out<c_uint>) {
        current().ok_or(INVALID_CONTEXT)?;
        flags.put(0)
    }

    fn cuCtxGetApiVersion(context: u64, version: Out<c_uint>) {
        device_of(context)?;
        version.put(API_VERSION)
    }

    fn cuCtxEnablePeerAccess(context: u64, flags: c_uint) {
        let peer = session::peer(device_of(context)?.into())?;
        match flags {
            0 => session::call(&Call::PeerEnable { device: peer }, &[]).map(drop),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuCtxDisablePeerAccess(context: u64) {
        let device = session::peer(device_of(context)?.into())?;
        session::call(&Call::PeerDisable { device }, &[]).map(drop)
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
        context.put(current().map_or(0, context_of))
    }

    fn cuCtxPushCurrent_v2(context: u64) {
        push(device_of(context)?)
    }

    fn cuCtxPopCurrent_v2(context: Out<u64>) {
        let popped = STACK.with_borrow_mut(Vec::pop).flatten().ok_or(INVALID_CONTEXT)?;
        thread::set_device(current().unwrap_or(0));
        context.put_if_wanted(context_of(popped));
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
        let CallValue::Pair(low, high) = session::call(&Call::StreamPriorities, &[])? else {
            return Err(Code::UNKNOWN);
        };
        least.put_if_wanted(low as c_int);
        greatest.put_if_wanted(high as c_int);
        Ok(())
    }
}

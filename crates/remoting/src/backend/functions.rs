//! Functions of the client's host that streams call (`cuLaunchHostFunc`).
//!
//! The stream calls [`reached`] on a thread of the driver. `reached` hands the function's number to the client's callback thread, and
//! returns when the client has run the function. So the work behind it waits, as it does with a function of this process.
//!
//! The process has one client, so the state is static.

use super::api::{cu, Api};
use crate::codes::Code;
use crate::limits::HOST_FUNCTIONS_MAX;
use std::collections::{HashSet, VecDeque};
use std::ffi::c_void;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct FunctionState {
    /// Queued and not done, by the client's number.
    queued: HashSet<u64>,
    /// Reached by their streams, and not handed to the client yet.
    reached: VecDeque<u64>,
}

static STATE: Mutex<Option<FunctionState>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Option<FunctionState>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs on a thread of the driver, in the order of a stream.
extern "C" fn reached(data: *mut c_void) {
    let function = data as u64;
    let mut guard = lock();
    guard.get_or_insert_default().reached.push_back(function);
    CHANGED.notify_all();
    while guard.get_or_insert_default().queued.contains(&function) {
        guard = CHANGED.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Queues a function of the client on a stream.
pub(crate) fn queue(api: &Api, function: u64, stream: usize) -> Result<(), Code> {
    {
        let mut guard = lock();
        let queued = &mut guard.get_or_insert_default().queued;
        if queued.len() >= HOST_FUNCTIONS_MAX {
            return Err(Code::OUT_OF_RESOURCES);
        }
        if !queued.insert(function) {
            return Err(Code::INVALID_VALUE);
        }
    }
    // SAFETY: the caller found the stream in the session. `reached` stays as long as the process, and takes its parameter as a number.
    let result = unsafe { cu!(api, launch_host(stream, reached, function as *mut c_void)) };
    if result.is_err() {
        done(function)?;
    }
    result
}

/// Waits for the next function that a stream reaches; gives its number.
pub(crate) fn next() -> u64 {
    let mut guard = lock();
    loop {
        if let Some(function) = guard.get_or_insert_default().reached.pop_front() {
            return function;
        }
        guard = CHANGED.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Call when the client has run a function: its stream goes on.
pub(crate) fn done(function: u64) -> Result<(), Code> {
    let is_known = lock().get_or_insert_default().queued.remove(&function);
    CHANGED.notify_all();
    match is_known {
        true => Ok(()),
        false => Err(Code::INVALID_VALUE),
    }
}

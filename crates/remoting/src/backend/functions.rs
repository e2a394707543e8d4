//! Functions of the client's host that streams call (`cuLaunchHostFunc`).
//!
//! The stream calls [`reached`] here, on a thread of the driver, which tells the client's callback thread and stays until the
//! function has run there. So the work behind it waits, as it does with a function of this process.
//!
//! The process has one client, so what the functions share is the process's.

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
    /// Reached by their streams, and not told yet.
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

/// Has a stream call a function of the client.
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
    // SAFETY: the stream is one of the session; `reached` takes the number as it is.
    let result = unsafe { cu!(api, launch_host(stream, reached, function as *mut c_void)) };
    if result.is_err() {
        done(function)?;
    }
    result
}

/// The next function that a stream has reached.
pub(crate) fn next() -> u64 {
    let mut guard = lock();
    loop {
        if let Some(function) = guard.get_or_insert_default().reached.pop_front() {
            return function;
        }
        guard = CHANGED.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
}

/// The client has run a function: its stream goes on.
pub(crate) fn done(function: u64) -> Result<(), Code> {
    let is_known = lock().get_or_insert_default().queued.remove(&function);
    CHANGED.notify_all();
    match is_known {
        true => Ok(()),
        false => Err(Code::INVALID_VALUE),
    }
}

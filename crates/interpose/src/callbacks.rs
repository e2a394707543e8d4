//! Functions of the program that streams call.
//!
//! The server reports when a stream has reached such a function. A thread of this process, one for each server, runs the function, tells
//! the server, and waits for the next. By CUDA's rule these functions may not call CUDA. Their calls fail here, since one could wait for
//! the stream that waits for the function.

use crate::handles::streams;
use crate::servers::number_of;
use crate::{session, thread};
use rgaps_remoting::{Call, CallValue, Code};
use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A function of `cudaLaunchHostFunc`.
pub(crate) type HostFunction = extern "C" fn(*mut c_void);
/// A function of `cudaStreamAddCallback`: stream, status, data.
pub(crate) type Callback = extern "C" fn(u64, c_int, *mut c_void);

/// A function that a stream calls.
#[derive(Clone, Copy)]
pub(crate) enum Function {
    /// From `cudaLaunchHostFunc`.
    Host(HostFunction),
    /// From `cudaStreamAddCallback`, with the stream as the program names it.
    Callback(Callback, u64),
}

struct Queued {
    function: Function,
    data: usize,
}

#[derive(Default)]
struct CallbackState {
    /// Functions that no stream has reached yet, by the numbers under which the server knows them.
    queued: HashMap<u64, Queued>,
    /// Servers for which a thread runs.
    served: HashSet<usize>,
}

fn lock() -> MutexGuard<'static, Option<CallbackState>> {
    static STATE: Mutex<Option<CallbackState>> = Mutex::new(None);
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Queues a function on a stream, which calls it when the work before is done; the work behind waits for the function.
pub(crate) fn queue(stream: u64, function: Function, data: *mut c_void) -> Result<(), Code> {
    streams::at_stream(stream, || queue_here(stream, function, data))
}

fn queue_here(stream: u64, function: Function, data: *mut c_void) -> Result<(), Code> {
    session::check_alive()?;
    let number = session::mint();
    {
        let mut guard = lock();
        let state = guard.get_or_insert_default();
        let device = thread::device();
        let server = number_of(device);
        if !state.served.contains(&server) {
            std::thread::Builder::new()
                .name("rgaps-gpu-callbacks".to_owned())
                .spawn(move || run(device))
                .map_err(|_| Code::OUT_OF_RESOURCES)?;
            state.served.insert(server);
        }
        let data = data as usize;
        state.queued.insert(number, Queued { function, data });
    }
    let function = number;
    let sent = session::send(&Call::HostFunction { function, stream }, &[]);
    if sent.is_err() {
        lock().get_or_insert_default().queued.remove(&number);
    }
    sent
}

/// Runs functions of the streams of a server until its session ends.
fn run(device: u16) {
    thread::set_device(device);
    loop {
        let Ok(CallValue::Number(number)) = session::call(&Call::NextHostFunction, &[]) else {
            // The context or the connection is lost, so no stream reaches a function.
            return;
        };
        let queued = lock().get_or_insert_default().queued.remove(&number);
        if let Some(Queued { function, data }) = queued {
            thread::in_callback(|| match function {
                Function::Host(function) => function(data as *mut c_void),
                Function::Callback(callback, stream) => callback(stream, 0, data as *mut c_void),
            });
        }
        if session::send(&Call::HostFunctionDone { function: number }, &[]).is_err() {
            return;
        }
    }
}

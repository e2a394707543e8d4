//! Functions of the program that streams call.
//!
//! The server tells when a stream has reached one. A thread of this process, one for each server, runs it, tells the server, and waits for the next.
//! The functions may not call CUDA, which is CUDA's rule, and is kept here: a call would wait for a stream that waits for it.

use crate::handles::streams;
use crate::servers::number_of;
use crate::{session, thread};
use rgaps_remoting::{Call, Code, Value};
use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Of `cudaLaunchHostFunc`.
pub(crate) type HostFunction = extern "C" fn(*mut c_void);
/// Of `cudaStreamAddCallback`: stream, status, data.
pub(crate) type Callback = extern "C" fn(u64, c_int, *mut c_void);

/// What a stream calls.
#[derive(Clone, Copy)]
pub(crate) enum Function {
    /// Of `cudaLaunchHostFunc`.
    Host(HostFunction),
    /// Of `cudaStreamAddCallback`, with the stream as the program names it.
    Callback(Callback, u64),
}

struct Queued {
    function: Function,
    data: usize,
}

#[derive(Default)]
struct CallbackState {
    queued: HashMap<u64, Queued>,
    /// Servers whose functions have a thread.
    served: HashSet<usize>,
}

fn lock() -> MutexGuard<'static, Option<CallbackState>> {
    static STATE: Mutex<Option<CallbackState>> = Mutex::new(None);
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a stream call a function when all that was queued before is done; what is queued later waits for it.
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
        let Ok(Value::Number(number)) = session::call(&Call::NextHostFunction, &[]) else {
            // The context or the connection is lost: streams reach nothing any more.
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

//! Streams.

use crate::servers::{at, is_here};
use crate::{session, thread};
use rgaps_remoting::{Call, Code};
use std::collections::HashMap;
use std::ffi::{c_int, c_uint};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Handles up to this one mean a default stream.
pub(crate) const PER_THREAD: u64 = 2;
const NON_BLOCKING: c_uint = 1;

/// What this process knows of a stream.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    pub(crate) device: u16,
    pub(crate) flags: c_uint,
    pub(crate) priority: c_int,
}

fn streams() -> MutexGuard<'static, HashMap<u64, Stream>> {
    static STREAMS: OnceLock<Mutex<HashMap<u64, Stream>>> = OnceLock::new();
    STREAMS
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Finds a stream by its handle. Handles of default streams mean those of the current device.
pub(crate) fn find(stream: u64) -> Result<Stream, Code> {
    if stream <= PER_THREAD {
        return Ok(Stream {
            device: thread::device(),
            flags: 0,
            priority: 0,
        });
    }
    streams().get(&stream).copied().ok_or(Code::INVALID_HANDLE)
}

/// The stream that a program means, where 0 means `default`.
pub(crate) fn meant(stream: u64, default: u64) -> u64 {
    match stream {
        0 => default,
        stream => stream,
    }
}

/// The streams that record, each with the handle that its graph will have.
fn recording() -> MutexGuard<'static, HashMap<u64, u64>> {
    static RECORDING: OnceLock<Mutex<HashMap<u64, u64>>> = OnceLock::new();
    RECORDING
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Notes which graph a stream records; `None`: it records no more.
pub(crate) fn set_recording(stream: u64, graph: Option<u64>) {
    match graph {
        Some(graph) => recording().insert(stream, graph),
        None => recording().remove(&stream),
    };
}

/// The graph that a stream records.
pub(crate) fn recorded_graph(stream: u64) -> Option<u64> {
    recording().get(&stream).copied()
}

/// The streams that record, each with its graph.
pub(crate) fn all_recording() -> Vec<(u64, u64)> {
    recording()
        .iter()
        .map(|(stream, graph)| (*stream, *graph))
        .collect()
}

/// Whether any stream records.
pub(crate) fn is_any_recording() -> bool {
    !recording().is_empty()
}

/// Refuses a handle that is no stream's.
pub(crate) fn check(stream: u64) -> Result<(), Code> {
    find(stream).map(drop)
}

/// Refuses a handle unless it means a stream of the current device's server.
pub(crate) fn check_here(stream: u64) -> Result<(), Code> {
    match is_here(find(stream)?.device) {
        true => Ok(()),
        false => Err(Code::INVALID_HANDLE),
    }
}

/// Calls `act` on the server of a stream.
pub(crate) fn at_stream<T>(stream: u64, act: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
    at(find(stream)?.device, act)
}

/// Creates a stream on the current device.
pub(crate) fn create(flags: c_uint, priority: c_int) -> Result<u64, Code> {
    if flags & !NON_BLOCKING != 0 {
        return Err(Code::INVALID_VALUE);
    }
    session::current()?;
    let stream = session::mint();
    session::send(
        &Call::StreamCreate {
            stream,
            flags,
            priority,
        },
        &[],
    )?;
    let device = thread::device();
    streams().insert(
        stream,
        Stream {
            device,
            flags,
            priority,
        },
    );
    Ok(stream)
}

/// Destroys a stream. What is queued on it is still done.
pub(crate) fn destroy(stream: u64) -> Result<(), Code> {
    let removed = streams().remove(&stream).ok_or(Code::INVALID_HANDLE)?;
    set_recording(stream, None);
    at(removed.device, || {
        session::send(&Call::StreamDestroy { stream }, &[])
    })
}

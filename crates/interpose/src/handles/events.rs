//! Events.

use super::streams;
use crate::{notice, session};
use rgaps_remoting::{Call, Code, Value};
use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const WITHOUT_TIMES: c_uint = 2;
const INTERPROCESS: c_uint = 4;
const FLAGS: c_uint = 7;
/// An event that a stream waits for may be external to a capture.
const WAIT_FLAGS: c_uint = 1;

/// Flags of events, by handle.
fn events() -> MutexGuard<'static, HashMap<u64, c_uint>> {
    static EVENTS: OnceLock<Mutex<HashMap<u64, c_uint>>> = OnceLock::new();
    EVENTS
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Refuses a handle that is no event's; gives its flags.
pub(crate) fn check(event: u64) -> Result<c_uint, Code> {
    events().get(&event).copied().ok_or(Code::INVALID_HANDLE)
}

/// Creates an event.
pub(crate) fn create(flags: c_uint) -> Result<u64, Code> {
    if flags & !FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if flags & INTERPROCESS != 0 {
        notice::unsupported("an event for other processes");
        return Err(Code::NOT_SUPPORTED);
    }
    session::current()?;
    let event = session::mint();
    session::send(&Call::EventCreate { event, flags }, &[])?;
    events().insert(event, flags);
    Ok(event)
}

/// Destroys an event.
pub(crate) fn destroy(event: u64) -> Result<(), Code> {
    events().remove(&event).ok_or(Code::INVALID_HANDLE)?;
    session::send(&Call::EventDestroy { event }, &[])
}

/// Records an event on a stream.
pub(crate) fn record(event: u64, stream: u64, flags: c_uint) -> Result<(), Code> {
    check(event)?;
    streams::check(stream)?;
    if flags & !1 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    session::send(
        &Call::EventRecord {
            event,
            stream,
            flags,
        },
        &[],
    )
}

/// Makes a stream wait for an event.
pub(crate) fn wait(stream: u64, event: u64, flags: c_uint) -> Result<(), Code> {
    streams::check(stream)?;
    check(event)?;
    if flags & !WAIT_FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    session::send(
        &Call::StreamWaitEvent {
            stream,
            event,
            flags,
        },
        &[],
    )
}

/// Milliseconds between two events.
pub(crate) fn elapsed(start: u64, end: u64) -> Result<f32, Code> {
    if (check(start)? | check(end)?) & WITHOUT_TIMES != 0 {
        return Err(Code::INVALID_HANDLE);
    }
    match session::call(&Call::EventElapsed { start, end }, &[])? {
        Value::Float(time) => Ok(time),
        _ => Err(Code::UNKNOWN),
    }
}

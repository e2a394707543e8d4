//! Events.

use super::streams;
use crate::servers::{at, is_here};
use crate::{notice, session, thread};
use rgaps_remoting::{Call, CallValue, Code};
use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const WITHOUT_TIMES: c_uint = 2;
const INTERPROCESS: c_uint = 4;
const FLAGS: c_uint = 7;
/// Flags of `cudaStreamWaitEvent`: the event may be external to a capture.
const WAIT_FLAGS: c_uint = 1;

/// What this process knows of an event.
#[derive(Clone, Copy)]
struct Event {
    flags: c_uint,
    device: u16,
}

fn events() -> MutexGuard<'static, HashMap<u64, Event>> {
    static EVENTS: OnceLock<Mutex<HashMap<u64, Event>>> = OnceLock::new();
    EVENTS
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

fn find(event: u64) -> Result<Event, Code> {
    events().get(&event).copied().ok_or(Code::INVALID_HANDLE)
}

/// Refuses a handle that is no event's.
pub(crate) fn check(event: u64) -> Result<(), Code> {
    find(event).map(drop)
}

/// Calls `act` on the server of an event.
pub(crate) fn at_event<T>(event: u64, act: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
    at(find(event)?.device, act)
}

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
    let device = thread::device();
    events().insert(event, Event { flags, device });
    Ok(event)
}

pub(crate) fn destroy(event: u64) -> Result<(), Code> {
    let removed = events().remove(&event).ok_or(Code::INVALID_HANDLE)?;
    at(removed.device, || {
        session::send(&Call::EventDestroy { event }, &[])
    })
}

pub(crate) fn record(event: u64, stream: u64, flags: c_uint) -> Result<(), Code> {
    check(event)?;
    streams::check(stream)?;
    if flags & !1 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    at_event(event, || {
        streams::check_here(stream)?;
        let call = Call::EventRecord {
            event,
            stream,
            flags,
        };
        session::send(&call, &[])
    })
}

/// Makes a stream wait for an event. If the event is another server's, the calling thread waits for it, so that what it queues next comes
/// after.
pub(crate) fn wait(stream: u64, event: u64, flags: c_uint) -> Result<(), Code> {
    streams::check(stream)?;
    check(event)?;
    if flags & !WAIT_FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let call = Call::StreamWaitEvent {
        stream,
        event,
        flags,
    };
    streams::at_stream(stream, || match is_here(find(event)?.device) {
        true => session::send(&call, &[]),
        false if streams::recorded_graph(stream).is_some() => {
            notice::once("a stream that records cannot wait for an event of another GPU server");
            Err(Code::NOT_SUPPORTED)
        }
        false => at_event(event, || {
            session::call(&Call::EventSynchronize { event }, &[]).map(drop)
        }),
    })
}

/// Milliseconds between two events.
pub(crate) fn elapsed(start: u64, end: u64) -> Result<f32, Code> {
    let (of_start, of_end) = (find(start)?, find(end)?);
    if (of_start.flags | of_end.flags) & WITHOUT_TIMES != 0 {
        return Err(Code::INVALID_HANDLE);
    }
    at(of_start.device, || {
        if !is_here(of_end.device) {
            return Err(Code::INVALID_HANDLE);
        }
        match session::call(&Call::EventElapsed { start, end }, &[])? {
            CallValue::Float(time) => Ok(time),
            _ => Err(Code::UNKNOWN),
        }
    })
}

//! Events.

use super::abi::Out;
use super::stream::check as check_stream;
use super::{runtime, runtime_on_stream, stream_of};
use crate::session;
use rgaps_remoting::{Call, Code, Value};
use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const WITHOUT_TIMES: c_uint = 2;
const INTERPROCESS: c_uint = 4;
const FLAGS: c_uint = 7;

/// Flags of events, by handle.
fn events() -> MutexGuard<'static, HashMap<u64, c_uint>> {
    static EVENTS: OnceLock<Mutex<HashMap<u64, c_uint>>> = OnceLock::new();
    EVENTS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refuses a handle that is no event's; gives its flags.
pub(super) fn check(event: u64) -> Result<c_uint, Code> {
    events().get(&event).copied().ok_or(Code::INVALID_HANDLE)
}

fn create(to: Out<u64>, flags: c_uint) -> Result<(), Code> {
    to.check()?;
    if flags & !FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if flags & INTERPROCESS != 0 {
        crate::notice::unsupported("cudaEventCreateWithFlags for other processes");
        return Err(Code::NOT_SUPPORTED);
    }
    session::current()?;
    let event = session::mint();
    session::send(&Call::EventCreate { event, flags }, &[])?;
    events().insert(event, flags);
    to.put(event)
}

fn record(event: u64, stream: u64, flags: c_uint) -> Result<(), Code> {
    check(event)?;
    check_stream(stream)?;
    if flags & !1 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    session::send(&Call::EventRecord { event, stream, flags }, &[])
}

runtime! {
    fn cudaEventCreate(to: Out<u64>) {
        create(to, 0)
    }

    fn cudaEventCreateWithFlags(to: Out<u64>, flags: c_uint) {
        create(to, flags)
    }

    fn cudaEventDestroy(event: u64) {
        events().remove(&event).ok_or(Code::INVALID_HANDLE)?;
        session::send(&Call::EventDestroy { event }, &[])
    }

    fn cudaEventSynchronize(event: u64) {
        check(event)?;
        session::call(&Call::EventSynchronize { event }, &[]).map(drop)
    }

    fn cudaEventQuery(event: u64) {
        check(event)?;
        session::call(&Call::EventQuery { event }, &[]).map(drop)
    }

    fn cudaEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) {
        milliseconds.check()?;
        if (check(start)? | check(end)?) & WITHOUT_TIMES != 0 {
            return Err(Code::INVALID_HANDLE);
        }
        match session::call(&Call::EventElapsed { start, end }, &[])? {
            Value::Float(time) => milliseconds.put(time),
            _ => Err(Code::UNKNOWN),
        }
    }

    fn cudaEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) {
        milliseconds.check()?;
        if (check(start)? | check(end)?) & WITHOUT_TIMES != 0 {
            return Err(Code::INVALID_HANDLE);
        }
        match session::call(&Call::EventElapsed { start, end }, &[])? {
            Value::Float(time) => milliseconds.put(time),
            _ => Err(Code::UNKNOWN),
        }
    }
}

runtime_on_stream! {
    fn cudaEventRecord "_ptsz" (default; event: u64, stream: usize) {
        record(event, stream_of(stream, default), 0)
    }

    fn cudaEventRecordWithFlags "_ptsz" (default; event: u64, stream: usize, flags: c_uint) {
        record(event, stream_of(stream, default), flags)
    }
}

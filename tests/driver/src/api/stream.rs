//! Streams and events.

use crate::abi::{Code, STREAM_NON_BLOCKING, STREAM_PER_THREAD};
use crate::call::{call, put, Global};
use crate::context::{current, Context};
use crate::number::{wait_for_number, write_number};
use crate::stream::{Kind, Stream};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

fn find(g: &Global, stream: usize) -> Result<(Arc<Context>, Arc<Stream>), Code> {
    let context = current()?;
    let stream = context.stream(g, stream)?;
    Ok((context, stream))
}

/// Asking a capturing stream about work spoils the capture.
fn refuse_capturing(stream: &Stream) -> Result<(), Code> {
    match stream
        .capture
        .compare_exchange(1, 2, Ordering::AcqRel, Ordering::Acquire)
    {
        Err(0) => Ok(()),
        _ => Err(Code::STREAM_CAPTURE_UNSUPPORTED),
    }
}

#[no_mangle]
unsafe extern "C" fn cuStreamCreate(stream: *mut usize, flags: c_uint) -> c_int {
    call("cuStreamCreate", |g| {
        let context = current()?;
        let kind = match flags {
            0 => Kind::Blocking,
            STREAM_NON_BLOCKING => Kind::NonBlocking,
            _ => return Err(Code::INVALID_VALUE),
        };
        if stream.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let new = Stream::new(kind, Arc::downgrade(&context));
        // SAFETY: the caller's.
        unsafe { put(stream, g.streams.add(new)) }
    })
}

/// Priorities change nothing.
#[no_mangle]
unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut usize,
    flags: c_uint,
    _priority: c_int,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { cuStreamCreate(stream, flags) }
}

#[no_mangle]
extern "C" fn cuStreamDestroy_v2(stream: usize) -> c_int {
    // What is queued is still done.
    call("cuStreamDestroy", |g| {
        let stream = g.streams.remove(stream)?;
        stream.close();
        if let Some(context) = stream.context() {
            context.keep(stream);
        }
        Ok(())
    })
}

#[no_mangle]
extern "C" fn cuStreamSynchronize(stream: usize) -> c_int {
    call("cuStreamSynchronize", |g| {
        let (context, stream) = find(g, stream)?;
        refuse_capturing(&stream)?;
        stream.point().wait();
        context.lost().map_or(Ok(()), Err)
    })
}

#[no_mangle]
extern "C" fn cuStreamQuery(stream: usize) -> c_int {
    call("cuStreamQuery", |g| {
        let (context, stream) = find(g, stream)?;
        refuse_capturing(&stream)?;
        if !stream.point().is_done() {
            return Err(Code::NOT_READY);
        }
        context.lost().map_or(Ok(()), Err)
    })
}

#[no_mangle]
unsafe extern "C" fn cuStreamIsCapturing(stream: usize, status: *mut c_int) -> c_int {
    call("cuStreamIsCapturing", |g| {
        let (context, found) = find(g, stream)?;
        let blocking = |s: &Arc<Stream>| s.kind == Kind::Blocking;
        let captures = |s: &Arc<Stream>| s.capture.load(Ordering::Acquire) != 0;
        if stream < STREAM_PER_THREAD
            && g.streams
                .of(&context)
                .iter()
                .any(|s| blocking(s) && captures(s))
        {
            return Err(Code::STREAM_CAPTURE_IMPLICIT);
        }
        // SAFETY: the caller's.
        unsafe { put(status, found.capture.load(Ordering::Acquire)) }
    })
}

#[no_mangle]
unsafe extern "C" fn cuStreamGetId(stream: usize, id: *mut u64) -> c_int {
    call("cuStreamGetId", |g| {
        let (_, stream) = find(g, stream)?;
        // SAFETY: the caller's.
        unsafe { put(id, stream.number) }
    })
}

/// Needs no current context where the handle is that of a stream.
#[no_mangle]
unsafe extern "C" fn cuStreamGetCtx(stream: usize, context: *mut usize) -> c_int {
    call("cuStreamGetCtx", |g| {
        let found = match stream <= STREAM_PER_THREAD {
            true => current()?,
            false => {
                let stream = g.streams.get(stream)?;
                stream.context().ok_or(Code::CONTEXT_IS_DESTROYED)?
            }
        };
        // SAFETY: the caller's.
        unsafe { put(context, Arc::as_ptr(&found) as usize) }
    })
}

/// A function of the process that a stream calls.
struct HostFunction(extern "C" fn(*mut c_void), *mut c_void);

// SAFETY: the caller of `cuLaunchHostFunc` has the driver call the function on a thread of its own, once or for each launch of a graph.
unsafe impl Send for HostFunction {}
// SAFETY: as above.
unsafe impl Sync for HostFunction {}

impl HostFunction {
    fn call(&self) {
        (self.0)(self.1);
    }
}

#[no_mangle]
extern "C" fn cuLaunchHostFunc(
    stream: usize,
    function: Option<extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> c_int {
    call("cuLaunchHostFunc", |g| {
        let (context, stream) = find(g, stream)?;
        let function = HostFunction(function.ok_or(Code::INVALID_VALUE)?, data);
        let work = move || function.call();
        context.submit(g, &stream, Vec::new(), work).map(drop)
    })
}

#[no_mangle]
extern "C" fn cuStreamWriteValue64_v2(
    stream: usize,
    address: u64,
    value: u64,
    flags: c_uint,
) -> c_int {
    call("cuStreamWriteValue64", |g| {
        write_number(g, stream, address, value, flags)
    })
}

#[no_mangle]
extern "C" fn cuStreamWaitValue64_v2(
    stream: usize,
    address: u64,
    value: u64,
    flags: c_uint,
) -> c_int {
    call("cuStreamWaitValue64", |g| {
        wait_for_number(g, stream, address, value, flags)
    })
}

#[no_mangle]
unsafe extern "C" fn cuEventCreate(event: *mut usize, _flags: c_uint) -> c_int {
    call("cuEventCreate", |g| {
        current()?;
        if event.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's.
        unsafe { put(event, g.streams.add_event()) }
    })
}

#[no_mangle]
extern "C" fn cuEventDestroy_v2(event: usize) -> c_int {
    call("cuEventDestroy", |g| g.streams.remove_event(event))
}

#[no_mangle]
extern "C" fn cuEventRecord(event: usize, stream: usize) -> c_int {
    call("cuEventRecord", |g| {
        let event = g.streams.event(event)?;
        let (context, stream) = find(g, stream)?;
        let graph = stream.recording();
        event.capture(graph.as_ref());
        if graph.is_some() {
            return Ok(());
        }
        let reached = event.clone();
        let now = move || {
            *reached
                .reached
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(std::time::Instant::now());
        };
        let point = context.submit(g, &stream, Vec::new(), now)?;
        *event
            .recorded
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(point);
        Ok(())
    })
}

#[no_mangle]
extern "C" fn cuEventRecordWithFlags(event: usize, stream: usize, flags: c_uint) -> c_int {
    match flags {
        0 | 1 => cuEventRecord(event, stream),
        _ => Code::INVALID_VALUE.0,
    }
}

/// Time between two events, whose work must have ended.
#[no_mangle]
unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) -> c_int {
    call("cuEventElapsedTime", |g| {
        let time = |event: usize| {
            let event = g.streams.event(event)?;
            let recorded = event
                .recorded
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let point = recorded.as_ref().ok_or(Code::INVALID_HANDLE)?;
            match point.is_done() {
                true => {
                    let reached = event.reached.lock().unwrap_or_else(PoisonError::into_inner);
                    reached.ok_or(Code::INVALID_HANDLE)
                }
                false => Err(Code::NOT_READY),
            }
        };
        let (start, end) = (time(start)?, time(end)?);
        let (sign, between) = match end.checked_duration_since(start) {
            Some(between) => (1.0, between),
            None => (-1.0, start - end),
        };
        // SAFETY: the caller's.
        unsafe { put(milliseconds, sign * between.as_secs_f32() * 1000.0) }
    })
}

#[no_mangle]
extern "C" fn cuEventSynchronize(event: usize) -> c_int {
    call("cuEventSynchronize", |g| {
        let event = g.streams.event(event)?;
        let point = event
            .recorded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(point) = point {
            point.wait();
        }
        Ok(())
    })
}

#[no_mangle]
extern "C" fn cuEventQuery(event: usize) -> c_int {
    call("cuEventQuery", |g| {
        let event = g.streams.event(event)?;
        let recorded = event
            .recorded
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match recorded.as_ref() {
            Some(point) if !point.is_done() => Err(Code::NOT_READY),
            _ => Ok(()),
        }
    })
}

#[no_mangle]
extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) -> c_int {
    call("cuStreamWaitEvent", |g| {
        let event = g.streams.event(event)?;
        let (context, stream) = find(g, stream)?;
        match (event.captured(), stream.recording()) {
            (None, None) => {}
            (None, Some(_)) => return Err(Code::STREAM_CAPTURE_ISOLATION),
            (Some(graph), None) => {
                // It joins the capture.
                stream.record(Some(graph));
                stream.capture.store(1, Ordering::Release);
                return Ok(());
            }
            (Some(graph), Some(own)) => {
                return match Arc::ptr_eq(&graph, &own) {
                    true => Ok(()),
                    false => Err(Code::STREAM_CAPTURE_MERGE),
                }
            }
        }
        let point = event
            .recorded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        context
            .submit(g, &stream, point.into_iter().collect(), || ())
            .map(drop)
    })
}

//! Streams. Their handles are minted here; the server learns of them with the first batch.

use super::abi::Out;
use super::{runtime, runtime_on_stream, stream_of, PER_THREAD};
use crate::{session, thread};
use rgaps_remoting::{Call, Code};
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::{Mutex, MutexGuard, PoisonError};

const NON_BLOCKING: c_uint = 1;
/// Events that a stream waits for may be external to a capture.
const WAIT_FLAGS: c_uint = 1;

#[derive(Clone, Copy)]
struct Stream {
    device: u16,
    flags: c_uint,
    priority: c_int,
}

fn streams() -> MutexGuard<'static, HashMap<u64, Stream>> {
    static STREAMS: std::sync::OnceLock<Mutex<HashMap<u64, Stream>>> = std::sync::OnceLock::new();
    STREAMS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of a stream; handles of the default streams mean those of the current device.
fn find(stream: u64) -> Result<Stream, Code> {
    if stream <= PER_THREAD {
        return Ok(Stream {
            device: thread::device(),
            flags: 0,
            priority: 0,
        });
    }
    streams().get(&stream).copied().ok_or(Code::INVALID_HANDLE)
}

/// Refuses a handle that is no stream's.
pub(super) fn check(stream: u64) -> Result<(), Code> {
    find(stream).map(drop)
}

fn create(to: Out<u64>, flags: c_uint, priority: c_int) -> Result<(), Code> {
    to.check()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(Code::INVALID_VALUE);
    }
    session::current()?;
    let stream = session::mint();
    session::send(&Call::StreamCreate { stream, flags, priority }, &[])?;
    let device = thread::device();
    streams().insert(stream, Stream { device, flags, priority });
    to.put(stream)
}

runtime! {
    fn cudaStreamCreate(to: Out<u64>) {
        create(to, 0, 0)
    }

    fn cudaStreamCreateWithFlags(to: Out<u64>, flags: c_uint) {
        create(to, flags, 0)
    }

    fn cudaStreamCreateWithPriority(to: Out<u64>, flags: c_uint, priority: c_int) {
        create(to, flags, priority)
    }

    fn cudaStreamDestroy(stream: u64) {
        if stream <= PER_THREAD {
            return Err(Code::INVALID_HANDLE);
        }
        streams().remove(&stream).ok_or(Code::INVALID_HANDLE)?;
        session::send(&Call::StreamDestroy { stream }, &[])
    }
}

runtime_on_stream! {
    fn cudaStreamSynchronize "_ptsz" (default; stream: usize) {
        let stream = stream_of(stream, default);
        check(stream)?;
        session::call(&Call::StreamSynchronize { stream }, &[]).map(drop)
    }

    fn cudaStreamQuery "_ptsz" (default; stream: usize) {
        let stream = stream_of(stream, default);
        check(stream)?;
        session::call(&Call::StreamQuery { stream }, &[]).map(drop)
    }

    fn cudaStreamWaitEvent "_ptsz" (default; stream: usize, event: u64, flags: c_uint) {
        let stream = stream_of(stream, default);
        check(stream)?;
        super::event::check(event)?;
        if flags & !WAIT_FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        session::send(&Call::StreamWaitEvent { stream, event, flags }, &[])
    }

    fn cudaStreamGetFlags "_ptsz" (default; stream: usize, flags: Out<c_uint>) {
        flags.put(find(stream_of(stream, default))?.flags)
    }

    fn cudaStreamGetPriority "_ptsz" (default; stream: usize, priority: Out<c_int>) {
        priority.put(find(stream_of(stream, default))?.priority)
    }

    fn cudaStreamGetDevice "_ptsz" (default; stream: usize, device: Out<c_int>) {
        device.put(find(stream_of(stream, default))?.device.into())
    }

    fn cudaStreamGetId "_ptsz" (default; stream: usize, id: Out<c_ulonglong>) {
        let stream = stream_of(stream, default);
        check(stream)?;
        id.put(stream)
    }

    // No stream captures, since beginning a capture is not forwarded.
    fn cudaStreamIsCapturing "_ptsz" (default; stream: usize, status: Out<c_int>) {
        check(stream_of(stream, default))?;
        status.put(0)
    }
}

//! Streams.

use super::{runtime, runtime_on_stream, stream_of};
use crate::abi::Out;
use crate::callbacks::{self, Callback, Function, HostFunction};
use crate::handles::{events, streams};
use crate::waits;
use rgaps_remoting::Code;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

runtime! {
    fn cudaStreamCreate(to: Out<u64>) {
        to.check()?;
        to.put(streams::create(0, 0)?)
    }

    fn cudaStreamCreateWithFlags(to: Out<u64>, flags: c_uint) {
        to.check()?;
        to.put(streams::create(flags, 0)?)
    }

    fn cudaStreamCreateWithPriority(to: Out<u64>, flags: c_uint, priority: c_int) {
        to.check()?;
        to.put(streams::create(flags, priority)?)
    }

    fn cudaStreamDestroy(stream: u64) {
        streams::destroy(stream)
    }
}

runtime_on_stream! {
    fn cudaLaunchHostFunc "_ptsz" (default; stream: usize, function: Option<HostFunction>, data: *mut c_void) {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let stream = stream_of(stream, default);
        streams::check(stream)?;
        callbacks::queue(stream, Function::Host(function), data)
    }

    fn cudaStreamAddCallback "_ptsz" (
        default; stream: usize, callback: Option<Callback>, data: *mut c_void, flags: c_uint
    ) {
        let callback = callback.filter(|_| flags == 0).ok_or(Code::INVALID_VALUE)?;
        let named = stream as u64;
        let stream = stream_of(stream, default);
        streams::check(stream)?;
        callbacks::queue(stream, Function::Callback(callback, named), data)
    }

    fn cudaStreamSynchronize "_ptsz" (default; stream: usize) {
        waits::stream(stream_of(stream, default))
    }

    fn cudaStreamQuery "_ptsz" (default; stream: usize) {
        waits::is_stream_done(stream_of(stream, default))
    }

    fn cudaStreamWaitEvent "_ptsz" (default; stream: usize, event: u64, flags: c_uint) {
        events::wait(stream_of(stream, default), event, flags)
    }

    fn cudaStreamGetFlags "_ptsz" (default; stream: usize, flags: Out<c_uint>) {
        flags.put(streams::find(stream_of(stream, default))?.flags)
    }

    fn cudaStreamGetPriority "_ptsz" (default; stream: usize, priority: Out<c_int>) {
        priority.put(streams::find(stream_of(stream, default))?.priority)
    }

    fn cudaStreamGetDevice "_ptsz" (default; stream: usize, device: Out<c_int>) {
        device.put(streams::find(stream_of(stream, default))?.device.into())
    }

    fn cudaStreamGetId "_ptsz" (default; stream: usize, id: Out<c_ulonglong>) {
        let stream = stream_of(stream, default);
        streams::check(stream)?;
        id.put(stream)
    }
}

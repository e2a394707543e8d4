//! Streams and events.

use super::context::context_of;
use super::{driver, driver_on_stream};
use crate::abi::Out;
use crate::callbacks::{self, Callback, Function, HostFunction};
use crate::handles::streams::meant;
use crate::handles::{events, streams};
use crate::{graphs, waits};
use rgaps_remoting::Code;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

driver! {
    fn cuStreamCreate(to: Out<u64>, flags: c_uint) {
        to.check()?;
        to.put(streams::create(flags, 0)?)
    }

    fn cuStreamCreateWithPriority(to: Out<u64>, flags: c_uint, priority: c_int) {
        to.check()?;
        to.put(streams::create(flags, priority)?)
    }

    fn cuStreamDestroy_v2(stream: u64) {
        streams::destroy(stream)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>) {
        mode.put(graphs::exchange_mode(mode.get()?)?)
    }

    fn cuGraphInstantiateWithFlags(to: Out<u64>, graph: u64, flags: c_ulonglong) {
        to.check()?;
        to.put(graphs::instantiate(graph, flags)?)
    }

    fn cuGraphDestroy(graph: u64) {
        graphs::destroy(graph)
    }

    fn cuGraphExecDestroy(executable: u64) {
        graphs::destroy_executable(executable)
    }

    fn cuEventCreate(to: Out<u64>, flags: c_uint) {
        to.check()?;
        to.put(events::create(flags)?)
    }

    fn cuEventDestroy_v2(event: u64) {
        events::destroy(event)
    }

    fn cuEventSynchronize(event: u64) {
        waits::event(event)
    }

    fn cuEventQuery(event: u64) {
        waits::is_event_done(event)
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) {
        milliseconds.check()?;
        milliseconds.put(events::elapsed(start, end)?)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) {
        milliseconds.check()?;
        milliseconds.put(events::elapsed(start, end)?)
    }
}

driver_on_stream! {
    fn cuLaunchHostFunc "_ptsz" (default; stream: u64, function: Option<HostFunction>, data: *mut c_void) {
        let stream = meant(stream, default);
        streams::check(stream)?;
        callbacks::queue(stream, Function::Host(function.ok_or(Code::INVALID_VALUE)?), data)
    }

    fn cuStreamAddCallback "_ptsz" (default; stream: u64, callback: Option<Callback>, data: *mut c_void, flags: c_uint) {
        let (named, stream) = (stream, meant(stream, default));
        streams::check(stream)?;
        let callback = callback.filter(|_| flags == 0).ok_or(Code::INVALID_VALUE)?;
        callbacks::queue(stream, Function::Callback(callback, named), data)
    }

    fn cuStreamBeginCapture_v2 "_ptsz" (default; stream: u64, mode: c_int) {
        let stream = meant(stream, default);
        graphs::begin(stream, mode)
    }

    fn cuStreamEndCapture "_ptsz" (default; stream: u64, graph: Out<u64>) {
        let stream = meant(stream, default);
        graph.check()?;
        let ended = graphs::end(stream);
        graph.put(*ended.as_ref().unwrap_or(&0))?;
        ended.map(drop)
    }

    fn cuStreamIsCapturing "_ptsz" (default; stream: u64, status: Out<c_int>) {
        let stream = meant(stream, default);
        status.check()?;
        status.put(graphs::status(stream)?.0)
    }

    fn cuGraphLaunch "_ptsz" (default; executable: u64, stream: u64) {
        let stream = meant(stream, default);
        graphs::launch(executable, stream)
    }

    fn cuStreamSynchronize "_ptsz" (default; stream: u64) {
        let stream = meant(stream, default);
        waits::stream(stream)
    }

    fn cuStreamQuery "_ptsz" (default; stream: u64) {
        let stream = meant(stream, default);
        waits::is_stream_done(stream)
    }

    fn cuStreamWaitEvent "_ptsz" (default; stream: u64, event: u64, flags: c_uint) {
        let stream = meant(stream, default);
        events::wait(stream, event, flags)
    }

    fn cuEventRecordWithFlags "_ptsz" (default; event: u64, stream: u64, flags: c_uint) {
        events::record(event, meant(stream, default), flags)
    }

    fn cuStreamGetFlags "_ptsz" (default; stream: u64, flags: Out<c_uint>) {
        flags.put(streams::find(meant(stream, default))?.flags)
    }

    fn cuStreamGetPriority "_ptsz" (default; stream: u64, priority: Out<c_int>) {
        priority.put(streams::find(meant(stream, default))?.priority)
    }

    fn cuStreamGetDevice "_ptsz" (default; stream: u64, device: Out<c_int>) {
        device.put(streams::find(meant(stream, default))?.device.into())
    }

    fn cuStreamGetId "_ptsz" (default; stream: u64, id: Out<c_ulonglong>) {
        let stream = meant(stream, default);
        streams::check(stream)?;
        id.put(stream)
    }

    fn cuStreamGetCtx "_ptsz" (default; stream: u64, context: Out<u64>) {
        context.put(context_of(streams::find(meant(stream, default))?.device))
    }

    fn cuEventRecord "_ptsz" (default; event: u64, stream: u64) {
        let stream = meant(stream, default);
        events::record(event, stream, 0)
    }
}

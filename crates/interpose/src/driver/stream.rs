//! Streams and events.

use super::driver;
use crate::abi::Out;
use crate::callbacks::{self, Callback, Function, HostFunction};
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

    fn cuLaunchHostFunc(stream: u64, function: Option<HostFunction>, data: *mut c_void) {
        streams::check(stream)?;
        callbacks::queue(stream, Function::Host(function.ok_or(Code::INVALID_VALUE)?), data)
    }

    fn cuStreamAddCallback(stream: u64, callback: Option<Callback>, data: *mut c_void, flags: c_uint) {
        streams::check(stream)?;
        let callback = callback.filter(|_| flags == 0).ok_or(Code::INVALID_VALUE)?;
        callbacks::queue(stream, Function::Callback(callback, stream), data)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>) {
        mode.put(graphs::exchange_mode(mode.get()?)?)
    }

    fn cuStreamBeginCapture_v2(stream: u64, mode: c_int) {
        graphs::begin(stream, mode)
    }

    fn cuStreamEndCapture(stream: u64, graph: Out<u64>) {
        graph.check()?;
        let ended = graphs::end(stream);
        graph.put(*ended.as_ref().unwrap_or(&0))?;
        ended.map(drop)
    }

    fn cuStreamIsCapturing(stream: u64, status: Out<c_int>) {
        status.check()?;
        status.put(graphs::status(stream)?.0)
    }

    fn cuGraphInstantiateWithFlags(to: Out<u64>, graph: u64, flags: c_ulonglong) {
        to.check()?;
        to.put(graphs::instantiate(graph, flags)?)
    }

    fn cuGraphLaunch(executable: u64, stream: u64) {
        graphs::launch(executable, stream)
    }

    fn cuGraphDestroy(graph: u64) {
        graphs::destroy(graph)
    }

    fn cuGraphExecDestroy(executable: u64) {
        graphs::destroy_executable(executable)
    }

    fn cuStreamSynchronize(stream: u64) {
        waits::stream(stream)
    }

    fn cuStreamQuery(stream: u64) {
        waits::is_stream_done(stream)
    }

    fn cuStreamWaitEvent(stream: u64, event: u64, flags: c_uint) {
        events::wait(stream, event, flags)
    }

    fn cuEventCreate(to: Out<u64>, flags: c_uint) {
        to.check()?;
        to.put(events::create(flags)?)
    }

    fn cuEventDestroy_v2(event: u64) {
        events::destroy(event)
    }

    fn cuEventRecord(event: u64, stream: u64) {
        events::record(event, stream, 0)
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

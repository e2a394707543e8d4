//! Streams and events.

use super::driver;
use crate::abi::Out;
use crate::handles::{events, streams};
use crate::session;
use rgaps_remoting::Call;
use std::ffi::{c_int, c_uint};

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

    fn cuStreamSynchronize(stream: u64) {
        streams::check(stream)?;
        session::call(&Call::StreamSynchronize { stream }, &[]).map(drop)
    }

    fn cuStreamQuery(stream: u64) {
        streams::check(stream)?;
        session::call(&Call::StreamQuery { stream }, &[]).map(drop)
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
        events::check(event)?;
        session::call(&Call::EventSynchronize { event }, &[]).map(drop)
    }

    fn cuEventQuery(event: u64) {
        events::check(event)?;
        session::call(&Call::EventQuery { event }, &[]).map(drop)
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

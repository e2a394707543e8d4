//! Events.

use super::{runtime, runtime_on_stream, stream_of};
use crate::abi::Out;
use crate::handles::events;
use crate::waits;
use std::ffi::c_uint;

runtime! {
    fn cudaEventCreate(to: Out<u64>) {
        to.check()?;
        to.put(events::create(0)?)
    }

    fn cudaEventCreateWithFlags(to: Out<u64>, flags: c_uint) {
        to.check()?;
        to.put(events::create(flags)?)
    }

    fn cudaEventDestroy(event: u64) {
        events::destroy(event)
    }

    fn cudaEventSynchronize(event: u64) {
        waits::event(event)
    }

    fn cudaEventQuery(event: u64) {
        waits::is_event_done(event)
    }

    fn cudaEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) {
        milliseconds.check()?;
        milliseconds.put(events::elapsed(start, end)?)
    }

    fn cudaEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) {
        milliseconds.check()?;
        milliseconds.put(events::elapsed(start, end)?)
    }
}

runtime_on_stream! {
    fn cudaEventRecord "_ptsz" (default; event: u64, stream: usize) {
        events::record(event, stream_of(stream, default), 0)
    }

    fn cudaEventRecordWithFlags "_ptsz" (default; event: u64, stream: usize, flags: c_uint) {
        events::record(event, stream_of(stream, default), flags)
    }
}

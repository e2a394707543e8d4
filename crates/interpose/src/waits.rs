//! Waits and queries of the program, after which it may use managed memory.

use crate::handles::{events, streams};
use crate::{managed, session};
use rgaps_remoting::{Call, Code};

fn wait(call: &Call<'_>) -> Result<(), Code> {
    session::call(call, &[])?;
    managed::after()
}

/// Waits for all work of the current device.
pub(crate) fn device() -> Result<(), Code> {
    wait(&Call::Synchronize)
}

pub(crate) fn stream(stream: u64) -> Result<(), Code> {
    streams::at_stream(stream, || wait(&Call::StreamSynchronize { stream }))
}

/// Fails with [`Code::NOT_READY`] if a stream has work to do.
pub(crate) fn is_stream_done(stream: u64) -> Result<(), Code> {
    streams::at_stream(stream, || wait(&Call::StreamQuery { stream }))
}

pub(crate) fn event(event: u64) -> Result<(), Code> {
    events::at_event(event, || wait(&Call::EventSynchronize { event }))
}

/// Fails with [`Code::NOT_READY`] if the work before an event is not done.
pub(crate) fn is_event_done(event: u64) -> Result<(), Code> {
    events::at_event(event, || wait(&Call::EventQuery { event }))
}

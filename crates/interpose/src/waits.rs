//! What a program waits for or asks about, after which it may use managed memory.

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

/// Waits for a stream.
pub(crate) fn stream(stream: u64) -> Result<(), Code> {
    streams::at_stream(stream, || wait(&Call::StreamSynchronize { stream }))
}

/// Whether a stream is done.
pub(crate) fn is_stream_done(stream: u64) -> Result<(), Code> {
    streams::at_stream(stream, || wait(&Call::StreamQuery { stream }))
}

/// Waits for an event.
pub(crate) fn event(event: u64) -> Result<(), Code> {
    events::at_event(event, || wait(&Call::EventSynchronize { event }))
}

/// Whether an event is done.
pub(crate) fn is_event_done(event: u64) -> Result<(), Code> {
    events::at_event(event, || wait(&Call::EventQuery { event }))
}

//! Calls that wait for the GPU. They run without the session's lock, so that other threads go on.

use super::api::{cu, Api};
use super::async_copies::AsyncCopy;
use super::math_call::Prepared;
use super::rows;
use super::staging::Staging;
use crate::call::CallValue;
use crate::codes::Code;
use crate::extent::{Extent, Pitched};
use crate::limits::STAGING_COUNT;
use crate::pieces::Piece;
use std::collections::VecDeque;

/// Why a call of topics failed.
pub(crate) struct Refused {
    pub(crate) code: Code,
    pub(crate) reason: String,
}

/// A call of topics that may wait.
pub(crate) type Work = Box<dyn Fn() -> Result<CallValue, Refused> + Send>;

/// Something to wait for, by the driver's handles.
pub(crate) enum Job {
    /// All work of a stream.
    Stream(usize),
    /// The work before these events.
    Events(Vec<usize>),
    /// All work of the current device.
    Context,
    /// A function of the client that a stream reaches.
    Function,
    /// A function of a library above the runtime, which may wait for anything.
    Math(Prepared),
    /// A call of topics.
    Topic(Work),
    /// Bytes of a region, once the GPU has copied them there.
    FinishCopy {
        copy: AsyncCopy,
        start: u64,
        bytes: u64,
    },
    /// Bytes of the device, behind the work of a stream.
    CopyOut(CopyOut),
}

/// A copy to the client.
pub(crate) struct CopyOut {
    pub(crate) from: Pitched,
    pub(crate) extent: Extent,
    pub(crate) stream: usize,
    /// The context of the device, for helper threads.
    pub(crate) context: usize,
}

impl Job {
    /// Waits for the GPU's work.
    pub(crate) fn wait(&self, api: &Api) -> Result<(), Code> {
        // SAFETY: the session found these handles when the call came. If the client destroys one of them meanwhile, by another thread, the
        // driver decides what happens, in a process that has nothing of other clients.
        unsafe {
            match self {
                Job::Stream(stream) => cu!(api, stream_synchronize(*stream)),
                Job::Events(events) => events
                    .iter()
                    .try_for_each(|event| cu!(api, event_synchronize(*event))),
                Job::Context => cu!(api, context_synchronize()),
                Job::CopyOut(wanted) => cu!(api, stream_synchronize(wanted.stream)),
                Job::FinishCopy { copy, .. } => copy.wait(api),
                // `Shared::finish` waits for these, and takes what they give.
                Job::Function | Job::Math(_) | Job::Topic(_) => Ok(()),
            }
        }
    }
}

/// Copies pieces of a device's memory to staging buffers, and gives each to `give` while the next ones are copied.
pub(crate) fn copy_out(
    api: &Api,
    staging: &mut Staging,
    (device, stream): (u16, usize),
    mut rest: impl Iterator<Item = Piece>,
    mut give: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<std::io::Result<()>, Code> {
    let mut queued: VecDeque<(usize, usize)> = VecDeque::new();
    loop {
        while queued.len() < STAGING_COUNT {
            let Some(piece) = rest.next() else { break };
            let buffer = staging.take(api)?;
            let host = Pitched::packed(staging.address(buffer), &piece.1);
            rows::between(api, piece.0, host, piece.1, false, stream)?;
            staging.mark(api, buffer, device, stream)?;
            queued.push_back((buffer, (piece.1.width_bytes * piece.1.height) as usize));
        }
        let Some((buffer, bytes)) = queued.pop_front() else {
            return Ok(Ok(()));
        };
        staging.wait(api, buffer)?;
        if let Err(error) = give(staging.bytes(buffer, bytes)) {
            return Ok(Err(error));
        }
    }
}

//! Calls on regions: memory of this host for copies that cross no socket, or whose bytes follow later.

use super::jobs::Job;
use super::regions::Mark;
use super::rows;
use super::session::{done, Outcome, Session};
use crate::call::Call;
use crate::codes::Code;
use crate::extent::row;
use crate::frame::FrameHeader;

impl Session {
    pub(super) fn shared_call(
        &mut self,
        of: &FrameHeader,
        call: &Call<'_>,
    ) -> Result<Outcome, Code> {
        let api = self.api.clone();
        match call {
            Call::Share { region, bytes } => {
                let memory = self.regions.share(&api, of.device, *region, *bytes)?;
                Ok(Outcome::Shared(memory))
            }
            Call::Unshare { region } => done(self.regions.release(&api, *region)),
            Call::WaitForMarks { marks } => {
                Ok(Outcome::Later(Job::Events(self.regions.events(marks)?)))
            }
            Call::CopyToRegion {
                region,
                offset,
                from,
                bytes,
                stream,
            } => self.copy_out_async(of, (*region, *offset), (*from, *bytes), *stream),
            Call::CopyShared {
                region,
                host,
                device,
                extent,
                is_in,
                stream,
                mark,
            } => {
                let device = match *is_in {
                    true => self.target(device, extent)?,
                    false => self.origin(device, extent)?,
                };
                let host = self
                    .regions
                    .locate(&api, of.device, (*region, host), extent)?;
                let stream = self.stream(of, *stream)?;
                if mark.is_some() || !of.is_quiet() {
                    self.refuse_recording(stream)?;
                }
                rows::between(&api, device, host, *extent, *is_in, stream)?;
                let mark = match mark {
                    Some(number) => Mark::Number(*number),
                    None if of.is_quiet() => return done(Ok(())),
                    None => Mark::Thread(of.thread),
                };
                let event = self.regions.mark(&api, mark, of.device, stream)?;
                match of.is_quiet() {
                    true => done(Ok(())),
                    false => Ok(Outcome::Later(Job::Events(vec![event]))),
                }
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Queues a copy to a region, whose bytes the answer brings.
    fn copy_out_async(
        &mut self,
        of: &FrameHeader,
        (region, offset): (u64, u64),
        (from, bytes): (u64, u64),
        stream: u64,
    ) -> Result<Outcome, Code> {
        let api = self.api.clone();
        self.readable(from, bytes)?;
        let (device, extent) = row(from, bytes);
        let (host, _) = row(offset, bytes);
        let host = self
            .regions
            .locate(&api, of.device, (region, &host), &extent)?;
        let stream = self.stream(of, stream)?;
        self.refuse_recording(stream)?;
        rows::between(&api, device, host, extent, false, stream)?;
        Ok(Outcome::Later(Job::FinishCopy {
            copy: self.async_copies.begin(&api, of.device, stream)?,
            start: host.address,
            bytes,
        }))
    }
}

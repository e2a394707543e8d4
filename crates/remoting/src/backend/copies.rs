//! Bytes between the connection and a GPU: through staging buffers, so that copies of a piece run while the next piece is on its way.
//! Bytes over stripes have a thread and staging buffers for each stripe.

use super::jobs::{self, CopyOut};
use super::session::Outcome;
use super::staging::Staging;
use super::{lock, rows, BackendError, Core, Shared, DRAIN_BYTES};
use crate::call::CallValue;
use crate::codes::Code;
use crate::extent::{row, Extent, Pitched};
use crate::frame::{FrameHeader, Violation};
use crate::limits::STAGING_BYTES;
use crate::pieces::{pieces, stripe, Piece};
use crate::socket::{write_all, Socket};
use crate::stripes::each;
use std::io::{self, Read};

impl Shared {
    /// Takes staging buffers that no thread uses, or makes some.
    fn staging(&self) -> Result<Staging, Code> {
        let spare = lock(&self.spare).pop();
        spare.map_or_else(|| Staging::new(&self.api), Ok)
    }

    /// Checks a copy to the device. Gives its context, its target and its stream, as the driver names them.
    fn admit(
        core: &mut Core,
        of: &FrameHeader,
        (to, extent, stream): (Pitched, Extent, u64),
    ) -> Result<(usize, Pitched, usize), Code> {
        let session = &mut core.session;
        let context = session.enter(of.device)?;
        let to = session.target(&to, &extent)?;
        let stream = session.stream(of, stream)?;
        session.refuse_recording(stream)?;
        Ok((context, to, stream))
    }

    /// Copies the bytes behind a frame to the device.
    pub(super) fn copy_in(
        &self,
        core: &mut Core,
        of: &FrameHeader,
        (to, extent, stream): (Pitched, Extent, u64),
    ) -> Result<Result<Outcome, Code>, BackendError> {
        let mut left = of.bulk;
        let result = match Self::admit(core, of, (to, extent, stream)) {
            Ok((_, to, stream)) => self.take_pieces(core, of, (to, extent, stream), &mut left)?,
            Err(code) => Err(code),
        };
        // The bytes that a failed copy has not read.
        drain(&mut core.reader, left as usize)?;
        Ok(result.map(|()| Outcome::Now(CallValue::Nothing)))
    }

    fn take_pieces(
        &self,
        core: &mut Core,
        of: &FrameHeader,
        (to, extent, stream): (Pitched, Extent, usize),
        left: &mut u64,
    ) -> Result<Result<(), Code>, BackendError> {
        if core.staging.is_none() {
            match Staging::new(&self.api) {
                Ok(staging) => core.staging = Some(staging),
                Err(code) => return Ok(Err(code)),
            }
        }
        let Some(staging) = core.staging.as_mut() else {
            return Ok(Err(Code::UNKNOWN));
        };
        for piece in pieces(to, extent, STAGING_BYTES as u64) {
            let taken = self.take_piece(staging, &mut core.reader, of, piece, stream)?;
            *left -= piece.1.width_bytes * piece.1.height;
            if taken.is_err() {
                return Ok(taken);
            }
        }
        Ok(Ok(()))
    }

    /// Reads a piece and queues its copy. Reads it also if the copy fails.
    fn take_piece(
        &self,
        staging: &mut Staging,
        from: &mut dyn Read,
        of: &FrameHeader,
        (to, extent): Piece,
        stream: usize,
    ) -> io::Result<Result<(), Code>> {
        let bytes = (extent.width_bytes * extent.height) as usize;
        let buffer = match staging.take(&self.api) {
            Ok(buffer) => buffer,
            Err(code) => return drain(from, bytes).map(|()| Err(code)),
        };
        from.read_exact(staging.bytes(buffer, bytes))?;
        let host = Pitched::packed(staging.address(buffer), &extent);
        let queued = rows::between(&self.api, to, host, extent, true, stream);
        Ok(queued.and_then(|()| staging.mark(&self.api, buffer, of.device, stream)))
    }

    /// Copies bytes of stripes to the device. All copies are queued when this returns, as if the bytes had come behind the frame.
    pub(super) fn copy_in_striped(
        &self,
        core: &mut Core,
        of: &FrameHeader,
        (to, stream): (u64, u64),
    ) -> Result<Result<Outcome, Code>, BackendError> {
        let stripes = self.stripes.get(of.stripes())?;
        let bytes = usize::try_from(of.bulk).map_err(|_| Violation("more bytes than memory"))?;
        let (at, extent) = row(to, of.bulk);
        let admitted = Self::admit(core, of, (at, extent, stream));
        let taken = each(stripes.len(), |index| {
            let mut from = &*stripes[index];
            let mut all = stripe(bytes, index, stripes.len());
            let mut result = admitted.map(|_| ());
            if let Ok((context, _, stream)) = admitted {
                let entered = self.api.enter(context).and_then(|()| self.staging());
                result = match entered {
                    Ok(mut staging) => {
                        let taken =
                            self.take_parts(&mut staging, &mut from, of, (to, stream), &mut all);
                        lock(&self.spare).push(staging);
                        taken?
                    }
                    Err(code) => Err(code),
                };
            }
            all.try_for_each(|(_, length)| drain(&mut from, length))?;
            result.map_err(StripeError::Code)
        });
        match taken {
            Ok(()) => Ok(Ok(Outcome::Now(CallValue::Nothing))),
            Err(StripeError::Code(code)) => Ok(Err(code)),
            Err(StripeError::Io(error)) => Err(error.into()),
        }
    }

    fn take_parts(
        &self,
        staging: &mut Staging,
        from: &mut &Socket,
        of: &FrameHeader,
        (to, stream): (u64, usize),
        all: &mut dyn Iterator<Item = (usize, usize)>,
    ) -> io::Result<Result<(), Code>> {
        for (offset, length) in all {
            let piece = row(to + offset as u64, length as u64);
            let taken = self.take_piece(staging, from, of, piece, stream)?;
            if taken.is_err() {
                return Ok(taken);
            }
        }
        Ok(Ok(()))
    }

    /// Answers with bytes of the device. The caller has waited for the work before them.
    pub(super) fn copy_out(
        &self,
        of: &FrameHeader,
        wanted: &CopyOut,
        deferred: Code,
    ) -> Result<(), BackendError> {
        let total = wanted.extent.bytes().unwrap_or(0);
        let stripes = match wanted.extent.is_row() {
            true => self.stripes_for(total),
            false => Vec::new(),
        };
        if !stripes.is_empty() {
            return self.copy_out_striped(of, wanted, deferred, &stripes);
        }
        let mut staging = match self.staging() {
            Ok(staging) => staging,
            Err(code) => return Ok(self.answer(of, code, deferred, CallValue::Nothing)?),
        };
        let mut writing = None;
        let all = pieces(wanted.from, wanted.extent, STAGING_BYTES as u64);
        let copied = jobs::copy_out(
            &self.api,
            &mut staging,
            (of.device, wanted.stream),
            all,
            |bytes| {
                if writing.is_none() {
                    writing = Some(lock(&self.writing));
                    let first = (total, bytes);
                    return self.write(of, Code::SUCCESS, deferred, CallValue::Nothing, first);
                }
                write_all(&self.socket, [bytes, &[]]).map(drop)
            },
        );
        let begun = writing.is_some();
        drop(writing);
        match copied {
            Ok(written) => {
                written?;
                lock(&self.spare).push(staging);
                if !begun {
                    self.answer(of, Code::SUCCESS, deferred, CallValue::Nothing)?;
                }
                Ok(())
            }
            Err(code) if !begun => Ok(self.answer(of, code, deferred, CallValue::Nothing)?),
            // The answer has promised the bytes.
            Err(_) => Err(io::Error::other("the GPU failed within a copy").into()),
        }
    }

    fn copy_out_striped(
        &self,
        of: &FrameHeader,
        wanted: &CopyOut,
        deferred: Code,
        stripes: &[std::sync::Arc<Socket>],
    ) -> Result<(), BackendError> {
        let bytes = wanted.extent.width_bytes;
        let staged: Result<Vec<Staging>, Code> = stripes.iter().map(|_| self.staging()).collect();
        let staged = match staged {
            Ok(staged) => staged,
            Err(code) => return Ok(self.answer(of, code, deferred, CallValue::Nothing)?),
        };
        let staged: Vec<_> = staged.into_iter().map(std::sync::Mutex::new).collect();
        let _writing = lock(&self.writing);
        self.promise(of, deferred, (bytes, stripes.len()))?;
        let sent = each(stripes.len(), |index| {
            self.api.enter(wanted.context).map_err(StripeError::Code)?;
            let parts = stripe(bytes as usize, index, stripes.len());
            let all = parts
                .map(|(offset, length)| row(wanted.from.address + offset as u64, length as u64));
            let queue = (of.device, wanted.stream);
            let give = |bytes: &[u8]| write_all(&stripes[index], [bytes, &[]]).map(drop);
            let copied = jobs::copy_out(&self.api, &mut lock(&staged[index]), queue, all, give);
            copied.map_err(StripeError::Code)?.map_err(StripeError::Io)
        });
        let spare = staged
            .into_iter()
            .filter_map(|staging| staging.into_inner().ok());
        lock(&self.spare).extend(spare);
        match sent {
            Ok(()) => Ok(()),
            Err(StripeError::Io(error)) => Err(error.into()),
            // The answer has promised the bytes.
            Err(StripeError::Code(_)) => {
                Err(io::Error::other("the GPU failed within a copy").into())
            }
        }
    }
}

/// Why the bytes of a stripe were not copied.
enum StripeError {
    Code(Code),
    Io(io::Error),
}

impl From<io::Error> for StripeError {
    fn from(error: io::Error) -> StripeError {
        StripeError::Io(error)
    }
}

/// Reads bytes and throws them away.
fn drain(from: &mut dyn Read, bytes: usize) -> io::Result<()> {
    let mut left = bytes;
    let mut thrown = vec![0; DRAIN_BYTES.min(left)];
    while left > 0 {
        let count = left.min(DRAIN_BYTES);
        from.read_exact(&mut thrown[..count])?;
        left -= count;
    }
    Ok(())
}

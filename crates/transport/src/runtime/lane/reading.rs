//! Takes apart the bytes that a lane reads: frames, and the payloads that follow them.

use crate::machine::frame::{Decoded, Frame};
use crate::machine::WriteRange;
use crate::runtime::{Admitted, LinkRuntime};

/// A payload of which bytes are missing.
enum Unfinished {
    /// A small message: its frame. Its bytes so far are in `Reading::small`.
    Small(Frame),
    Chunk(WriteRange),
}

/// Takes a lane's bytes apart: writes chunks into their receive buffers, and passes all else to the link.
pub(super) struct Reading {
    pub(super) lane: u32,
    /// The payload that the next bytes belong to, and how many of its bytes have arrived.
    unfinished: Option<(Unfinished, usize)>,
    /// The buffer for an incomplete small message.
    small: Vec<u8>,
    /// The link has to be settled.
    is_unsettled: bool,
}

/// What [`Reading::begin`] found at the beginning of the bytes.
pub(super) enum Begun {
    /// A frame and some of its payload. `used`: the bytes of both; `payload_bytes`: the length of the whole payload.
    Frame {
        used: usize,
        payload_bytes: usize,
        is_chunk: bool,
    },
    /// The beginning of a frame; decoding needs so many bytes.
    Short(usize),
}

impl Reading {
    pub(super) fn new(lane: u32) -> Self {
        Self {
            lane,
            unfinished: None,
            small: Vec::new(),
            is_unsettled: false,
        }
    }

    /// Settles the link, if what arrived left anything to settle. Most chunks do not.
    pub(super) fn settle(&mut self, link: &LinkRuntime) {
        if std::mem::take(&mut self.is_unsettled) {
            link.settle();
        }
    }

    /// Notes whether the link has to be settled. Returns the range of a chunk.
    fn admitted(&mut self, admitted: Admitted) -> Option<WriteRange> {
        self.is_unsettled |= !admitted.is_settled;
        admitted.range
    }

    /// The range of a chunk that was admitted.
    pub(super) fn range(&mut self, admitted: Admitted) -> WriteRange {
        let range = self.admitted(admitted);
        range.expect("a chunk has a range, or is a violation")
    }

    pub(super) fn landed(&mut self, range: WriteRange, directly: bool, link: &LinkRuntime) {
        self.is_unsettled |= link.landed(range, directly);
    }

    /// The memory for the missing bytes of the unfinished payload, if there is one. The caller calls [`Reading::filled`] afterwards.
    pub(super) fn room(&mut self) -> Option<&mut [u8]> {
        let (of, done) = self.unfinished.as_mut()?;
        let payload = match of {
            Unfinished::Small(_) => &mut self.small[..],
            Unfinished::Chunk(range) => range.as_mut_slice(),
        };
        Some(&mut payload[*done..])
    }

    /// The caller has written the first `bytes` bytes of [`Reading::room`].
    pub(super) fn filled(&mut self, bytes: usize, link: &LinkRuntime) -> Result<(), String> {
        let left = self.room().map_or(0, |room| room.len() - bytes);
        if let Some((_, done)) = self.unfinished.as_mut().filter(|_| left > 0) {
            *done += bytes;
            return Ok(());
        }
        match self.unfinished.take() {
            Some((Unfinished::Small(frame), _)) => {
                let admitted = link.frame(self.lane, &frame, &self.small)?;
                self.admitted(admitted);
            }
            Some((Unfinished::Chunk(range), _)) => self.landed(range, false, link),
            None => {}
        }
        Ok(())
    }

    /// Copies bytes of the unfinished payload. Returns how many of `bytes` belong to it.
    pub(super) fn copy(&mut self, bytes: &[u8], link: &LinkRuntime) -> Result<usize, String> {
        let room = self.room().unwrap_or_default();
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        self.filled(count, link)?;
        Ok(count)
    }

    /// Handles a frame and those bytes of its payload that have arrived. Called only if no payload is unfinished.
    pub(super) fn begin(&mut self, bytes: &[u8], link: &LinkRuntime) -> Result<Begun, String> {
        let (frame, head) = match self.decode(bytes, link)? {
            Decoded::Frame(frame, head) => (frame, head),
            Decoded::Short(need) => return Ok(Begun::Short(need)),
        };
        let most = u64::from(link.config.limits.first_window);
        if matches!(frame, Frame::Small(_)) && frame.payload_bytes() > most {
            // Checked before memory is allocated for it.
            let what = "it is larger than a flow's first window";
            return Err(link.violated(Some(self.lane), "Small", what));
        }
        let payload_bytes = usize::try_from(frame.payload_bytes()).expect("it is bounded");
        let here = &bytes[head..(head + payload_bytes).min(bytes.len())];
        let used = head + here.len();
        let is_chunk = matches!(frame, Frame::Chunk(_));
        if !is_chunk && here.len() == payload_bytes {
            let admitted = link.frame(self.lane, &frame, here)?;
            self.admitted(admitted);
        } else {
            let payload = if is_chunk {
                Unfinished::Chunk(self.chunk(&frame, link)?)
            } else {
                self.small.resize(payload_bytes, 0);
                Unfinished::Small(frame)
            };
            self.unfinished = Some((payload, 0));
            self.copy(here, link)?;
        }
        Ok(Begun::Frame {
            used,
            payload_bytes,
            is_chunk,
        })
    }

    pub(super) fn decode(&self, bytes: &[u8], link: &LinkRuntime) -> Result<Decoded, String> {
        let decoded = Frame::decode(bytes);
        decoded.map_err(|error| link.disconnect(Some(self.lane), &error))
    }

    /// Passes a CHUNK frame to the link. Returns the range for its bytes.
    pub(super) fn chunk(
        &mut self,
        frame: &Frame,
        link: &LinkRuntime,
    ) -> Result<WriteRange, String> {
        let admitted = link.frame(self.lane, frame, &[])?;
        Ok(self.range(admitted))
    }
}

//! What lanes read: frames, and the bytes that follow them.

use crate::machine::frame::{Decoded, Frame};
use crate::machine::WriteRange;
use crate::runtime::{Admitted, LinkRuntime};

/// A payload of which some bytes are still to come.
enum Unfinished {
    /// A small message: its frame. What is here of it is in `Reading::small`.
    Small(Frame),
    Chunk(WriteRange),
}

/// Takes a lane's bytes apart: chunks go to their receive buffers, all else to the link.
pub(super) struct Reading {
    pub(super) lane: u32,
    /// And how many bytes of it are here.
    unfinished: Option<(Unfinished, usize)>,
    /// A small message that is not whole.
    small: Vec<u8>,
    /// Something is left to settle.
    is_unsettled: bool,
}

/// What bytes begin with.
pub(super) enum Begun {
    /// A frame and some of its payload, which took so many bytes.
    Frame {
        used: usize,
        payload_bytes: usize,
        is_chunk: bool,
    },
    /// The beginning of a frame, which needs so many bytes.
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

    /// Notes whether the link is to be settled. Of a chunk: where its bytes go.
    fn admitted(&mut self, admitted: Admitted) -> Option<WriteRange> {
        self.is_unsettled |= !admitted.is_settled;
        admitted.range
    }

    /// Where the bytes of a chunk that was admitted go.
    pub(super) fn range(&mut self, admitted: Admitted) -> WriteRange {
        let range = self.admitted(admitted);
        range.expect("a chunk has a range, or is a violation")
    }

    pub(super) fn landed(&mut self, range: WriteRange, directly: bool, link: &LinkRuntime) {
        self.is_unsettled |= link.landed(range, directly);
    }

    /// Where the next bytes of a payload go, if one is unfinished. [`Reading::filled`] follows.
    pub(super) fn room(&mut self) -> Option<&mut [u8]> {
        let (of, done) = self.unfinished.as_mut()?;
        let payload = match of {
            Unfinished::Small(_) => &mut self.small[..],
            Unfinished::Chunk(range) => range.as_mut_slice(),
        };
        Some(&mut payload[*done..])
    }

    /// So many bytes of [`Reading::room`] are there.
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

    /// Copies what is here of a payload that is unfinished. How many bytes that were.
    pub(super) fn copy(&mut self, bytes: &[u8], link: &LinkRuntime) -> Result<usize, String> {
        let room = self.room().unwrap_or_default();
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        self.filled(count, link)?;
        Ok(count)
    }

    /// Reads a frame and what is here of its payload. No payload is unfinished.
    pub(super) fn begin(&mut self, bytes: &[u8], link: &LinkRuntime) -> Result<Begun, String> {
        let (frame, head) = match self.decode(bytes, link)? {
            Decoded::Frame(frame, head) => (frame, head),
            Decoded::Short(need) => return Ok(Begun::Short(need)),
        };
        let most = u64::from(link.config.limits.first_window);
        if matches!(frame, Frame::Small(_)) && frame.payload_bytes() > most {
            // Before any memory is taken for it.
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

    /// Where the bytes of a chunk go.
    pub(super) fn chunk(
        &mut self,
        frame: &Frame,
        link: &LinkRuntime,
    ) -> Result<WriteRange, String> {
        let admitted = link.frame(self.lane, frame, &[])?;
        Ok(self.range(admitted))
    }
}

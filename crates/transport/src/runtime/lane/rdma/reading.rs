//! What arrives through a channel: frames whose payloads follow, or lie in their receive buffers already.

use super::{DIRECT, STREAM};
use crate::machine::frame::{Decoded, Frame};
use crate::machine::{ProtocolViolation, WriteRange};
use crate::runtime::LinkRuntime;
use rgaps_verbs::Arrived;

/// A payload of which some bytes are still to arrive, in the next records.
enum Unfinished {
    /// A small message: its frame. What is here of it is in `Reading::small`.
    Small(Frame, usize),
    /// A chunk, and how many bytes of it are there.
    Chunk(WriteRange, usize),
}

/// Reads a lane's records. Heads of frames lie whole in one, payloads may continue in the next.
pub(super) struct Reading {
    lane: u32,
    unfinished: Option<Unfinished>,
    /// A small message that is not whole.
    small: Vec<u8>,
}

impl Reading {
    pub(super) fn new(lane: u32) -> Self {
        Self {
            lane,
            unfinished: None,
            small: Vec::new(),
        }
    }

    /// What the peer posted. How many bytes its card had written by itself.
    pub(super) fn arrived(
        &mut self,
        arrived: Arrived<'_>,
        link: &LinkRuntime,
    ) -> Result<u64, String> {
        match arrived {
            Arrived::Frame(record) => self.record(record, link),
            Arrived::Written { mark, bytes } => {
                let range = link.marked(self.lane, mark, bytes)?;
                self.written(range, bytes.into(), link)
            }
        }
    }

    fn record(&mut self, record: &[u8], link: &LinkRuntime) -> Result<u64, String> {
        match record.split_first() {
            Some((&STREAM, bytes)) => self.bytes(bytes, link).map(|()| 0),
            Some((&DIRECT, head)) => self.direct(head, link),
            _ => Err(self.violation("it is of no kind", link)),
        }
    }

    fn violation(&self, what: &'static str, link: &LinkRuntime) -> String {
        let frame = "record";
        link.disconnect(Some(self.lane), &ProtocolViolation::State { frame, what })
    }

    /// A chunk that the peer's card wrote.
    fn direct(&mut self, head: &[u8], link: &LinkRuntime) -> Result<u64, String> {
        let (frame, used) = self.frame(head, link)?;
        if used < head.len() {
            return Err(self.violation("it has more than one chunk's frame", link));
        }
        let Frame::Chunk { bytes, .. } = frame else {
            return Err(self.violation("its frame is not a chunk's", link));
        };
        let range = link.frame(self.lane, &frame, &[])?;
        let range = range.expect("a chunk has a range, or is a violation");
        self.written(range, bytes.into(), link)
    }

    fn written(
        &mut self,
        range: WriteRange,
        bytes: u64,
        link: &LinkRuntime,
    ) -> Result<u64, String> {
        if self.unfinished.is_some() {
            return Err(self.violation("it is within another's payload", link));
        }
        if !range.may_be_direct() {
            return Err(self.violation("its grant named no address", link));
        }
        link.landed(range, true);
        Ok(bytes)
    }

    fn frame(&self, bytes: &[u8], link: &LinkRuntime) -> Result<(Frame, usize), String> {
        match Frame::decode(bytes) {
            Ok(Decoded::Frame(frame, used)) => Ok((frame, used)),
            Ok(Decoded::Short(_)) => Err(self.violation("it cuts a frame's head", link)),
            Err(error) => Err(link.disconnect(Some(self.lane), &error)),
        }
    }

    fn bytes(&mut self, mut bytes: &[u8], link: &LinkRuntime) -> Result<(), String> {
        while !bytes.is_empty() {
            bytes = match self.unfinished.take() {
                Some(Unfinished::Chunk(range, done)) => self.chunk(range, done, bytes, link),
                Some(Unfinished::Small(frame, left)) => {
                    let (now, rest) = bytes.split_at(bytes.len().min(left));
                    self.small.extend_from_slice(now);
                    if now.len() < left {
                        self.unfinished = Some(Unfinished::Small(frame, left - now.len()));
                    } else {
                        link.frame(self.lane, &frame, &self.small)?;
                        self.small.clear();
                    }
                    rest
                }
                None => self.begin(bytes, link)?,
            };
        }
        Ok(())
    }

    /// A frame, and what is here of its payload. The bytes behind it.
    fn begin<'a>(&mut self, bytes: &'a [u8], link: &LinkRuntime) -> Result<&'a [u8], String> {
        let (frame, used) = self.frame(bytes, link)?;
        link.check_small(self.lane, &frame)?;
        let bytes = &bytes[used..];
        if let Frame::Chunk { .. } = frame {
            let range = link.frame(self.lane, &frame, &[])?;
            let range = range.expect("a chunk has a range, or is a violation");
            return Ok(self.chunk(range, 0, bytes, link));
        }
        let payload = usize::try_from(frame.payload_bytes()).expect("it is bounded");
        if payload <= bytes.len() {
            let (payload, rest) = bytes.split_at(payload);
            link.frame(self.lane, &frame, payload)?;
            return Ok(rest);
        }
        self.small.extend_from_slice(bytes);
        self.unfinished = Some(Unfinished::Small(frame, payload - bytes.len()));
        Ok(&[])
    }

    /// Bytes of a chunk of which `done` are there. The bytes behind it.
    fn chunk<'a>(
        &mut self,
        mut range: WriteRange,
        done: usize,
        bytes: &'a [u8],
        link: &LinkRuntime,
    ) -> &'a [u8] {
        let into = &mut range.as_mut_slice()[done..];
        let (now, rest) = bytes.split_at(bytes.len().min(into.len()));
        into[..now.len()].copy_from_slice(now);
        match now.len() == into.len() {
            true => link.landed(range, false),
            false => self.unfinished = Some(Unfinished::Chunk(range, done + now.len())),
        }
        rest
    }
}

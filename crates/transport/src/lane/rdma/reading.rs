//! What comes through a channel: frames whose payloads follow, or are in their place already.

use super::{DIRECT, STREAM};
use crate::driver::{fill, Destination};
use crate::frame::{Decoded, Frame};
use crate::running::Running;
use rgaps_verbs::Arrived;

/// Reads a lane's records. Heads of frames lie whole in one, payloads may go on in the next.
pub(super) struct Reading {
    lane: u32,
    /// A payload of which some is here: where it goes, how much of it is there, how much it is.
    landing: Option<(Option<Destination>, usize, usize)>,
    /// A small message that is not whole.
    small: Vec<u8>,
}

impl Reading {
    pub(super) fn new(lane: u32) -> Self {
        Self {
            lane,
            landing: None,
            small: Vec::new(),
        }
    }

    /// What the peer posted. How many bytes it had written by itself.
    pub(super) fn arrived(&mut self, arrived: Arrived<'_>, link: &Running) -> Result<u64, String> {
        match arrived {
            Arrived::Frame(record) => self.record(record, link),
            Arrived::Written { mark, bytes } => {
                let destination = link.marked(self.lane, mark, bytes)?;
                self.written(destination, u64::from(bytes), link)
            }
        }
    }

    fn record(&mut self, record: &[u8], link: &Running) -> Result<u64, String> {
        match record.split_first() {
            Some((&STREAM, bytes)) => self.bytes(bytes, link).map(|()| 0),
            Some((&DIRECT, head)) => self.direct(head, link),
            _ => Err(self.lie("its record is of no kind", link)),
        }
    }

    fn lie(&self, what: &'static str, link: &Running) -> String {
        link.cut_off(self.lane, &crate::link::lie("record", what))
    }

    /// A chunk that the peer wrote itself.
    fn direct(&mut self, head: &[u8], link: &Running) -> Result<u64, String> {
        let (frame, used) = self.frame(head, link)?;
        if used < head.len() {
            return Err(self.lie("it has more than one chunk's frame", link));
        }
        let destination = link.frame(self.lane, &frame)?;
        self.written(destination, frame.payload_bytes(), link)
    }

    fn written(
        &mut self,
        destination: Option<Destination>,
        bytes: u64,
        link: &Running,
    ) -> Result<u64, String> {
        let Some(Destination::Chunk(mut chunk)) = destination else {
            return Err(self.lie("it says directly what is no chunk", link));
        };
        if self.landing.is_some() {
            return Err(self.lie("it is within another's payload", link));
        }
        if !chunk.is_remote {
            return Err(self.lie("nobody told it where that place is", link));
        }
        if chunk.part.take().is_some() {
            link.landed_part(&chunk, bytes, true);
        }
        link.landed(self.lane, &[])?;
        Ok(bytes)
    }

    fn frame(&self, bytes: &[u8], link: &Running) -> Result<(Frame, usize), String> {
        match Frame::decode(bytes) {
            Ok(Decoded::Frame(frame, used)) => Ok((frame, used)),
            Ok(Decoded::Short(_)) => Err(self.lie("it cuts a frame's head", link)),
            Err(error) => Err(link.cut_off(self.lane, &error)),
        }
    }

    fn bytes(&mut self, mut bytes: &[u8], link: &Running) -> Result<(), String> {
        while !bytes.is_empty() {
            let (mut destination, done, all) = match self.landing.take() {
                Some(landing) => landing,
                None => {
                    let (frame, used) = self.frame(bytes, link)?;
                    bytes = &bytes[used..];
                    let all = usize::try_from(frame.payload_bytes()).expect("it is bounded");
                    (link.frame(self.lane, &frame)?, 0, all)
                }
            };
            if all == 0 {
                continue;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(all - done));
            bytes = rest;
            let is_whole = done + now.len() == all;
            match &mut destination {
                Some(Destination::Hand) if now.len() == all => {}
                Some(Destination::Hand) => self.small.extend_from_slice(now),
                Some(Destination::Chunk(chunk)) => fill(&mut chunk.part, done, now),
                None => {}
            }
            if !is_whole {
                self.landing = Some((destination, done + now.len(), all));
                continue;
            }
            if let Some(Destination::Chunk(mut chunk)) = destination {
                if chunk.part.take().is_some() {
                    link.landed_part(&chunk, all as u64, false);
                }
            }
            let small = if now.len() == all { now } else { &self.small };
            link.landed(self.lane, small)?;
            self.small.clear();
        }
        Ok(())
    }
}

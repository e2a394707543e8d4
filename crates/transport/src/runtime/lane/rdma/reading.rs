//! Takes apart the records that arrive through a channel. The payload of a record's frame follows the frame, or lies in its receive
//! buffer already. A frame's head lies whole in one record; a payload may continue in the next.

use super::{DIRECT, STREAM};
use crate::machine::frame::{Decoded, Frame};
use crate::machine::WriteRange;
use crate::runtime::lane::reading::{Begun, Reading};
use crate::runtime::LinkRuntime;
use rgaps_verbs::Arrived;

impl Reading {
    /// Handles a record or a mark that arrived. Returns how many bytes the peer's card wrote directly.
    pub(super) fn arrived(
        &mut self,
        arrived: Arrived<'_>,
        link: &LinkRuntime,
    ) -> Result<u64, String> {
        let record = match arrived {
            Arrived::Frame(record) => record,
            Arrived::Written { mark, bytes } => {
                let admitted = link.marked(self.lane, mark, bytes)?;
                let range = self.range(admitted);
                return self.written(range, bytes.into(), link);
            }
        };
        match record.split_first() {
            Some((&STREAM, bytes)) => self.stream(bytes, link).map(|()| 0),
            Some((&DIRECT, head)) => self.direct(head, link),
            _ => Err(self.violation("it is of no kind", link)),
        }
    }

    fn violation(&self, what: &'static str, link: &LinkRuntime) -> String {
        link.violated(Some(self.lane), "record", what)
    }

    fn stream(&mut self, mut bytes: &[u8], link: &LinkRuntime) -> Result<(), String> {
        while !bytes.is_empty() {
            let used = match self.room() {
                Some(_) => self.copy(bytes, link)?,
                None => match self.begin(bytes, link)? {
                    Begun::Frame { used, .. } => used,
                    Begun::Short(_) => return Err(self.violation("it cuts a frame's head", link)),
                },
            };
            bytes = &bytes[used..];
        }
        Ok(())
    }

    /// Handles the record of a chunk that the peer's card wrote directly.
    fn direct(&mut self, head: &[u8], link: &LinkRuntime) -> Result<u64, String> {
        match self.decode(head, link)? {
            Decoded::Frame(frame @ Frame::Chunk(_), used) if used == head.len() => {
                let range = self.chunk(&frame, link)?;
                self.written(range, frame.payload_bytes(), link)
            }
            _ => Err(self.violation("it is not one chunk's frame", link)),
        }
    }

    /// Marks a chunk as landed that the peer's card wrote directly.
    fn written(
        &mut self,
        range: WriteRange,
        bytes: u64,
        link: &LinkRuntime,
    ) -> Result<u64, String> {
        if self.room().is_some() {
            return Err(self.violation("it is within another's payload", link));
        }
        if !range.may_be_direct() {
            return Err(self.violation("its grant named no address", link));
        }
        self.landed(range, true, link);
        Ok(bytes)
    }
}

//! A batch: frames that a lane writes together, and how much of them is written. A frame's *head* is its encoding, with the description of
//! a small message; its payload follows.

use crate::machine::frame::{Chunk, Frame, Remote};
use crate::machine::QueuedFrame;
use crate::payload::Payload;
use rgaps_verbs::MARK_MAX;
use std::convert::Infallible;
use std::io::IoSlice;
use std::sync::Arc;

/// The most frames of a batch.
const BATCH_FRAMES: usize = 32;
/// Slices for the heads and payloads of a full batch.
pub(crate) const BATCH_SLICES: usize = 2 * BATCH_FRAMES;
/// The most frames of a short batch.
pub(crate) const FEW_FRAMES: usize = 4;
/// A batch with so many bytes of payloads takes no further frame.
const BATCH_BYTES: usize = 256 << 10;

/// A part of a message: its payload, the first offset, and the offset after the last.
pub(crate) type Bytes = (Arc<dyn Payload>, usize, usize);

/// A frame of a batch.
struct Item {
    /// The end of its head in [`Batch::heads`].
    head_end: usize,
    queued: QueuedFrame,
}

impl Item {
    /// The mark that can replace its head if its payload is written directly: for a chunk that is a whole message.
    fn mark(&self) -> Option<u32> {
        match (&self.queued.frame, &self.queued.payload) {
            (Frame::Chunk(Chunk { grant, .. }), Some((of, 0, to))) if *to == of.bytes() => {
                Some((*grant & u64::from(MARK_MAX)) as u32)
            }
            _ => None,
        }
    }
}

/// What a lane that can write the peer's memory posts next. `D`: how it writes a payload directly.
pub(crate) enum Piece<'a, D> {
    /// Heads and payloads in their order: the count of slices and of bytes. The last payload may be cut.
    Stream(usize, usize),
    /// A frame whose payload is written directly: the rest of its head, how to write it, the bytes of head and payload, and a mark that may
    /// replace the head.
    Direct(&'a [u8], D, usize, Option<u32>),
}

/// Frames that a lane writes together, and how much of them is written.
#[derive(Default)]
pub(crate) struct Batch {
    /// The heads of all frames, one after the other.
    heads: Vec<u8>,
    items: Vec<Item>,
    /// Bytes of all heads and payloads.
    bytes: usize,
    payload_bytes: usize,
    /// How many of `bytes` are written.
    done: usize,
}

impl Batch {
    /// Whether nothing is left to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.done == self.bytes
    }

    pub(crate) fn is_short(&self) -> bool {
        self.items.len() <= FEW_FRAMES
    }

    pub(crate) fn has_room(&self) -> bool {
        self.items.len() < BATCH_FRAMES && self.payload_bytes < BATCH_BYTES
    }

    /// Fills the slices with the unwritten rest, for a lane that may write any part of it. Returns how many it filled.
    pub(crate) fn slices<'a>(&'a self, into: &mut [IoSlice<'a>; BATCH_SLICES]) -> usize {
        match self.piece(usize::MAX, into, |_, _| None::<Infallible>) {
            Piece::Stream(count, _) => count,
            Piece::Direct(_, never, ..) => match never {},
        }
    }

    /// The next piece of a batch that is not empty: heads and payloads of at most `most` bytes together, of which only the last payload may
    /// be cut; or one frame whose payload `direct` can write directly.
    pub(crate) fn piece<'a, D>(
        &'a self,
        most: usize,
        into: &mut [IoSlice<'a>],
        direct: impl Fn(&Bytes, &Remote) -> Option<D>,
    ) -> Piece<'a, D> {
        let (mut count, mut bytes) = (0, 0);
        for (start, head, item) in self.frames() {
            let payload_start = start + head.len();
            if payload_start + item.queued.bytes() <= self.done {
                continue;
            }
            if self.done < payload_start {
                let head = &head[self.done.saturating_sub(start)..];
                let both = item
                    .queued
                    .payload
                    .as_ref()
                    .zip(item.queued.remote.as_ref());
                let writes = both.and_then(|(payload, remote)| direct(payload, remote));
                match writes {
                    Some(writes) if count == 0 => {
                        let bytes = head.len() + item.queued.bytes();
                        return Piece::Direct(head, writes, bytes, item.mark());
                    }
                    None if bytes + head.len() <= most => {}
                    _ => break,
                }
                into[count] = IoSlice::new(head);
                (count, bytes) = (count + 1, bytes + head.len());
            }
            if let Some((payload, from, to)) = &item.queued.payload {
                let from = from + self.done.saturating_sub(payload_start);
                let end = (*to).min(from.saturating_add(most - bytes));
                if from < end {
                    into[count] = IoSlice::new(payload.slice(from, end));
                    (count, bytes) = (count + 1, bytes + (end - from));
                }
                if end < *to {
                    break;
                }
            }
        }
        Piece::Stream(count, bytes)
    }

    /// How many payloads are written to their last byte.
    pub(crate) fn payloads_done(&self) -> usize {
        let is_done = |(start, head, item): &(usize, &[u8], &Item)| {
            item.queued.payload.is_some() && start + head.len() + item.queued.bytes() <= self.done
        };
        self.frames().filter(is_done).count()
    }

    /// Each frame: the offset of its head in the batch's bytes, the head, and the item.
    fn frames(&self) -> impl Iterator<Item = (usize, &[u8], &Item)> {
        let (mut start, mut head_start) = (0, 0);
        self.items.iter().map(move |item| {
            let head = &self.heads[head_start..item.head_end];
            let frame = (start, head, item);
            head_start = item.head_end;
            start += head.len() + item.queued.bytes();
            frame
        })
    }

    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.done += bytes;
    }

    pub(crate) fn clear(&mut self) {
        self.heads.clear();
        self.items.clear();
        (self.bytes, self.payload_bytes, self.done) = (0, 0, 0);
    }

    pub(crate) fn push(&mut self, queued: QueuedFrame) {
        let before = self.heads.len();
        queued.frame.encode(&mut self.heads);
        let description = queued.description.as_ref();
        self.heads
            .extend_from_slice(description.map_or(&[], |of| of.as_slice()));
        self.bytes += self.heads.len() - before + queued.bytes();
        self.payload_bytes += queued.bytes();
        let head_end = self.heads.len();
        let item = Item { head_end, queued };
        self.items.push(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::frame::{Alive, Description, Refuse};

    fn queued(
        bytes: u32,
        payload: &Arc<dyn Payload>,
        (from, to): (usize, usize),
        remote: Option<Remote>,
    ) -> QueuedFrame {
        QueuedFrame {
            frame: Chunk {
                grant: 1,
                chunk: 0,
                bytes,
            }
            .into(),
            description: None,
            payload: Some((Arc::clone(payload), from, to)),
            remote,
        }
    }

    fn bytes_of(slices: &[IoSlice<'_>]) -> Vec<u8> {
        slices.iter().flat_map(|slice| slice.to_vec()).collect()
    }

    /// Writes a batch in pieces of at most `most` bytes. `may`: payloads with an address go directly; such a piece comes with its
    /// payload's offset.
    fn pieces(batch: &mut Batch, most: usize, may: bool) -> Vec<(Vec<u8>, Option<u64>)> {
        let mut all = Vec::new();
        while !batch.is_empty() {
            let mut slices = [IoSlice::new(&[]); BATCH_SLICES];
            let way = |(_, from, _): &Bytes, _: &Remote| may.then_some(*from as u64);
            let (piece, direct, wrote) = match batch.piece(most, &mut slices, way) {
                Piece::Stream(count, bytes) => {
                    assert_eq!(bytes_of(&slices[..count]).len(), bytes);
                    (bytes_of(&slices[..count]), None, bytes)
                }
                Piece::Direct(head, at, bytes, None) => (head.to_vec(), Some(at), bytes),
                Piece::Direct(..) => panic!("none is a whole message"),
            };
            assert!(wrote > 0 && piece.len() <= most);
            batch.wrote(wrote);
            all.push((piece, direct));
        }
        all
    }

    fn batch() -> (Batch, Vec<u8>) {
        let payload: Arc<dyn Payload> = Arc::new((0..=255).cycle().take(1000).collect::<Vec<u8>>());
        let remote = Remote::new(1 << 20, &[7]);
        let mut batch = Batch::default();
        batch.push(Alive {}.into());
        batch.push(queued(300, &payload, (100, 400), remote));
        let why = Description::new(&[1; 9]).unwrap();
        batch.push(Refuse { flow: 1, why }.into());
        batch.push(queued(600, &payload, (400, 1000), None));
        let mut slices = [IoSlice::new(&[]); BATCH_SLICES];
        let count = batch.slices(&mut slices);
        let all = bytes_of(&slices[..count]);
        (batch, all)
    }

    #[test]
    fn pieces_are_the_stream_whatever_their_size_and_keep_heads_whole() {
        for most in [64, 100, 333, 5000] {
            let (mut batch, all) = batch();
            let pieces = pieces(&mut batch, most, false);
            let together: Vec<u8> = pieces.iter().flat_map(|(piece, _)| piece.clone()).collect();
            assert_eq!(together, all, "at most {most}");
            assert_eq!(batch.payloads_done(), 2);
        }
    }

    #[test]
    fn payloads_that_have_a_way_go_alone_with_their_frame() {
        let (mut batch, all) = batch();
        let pieces = pieces(&mut batch, 5000, true);
        let ways: Vec<Option<u64>> = pieces.iter().map(|(_, way)| *way).collect();
        assert_eq!(ways, [None, Some(100), None]);
        let sent: usize = pieces.iter().map(|(piece, _)| piece.len()).sum();
        assert_eq!(sent + 300, all.len());
    }
}

//! The eager ring's cursors: 64-bit counts of bytes that never go back, so no position is ambiguous.
//!
//! ```text
//! delayed head <= head <= tail <= delayed head + ring
//! (sender's view)  (receiver)  (sender)
//! ```
//! Frames lie contiguous and aligned: one that would cross the ring's end starts at its beginning, and
//! the bytes left out count as part of it. A frame is at most a quarter of the ring. With the
//! largest watermark, a half, at most a half (not returned), a quarter (left out at the end) and a
//! quarter (the frame) have to fit, so a ring that is read empty takes any frame whatever the watermark.

use thiserror::Error;

/// Frames start at multiples of this, so that 32 bits of immediate data can name a frame.
pub const FRAME_ALIGN: u64 = 64;
/// A frame is at most this part of its ring.
pub const FRAME_PART: u64 = 4;
/// The largest ring: its frames' slots have to fit into 28 bits of immediate data.
pub const RING_BYTES_MAX: u64 = FRAME_ALIGN << 28;

/// A ring's size, and where frames lie in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    bytes: u64,
    frame_bytes_max: u64,
}

/// Why a size is none that a ring can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a ring cannot have {bytes} bytes; its size must be a multiple of 256 bytes, above 0 and at most {RING_BYTES_MAX}")]
pub struct RingError {
    /// What was asked for.
    pub bytes: u64,
}

impl Ring {
    /// A ring of so many bytes.
    pub fn new(bytes: u64) -> Result<Self, RingError> {
        if bytes == 0 || bytes % (FRAME_ALIGN * FRAME_PART) != 0 || bytes > RING_BYTES_MAX {
            return Err(RingError { bytes });
        }
        let frame_bytes_max = bytes / FRAME_PART;
        Ok(Self {
            bytes,
            frame_bytes_max,
        })
    }

    /// The thesis's ring, whose frames may be as large as itself: to show in tests what hangs there.
    #[cfg(test)]
    fn of_the_thesis(bytes: u64) -> Self {
        Self {
            bytes,
            frame_bytes_max: bytes,
        }
    }

    /// Its size.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// The largest frame.
    pub fn frame_bytes_max(self) -> u64 {
        self.frame_bytes_max
    }

    /// Where in the ring's memory the byte of a cursor lies.
    pub fn offset(self, cursor: u64) -> u64 {
        cursor % self.bytes
    }

    /// Where a frame starts that follows `after`, and where the next one may start.
    /// `None` if the frame is empty or too large, or cursors come to their end (after exabytes).
    fn span(self, after: u64, frame_bytes: u64) -> Option<(u64, u64)> {
        if frame_bytes == 0 || frame_bytes > self.frame_bytes_max {
            return None;
        }
        let length = frame_bytes.checked_next_multiple_of(FRAME_ALIGN)?;
        let to_end = self.bytes - self.offset(after);
        let start = if length <= to_end {
            after
        } else {
            after.checked_add(to_end)?
        };
        Some((start, start.checked_add(length)?))
    }
}

/// The part of the ring that is read before the head is returned without being asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watermark {
    /// After each frame.
    Zero,
    /// An eighth.
    Eighth,
    /// A quarter.
    #[default]
    Quarter,
    /// A half.
    Half,
}

impl Watermark {
    fn bytes(self, ring: Ring) -> u64 {
        match self {
            Self::Zero => 0,
            Self::Eighth => ring.bytes / 8,
            Self::Quarter => ring.bytes / 4,
            Self::Half => ring.bytes / 2,
        }
    }
}

/// A frame's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The cursor at which it starts; travels with the frame.
    pub cursor: u64,
    /// Where it starts in the ring's memory.
    pub offset: u64,
}

/// What came of asking for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// There is room here.
    At(Slot),
    /// There is none before the head moves. The receiver is to be told, once ([`Sender::stalled`]).
    Full,
}

/// A frame that no state of the ring could take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a frame of {bytes} bytes does not fit into a ring whose frames have 1 to {max} bytes; request a grant")]
pub struct FrameSizeError {
    /// The frame.
    pub bytes: u64,
    /// The largest that could.
    pub max: u64,
}

/// What a peer says about its cursors and cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CursorViolation {
    /// A head beyond what was sent.
    #[error("the peer returned head {head}, but only {tail} bytes were sent")]
    Head {
        /// What it said.
        head: u64,
        /// Our tail.
        tail: u64,
    },
    /// A frame that is not where the next one has to be.
    #[error(
        "the peer sent a frame of {bytes} bytes at {cursor}; after {after}, no frame can start there"
    )]
    Frame {
        /// Where it says that the frame starts.
        cursor: u64,
        /// The frame's size.
        bytes: u64,
        /// Where the last one ended.
        after: u64,
    },
    /// A frame over bytes that were not returned.
    #[error(
        "the peer sent a frame up to {end}, over bytes from {head} on that it knows to be in use"
    )]
    Overrun {
        /// Where it ends.
        end: u64,
        /// The head that was returned.
        head: u64,
    },
}

/// The sending end: tail and delayed head.
#[derive(Clone, Debug)]
pub struct Sender {
    ring: Ring,
    tail: u64,
    delayed_head: u64,
    stalled: bool,
}

impl Sender {
    /// The end of an empty ring.
    pub fn new(ring: Ring) -> Self {
        Self {
            ring,
            tail: 0,
            delayed_head: 0,
            stalled: false,
        }
    }

    /// The ring that it writes.
    pub fn ring(&self) -> Ring {
        self.ring
    }

    /// Everything sent so far.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Takes room for a frame: the thesis's *Exceed* check, which with these cursors is one comparison
    /// whether the free bytes lie in one piece or around the end.
    pub fn reserve(&mut self, frame_bytes: u64) -> Result<Reserved, FrameSizeError> {
        let max = self.ring.frame_bytes_max;
        let error = FrameSizeError {
            bytes: frame_bytes,
            max,
        };
        let (start, end) = self.ring.span(self.tail, frame_bytes).ok_or(error)?;
        if end - self.delayed_head > self.ring.bytes {
            return Ok(Reserved::Full);
        }
        self.tail = end;
        self.stalled = false;
        Ok(Reserved::At(Slot {
            cursor: start,
            offset: self.ring.offset(start),
        }))
    }

    /// Whether the receiver is to be told that a frame does not fit: once for each time.
    pub fn stalled(&mut self) -> bool {
        !std::mem::replace(&mut self.stalled, true)
    }

    /// The receiver returned its head. An older one than the last changes nothing.
    pub fn head_returned(&mut self, head: u64) -> Result<(), CursorViolation> {
        if head > self.tail {
            return Err(CursorViolation::Head {
                head,
                tail: self.tail,
            });
        }
        if head > self.delayed_head {
            self.delayed_head = head;
            // Still too little for the frame that waits: it says so again.
            self.stalled = false;
        }
        Ok(())
    }

    /// Whether everything sent was read and returned.
    pub fn is_drained(&self) -> bool {
        self.delayed_head == self.tail
    }
}

/// The receiving end: head, and what the sender knows of it.
#[derive(Clone, Debug)]
pub struct Receiver {
    ring: Ring,
    watermark_bytes: u64,
    arrived: u64,
    head: u64,
    returned: u64,
}

impl Receiver {
    /// The end of an empty ring.
    pub fn new(ring: Ring, watermark: Watermark) -> Self {
        let watermark_bytes = watermark.bytes(ring);
        Self {
            ring,
            watermark_bytes,
            arrived: 0,
            head: 0,
            returned: 0,
        }
    }

    /// Checks a frame that the sender says it puts (or has put) at `cursor`; frames of a ring travel in
    /// their order, on its one lane.
    pub fn admit(&mut self, cursor: u64, frame_bytes: u64) -> Result<Slot, CursorViolation> {
        let after = self.arrived;
        let violation = CursorViolation::Frame {
            cursor,
            bytes: frame_bytes,
            after,
        };
        let (start, end) = self.ring.span(after, frame_bytes).ok_or(violation)?;
        if start != cursor {
            return Err(violation);
        }
        if end - self.returned > self.ring.bytes {
            return Err(CursorViolation::Overrun {
                end,
                head: self.returned,
            });
        }
        self.arrived = end;
        Ok(Slot {
            cursor,
            offset: self.ring.offset(start),
        })
    }

    /// All that was admitted has been read.
    pub fn consume(&mut self) {
        self.head = self.arrived;
    }

    /// The head, if enough was read since it was returned last; it counts as returned with this.
    pub fn head_at_watermark(&mut self) -> Option<u64> {
        let due = self.head - self.returned >= self.watermark_bytes.max(1);
        due.then(|| self.take_head())
    }

    /// The head, if it moved at all: for a sender that stalls and for an idle link.
    pub fn head_if_moved(&mut self) -> Option<u64> {
        self.head_has_moved().then(|| self.take_head())
    }

    /// Whether it moved since the sender heard of it.
    pub fn head_has_moved(&self) -> bool {
        self.head != self.returned
    }

    fn take_head(&mut self) -> u64 {
        self.returned = self.head;
        self.head
    }
}

#[cfg(test)]
#[path = "cursors_tests.rs"]
mod tests;

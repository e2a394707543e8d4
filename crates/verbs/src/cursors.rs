//! The cursors of the ring of frames: 64-bit counts of bytes that only grow, so no position is ambiguous.
//!
//! ```text
//! delayed head <= head <= tail <= delayed head + ring
//! (sender's view)  (receiver)  (sender)
//! ```
//! Frames are contiguous and aligned. A frame that would cross the ring's end starts at the ring's beginning, and
//! the skipped bytes count as part of it. A frame is at most a quarter of the ring. So a ring that was read empty takes any
//! frame, whatever the watermark: at most a half of it is read and not returned, less than a quarter is skipped, and the
//! frame is at most a quarter.

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

/// A size that no ring can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a ring cannot have {bytes} bytes; its size must be a multiple of 256 bytes, above 0 and at most {RING_BYTES_MAX}")]
pub struct RingError {
    /// The size.
    pub bytes: u64,
}

impl Ring {
    /// Creates a ring of so many bytes.
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

    /// The ring of the thesis, whose frames may be as large as the ring. Tests show that it can hang.
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

    /// The size of the largest frame.
    pub fn frame_bytes_max(self) -> u64 {
        self.frame_bytes_max
    }

    /// The offset in the ring's memory of the byte at a cursor.
    pub fn offset(self, cursor: u64) -> u64 {
        cursor % self.bytes
    }

    /// The cursor at which a frame starts whose predecessor ended at `after`, and the cursor at which it ends itself.
    /// `None`: the frame is empty or too large, or a cursor overflows (after exabytes).
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

/// The part of the ring that the receiver reads before it returns the head unasked.
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

/// The position of a frame in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The cursor at which it starts. The frame's header repeats it.
    pub cursor: u64,
    /// The offset at which it starts in the ring's memory.
    pub offset: u64,
}

/// The result of [`Sender::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// The frame's slot, which is now reserved.
    At(Slot),
    /// There is no room before the head moves. Tell the receiver so if [`Sender::stalled`] says true.
    Full,
}

/// A frame that no state of the ring could take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a frame of {bytes} bytes does not fit into a ring whose frames have 1 to {max} bytes; request a grant")]
pub struct FrameSizeError {
    /// The frame's size.
    pub bytes: u64,
    /// The size of the largest frame.
    pub max: u64,
}

/// A cursor of the peer that violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CursorViolation {
    /// A head beyond the last byte sent.
    #[error("the peer returned head {head}, but only {tail} bytes were sent")]
    Head {
        /// The peer's head.
        head: u64,
        /// This side's tail.
        tail: u64,
    },
    /// A frame that does not start where the next one has to.
    #[error(
        "the peer sent a frame of {bytes} bytes at {cursor}; after {after}, no frame can start there"
    )]
    Frame {
        /// The start that the peer claims.
        cursor: u64,
        /// The frame's size.
        bytes: u64,
        /// The end of the frame before.
        after: u64,
    },
    /// A frame over bytes that this side has not returned yet.
    #[error(
        "the peer sent a frame up to {end}, over bytes from {head} on that it knows to be in use"
    )]
    Overrun {
        /// The frame's end.
        end: u64,
        /// The head that this side returned last.
        head: u64,
    },
}

/// The sending end: tail and delayed head.
#[derive(Clone, Debug)]
pub struct Sender {
    ring: Ring,
    tail: u64,
    /// The head as the receiver returned it last.
    delayed_head: u64,
    /// Whether [`Sender::stalled`] has returned true since the last frame or newer head.
    stalled: bool,
}

impl Sender {
    /// Creates the end of an empty ring.
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

    /// The cursor behind the last frame reserved.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Reserves room for a frame. This is the *Exceed* check of the thesis; with these cursors it is one comparison,
    /// whether or not the free bytes wrap around the ring's end.
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

    /// Whether to tell the receiver that a frame does not fit: true once, and again after the next frame or newer head.
    pub fn stalled(&mut self) -> bool {
        !std::mem::replace(&mut self.stalled, true)
    }

    /// Call when the receiver returned its head. A head older than the last changes nothing.
    pub fn head_returned(&mut self, head: u64) -> Result<(), CursorViolation> {
        if head > self.tail {
            return Err(CursorViolation::Head {
                head,
                tail: self.tail,
            });
        }
        if head > self.delayed_head {
            self.delayed_head = head;
            // If the frame still does not fit, the receiver has to be told again.
            self.stalled = false;
        }
        Ok(())
    }

    /// Whether everything sent was read and returned.
    pub fn is_drained(&self) -> bool {
        self.delayed_head == self.tail
    }
}

/// The receiving end: the head, and the head that the sender knows.
#[derive(Clone, Debug)]
pub struct Receiver {
    ring: Ring,
    watermark_bytes: u64,
    /// The end of the last frame admitted.
    arrived: u64,
    /// The end of the last frame read.
    head: u64,
    /// The head that was returned last.
    returned: u64,
}

impl Receiver {
    /// Creates the end of an empty ring.
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

    /// Checks the frame that the sender wrote, by its own word, at `cursor`, and returns its slot. Frames arrive in the order in
    /// which they were sent.
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

    /// Call when all admitted frames have been read: moves the head behind them.
    pub fn consume(&mut self) {
        self.head = self.arrived;
    }

    /// Returns the head if at least the watermark was read since it was returned last; it then counts as returned.
    pub fn head_at_watermark(&mut self) -> Option<u64> {
        let due = self.head - self.returned >= self.watermark_bytes.max(1);
        due.then(|| self.take_head())
    }

    /// Returns the head if it moved at all, for a sender that stalls and for an idle link; it then counts as returned.
    pub fn head_if_moved(&mut self) -> Option<u64> {
        self.head_has_moved().then(|| self.take_head())
    }

    /// Whether the head moved since it was returned last.
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

//! Frames: a header of 32 bytes, the encoded call or reply, and bytes of memory behind it.
//!
//! ```text
//!  0        4       6       8        10          16          24        32
//!  | length | flags | thread | device | zero      | request   | bulk    | body (length) | bytes (bulk)
//!  |   u32  |  u16  |  u16  |  u16   |           |   u64     |  u64    |
//! ```
//! Numbers are little-endian. This module does no I/O.

use crate::limits::{BODY_BYTES_MAX, BULK_BYTES_MAX, CLIENT_THREADS_MAX, STRIPES_MAX};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;
/// Nobody waits for an answer: the server sends none, and reports a failure with the thread's next answer.
pub const QUIET: u16 = 1;

/// The high byte of the flags: over how many stripes the bytes behind the frame travel; 0: behind the frame.
const STRIPES_SHIFT: u16 = 8;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FrameHeader {
    /// Bytes of the body.
    pub length: u32,
    /// [`QUIET`] or nothing, and in the high byte the number of stripes.
    pub flags: u16,
    /// The client's thread.
    pub thread: u16,
    /// The device that is current on that thread.
    pub device: u16,
    /// The client's number of the call; an answer repeats it.
    pub request: u64,
    /// Bytes of memory that follow the body.
    pub bulk: u64,
}

/// A peer broke the protocol. The connection cannot go on.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
#[error("protocol violation: {0}")]
pub struct Violation(pub &'static str);

impl FrameHeader {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.thread.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.device.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.request.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.bulk.to_le_bytes());
        bytes
    }

    /// Reads and checks a header from a peer.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<FrameHeader, Violation> {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let long = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(eight)
        };
        let header = FrameHeader {
            length: long(0) as u32,
            flags: word(4),
            thread: word(6),
            device: word(8),
            request: long(16),
            bulk: long(24),
        };
        if header.length as usize > BODY_BYTES_MAX {
            return Err(Violation("a body over the limit"));
        }
        if header.bulk > BULK_BYTES_MAX {
            return Err(Violation("more bytes behind a frame than the limit"));
        }
        let is_striped = header.stripes() > 0;
        if header.flags & 0xff & !QUIET != 0 || bytes[10..16] != [0; 6] {
            return Err(Violation("bits that mean nothing are set"));
        }
        if header.stripes() > STRIPES_MAX || is_striped && header.bulk == 0 {
            return Err(Violation(
                "more stripes than the limit, or stripes without bytes",
            ));
        }
        if header.thread >= CLIENT_THREADS_MAX {
            return Err(Violation("a thread over the limit"));
        }
        Ok(header)
    }

    /// Over how many stripes the bytes travel; 0: behind the frame.
    pub fn stripes(&self) -> usize {
        usize::from(self.flags >> STRIPES_SHIFT)
    }

    /// The flags for so many stripes.
    pub fn striped(stripes: usize) -> u16 {
        (stripes as u16) << STRIPES_SHIFT
    }

    /// Whether nobody waits for an answer.
    pub fn is_quiet(&self) -> bool {
        self.flags & QUIET != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire() {
        let header = FrameHeader {
            length: 77,
            flags: QUIET,
            thread: 3,
            device: 2,
            request: 1 << 40,
            bulk: 12345,
        };
        assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn headers_over_a_limit_are_refused() {
        let base = FrameHeader::default();
        for wrong in [
            FrameHeader {
                length: BODY_BYTES_MAX as u32 + 1,
                ..base
            },
            FrameHeader { flags: 2, ..base },
            FrameHeader {
                thread: CLIENT_THREADS_MAX,
                ..base
            },
            FrameHeader {
                flags: FrameHeader::striped(STRIPES_MAX + 1),
                bulk: 1,
                ..base
            },
            FrameHeader {
                flags: FrameHeader::striped(2),
                ..base
            },
            FrameHeader {
                bulk: BULK_BYTES_MAX + 1,
                ..base
            },
        ] {
            assert!(FrameHeader::decode(&wrong.encode()).is_err(), "{wrong:?}");
        }
        let mut bytes = base.encode();
        bytes[12] = 1;
        assert!(FrameHeader::decode(&bytes).is_err());
    }
}

//! What can go wrong, before a channel stands and on it.

use crate::cursors::{CursorViolation, FrameSizeError, RingError};
use crate::status::{DeviceEvent, Status};
use thiserror::Error;

/// A device, registration or channel cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VerbsError {
    /// The library is not there.
    #[error("loading {library} failed ({reason}); install rdma-core's libibverbs1 and ibverbs-providers")]
    LibraryMissing {
        /// Its name.
        library: String,
        /// The loader's reason.
        reason: String,
    },
    /// The library lacks a function.
    #[error("{library} has no {symbol}; install a newer rdma-core")]
    TooOld {
        /// The library.
        library: String,
        /// The function.
        symbol: &'static str,
    },
    /// A call failed.
    #[error("{call}: {}", std::io::Error::from_raw_os_error(*errno))]
    Call {
        /// Verbs' name of it.
        call: &'static str,
        /// The error's number.
        errno: i32,
    },
    /// The device has no address that RoCE v2 can use.
    #[error("{device} has no port with a link and a RoCE v2 address over IPv4; give its network interface an IPv4 address")]
    NoAddress {
        /// The device.
        device: String,
    },
    /// There is no such device.
    #[error("there is no RDMA device {device}; 'rgaps doctor' lists those of this host")]
    NoDevice {
        /// Its name.
        device: String,
    },
    /// A ring of this size cannot be.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The device gives fewer queue slots than a channel needs.
    #[error("the device provides {given} {what}, but a channel needs at least {least}")]
    Depth {
        /// Which.
        what: &'static str,
        /// How many it gives.
        given: u32,
        /// How many it takes.
        least: u32,
    },
    /// An address that no channel has, or that does not fit this end.
    #[error("the peer's channel address is invalid: {why}")]
    Address {
        /// What is wrong.
        why: &'static str,
    },
}

/// What a peer did that none does that keeps the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChannelViolation {
    /// A frame or head at a wrong cursor.
    #[error(transparent)]
    Cursor(#[from] CursorViolation),
    /// Immediate data without a meaning.
    #[error("the immediate data {0:#010x} are invalid")]
    Immediate(u32),
    /// The slot in the immediate data is not the frame's.
    #[error("the immediate data name slot {slot}, but the next frame is at {expected}")]
    Slot {
        /// What it names.
        slot: u64,
        /// Where the frame has to be.
        expected: u64,
    },
    /// A frame's header is not that of the frame that was written.
    #[error("a frame of {wrote} bytes has the length {claimed} and the number {number} in its header; the expected number is {expected}")]
    Header {
        /// Bytes that were written, the header's included.
        wrote: u32,
        /// Bytes that the header says, its own included.
        claimed: u64,
        /// The number in the header.
        number: u32,
        /// The next frame's.
        expected: u32,
    },
    /// More receives than it can have posted.
    #[error("the peer claims {claimed} posted receives, but can have at most {most}")]
    Receives {
        /// What it says.
        claimed: u64,
        /// What can be.
        most: u64,
    },
    /// A stall said while the last one is not answered, or a head that nobody asked for.
    #[error("an unexpected {0} notice")]
    Turn(&'static str),
}

/// Why a channel ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChannelError {
    /// A work request failed.
    #[error("{what} ended with {status} (vendor's code {vendor:#x})")]
    Completion {
        /// What was being done.
        what: &'static str,
        /// How it ended.
        status: Status,
        /// The provider's own code.
        vendor: u32,
    },
    /// The peer broke the protocol.
    #[error("the peer violates the protocol: {0}")]
    Violation(#[from] ChannelViolation),
    /// The device said so.
    #[error("{0}")]
    Event(DeviceEvent),
    /// A call failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// It was closed on this side.
    #[error("the channel is closed")]
    Closed,
    /// Whoever took the frames refused one.
    #[error("{0}")]
    Refused(String),
    /// A frame that the ring can never take. The channel goes on.
    #[error(transparent)]
    FrameSize(#[from] FrameSizeError),
    /// A direct write outside of its region, or longer than one may be. The channel goes on.
    #[error("a direct write of {bytes} bytes at {offset} is not possible in a region of {region} bytes; a write has 1 to {max} bytes and lies inside the region")]
    Direct {
        /// Where in the region.
        offset: u64,
        /// How many.
        bytes: u64,
        /// The region's bytes.
        region: u64,
        /// The longest.
        max: u64,
    },
}

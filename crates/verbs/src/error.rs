//! Errors of devices and memory, and the reasons for which a channel ends.

use crate::cursors::{CursorViolation, FrameSizeError, RingError};
use crate::status::{DeviceEvent, Status};
use thiserror::Error;

/// Why a device, a registration or a channel could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VerbsError {
    /// The library could not be loaded.
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
        /// The call's name.
        call: &'static str,
        /// The error number.
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
    /// The ring's size is invalid.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The device gives fewer queue slots than a channel needs.
    #[error("the device provides {given} {what}, but a channel needs at least {least}")]
    Depth {
        /// Which slots: `send slots`, `receives` or `completions`.
        what: &'static str,
        /// How many the device gives.
        given: u32,
        /// How many a channel needs.
        least: u32,
    },
    /// A peer's address that is invalid, or an end that is connected already or not yet.
    #[error("the peer's channel address is invalid: {why}")]
    Address {
        /// The reason.
        why: &'static str,
    },
}

/// How a peer violated the protocol of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChannelViolation {
    /// A frame or head at a wrong cursor.
    #[error(transparent)]
    Cursor(#[from] CursorViolation),
    /// Immediate data that are no notice.
    #[error("the immediate data {0:#010x} are invalid")]
    Immediate(u32),
    /// The slot in the immediate data is not the frame's.
    #[error("the immediate data name slot {slot}, but the next frame is at {expected}")]
    Slot {
        /// The offset in the ring that the immediate data name.
        slot: u64,
        /// The offset of the next frame.
        expected: u64,
    },
    /// A frame's header does not match the frame that was written.
    #[error("a frame of {wrote} bytes has the length {claimed} and the number {number} in its header; the expected number is {expected}")]
    Header {
        /// How many bytes the peer wrote, with the header.
        wrote: u32,
        /// How many bytes the header claims, with the header.
        claimed: u64,
        /// The frame's number in the header.
        number: u32,
        /// The number that the next frame must have.
        expected: u32,
    },
    /// The peer's count of posted receives is higher than it can be.
    #[error("the peer claims {claimed} posted receives, but can have at most {most}")]
    Receives {
        /// The peer's count.
        claimed: u64,
        /// The highest possible count.
        most: u64,
    },
    /// A stall notice before this side answered the last one, or a head notice without a stall of this side. The text is the
    /// notice's name.
    #[error("an unexpected {0} notice")]
    Turn(&'static str),
}

/// Why a channel ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChannelError {
    /// A work request failed.
    #[error("{what} ended with {status} (vendor's code {vendor:#x})")]
    Completion {
        /// Which request: `a receive` or `a write`.
        what: &'static str,
        /// How the request ended.
        status: Status,
        /// The provider's own code.
        vendor: u32,
    },
    /// The peer broke the protocol.
    #[error("the peer violates the protocol: {0}")]
    Violation(#[from] ChannelViolation),
    /// The device reported an event that ends channels.
    #[error("{0}")]
    Event(DeviceEvent),
    /// A call failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// It was closed on this side.
    #[error("the channel is closed")]
    Closed,
    /// The receiver's callback refused a frame, for this reason.
    #[error("{0}")]
    Refused(String),
    /// A frame that the ring can never take. The channel goes on.
    #[error(transparent)]
    FrameSize(#[from] FrameSizeError),
    /// A direct write outside of its region, or longer than one may be. The channel goes on.
    #[error("a direct write of {bytes} bytes at {offset} is not possible in a region of {region} bytes; a write has 1 to {max} bytes and lies inside the region")]
    Direct {
        /// Where the write starts in the region.
        offset: u64,
        /// The write's bytes.
        bytes: u64,
        /// The region's bytes.
        region: u64,
        /// The most bytes of a write.
        max: u64,
    },
}

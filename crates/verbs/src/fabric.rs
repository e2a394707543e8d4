//! What a channel needs of a device. Two implement it: libibverbs, and two ends in one process.

use crate::error::VerbsError;
use crate::status::{DeviceEvent, Status};
use std::os::fd::BorrowedFd;

/// What may be done with registered memory. The device always reads it for what this side sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing more.
    LocalRead,
    /// The peer may write it.
    RemoteWrite,
}

/// The numbers by which a device knows registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) local: u32,
    pub(crate) remote: u32,
}

/// Registered memory; deregistered when dropped.
pub(crate) trait Registration: Send + Sync {
    fn keys(&self) -> Keys;
}

/// How many of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depths {
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    pub(crate) completions: u32,
    pub(crate) inline_bytes: u32,
}

/// Where a queue pair is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueAddress {
    pub(crate) gid: [u8; 16],
    pub(crate) number: u32,
    pub(crate) first_packet: u32,
    /// `enum ibv_mtu`.
    pub(crate) mtu: u8,
}

/// A device that is open, with its one protection domain.
pub(crate) trait Fabric: Send + Sync {
    fn name(&self) -> &str;

    /// The most bytes of a packet, as `enum ibv_mtu` has it.
    fn mtu(&self) -> u8;

    /// # Safety
    /// The memory stays until the registration is dropped.
    unsafe fn register(
        &self,
        start: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Box<dyn Registration>, VerbsError>;

    /// A dma-buf's bytes, which are known by the addresses from `address` on.
    fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        address: u64,
        access: Access,
    ) -> Result<Box<dyn Registration>, VerbsError>;

    fn queue_pair(&self, wanted: Depths) -> Result<Box<dyn QueuePair>, VerbsError>;

    /// Readable when [`Fabric::event`] has something.
    fn events_fd(&self) -> BorrowedFd<'_>;

    /// The next event; does not wait.
    fn event(&self) -> Option<(Concerns, DeviceEvent)>;
}

/// Whom an event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Concerns {
    All,
    QueuePair(u32),
}

/// One write, with or without immediate data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// Comes back in the completion.
    pub(crate) number: u64,
    pub(crate) local: *const u8,
    pub(crate) bytes: u32,
    pub(crate) local_key: u32,
    pub(crate) remote: u64,
    pub(crate) remote_key: u32,
    pub(crate) immediate: Option<u32>,
    pub(crate) signalled: bool,
    /// The bytes are copied when it is posted; keys do not matter.
    pub(crate) inline: bool,
}

// SAFETY: a `Work` only carries the pointer. Who posts it promises that it may be followed (`QueuePair::post`).
unsafe impl Send for Work {}

/// How work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// This work and all before it are done.
    Sent { number: u64 },
    /// The peer's write of so many bytes is done.
    Received { immediate: u32, bytes: u32 },
    /// It failed, or was flushed. `number` is that of the work or receive.
    Failed {
        number: u64,
        status: Status,
        vendor: u32,
    },
}

/// A reliable connected queue pair with its completion queue and channel. Its destruction ends all that the
/// device does for it; failed, it takes nothing from the peer any more.
pub(crate) trait QueuePair: Send + Sync {
    /// What the device really gave.
    fn depths(&self) -> Depths;
    fn address(&self) -> QueueAddress;
    /// The peer's device is asked so many more times before it counts as gone.
    fn connect(&self, peer: &QueueAddress, retries: u8) -> Result<(), VerbsError>;

    /// Posts these in order, with one doorbell.
    ///
    /// # Safety
    /// Inline bytes (`Work::inline`) can be read, and do not change, until this returns. Others stay, as far as they lie
    /// in registered memory (a device reads no others), until the work is completed or the queue pair is destroyed.
    unsafe fn post(&self, works: &[Work]) -> Result<(), VerbsError>;

    /// Posts receives without memory, with one doorbell; `number` is what each has.
    fn post_receives(&self, count: u32, number: u64) -> Result<(), VerbsError>;

    /// What has completed since; how many of `into` are filled.
    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError>;

    /// The next completion makes the descriptor readable.
    fn arm(&self) -> Result<(), VerbsError>;
    fn completions_fd(&self) -> BorrowedFd<'_>;
    /// The descriptor was readable.
    fn woken(&self) -> Result<(), VerbsError>;

    /// Into the error state.
    fn fail(&self) -> Result<(), VerbsError>;
}

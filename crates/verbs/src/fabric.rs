//! The traits that a channel needs from a device. `verbs` implements them on libibverbs, `in_process` within one process.

use crate::error::VerbsError;
use crate::status::{DeviceEvent, Status};
use std::os::fd::BorrowedFd;

/// Who may access registered memory. The device may always read it, for what this side sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only this side's device, to read it.
    LocalRead,
    /// The peer may also write it.
    RemoteWrite,
}

/// The keys of registered memory: this side's works use `local`, the peer's `remote`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) local: u32,
    pub(crate) remote: u32,
}

/// Registered memory; deregistered when dropped.
pub(crate) trait Registration: Send + Sync {
    fn keys(&self) -> Keys;
}

/// The capacities of a queue pair and its completion queue; `inline_bytes` is the most for one work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depths {
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    pub(crate) completions: u32,
    pub(crate) inline_bytes: u32,
}

/// What a peer needs to connect to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueAddress {
    pub(crate) gid: [u8; 16],
    pub(crate) number: u32,
    /// The sequence number of the first packet that this end sends, 24 bits.
    pub(crate) first_packet: u32,
    /// `enum ibv_mtu`.
    pub(crate) mtu: u8,
}

/// An open device with one protection domain.
pub(crate) trait Fabric: Send + Sync {
    fn name(&self) -> &str;

    /// The MTU of the port, a value of `enum ibv_mtu`.
    fn mtu(&self) -> u8;

    /// Registers the `bytes` bytes at `start`.
    ///
    /// # Safety
    /// The memory stays mapped until the registration is dropped.
    unsafe fn register(
        &self,
        start: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Box<dyn Registration>, VerbsError>;

    /// Registers `bytes` bytes of a dma-buf from `offset` on. Works and peers name them by addresses from `address` on.
    fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        address: u64,
        access: Access,
    ) -> Result<Box<dyn Registration>, VerbsError>;

    fn queue_pair(&self, wanted: Depths) -> Result<Box<dyn QueuePair>, VerbsError>;

    /// A descriptor that is readable while [`Fabric::event`] has an event.
    fn events_fd(&self) -> BorrowedFd<'_>;

    /// Takes the next event that concerns channels. Does not wait.
    fn event(&self) -> Option<(Concerns, DeviceEvent)>;
}

/// Which channels of the device an event concerns: all, or the one with this queue pair number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Concerns {
    All,
    QueuePair(u32),
}

/// An RDMA write, with or without immediate data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// The work's identifier (`wr_id`), which its completion repeats.
    pub(crate) number: u64,
    pub(crate) local: *const u8,
    pub(crate) bytes: u32,
    pub(crate) local_key: u32,
    pub(crate) remote: u64,
    pub(crate) remote_key: u32,
    pub(crate) immediate: Option<u32>,
    pub(crate) signalled: bool,
    /// Posting copies the bytes into the work request. They need not be registered, and `local_key` is ignored.
    pub(crate) inline: bool,
}

// SAFETY: a `Work` contains the pointer and never follows it. Whoever calls `QueuePair::post` promises that its bytes are there.
unsafe impl Send for Work {}

/// How a work or a receive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// This signalled work and all works before it are done.
    Sent { number: u64 },
    /// A receive took the notice of a peer's write with immediate data. Its `bytes` bytes are in memory.
    Received { immediate: u32, bytes: u32 },
    /// The work or receive `number` failed or was flushed. `vendor` is the device's own code.
    Failed {
        number: u64,
        status: Status,
        vendor: u32,
    },
}

/// A reliable connected queue pair with its completion queue and completion channel. Once it has failed, the peer can
/// write nothing through it; once it is dropped, the device accesses no memory for it.
pub(crate) trait QueuePair: Send + Sync {
    /// The capacities that the device gave, which may differ from the wanted ones.
    fn depths(&self) -> Depths;
    fn address(&self) -> QueueAddress;
    /// Connects to the peer's queue pair. `retries`: how often the device sends again without an answer of the peer's
    /// device before a work fails with [`Status::RetryExceeded`].
    fn connect(&self, peer: &QueueAddress, retries: u8) -> Result<(), VerbsError>;

    /// Posts the works in order, many with one doorbell.
    ///
    /// # Safety
    /// The bytes of an inline work stay readable and unchanged until this returns. The bytes of any other work, where
    /// they are registered, stay mapped until the work has completed or the queue pair is dropped. (The device reads
    /// only registered bytes.)
    unsafe fn post(&self, works: &[Work]) -> Result<(), VerbsError>;

    /// Posts `count` receives without memory, each with this `number`. Each takes the notice of one write of the peer.
    fn post_receives(&self, count: u32, number: u64) -> Result<(), VerbsError>;

    /// Takes completions into `into`, without waiting. Returns how many.
    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError>;

    /// Lets the next completion make [`QueuePair::completions_fd`] readable, once.
    fn arm(&self) -> Result<(), VerbsError>;
    fn completions_fd(&self) -> BorrowedFd<'_>;
    /// Call when `completions_fd` was readable: makes it unreadable again.
    fn woken(&self) -> Result<(), VerbsError>;

    /// Puts the queue pair into the error state, which flushes all works and receives.
    fn fail(&self) -> Result<(), VerbsError>;
}

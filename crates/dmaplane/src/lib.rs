//! The calls of the kernel module `dmaplane` (`kernel/dmaplane`), as safe Rust. No other crate makes them.
//!
//! The module has two devices. [`Device`] is `/dev/dmaplane`, the interface of the dmaplane paper, call for call: channels,
//! buffers, RDMA by the kernel, measurements. [`Realm`] is `/dev/dmaplane-pool`, made for pools: memory with a quota, in
//! dma-bufs that can be revoked.
//!
//! Calls of the paper's interface take and return the records of its header, since that is their contract. The kernel checks
//! the numbers in them (handles, keys), so every value is safe to pass. New descriptors are returned as
//! [`OwnedFd`](std::os::fd::OwnedFd).
//!
//! Invariants: each record has the size and offsets of its C structure, and each call the number of its C macro. A test
//! compiles the header and compares.

#![warn(clippy::too_many_lines)]

mod abi;
mod device;
mod error;
mod realm;

pub use abi::device::*;
pub use device::{Access, BufferKind, Device};
pub use error::Error;
pub use realm::{Allocated, DmaBufInfo, Realm, Usage, Wanted};

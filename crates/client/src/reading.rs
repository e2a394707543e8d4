//! How a subscriber that named a domain reads messages of other domains.
//!
//! For most messages the publisher made a replica in the subscriber's domain. Some have none: small messages of a peer GPU, host
//! messages for an integrated GPU, and history that was published before anyone read in another domain. The subscriber reads
//! these in place if its GPU or CPU can, and otherwise makes a private copy.

use crate::client::PoolMapping;
use rgaps_cuda::{Context, DeviceBuffer};
use rgaps_layout::{Domain, BLOCK_ALIGN};
use rgaps_pool::{Mapping, PoolError};
use rgaps_session::PoolGrant;
use std::sync::Arc;

/// A private copy: a message's bytes in memory of this process.
#[derive(Debug)]
pub(crate) enum Private {
    Host(Vec<Line>),
    Cuda(DeviceBuffer),
}

/// [`BLOCK_ALIGN`] bytes of a copy, aligned like a block.
#[repr(C, align(256))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line([u8; BLOCK_ALIGN as usize]);

impl Private {
    /// Copies `bytes` bytes at `offset` of a pool to the GPU `to`, or to the host if that is None. The GPU work that writes them must
    /// have finished.
    pub(crate) fn copy(
        from: &PoolMapping,
        offset: u64,
        bytes: u64,
        to: Option<&Arc<Context>>,
    ) -> Result<Private, PoolError> {
        let lines = bytes.div_ceil(BLOCK_ALIGN) as usize;
        let mut host = vec![Line([0; BLOCK_ALIGN as usize]); lines];
        let whole = as_bytes_mut(&mut host);
        from.read(offset, &mut whole[..bytes as usize])?;
        match to {
            None => Ok(Private::Host(host)),
            Some(context) => {
                let uuid = context.device().uuid;
                // SAFETY: `host` has at least `bytes` bytes, and stays allocated and unchanged until the call returns.
                let copy = unsafe {
                    DeviceBuffer::copy_of(context.clone(), host.as_ptr().addr() as u64, bytes)
                };
                Ok(Private::Cuda(copy.map_err(|error| error.into_pool(uuid))?))
            }
        }
    }

    pub(crate) fn domain(&self) -> Domain {
        match self {
            Private::Host(_) => Domain::Host,
            Private::Cuda(buffer) => Domain::Cuda(buffer.context().device().uuid),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        match self {
            Private::Host(lines) => lines.as_ptr().addr() as u64,
            Private::Cuda(buffer) => buffer.address(),
        }
    }

    /// Copies bytes from `at` on to the host. The caller has checked that the range lies in the message.
    pub(crate) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), PoolError> {
        match self {
            Private::Host(lines) => {
                bytes.copy_from_slice(&as_bytes(lines)[at as usize..][..bytes.len()]);
                Ok(())
            }
            Private::Cuda(buffer) => {
                let uuid = buffer.context().device().uuid;
                let read = buffer.read_at(at, bytes);
                read.map_err(|error| error.into_pool(uuid))
            }
        }
    }

    /// The bytes of a copy in host memory, padded to whole lines. Empty for a copy on a GPU.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Private::Host(lines) => as_bytes(lines),
            Private::Cuda(_) => &[],
        }
    }
}

fn as_bytes(lines: &[Line]) -> &[u8] {
    // SAFETY: a line is an array of bytes without padding, since its size equals its alignment; the slice has `size_of_val` bytes.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

fn as_bytes_mut(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: a line is an array of bytes without padding, since its size equals its alignment; so the slice is `size_of_val` bytes.
    // The result borrows the lines exclusively, and every byte value is a valid line.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

/// Whether a GPU, or the CPU if `context` is None, can read the messages of `pool` in place.
pub(crate) fn is_reached(context: Option<&Arc<Context>>, pool: &PoolGrant) -> bool {
    match (pool.domain, context) {
        (Domain::Host, None) => true,
        // An integrated GPU shares the host's memory.
        (Domain::Host, Some(context)) => context.device().reads_host_memory(),
        (Domain::Cuda(uuid), Some(context)) => {
            let reaches = context.driver().reaches(context.device(), uuid);
            reaches.unwrap_or(false)
        }
        _ => false,
    }
}

/// Text for listings: why a reader gets messages of the domain `home` as replicas. `reader`: its GPU; None: the CPU.
pub(crate) fn how_copied(reader: Option<&Arc<Context>>, home: Option<Domain>) -> &'static str {
    match (reader, home) {
        (None, _) => {
            "copied once for all readers on the host: the messages are on a GPU, whose memory the \
             CPU cannot map"
        }
        (Some(_), Some(Domain::Host)) => {
            "copied once for all readers on this GPU: the messages are on the host"
        }
        (Some(gpu), Some(Domain::Cuda(from))) => match gpu.driver().reaches(gpu.device(), from) {
            Ok(true) => {
                "copied once for all readers on this GPU, over the peer connection: larger than \
                 pool.cuda.map_max, or pool.cuda.peer is \"copy\""
            }
            Ok(false) => {
                "copied once for all readers on this GPU, over pinned host memory: the GPUs have no \
                 peer access"
            }
            Err(_) => {
                "copied once for all readers on this GPU: this process does not see the GPU that \
                 holds the messages"
            }
        },
        (Some(_), None) => "copied once for all readers on this GPU",
    }
}

/// Text for listings: why a reader reads messages of the domain `home` in place.
pub(crate) fn how_read_directly(home: Option<Domain>) -> &'static str {
    match home {
        Some(Domain::Host) => "read in place: the GPU is integrated and shares the host's memory",
        _ => "read in place: the GPUs have peer access, and the message is small or was not copied",
    }
}

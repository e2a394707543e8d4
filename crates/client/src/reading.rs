//! Messages of other domains, for a subscriber that reads in one of its own.
//!
//! Most come as copies that their publisher made there. What has none (small messages of a peer GPU, the
//! host's for an integrated GPU, history that was published before anyone read elsewhere) is read where
//! it is, if the GPU reaches it, or else copied by the subscriber, for itself.

use crate::client::PoolMapping;
use rgaps_cuda::{Context, DeviceBuffer};
use rgaps_layout::{Domain, BLOCK_ALIGN};
use rgaps_pool::{Mapping, PoolError};
use rgaps_session::PoolGrant;
use std::sync::Arc;

/// A message's bytes in memory of this process's own.
#[derive(Debug)]
pub(crate) enum Private {
    Host(Vec<Line>),
    Cuda(DeviceBuffer),
}

/// As much of a copy as is aligned alike.
#[repr(C, align(256))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line([u8; BLOCK_ALIGN as usize]);

impl Private {
    /// Copies the bytes at `offset` of a pool, which are there, to the subscriber's domain.
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
                // SAFETY: the bytes are ours, and not touched before the call returns.
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

    /// Copies bytes from `at` on to the host. The range lies in the message.
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

    /// The bytes, of a copy in host memory.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Private::Host(lines) => as_bytes(lines),
            Private::Cuda(_) => &[],
        }
    }
}

fn as_bytes(lines: &[Line]) -> &[u8] {
    // SAFETY: lines are arrays of bytes without padding: their size is their alignment.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

fn as_bytes_mut(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: lines are arrays of bytes without padding: their size is their alignment. They are borrowed exclusively.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

/// Whether what is in `pool` can be read by a GPU, or the CPU, without a copy.
pub(crate) fn is_reached(context: Option<&Arc<Context>>, pool: &PoolGrant) -> bool {
    match (pool.domain, context) {
        (Domain::Host, None) => true,
        // It shares the host's memory.
        (Domain::Host, Some(context)) => context.device().reads_host_memory(),
        (Domain::Cuda(uuid), Some(context)) => {
            let reaches = context.driver().reaches(context.device(), uuid);
            reaches.unwrap_or(false)
        }
        _ => false,
    }
}

/// How and why messages of the domain `home` come to a reader as copies that their publisher made.
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

/// Why a reader can do without a copy of messages of the domain `home`.
pub(crate) fn how_read_directly(home: Option<Domain>) -> &'static str {
    match home {
        Some(Domain::Host) => "read in place: the GPU is integrated and shares the host's memory",
        _ => "read in place: the GPUs have peer access, and the message is small or was not copied",
    }
}

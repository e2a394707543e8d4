//! Allocation of device memory for the runtime and the driver.

use crate::handles::streams;
use crate::memory;
use crate::session::check_alive;
use rgaps_remoting::{Call, Code};

/// Rows of pitched memory begin at multiples of this, as CUDA's do on all current GPUs.
const PITCH_BYTES: usize = 512;

/// Allocates memory of the current device; gives 0 for 0 bytes.
pub(crate) fn allocate(bytes: usize) -> Result<u64, Code> {
    match bytes {
        0 => check_alive().map(|()| 0),
        bytes => memory::allocate(
            &Call::Allocate {
                bytes: bytes as u64,
            },
            bytes as u64,
        ),
    }
}

/// Allocates memory in the order of a stream; gives 0 for 0 bytes.
pub(crate) fn allocate_on(bytes: usize, stream: u64) -> Result<u64, Code> {
    let bytes = bytes as u64;
    match bytes {
        0 => check_alive().map(|()| 0),
        bytes => streams::at_stream(stream, || {
            memory::allocate(&Call::AllocateOnStream { bytes, stream }, bytes)
        }),
    }
}

/// The pitch (bytes from a row to the next) of pitched memory, and its size in bytes.
pub(crate) fn pitched(width: usize, height: usize, depth: usize) -> Result<(usize, usize), Code> {
    let pitch = width
        .checked_next_multiple_of(PITCH_BYTES)
        .ok_or(Code::INVALID_VALUE)?;
    let bytes = pitch
        .checked_mul(height)
        .and_then(|layer| layer.checked_mul(depth));
    Ok((pitch, bytes.ok_or(Code::OUT_OF_MEMORY)?))
}

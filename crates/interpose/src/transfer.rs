//! Copies and fills. Bytes for the device are on their way when the call returns; nobody waits for the copy. Bytes of the device
//! are there when the call returns, also where CUDA would let the program go on.

use crate::{memory, session};
use rgaps_remoting::{Call, Code, Extent, Pitched};

/// From where to where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// From the program's memory to the device.
    In,
    /// From the device to the program's memory.
    Out,
    /// From a device to a device.
    Within,
    /// From the program's memory to the program's memory.
    Host,
}

impl Direction {
    /// What the addresses say.
    pub(crate) fn of(to: u64, from: u64) -> Direction {
        match (
            memory::device_at(from).is_some(),
            memory::device_at(to).is_some(),
        ) {
            (false, true) => Direction::In,
            (true, false) => Direction::Out,
            (true, true) => Direction::Within,
            (false, false) => Direction::Host,
        }
    }
}

/// One row.
pub(crate) fn row(address: u64, bytes: u64) -> (Pitched, Extent) {
    let at = Pitched {
        address,
        row_bytes: bytes,
        layer_bytes: bytes,
    };
    let extent = Extent {
        width_bytes: bytes,
        height: 1,
        depth: 1,
    };
    (at, extent)
}

/// Bytes from the first to behind the last of rows.
fn span(at: &Pitched, extent: &Extent) -> Result<u64, Code> {
    let rows = extent.height > 1 || extent.depth > 1;
    if rows && at.row_bytes < extent.width_bytes {
        return Err(Code::INVALID_PITCH);
    }
    let layers = at.layer_bytes.checked_mul(extent.depth.saturating_sub(1));
    let rows = at.row_bytes.checked_mul(extent.height.saturating_sub(1));
    let all = layers
        .zip(rows)
        .and_then(|(layers, rows)| layers.checked_add(rows));
    all.and_then(|all| all.checked_add(extent.width_bytes))
        .ok_or(Code::INVALID_VALUE)
}

/// Queues a fill with elements of a value and a width; extents count bytes.
pub(crate) fn fill(
    to: Pitched,
    extent: Extent,
    (value, width): (u32, u8),
    stream: u64,
) -> Result<(), Code> {
    if extent.bytes() == Some(0) {
        return session::check_alive();
    }
    memory::check(to.address, span(&to, &extent)?)?;
    let call = Call::Fill {
        to,
        extent,
        value,
        width,
        stream,
    };
    session::send(&call, &[])
}

/// The direction, if the addresses say the same.
fn agreed(to: u64, from: u64, direction: Direction) -> Result<Direction, Code> {
    match Direction::of(to, from) == direction {
        true => Ok(direction),
        false => Err(Code::INVALID_VALUE),
    }
}

/// Copies bytes.
pub(crate) fn copy(
    to: u64,
    from: u64,
    bytes: usize,
    direction: Direction,
    stream: u64,
) -> Result<(), Code> {
    if bytes == 0 {
        return session::check_alive();
    }
    if to == 0 || from == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let length = bytes as u64;
    match agreed(to, from, direction)? {
        Direction::In => {
            memory::check(to, length)?;
            // SAFETY: the program passes memory of its own of this length, which it does not change while it calls.
            let source = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
            session::send(&Call::CopyIn { to, stream }, source)
        }
        Direction::Out => {
            memory::check(from, length)?;
            let call = Call::CopyOut {
                from,
                bytes: length,
                stream,
            };
            // SAFETY: the program passes memory of its own of this length, which it does not use while it calls.
            unsafe { session::call_out(&call, to as *mut u8, bytes) }
        }
        Direction::Within => {
            memory::check(to, length)?;
            memory::check(from, length)?;
            session::send(
                &Call::Copy {
                    to,
                    from,
                    bytes: length,
                    stream,
                },
                &[],
            )
        }
        Direction::Host => {
            // What the stream was given before comes first.
            session::call(&Call::StreamSynchronize { stream }, &[])?;
            // SAFETY: the program passes two places of this length of its own.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
            Ok(())
        }
    }
}

/// The rows of a [`Pitched`] of this host, one after the other.
fn each_row(at: &Pitched, extent: &Extent, mut act: impl FnMut(usize, usize)) {
    let mut packed = 0;
    for layer in 0..extent.depth {
        for row in 0..extent.height {
            let address = at.address + layer * at.layer_bytes + row * at.row_bytes;
            act(address as usize, packed);
            packed += extent.width_bytes as usize;
        }
    }
}

/// Copies rows.
pub(crate) fn copy_rows(
    to: Pitched,
    from: Pitched,
    extent: Extent,
    direction: Direction,
    stream: u64,
) -> Result<(), Code> {
    let bytes = extent.bytes().ok_or(Code::INVALID_VALUE)?;
    let (to_span, from_span) = (span(&to, &extent)?, span(&from, &extent)?);
    if bytes == 0 {
        return session::check_alive();
    }
    if to.address == 0 || from.address == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let width = extent.width_bytes as usize;
    match agreed(to.address, from.address, direction)? {
        Direction::In => {
            memory::check(to.address, to_span)?;
            let mut packed = Vec::with_capacity(bytes as usize);
            each_row(&from, &extent, |address, _| {
                // SAFETY: the program passes rows of its own of this width, which it does not change while it calls.
                packed.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(address as *const u8, width)
                });
            });
            session::send(&Call::CopyInRows { to, extent, stream }, &packed)
        }
        Direction::Out => {
            memory::check(from.address, from_span)?;
            let mut packed = vec![0u8; bytes as usize];
            let call = Call::CopyOutRows {
                from,
                extent,
                stream,
            };
            // SAFETY: the buffer is this function's, and has this length.
            unsafe { session::call_out(&call, packed.as_mut_ptr(), packed.len())? };
            each_row(&to, &extent, |address, at| {
                // SAFETY: the program passes rows of its own of this width, which it does not use while it calls.
                unsafe {
                    (address as *mut u8)
                        .copy_from_nonoverlapping(packed[at..at + width].as_ptr(), width)
                };
            });
            Ok(())
        }
        Direction::Within => {
            memory::check(to.address, to_span)?;
            memory::check(from.address, from_span)?;
            let call = Call::CopyRows {
                to,
                from,
                extent,
                stream,
            };
            session::send(&call, &[])
        }
        Direction::Host => {
            session::call(&Call::StreamSynchronize { stream }, &[])?;
            each_row(&to, &extent, |address, at| {
                let row = (at / width) as u64;
                let (layer, row) = (row / extent.height, row % extent.height);
                let source = from.address + layer * from.layer_bytes + row * from.row_bytes;
                // SAFETY: the program passes rows of its own of this width.
                unsafe { std::ptr::copy(source as *const u8, address as *mut u8, width) };
            });
            Ok(())
        }
    }
}

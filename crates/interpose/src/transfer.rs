//! Copies and fills.
//!
//! Host memory that the backend has, too (`cudaHostAlloc` on the server's own host) is copied by the GPU, in the order of the stream. Of
//! other memory, bytes for the device have been read when the call returns, and nobody waits for the copy; bytes of the device are there
//! when the call returns. They go through slots of shared memory (`bulk`), or over the connection.

use crate::handles::{arrays, streams};
use crate::host_copy::{copy_in, copy_out};
use crate::servers::{are_several, at, number_of};
use crate::{managed, memory, session, thread};
use rgaps_remoting::{pieces, row, Call, Code, Extent, Pitched};

/// Most bytes that a copy from a server to another has on this host at a time.
const THROUGH_HOST_BYTES: u64 = 8 << 20;

/// Where a copy is queued, and whether the program waits for one that the GPU can make beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Order {
    stream: u64,
    is_waited_for: bool,
}

impl Order {
    /// The program waits.
    pub(crate) fn wait(stream: u64) -> Order {
        Order {
            stream,
            is_waited_for: true,
        }
    }

    /// The program goes on.
    pub(crate) fn queue(stream: u64) -> Order {
        Order {
            stream,
            is_waited_for: false,
        }
    }
}

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
    pub(crate) fn of(to: &Pitched, from: &Pitched) -> Direction {
        match (is_on_device(from), is_on_device(to)) {
            (false, true) => Direction::In,
            (true, false) => Direction::Out,
            (true, true) => Direction::Within,
            (false, false) => Direction::Host,
        }
    }
}

fn is_on_device(at: &Pitched) -> bool {
    at.array != 0 || memory::device_at(at.address).is_some()
}

fn is_managed(at: &Pitched) -> bool {
    at.array == 0 && managed::is_managed(at.address)
}

/// Refuses a place on a device that is not all the program's.
fn check(at: &Pitched, extent: &Extent) -> Result<(), Code> {
    match at.array {
        0 => memory::check(at.address, span(at, extent)?),
        _ => arrays::check(at, extent),
    }
}

/// Bytes from the first to behind the last of rows.
fn span(at: &Pitched, extent: &Extent) -> Result<u64, Code> {
    let rows = extent.height > 1 || extent.depth > 1;
    if rows && at.row_bytes < extent.width_bytes {
        return Err(match at.array {
            0 => Code::INVALID_PITCH,
            _ => Code::INVALID_VALUE,
        });
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
    check(&to, &extent)?;
    let device = device_of(&to);
    match are_apart(&[device], stream) {
        false => at(device.unwrap_or_else(thread::device), || {
            fill_here(to, extent, (value, width), stream)
        }),
        true => {
            finish(stream)?;
            let act = || fill_here(to, extent, (value, width), 0).and_then(|()| settle(0));
            at(device.unwrap_or_else(thread::device), act)
        }
    }
}

/// The same on the current server.
fn fill_here(
    to: Pitched,
    extent: Extent,
    (value, width): (u32, u8),
    stream: u64,
) -> Result<(), Code> {
    let is_managed = is_managed(&to);
    if is_managed {
        managed::before(stream)?;
    }
    let call = Call::Fill {
        to,
        extent,
        value,
        width,
        stream,
    };
    session::send(&call, &[])?;
    match is_managed {
        true => settle(stream),
        false => Ok(()),
    }
}

/// Waits for a copy or a fill of managed memory, which the host may use then.
fn settle(stream: u64) -> Result<(), Code> {
    session::call(&Call::StreamSynchronize { stream }, &[])?;
    managed::after()
}

/// The direction, if the addresses say the same.
fn agreed(to: &Pitched, from: &Pitched, direction: Direction) -> Result<Direction, Code> {
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
    order: Order,
) -> Result<(), Code> {
    let (to, extent) = row(to, bytes as u64);
    let (from, _) = row(from, bytes as u64);
    copy_rows(to, from, extent, direction, order)
}

fn device_of(at: &Pitched) -> Option<u16> {
    match at.array {
        0 => memory::device_at(at.address).map(|range| range.device),
        array => arrays::find(array).ok().map(|array| array.device),
    }
}

/// Whether memory and a stream are not all of one server.
fn are_apart(devices: &[Option<u16>], stream: u64) -> bool {
    // The server refuses a stream that is none.
    let of_stream = streams::find(stream).map_or_else(|_| thread::device(), |found| found.device);
    let server = number_of(of_stream);
    let mut devices = devices.iter().flatten();
    devices.any(|device| number_of(*device) != server)
}

/// Waits for all that a stream was given before.
pub(crate) fn finish(stream: u64) -> Result<(), Code> {
    streams::at_stream(stream, || {
        session::call(&Call::StreamSynchronize { stream }, &[]).map(drop)
    })
}

/// Copies rows, on the server that has them; between servers through this host.
pub(crate) fn copy_rows(
    to: Pitched,
    from: Pitched,
    extent: Extent,
    direction: Direction,
    order: Order,
) -> Result<(), Code> {
    if !are_several() {
        return copy_here(to, from, extent, direction, order);
    }
    let devices = [device_of(&to), device_of(&from)];
    if !are_apart(&devices, order.stream) {
        let device = streams::find(order.stream).map(|stream| stream.device);
        return at(device.unwrap_or_else(|_| thread::device()), || {
            copy_here(to, from, extent, direction, order)
        });
    }
    // What the stream was given before comes first, and what it is given later finds the copy done.
    finish(order.stream)?;
    let order = Order::wait(0);
    match devices {
        [Some(near), Some(far)] if number_of(near) != number_of(far) => {
            let is_managed = [to, from].iter().any(is_managed);
            if direction != Direction::Within && !is_managed {
                return Err(Code::INVALID_VALUE);
            }
            through_host((to, near), (from, far), extent)
        }
        [Some(device), _] | [_, Some(device)] => at(device, || {
            copy_here(to, from, extent, direction, order)?;
            settle(order.stream)
        }),
        [None, None] => copy_here(to, from, extent, direction, order),
    }
}

/// Copies rows from a GPU of one server to a GPU of another, by way of this host.
fn through_host(
    (to, near): (Pitched, u16),
    (from, far): (Pitched, u16),
    extent: Extent,
) -> Result<(), Code> {
    let all = extent.bytes().ok_or(Code::INVALID_VALUE)?;
    check(&to, &extent)?;
    check(&from, &extent)?;
    let mut buffer = vec![0u8; all.min(THROUGH_HOST_BYTES) as usize];
    let both = pieces(to, extent, THROUGH_HOST_BYTES).zip(pieces(from, extent, THROUGH_HOST_BYTES));
    for ((to, extent), (from, _)) in both {
        let here = Pitched::packed(buffer.as_mut_ptr() as u64, &extent);
        let order = Order::wait(0);
        at(far, || copy_here(here, from, extent, Direction::Out, order))?;
        at(near, || copy_here(to, here, extent, Direction::In, order))?;
    }
    at(near, || settle(0))
}

/// Gives back memory in the order of a stream.
pub(crate) fn free_on(address: u64, stream: u64) -> Result<(), Code> {
    streams::check(stream)?;
    let device = memory::forget(address)?.device;
    let stream = match are_apart(&[Some(device)], stream) {
        false => stream,
        true => finish(stream).map(|()| 0)?,
    };
    at(device, || {
        session::send(&Call::FreeOnStream { address, stream }, &[])
    })
}

/// Copies rows on the current server.
fn copy_here(
    to: Pitched,
    from: Pitched,
    extent: Extent,
    direction: Direction,
    order: Order,
) -> Result<(), Code> {
    let bytes = extent.bytes().ok_or(Code::INVALID_VALUE)?;
    let (to_span, from_span) = (span(&to, &extent)?, span(&from, &extent)?);
    if bytes == 0 {
        return session::check_alive();
    }
    if [to, from].iter().any(|at| at.array == 0 && at.address == 0) {
        return Err(Code::INVALID_VALUE);
    }
    if is_managed(&to) || is_managed(&from) {
        // It counts as the host's and as the device's, and is copied as the device's.
        managed::before(order.stream)?;
        let direction = Direction::of(&to, &from);
        copy_spans((to, to_span), (from, from_span), extent, direction, order)?;
        return match order.is_waited_for {
            true => settle(order.stream),
            false => Ok(()),
        };
    }
    let direction = agreed(&to, &from, direction)?;
    copy_spans((to, to_span), (from, from_span), extent, direction, order)
}

/// Copies rows whose extent and direction are known.
fn copy_spans(
    (to, to_span): (Pitched, u64),
    (from, from_span): (Pitched, u64),
    extent: Extent,
    direction: Direction,
    order: Order,
) -> Result<(), Code> {
    if matches!(direction, Direction::In | Direction::Within) {
        check(&to, &extent)?;
    }
    if matches!(direction, Direction::Out | Direction::Within) {
        check(&from, &extent)?;
    }
    match direction {
        Direction::In => match memory::shared_at(from.address, from_span) {
            Some(place) => shared(place, &from, to, extent, true, order),
            None => {
                // A copy from the device that comes before this one may still be on its way there.
                session::wait_for_async_copies(from.address, from_span)?;
                // SAFETY: the program passes memory of its own, which it does not change while it calls.
                unsafe { copy_in(to, from, extent, order.stream) }
            }
        },
        Direction::Out => match memory::shared_at(to.address, to_span) {
            Some(place) => shared(place, &to, from, extent, false, order),
            // SAFETY: the program passes memory of its own, which it does not use while it calls; what CUDA knows it does not give back
            // before `cudaFreeHost` or `cudaHostUnregister`, which wait.
            None => unsafe {
                match copy_out_async(to, from, extent, order)? {
                    true => Ok(()),
                    false => copy_out(to, from, extent, order.stream),
                }
            },
        },
        Direction::Within => within(to, from, extent, order.stream),
        Direction::Host => {
            // What the stream was given before comes first.
            let stream = order.stream;
            session::call(&Call::StreamSynchronize { stream }, &[])?;
            // SAFETY: the program passes two places of its own.
            unsafe { within_host(&to, &from, &extent) };
            Ok(())
        }
    }
}

/// Copies between the device and host memory that the backend has, too. It is the GPU that reads or writes it, in the order of the
/// stream, and the program goes on meanwhile if the form lets it.
fn shared(
    (region, offset): (u64, u64),
    host: &Pitched,
    device: Pitched,
    extent: Extent,
    is_in: bool,
    order: Order,
) -> Result<(), Code> {
    let call = Call::CopyShared {
        region,
        host: Pitched {
            address: offset,
            ..*host
        },
        device,
        extent,
        is_in,
        stream: order.stream,
        mark: None,
    };
    match order.is_waited_for {
        false => session::send_shared(&call),
        true => session::finish(session::start_shared(&call)?),
    }
}

/// Copies to host memory that CUDA knows and that is not shared, if the program need not wait; whether it did.
///
/// # Safety
/// The row at `to` may be written until it is given back.
unsafe fn copy_out_async(
    to: Pitched,
    from: Pitched,
    extent: Extent,
    order: Order,
) -> Result<bool, Code> {
    if order.is_waited_for || !extent.is_row() || from.array != 0 {
        return Ok(false);
    }
    let bytes = extent.width_bytes;
    let Some((region, offset)) = memory::twin_at(to.address, bytes)? else {
        return Ok(false);
    };
    let call = Call::CopyToRegion {
        region,
        offset,
        from: from.address,
        bytes,
        stream: order.stream,
    };
    // SAFETY: our caller promises that the row's `bytes` bytes may be written until the program has its memory back. `cudaFreeHost` and
    // `cudaHostUnregister` give it back, after `wait_for_async_copies` (`memory::settle`): CUDA knows the row (`twin_at`).
    unsafe { session::call_out_async(&call, to.address, bytes)? };
    Ok(true)
}

fn within(to: Pitched, from: Pitched, extent: Extent, stream: u64) -> Result<(), Code> {
    let call = match extent.is_row() && to.array == 0 && from.array == 0 {
        true => Call::Copy {
            to: to.address,
            from: from.address,
            bytes: extent.width_bytes,
            stream,
        },
        false => Call::CopyRows {
            to,
            from,
            extent,
            stream,
        },
    };
    session::send(&call, &[])
}

/// # Safety
/// All rows of both places are memory of the program.
unsafe fn within_host(to: &Pitched, from: &Pitched, extent: &Extent) {
    let at = |of: &Pitched, layer, row| of.address + layer * of.layer_bytes + row * of.row_bytes;
    for layer in 0..extent.depth {
        for row in 0..extent.height {
            let (to, from) = (at(to, layer, row), at(from, layer, row));
            // SAFETY: this is one row of `extent` in both places. Our caller promises that all rows of both are memory of the program, which
            // stays during the program's call. `copy` allows for overlap.
            unsafe {
                std::ptr::copy(
                    from as *const u8,
                    to as *mut u8,
                    extent.width_bytes as usize,
                )
            };
        }
    }
}

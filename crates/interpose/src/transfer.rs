//! Copies and fills.
//!
//! The GPU copies host memory that the backend shares (`cudaHostAlloc` on the server's own host), in the order of the stream. Bytes of
//! other host memory go through slots of shared memory (`bulk`), or over the connection. Those for the device have been read when the
//! call returns, and nobody waits for the copy. Those of the device have been written when the call returns, unless `copy_out_async`
//! queues the copy.

use crate::handles::{arrays, streams};
use crate::host_copy::{copy_in, copy_out};
use crate::servers::{are_several, at, number_of};
use crate::{managed, memory, session, thread};
use rgaps_remoting::{pieces, row, Call, Code, Extent, Pitched};

/// Most bytes that a copy from a server to another has on this host at a time.
const THROUGH_HOST_BYTES: u64 = 8 << 20;

/// The stream of a copy, and whether the program waits for it where the GPU could make it meanwhile.
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

/// The direction of a copy.
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
    /// The direction that the two ends imply.
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

/// Refuses an extent on a device unless one allocation or array of the program has all of it.
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

/// Queues a fill with elements of `width` bytes and this value; `extent` counts bytes.
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

/// Queues a fill on the current server.
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

/// The direction, if the two ends imply the same.
fn agreed(to: &Pitched, from: &Pitched, direction: Direction) -> Result<Direction, Code> {
    match Direction::of(to, from) == direction {
        true => Ok(direction),
        false => Err(Code::INVALID_VALUE),
    }
}

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

/// The GPU of a stream. A handle that is no stream counts as one of the current GPU, whose server refuses it.
fn gpu_of(stream: u64) -> u16 {
    streams::find(stream).map_or_else(|_| thread::device(), |found| found.device)
}

/// Whether some memory is on another server than a stream.
fn are_apart(devices: &[Option<u16>], stream: u64) -> bool {
    let server = number_of(gpu_of(stream));
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
        return at(gpu_of(order.stream), || {
            copy_here(to, from, extent, direction, order)
        });
    }
    // The stream's earlier work is done before the copy, and the copy before its later work.
    finish(order.stream)?;
    let order = Order::wait(0);
    match devices {
        [Some(to_gpu), Some(from_gpu)] if number_of(to_gpu) != number_of(from_gpu) => {
            let is_managed = [to, from].iter().any(is_managed);
            if direction != Direction::Within && !is_managed {
                return Err(Code::INVALID_VALUE);
            }
            through_host((to, to_gpu), (from, from_gpu), extent)
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
    (to, to_gpu): (Pitched, u16),
    (from, from_gpu): (Pitched, u16),
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
        at(from_gpu, || {
            copy_here(here, from, extent, Direction::Out, order)
        })?;
        at(to_gpu, || copy_here(to, here, extent, Direction::In, order))?;
    }
    at(to_gpu, || settle(0))
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
        // Managed memory counts as the host's and as the device's, and is copied as the device's.
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

/// Copies rows whose spans and direction are known.
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
        Direction::In => match memory::shared_at(from.address, from_span, gpu_of(order.stream)) {
            Some(range) => shared(range, &from, to, extent, true, order),
            None => {
                // A copy from the device that comes before this one may still be on its way there.
                session::wait_for_async_copies(from.address, from_span)?;
                // SAFETY: `from` is memory of this host (`Direction::of`): the program's, which by the contract of CUDA's copies has all
                // rows of `extent` and stays as it is until the program's call returns; or the buffer of `through_host`, which has them
                // and outlives this call.
                unsafe { copy_in(to, from, extent, order.stream) }
            }
        },
        Direction::Out => match memory::shared_at(to.address, to_span, gpu_of(order.stream)) {
            Some(range) => shared(range, &to, from, extent, false, order),
            // SAFETY: `to` is memory of this host (`Direction::of`): the program's, which by the contract of CUDA's copies has all rows of
            // `extent` and which the program leaves to the copy; or the buffer of `through_host`, which has them and outlives this call.
            // `copy_out` has written all when it returns. `copy_out_async` takes only memory that CUDA knows, which the program does not
            // give back before `cudaFreeHost` or `cudaHostUnregister`, and these wait for the bytes.
            None => unsafe {
                match copy_out_async(to, from, extent, order)? {
                    true => Ok(()),
                    false => copy_out(to, from, extent, order.stream),
                }
            },
        },
        Direction::Within => within(to, from, extent, order.stream),
        Direction::Host => {
            // The stream's earlier work is done before the copy.
            let stream = order.stream;
            session::call(&Call::StreamSynchronize { stream }, &[])?;
            // SAFETY: both are memory of this host (`Direction::of`). By the contract of CUDA's copies they are the program's, have all
            // rows of `extent`, and the program leaves them to the copy until its call returns.
            unsafe { within_host(&to, &from, &extent) };
            Ok(())
        }
    }
}

/// Copies between the device and host memory that the backend shares. The GPU reads or writes that memory in the order of the stream; the
/// program waits for it if `order` says so.
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

/// Queues a copy to host memory that CUDA knows and that is not shared, if the program need not wait. Returns whether it did.
///
/// # Safety
/// If CUDA knows the memory at `to`, any thread may write the rows of `extent` there until the program gives that memory back.
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
/// All rows of `extent` at `to` and at `from` are memory of the program, which leaves it to us until this returns.
unsafe fn within_host(to: &Pitched, from: &Pitched, extent: &Extent) {
    let at = |of: &Pitched, layer, row| of.address + layer * of.layer_bytes + row * of.row_bytes;
    for layer in 0..extent.depth {
        for row in 0..extent.height {
            let (to, from) = (at(to, layer, row), at(from, layer, row));
            // SAFETY: this is one row of `extent` at both ends. Our caller promises that all rows of both are memory of the program,
            // which stays during the program's call. `copy` allows for overlap.
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

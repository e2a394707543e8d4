//! Copies.

use super::{runtime, runtime_on_stream, stream_of};
use crate::abi::{Copy3d, Extent3, In, PitchedPtr};
use crate::handles::arrays;
use crate::session;
use crate::transfer::{self, Direction, Order};
use rgaps_remoting::{row, Code, Extent, Pitched};
use std::ffi::c_int;

/// The direction of a `cudaMemcpyKind`; `None` for `cudaMemcpyDefault`, which leaves it to the addresses.
pub(super) fn wanted(kind: c_int) -> Result<Option<Direction>, Code> {
    Ok(match kind {
        0 => Some(Direction::Host),
        1 => Some(Direction::In),
        2 => Some(Direction::Out),
        3 => Some(Direction::Within),
        4 => None,
        _ => return Err(Code::INVALID_MEMCPY_DIRECTION),
    })
}

/// The direction that a kind means for the two ends of a copy.
pub(super) fn direction(to: &Pitched, from: &Pitched, kind: c_int) -> Result<Direction, Code> {
    let wanted = wanted(kind)?;
    Ok(wanted.unwrap_or_else(|| Direction::of(to, from)))
}

pub(super) fn copy(
    to: u64,
    from: u64,
    bytes: usize,
    kind: c_int,
    order: Order,
) -> Result<(), Code> {
    let (to, extent) = row(to, bytes as u64);
    copy_rows(to, row(from, bytes as u64).0, extent, kind, order)
}

pub(super) fn copy_rows(
    to: Pitched,
    from: Pitched,
    extent: Extent,
    kind: c_int,
    order: Order,
) -> Result<(), Code> {
    transfer::copy_rows(to, from, extent, direction(&to, &from, kind)?, order)
}

#[allow(clippy::too_many_arguments, reason = "they are CUDA's")]
fn copy_2d(
    to: u64,
    to_pitch: usize,
    from: u64,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
    order: Order,
) -> Result<(), Code> {
    let extent = Extent {
        width_bytes: width as u64,
        height: height as u64,
        depth: 1,
    };
    let (to, from) = (
        Pitched::rows(to, to_pitch as u64),
        Pitched::rows(from, from_pitch as u64),
    );
    copy_rows(to, from, extent, kind, order)
}

fn corner(of: &PitchedPtr, at: &Extent3) -> Result<Pitched, Code> {
    let layer_bytes = of.pitch.checked_mul(of.ysize).ok_or(Code::INVALID_VALUE)?;
    let offset = at
        .depth
        .checked_mul(layer_bytes)
        .zip(at.height.checked_mul(of.pitch))
        .and_then(|(layers, rows)| layers.checked_add(rows)?.checked_add(at.width));
    Ok(Pitched {
        array: 0,
        address: of
            .start
            .wrapping_add(offset.ok_or(Code::INVALID_VALUE)? as u64),
        row_bytes: of.pitch as u64,
        layer_bytes: layer_bytes as u64,
    })
}

/// A side of a copy of a box. Elements of an array have several bytes.
fn side(array: u64, memory: &PitchedPtr, at: &Extent3) -> Result<Pitched, Code> {
    match array {
        0 => corner(memory, at),
        _ if memory.start != 0 => Err(Code::INVALID_VALUE),
        array => {
            let x = (at.width as u64).checked_mul(arrays::find(array)?.shape.element_bytes());
            let x = x.ok_or(Code::INVALID_VALUE)?;
            arrays::element(array, (x, at.height as u64, at.depth as u64))
        }
    }
}

/// To, from, how much, in which direction.
type Box3 = (Pitched, Pitched, Extent, Direction);

/// Translates the parameters of a copy of a box.
pub(super) fn copy_3d_of(parameters: In<Copy3d>) -> Result<Box3, Code> {
    let wanted = parameters.get()?;
    let (to, from) = (
        side(wanted.to_array, &wanted.to, &wanted.to_at)?,
        side(wanted.from_array, &wanted.from, &wanted.from_at)?,
    );
    let element_bytes = match (to.array, from.array) {
        (0, 0) => 1,
        (0, array) | (array, _) => arrays::find(array)?.shape.element_bytes(),
    };
    let width = (wanted.extent.width as u64).checked_mul(element_bytes);
    let extent = Extent {
        width_bytes: width.ok_or(Code::INVALID_VALUE)?,
        height: wanted.extent.height as u64,
        depth: wanted.extent.depth as u64,
    };
    let direction = direction(&to, &from, wanted.kind)?;
    Ok((to, from, extent, direction))
}

fn copy_3d(parameters: In<Copy3d>, order: Order) -> Result<(), Code> {
    let (to, from, extent, direction) = copy_3d_of(parameters)?;
    transfer::copy_rows(to, from, extent, direction, order)
}

runtime! {
    fn cudaMemcpyPeer(to: u64, to_device: c_int, from: u64, from_device: c_int, bytes: usize) {
        session::device(to_device)?;
        session::device(from_device)?;
        transfer::copy(to, from, bytes, Direction::Within, Order::wait(0))
    }

    fn cudaMemcpyPeerAsync(
        to: u64, to_device: c_int, from: u64, from_device: c_int, bytes: usize, stream: usize
    ) {
        session::device(to_device)?;
        session::device(from_device)?;
        transfer::copy(to, from, bytes, Direction::Within, Order::queue(stream as u64))
    }
}

runtime_on_stream! {
    fn cudaMemcpy "_ptds" (default; to: u64, from: u64, bytes: usize, kind: c_int) {
        copy(to, from, bytes, kind, Order::wait(default))
    }

    fn cudaMemcpyAsync "_ptsz" (default; to: u64, from: u64, bytes: usize, kind: c_int, stream: usize) {
        copy(to, from, bytes, kind, Order::queue(stream_of(stream, default)))
    }

    fn cudaMemcpy2D "_ptds" (
        default; to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, kind: c_int
    ) {
        copy_2d(to, to_pitch, from, from_pitch, width, height, kind, Order::wait(default))
    }

    fn cudaMemcpy2DAsync "_ptsz" (
        default; to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, kind: c_int,
        stream: usize
    ) {
        copy_2d(to, to_pitch, from, from_pitch, width, height, kind, Order::queue(stream_of(stream, default)))
    }

    fn cudaMemcpy3D "_ptds" (default; parameters: In<Copy3d>) {
        copy_3d(parameters, Order::wait(default))
    }

    fn cudaMemcpy3DAsync "_ptsz" (default; parameters: In<Copy3d>, stream: usize) {
        copy_3d(parameters, Order::queue(stream_of(stream, default)))
    }
}

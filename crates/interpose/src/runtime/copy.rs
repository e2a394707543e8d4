//! Copies. Bytes for the device are on their way when the call returns; nobody waits for the copy. Bytes of the device are there
//! when the call returns, also where CUDA would let the program go on.

use super::abi::{Copy3d, Extent3, In, PitchedPtr};
use super::memory::span;
use super::{check_alive, runtime, runtime_on_stream, stream_of};
use crate::{memory, session};
use rgaps_remoting::{Call, Code, Extent, Pitched};
use std::ffi::c_int;

/// `cudaMemcpyKind`.
const HOST_TO_HOST: c_int = 0;
const HOST_TO_DEVICE: c_int = 1;
const DEVICE_TO_HOST: c_int = 2;
const DEVICE_TO_DEVICE: c_int = 3;
const DEFAULT: c_int = 4;

/// From where to where: whether the source and the target are the device's.
fn direction(to: u64, from: u64, kind: c_int) -> Result<(bool, bool), Code> {
    let is = (memory::device_at(from).is_some(), memory::device_at(to).is_some());
    let said = match kind {
        HOST_TO_HOST => (false, false),
        HOST_TO_DEVICE => (false, true),
        DEVICE_TO_HOST => (true, false),
        DEVICE_TO_DEVICE => (true, true),
        DEFAULT => is,
        _ => return Err(Code::INVALID_MEMCPY_DIRECTION),
    };
    match said == is {
        true => Ok(is),
        false => Err(Code::INVALID_VALUE),
    }
}

/// Copies bytes.
pub(super) fn copy(to: u64, from: u64, bytes: usize, kind: c_int, stream: u64) -> Result<(), Code> {
    if bytes == 0 {
        return check_alive();
    }
    if to == 0 || from == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let length = bytes as u64;
    match direction(to, from, kind)? {
        (false, true) => {
            memory::check(to, length)?;
            // SAFETY: the program passes memory of its own of this length, which it does not change while it calls.
            let source = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
            session::send(&Call::CopyIn { to, stream }, source)
        }
        (true, false) => {
            memory::check(from, length)?;
            let call = Call::CopyOut {
                from,
                bytes: length,
                stream,
            };
            // SAFETY: the program passes memory of its own of this length, which it does not use while it calls.
            unsafe { session::call_out(&call, to as *mut u8, bytes) }
        }
        (true, true) => {
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
        (false, false) => {
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
fn copy_rows(to: Pitched, from: Pitched, extent: Extent, kind: c_int, stream: u64) -> Result<(), Code> {
    let bytes = extent.bytes().ok_or(Code::INVALID_VALUE)?;
    let (to_span, from_span) = (span(&to, &extent)?, span(&from, &extent)?);
    if bytes == 0 {
        return check_alive();
    }
    if to.address == 0 || from.address == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let width = extent.width_bytes as usize;
    match direction(to.address, from.address, kind)? {
        (false, true) => {
            memory::check(to.address, to_span)?;
            let mut packed = Vec::with_capacity(bytes as usize);
            each_row(&from, &extent, |address, _| {
                // SAFETY: the program passes rows of its own of this width, which it does not change while it calls.
                packed.extend_from_slice(unsafe { std::slice::from_raw_parts(address as *const u8, width) });
            });
            session::send(&Call::CopyInRows { to, extent, stream }, &packed)
        }
        (true, false) => {
            memory::check(from.address, from_span)?;
            let mut packed = vec![0u8; bytes as usize];
            let call = Call::CopyOutRows { from, extent, stream };
            // SAFETY: the buffer is this function's, and has this length.
            unsafe { session::call_out(&call, packed.as_mut_ptr(), packed.len())? };
            each_row(&to, &extent, |address, at| {
                // SAFETY: the program passes rows of its own of this width, which it does not use while it calls.
                unsafe { (address as *mut u8).copy_from_nonoverlapping(packed[at..at + width].as_ptr(), width) };
            });
            Ok(())
        }
        (true, true) => {
            memory::check(to.address, to_span)?;
            memory::check(from.address, from_span)?;
            let call = Call::CopyRows { to, from, extent, stream };
            session::send(&call, &[])
        }
        (false, false) => {
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

#[allow(clippy::too_many_arguments, reason = "they are CUDA's")]
fn copy_2d(
    to: u64,
    to_pitch: usize,
    from: u64,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
    stream: u64,
) -> Result<(), Code> {
    let at = |address, pitch: usize| Pitched {
        address,
        row_bytes: pitch as u64,
        layer_bytes: 0,
    };
    let extent = Extent {
        width_bytes: width as u64,
        height: height as u64,
        depth: 1,
    };
    copy_rows(at(to, to_pitch), at(from, from_pitch), extent, kind, stream)
}

fn corner(of: &PitchedPtr, at: &Extent3) -> Result<Pitched, Code> {
    let layer_bytes = of.pitch.checked_mul(of.ysize).ok_or(Code::INVALID_VALUE)?;
    let offset = at
        .depth
        .checked_mul(layer_bytes)
        .zip(at.height.checked_mul(of.pitch))
        .and_then(|(layers, rows)| layers.checked_add(rows)?.checked_add(at.width));
    Ok(Pitched {
        address: of.start.wrapping_add(offset.ok_or(Code::INVALID_VALUE)? as u64),
        row_bytes: of.pitch as u64,
        layer_bytes: layer_bytes as u64,
    })
}

fn copy_3d(parameters: In<Copy3d>, stream: u64) -> Result<(), Code> {
    let wanted = parameters.get()?;
    if wanted.from_array != 0 || wanted.to_array != 0 {
        crate::notice::unsupported("cudaMemcpy3D with arrays");
        return Err(Code::NOT_SUPPORTED);
    }
    let extent = Extent {
        width_bytes: wanted.extent.width as u64,
        height: wanted.extent.height as u64,
        depth: wanted.extent.depth as u64,
    };
    let (to, from) = (corner(&wanted.to, &wanted.to_at)?, corner(&wanted.from, &wanted.from_at)?);
    copy_rows(to, from, extent, wanted.kind, stream)
}

runtime! {
    fn cudaMemcpyPeer(to: u64, to_device: c_int, from: u64, from_device: c_int, bytes: usize) {
        session::device(to_device)?;
        session::device(from_device)?;
        copy(to, from, bytes, DEVICE_TO_DEVICE, 0)
    }

    fn cudaMemcpyPeerAsync(
        to: u64, to_device: c_int, from: u64, from_device: c_int, bytes: usize, stream: usize
    ) {
        session::device(to_device)?;
        session::device(from_device)?;
        copy(to, from, bytes, DEVICE_TO_DEVICE, stream as u64)
    }
}

runtime_on_stream! {
    fn cudaMemcpy "_ptds" (default; to: u64, from: u64, bytes: usize, kind: c_int) {
        copy(to, from, bytes, kind, default)
    }

    fn cudaMemcpyAsync "_ptsz" (default; to: u64, from: u64, bytes: usize, kind: c_int, stream: usize) {
        copy(to, from, bytes, kind, stream_of(stream, default))
    }

    fn cudaMemcpy2D "_ptds" (
        default; to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, kind: c_int
    ) {
        copy_2d(to, to_pitch, from, from_pitch, width, height, kind, default)
    }

    fn cudaMemcpy2DAsync "_ptsz" (
        default; to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, kind: c_int,
        stream: usize
    ) {
        copy_2d(to, to_pitch, from, from_pitch, width, height, kind, stream_of(stream, default))
    }

    fn cudaMemcpy3D "_ptds" (default; parameters: In<Copy3d>) {
        copy_3d(parameters, default)
    }

    fn cudaMemcpy3DAsync "_ptsz" (default; parameters: In<Copy3d>, stream: usize) {
        copy_3d(parameters, stream_of(stream, default))
    }
}

//! Memory and copies.

use super::context::device_of;
use super::{driver, driver_on_stream};
use crate::abi::Out;
use crate::allocate::{allocate, allocate_on, pitched};
use crate::handles::streams::meant;
use crate::transfer::{self, Direction, Order};
use crate::{managed, memory, session};
use rgaps_remoting::{row, Call, CallValue, Code, Extent, Pitched};
use std::ffi::{c_int, c_uint};

fn fill(to: u64, value: u32, width: u8, count: usize, stream: u64) -> Result<(), Code> {
    let bytes = (count as u64)
        .checked_mul(width.into())
        .ok_or(Code::INVALID_VALUE)?;
    if to % u64::from(width) != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let (at, extent) = row(to, bytes);
    transfer::fill(at, extent, (value, width), stream)
}

/// Fills `rows` rows of `columns` elements.
fn fill_rows(
    (to, pitch): (u64, usize),
    (value, width): (u32, u8),
    (columns, rows): (usize, usize),
    stream: u64,
) -> Result<(), Code> {
    let at = Pitched::rows(to, pitch as u64);
    let width_bytes = (columns as u64).checked_mul(width.into());
    let extent = Extent {
        width_bytes: width_bytes.ok_or(Code::INVALID_VALUE)?,
        height: rows as u64,
        depth: 1,
    };
    if to % u64::from(width) != 0 || pitch % usize::from(width) != 0 {
        return Err(Code::INVALID_VALUE);
    }
    transfer::fill(at, extent, (value, width), stream)
}

/// The direction of a copy between two addresses.
fn direction(to: u64, from: u64) -> Direction {
    Direction::of(&row(to, 0).0, &row(from, 0).0)
}

driver! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        match session::call(&Call::MemoryInfo, &[])? {
            CallValue::Pair(left, all) => {
                free.put(left as usize)?;
                total.put(all as usize)
            }
            _ => Err(Code::UNKNOWN),
        }
    }

    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) {
        address.check()?;
        match bytes {
            0 => Err(Code::INVALID_VALUE),
            bytes => address.put(memory::allocate(&Call::Allocate { bytes: bytes as u64 }, bytes as u64)?),
        }
    }

    fn cuMemAllocManaged(address: Out<u64>, bytes: usize, flags: c_uint) {
        address.check()?;
        address.put(managed::allocate(bytes as u64, flags)?)
    }

    fn cuMemFree_v2(address: u64) {
        managed::free(address)
    }

    fn cuMemHostAlloc(address: Out<u64>, bytes: usize, flags: c_uint) {
        address.check()?;
        address.put(memory::map_host(bytes as u64, flags)?)
    }

    fn cuMemAllocHost_v2(address: Out<u64>, bytes: usize) {
        address.check()?;
        address.put(memory::map_host(bytes as u64, 0)?)
    }

    fn cuMemFreeHost(address: u64) {
        memory::finish_uses(address)?;
        memory::unmap_host(address)
    }

    fn cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element_bytes: c_uint) {
        address.check()?;
        pitch.check()?;
        if ![4, 8, 16].contains(&element_bytes) || width == 0 || height == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let (row, bytes) = pitched(width, height, 1)?;
        address.put(allocate(bytes)?)?;
        pitch.put(row)
    }

    fn cuMemHostRegister_v2(address: u64, bytes: usize, flags: c_uint) {
        memory::register_host(address, bytes as u64, flags)
    }

    fn cuMemHostUnregister(address: u64) {
        memory::finish_uses(address)?;
        memory::unregister_host(address)
    }

    fn cuMemHostGetFlags(flags: Out<c_uint>, address: u64) {
        flags.put(memory::host_at(address).ok_or(Code::INVALID_VALUE)?.flags)
    }

    fn cuMemGetAddressRange_v2(start: Out<u64>, bytes: Out<usize>, address: u64) {
        let range = memory::device_at(address).ok_or(Code::NOT_FOUND)?;
        start.put_if_wanted(range.start);
        bytes.put_if_wanted(range.bytes as usize);
        Ok(())
    }

    fn cuPointerGetAttribute(value: Out<c_int>, attribute: c_int, address: u64) {
        const MEMORY_TYPE: c_int = 2;
        const DEVICE_ORDINAL: c_int = 9;
        let number = match (memory::device_at(address), memory::host_at(address), attribute) {
            (Some(_), _, MEMORY_TYPE) => 2,
            (None, Some(_), MEMORY_TYPE) => 1,
            (Some(range), _, DEVICE_ORDINAL) => c_int::from(range.device),
            (None, None, _) => return Err(Code::INVALID_VALUE),
            _ => return Err(Code::NOT_SUPPORTED),
        };
        value.put(number)
    }
}

driver_on_stream! {
    fn cuMemcpyHtoD_v2 "_ptds" (default; to: u64, from: u64, bytes: usize) {
        transfer::copy(to, from, bytes, Direction::In, Order::wait(default))
    }

    fn cuMemcpyDtoH_v2 "_ptds" (default; to: u64, from: u64, bytes: usize) {
        transfer::copy(to, from, bytes, Direction::Out, Order::wait(default))
    }

    fn cuMemcpyDtoD_v2 "_ptds" (default; to: u64, from: u64, bytes: usize) {
        transfer::copy(to, from, bytes, Direction::Within, Order::wait(default))
    }

    fn cuMemcpy "_ptds" (default; to: u64, from: u64, bytes: usize) {
        transfer::copy(to, from, bytes, direction(to, from), Order::wait(default))
    }

    fn cuMemcpyPeer "_ptds" (default; to: u64, to_context: u64, from: u64, from_context: u64, bytes: usize) {
        device_of(to_context)?;
        device_of(from_context)?;
        transfer::copy(to, from, bytes, Direction::Within, Order::wait(default))
    }

    fn cuMemcpyPeerAsync "_ptsz" (
        default; to: u64, to_context: u64, from: u64, from_context: u64, bytes: usize, stream: u64
    ) {
        device_of(to_context)?;
        device_of(from_context)?;
        transfer::copy(to, from, bytes, Direction::Within, Order::queue(meant(stream, default)))
    }

    fn cuMemAllocAsync "_ptsz" (default; address: Out<u64>, bytes: usize, stream: u64) {
        address.check()?;
        match bytes {
            0 => Err(Code::INVALID_VALUE),
            bytes => address.put(allocate_on(bytes, meant(stream, default))?),
        }
    }

    fn cuMemFreeAsync "_ptsz" (default; address: u64, stream: u64) {
        transfer::free_on(address, meant(stream, default))
    }

    fn cuMemsetD2D8_v2 "_ptds" (default; to: u64, pitch: usize, value: u8, width: usize, height: usize) {
        fill_rows((to, pitch), (value.into(), 1), (width, height), default)
    }

    fn cuMemsetD2D16_v2 "_ptds" (default; to: u64, pitch: usize, value: u16, width: usize, height: usize) {
        fill_rows((to, pitch), (value.into(), 2), (width, height), default)
    }

    fn cuMemsetD2D32_v2 "_ptds" (default; to: u64, pitch: usize, value: c_uint, width: usize, height: usize) {
        fill_rows((to, pitch), (value, 4), (width, height), default)
    }

    fn cuMemsetD16Async "_ptsz" (default; to: u64, value: u16, count: usize, stream: u64) {
        fill(to, value.into(), 2, count, meant(stream, default))
    }

    fn cuMemcpyHtoDAsync_v2 "_ptsz" (default; to: u64, from: u64, bytes: usize, stream: u64) {
        let stream = meant(stream, default);
        transfer::copy(to, from, bytes, Direction::In, Order::queue(stream))
    }

    fn cuMemcpyDtoHAsync_v2 "_ptsz" (default; to: u64, from: u64, bytes: usize, stream: u64) {
        let stream = meant(stream, default);
        transfer::copy(to, from, bytes, Direction::Out, Order::queue(stream))
    }

    fn cuMemcpyDtoDAsync_v2 "_ptsz" (default; to: u64, from: u64, bytes: usize, stream: u64) {
        let stream = meant(stream, default);
        transfer::copy(to, from, bytes, Direction::Within, Order::queue(stream))
    }

    fn cuMemcpyAsync "_ptsz" (default; to: u64, from: u64, bytes: usize, stream: u64) {
        let stream = meant(stream, default);
        transfer::copy(to, from, bytes, direction(to, from), Order::queue(stream))
    }

    fn cuMemsetD8_v2 "_ptds" (default; to: u64, value: u8, count: usize) {
        fill(to, value.into(), 1, count, default)
    }

    fn cuMemsetD16_v2 "_ptds" (default; to: u64, value: u16, count: usize) {
        fill(to, value.into(), 2, count, default)
    }

    fn cuMemsetD32_v2 "_ptds" (default; to: u64, value: c_uint, count: usize) {
        fill(to, value, 4, count, default)
    }

    fn cuMemsetD8Async "_ptsz" (default; to: u64, value: u8, count: usize, stream: u64) {
        let stream = meant(stream, default);
        fill(to, value.into(), 1, count, stream)
    }

    fn cuMemsetD32Async "_ptsz" (default; to: u64, value: c_uint, count: usize, stream: u64) {
        let stream = meant(stream, default);
        fill(to, value, 4, count, stream)
    }
}

//! Memory and copies.

use super::driver;
use crate::abi::Out;
use crate::transfer::{self, Direction, Order};
use crate::{managed, memory, session};
use rgaps_remoting::{row, Call, Code, Value};
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

/// What two addresses say.
fn direction(to: u64, from: u64) -> Direction {
    Direction::of(&row(to, 0).0, &row(from, 0).0)
}

driver! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        match session::call(&Call::MemoryInfo, &[])? {
            Value::Pair(left, all) => {
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

    fn cuMemGetAddressRange_v2(start: Out<u64>, bytes: Out<usize>, address: u64) {
        let range = memory::device_at(address).ok_or(Code::NOT_FOUND)?;
        start.put_if_wanted(range.start);
        bytes.put_if_wanted(range.bytes as usize);
        Ok(())
    }

    fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) {
        transfer::copy(to, from, bytes, Direction::In, Order::wait(0))
    }

    fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) {
        transfer::copy(to, from, bytes, Direction::Out, Order::wait(0))
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        transfer::copy(to, from, bytes, Direction::Within, Order::wait(0))
    }

    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        transfer::copy(to, from, bytes, direction(to, from), Order::wait(0))
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) {
        transfer::copy(to, from, bytes, Direction::In, Order::queue(stream))
    }

    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) {
        transfer::copy(to, from, bytes, Direction::Out, Order::queue(stream))
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) {
        transfer::copy(to, from, bytes, Direction::Within, Order::queue(stream))
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64) {
        transfer::copy(to, from, bytes, direction(to, from), Order::queue(stream))
    }

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) {
        fill(to, value.into(), 1, count, 0)
    }

    fn cuMemsetD16_v2(to: u64, value: u16, count: usize) {
        fill(to, value.into(), 2, count, 0)
    }

    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) {
        fill(to, value, 4, count, 0)
    }

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) {
        fill(to, value.into(), 1, count, stream)
    }

    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: u64) {
        fill(to, value, 4, count, stream)
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

//! Variables of the program that stand for variables on the device.

use super::copy::copy;
use super::{runtime, runtime_on_stream, stream_of};
use crate::abi::{Address, Out};
use crate::kernels;
use crate::transfer::Order;
use rgaps_remoting::Code;
use std::ffi::c_int;

const HOST_TO_DEVICE: c_int = 1;
const DEVICE_TO_HOST: c_int = 2;
const DEVICE_TO_DEVICE: c_int = 3;
const DEFAULT: c_int = 4;

/// The address of a part of a variable.
fn part(symbol: Address, bytes: usize, offset: usize) -> Result<u64, Code> {
    let (start, size) = kernels::variable(symbol as usize)?;
    let end = offset.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
    match end as u64 <= size {
        true => Ok(start + offset as u64),
        false => Err(Code::INVALID_VALUE),
    }
}

fn copy_to(
    symbol: Address,
    from: u64,
    bytes: usize,
    offset: usize,
    kind: c_int,
    order: Order,
) -> Result<(), Code> {
    if ![HOST_TO_DEVICE, DEVICE_TO_DEVICE, DEFAULT].contains(&kind) {
        return Err(Code::INVALID_MEMCPY_DIRECTION);
    }
    copy(part(symbol, bytes, offset)?, from, bytes, kind, order)
}

fn copy_from(
    to: u64,
    symbol: Address,
    bytes: usize,
    offset: usize,
    kind: c_int,
    order: Order,
) -> Result<(), Code> {
    if ![DEVICE_TO_HOST, DEVICE_TO_DEVICE, DEFAULT].contains(&kind) {
        return Err(Code::INVALID_MEMCPY_DIRECTION);
    }
    copy(to, part(symbol, bytes, offset)?, bytes, kind, order)
}

runtime! {
    fn cudaGetSymbolAddress(address: Out<u64>, symbol: Address) {
        address.check()?;
        address.put(kernels::variable(symbol as usize)?.0)
    }

    fn cudaGetSymbolSize(bytes: Out<usize>, symbol: Address) {
        bytes.check()?;
        bytes.put(kernels::variable(symbol as usize)?.1 as usize)
    }
}

runtime_on_stream! {
    fn cudaMemcpyToSymbol "_ptds" (
        default; symbol: Address, from: u64, bytes: usize, offset: usize, kind: c_int
    ) {
        copy_to(symbol, from, bytes, offset, kind, Order::wait(default))
    }

    fn cudaMemcpyToSymbolAsync "_ptsz" (
        default; symbol: Address, from: u64, bytes: usize, offset: usize, kind: c_int, stream: usize
    ) {
        copy_to(symbol, from, bytes, offset, kind, Order::queue(stream_of(stream, default)))
    }

    fn cudaMemcpyFromSymbol "_ptds" (
        default; to: u64, symbol: Address, bytes: usize, offset: usize, kind: c_int
    ) {
        copy_from(to, symbol, bytes, offset, kind, Order::wait(default))
    }

    fn cudaMemcpyFromSymbolAsync "_ptsz" (
        default; to: u64, symbol: Address, bytes: usize, offset: usize, kind: c_int, stream: usize
    ) {
        copy_from(to, symbol, bytes, offset, kind, Order::queue(stream_of(stream, default)))
    }
}

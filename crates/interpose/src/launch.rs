//! Launches of kernels. This process knows the limits of devices and kernels, so it refuses at once what CUDA refuses at once.

use crate::abi::{In, LaunchAttribute};
use crate::handles::streams;
use crate::kernels::{attribute, Kernel};
use crate::{managed, session};
use rgaps_remoting::{Call, Code, KernelInfo, LAUNCH_ATTRIBUTES_MAX, PARAMETER_BYTES_MAX};
use std::ffi::{c_int, c_uint};

/// Attributes of kernels.
const THREADS_MAX: i32 = 0;
const DYNAMIC_SHARED_BYTES_MAX: i32 = 8;
/// Attributes of devices: most threads of a block, the first of the limits of a block and of a grid.
const DEVICE_THREADS_MAX: i32 = 1;
const DEVICE_BLOCK: i32 = 2;
const DEVICE_GRID: i32 = 5;

pub(crate) struct Launch {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: usize,
    pub(crate) stream: u64,
    pub(crate) cooperative: bool,
}

/// Refuses what CUDA's launch refuses.
fn check(launch: &Launch, info: &KernelInfo) -> Result<(), Code> {
    let device = session::current()?;
    let limit = |number| session::attribute(device, number).map_or(u64::MAX, |value| value as u64);
    let within = |sizes: &[u32; 3], first: i32| {
        let limits = (first..).map(limit);
        sizes
            .iter()
            .zip(limits)
            .all(|(size, most)| *size > 0 && u64::from(*size) <= most)
    };
    if !within(&launch.grid, DEVICE_GRID) || !within(&launch.block, DEVICE_BLOCK) {
        return Err(Code::INVALID_VALUE);
    }
    let threads: u64 = launch.block.iter().map(|size| u64::from(*size)).product();
    if threads > limit(DEVICE_THREADS_MAX) {
        return Err(Code::INVALID_VALUE);
    }
    let most = attribute(info, THREADS_MAX);
    if most > 0 && threads > most as u64 {
        return Err(Code::OUT_OF_RESOURCES);
    }
    let dynamic = info
        .attributes
        .iter()
        .find(|(number, _)| *number == DYNAMIC_SHARED_BYTES_MAX);
    match dynamic {
        Some((_, most)) if launch.shared_bytes as u64 > *most as u64 => Err(Code::INVALID_VALUE),
        _ => Ok(()),
    }
}

/// The values of a launch, at the offsets where the kernel expects them. `arguments` has the address of one value for each parameter.
fn values(info: &KernelInfo, arguments: In<*const u8>) -> Result<Vec<u8>, Code> {
    let end = info
        .parameters
        .iter()
        .map(|(offset, bytes)| offset + bytes)
        .max()
        .unwrap_or(0);
    let mut all = vec![0; end as usize];
    for (position, (offset, bytes)) in info.parameters.iter().enumerate() {
        let value = arguments.at(position)?;
        if value.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let (at, bytes) = (*offset as usize, *bytes as usize);
        // SAFETY: by the contract of CUDA's launches the program passes for each parameter the address of a value of its size, which it
        // keeps as it is until the call returns. `bytes` is that size, as the server's driver reports it; the target is a new vector,
        // sliced to as many bytes.
        unsafe {
            all[at..at + bytes]
                .as_mut_ptr()
                .copy_from_nonoverlapping(value, bytes)
        };
    }
    Ok(all)
}

/// Launches a kernel of the program.
pub(crate) fn launch(
    function: usize,
    wanted: &Launch,
    arguments: In<*const u8>,
    attributes: &[LaunchAttribute],
) -> Result<(), Code> {
    let parameters = |info: &KernelInfo| values(info, arguments);
    launch_with(function, wanted, parameters, attributes)
}

/// Launches as the driver does, which may also have all values in one buffer.
pub(crate) fn launch_driver(
    function: usize,
    wanted: &Launch,
    (arguments, extra): (In<*const u8>, In<usize>),
    attributes: &[LaunchAttribute],
) -> Result<(), Code> {
    let parameters = |info: &KernelInfo| match extra.is_null() {
        true => values(info, arguments),
        false => buffer(extra),
    };
    launch_with(function, wanted, parameters, attributes)
}

/// Attributes that a program passes.
///
/// # Safety
/// `start` is null or has `count` attributes, which stay as they are until the program's call returns. The result is not used later.
pub(crate) unsafe fn attributes<'a>(
    start: *const LaunchAttribute,
    count: c_uint,
) -> Result<&'a [LaunchAttribute], Code> {
    let count = count as usize;
    if count == 0 {
        return Ok(&[]);
    }
    if start.is_null() || count > LAUNCH_ATTRIBUTES_MAX {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: `start` is not NULL, and our caller promises `count` attributes there that stay while the program's call lasts.
    Ok(unsafe { std::slice::from_raw_parts(start, count) })
}

/// The values of a later launch.
pub(crate) fn pack(
    function: usize,
    arguments: In<*const u8>,
    extra: In<usize>,
) -> Result<Vec<u8>, Code> {
    let info = Kernel::of(function)?.info()?;
    match arguments.is_null() && !extra.is_null() {
        true => buffer(extra),
        false => values(info, arguments),
    }
}

/// Launches with values that [`pack`] gave.
pub(crate) fn launch_packed(function: usize, wanted: &Launch, values: &[u8]) -> Result<(), Code> {
    launch_with(function, wanted, |_| Ok(values.to_vec()), &[])
}

/// Copies the buffer that `extra` of `cuLaunchKernel` names: a list of tags, each with an address behind it.
fn buffer(extra: In<usize>) -> Result<Vec<u8>, Code> {
    const END: usize = 0;
    const POINTER: usize = 1;
    const SIZE: usize = 2;
    let (mut start, mut bytes, mut at) = (0, 0, 0);
    // The list has each of two tags once, and then the end.
    while at <= 4 {
        match extra.at(at)? {
            END => break,
            POINTER => start = extra.at(at + 1)?,
            // SAFETY: by the contract of `cuLaunchKernel` the word behind this tag is the address of the buffer's size, which the program
            // keeps as it is until its call returns.
            SIZE => bytes = unsafe { (extra.at(at + 1)? as *const usize).read_unaligned() },
            _ => return Err(Code::INVALID_VALUE),
        }
        at += 2;
    }
    if start == 0 || bytes > PARAMETER_BYTES_MAX {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: by the contract of `cuLaunchKernel` the buffer at `start` has the size that the program gave, `bytes`, and stays as it is
    // until the program's call returns. It is copied here.
    Ok(unsafe { std::slice::from_raw_parts(start as *const u8, bytes) }.to_vec())
}

/// Launches with the values that `parameters` gives, if the launch is allowed.
fn launch_with(
    function: usize,
    wanted: &Launch,
    parameters: impl FnOnce(&KernelInfo) -> Result<Vec<u8>, Code>,
    attributes: &[LaunchAttribute],
) -> Result<(), Code> {
    let kernel = Kernel::of(function)?;
    streams::check_here(wanted.stream)?;
    let info = kernel.info()?;
    check(wanted, info)?;
    let parameters = parameters(info)?;
    managed::before(wanted.stream)?;
    let attributes = attributes.iter().filter(|attribute| attribute.id != 0);
    let call = Call::Launch {
        kernel: kernel.id(),
        grid: wanted.grid,
        block: wanted.block,
        shared_bytes: wanted.shared_bytes as u32,
        stream: wanted.stream,
        cooperative: wanted.cooperative,
        attributes: attributes
            .map(|attribute| (attribute.id, &attribute.value[..]))
            .collect(),
        parameters: &parameters,
    };
    session::send(&call, &[])
}

/// Blocks of a kernel that a multiprocessor runs at a time.
pub(crate) fn occupancy(
    function: usize,
    block_threads: c_int,
    shared_bytes: usize,
    flags: c_uint,
) -> Result<c_int, Code> {
    let kernel = Kernel::of(function)?;
    kernel.info()?;
    let call = Call::Occupancy {
        kernel: kernel.id(),
        block_threads,
        shared_bytes: shared_bytes as u64,
        flags,
    };
    Ok(session::number(&call)? as c_int)
}

//! Arrays: memory for textures and surfaces, and copies from and to it.

use super::copy::{copy_rows, wanted};
use super::{runtime, runtime_on_stream, stream_of};
use crate::abi::{ChannelFormat, Extent3, In, Out};
use crate::handles::arrays;
use crate::runs::{self, Run};
use crate::transfer::Order;
use crate::{formats, session};
use rgaps_remoting::{Code, Extent, Pitched, Shape};
use std::ffi::{c_int, c_uint};

fn shape(format: In<ChannelFormat>, extent: Extent3, flags: c_uint) -> Result<Shape, Code> {
    let (format, channels) = formats::to_driver(&format.get()?)?;
    Ok(Shape {
        width: extent.width as u64,
        height: extent.height as u64,
        depth: extent.depth as u64,
        format,
        channels,
        flags,
    })
}

/// An element of an array; `x` counts bytes.
fn at(array: u64, x: usize, y: usize) -> Result<Pitched, Code> {
    arrays::element(array, (x as u64, y as u64, 0))
}

fn run(array: u64, x: usize, y: usize) -> Result<Run, Code> {
    at(array, x, y).map(Run::array)
}

fn extent(width: usize, height: usize) -> Extent {
    Extent {
        width_bytes: width as u64,
        height: height as u64,
        depth: 1,
    }
}

runtime! {
    fn cudaMallocArray(array: Out<u64>, format: In<ChannelFormat>, width: usize, height: usize, flags: c_uint) {
        array.check()?;
        array.put(arrays::create(shape(format, Extent3 { width, height, depth: 0 }, flags)?)?)
    }

    fn cudaMalloc3DArray(array: Out<u64>, format: In<ChannelFormat>, extent: Extent3, flags: c_uint) {
        array.check()?;
        array.put(arrays::create(shape(format, extent, flags)?)?)
    }

    fn cudaMallocMipmappedArray(
        mipmap: Out<u64>, format: In<ChannelFormat>, extent: Extent3, levels: c_uint, flags: c_uint
    ) {
        mipmap.check()?;
        mipmap.put(arrays::create_mipmap(shape(format, extent, flags)?, levels)?)
    }

    fn cudaGetMipmappedArrayLevel(array: Out<u64>, mipmap: u64, level: c_uint) {
        array.check()?;
        array.put(arrays::level(mipmap, level)?)
    }

    fn cudaFreeArray(array: u64) {
        match array {
            0 => session::check_alive(),
            array => arrays::destroy(array),
        }
    }

    fn cudaFreeMipmappedArray(mipmap: u64) {
        match mipmap {
            0 => session::check_alive(),
            mipmap => arrays::destroy_mipmap(mipmap),
        }
    }

    fn cudaArrayGetInfo(format: Out<ChannelFormat>, extent: Out<Extent3>, flags: Out<c_uint>, array: u64) {
        let shape = arrays::find(array)?.shape;
        format.put_if_wanted(formats::to_runtime(shape.format, shape.channels));
        extent.put_if_wanted(Extent3 {
            width: shape.width as usize,
            height: shape.height as usize,
            depth: shape.depth as usize,
        });
        flags.put_if_wanted(shape.flags);
        Ok(())
    }

    fn cudaGetChannelDesc(format: Out<ChannelFormat>, array: u64) {
        let shape = arrays::find(array)?.shape;
        format.put(formats::to_runtime(shape.format, shape.channels))
    }
}

runtime_on_stream! {
    fn cudaMemcpy2DToArray "_ptds" (
        default; to: u64, x: usize, y: usize, from: u64, pitch: usize, width: usize, height: usize, kind: c_int
    ) {
        copy_rows(at(to, x, y)?, Pitched::rows(from, pitch as u64), extent(width, height), kind, Order::wait(default))
    }

    fn cudaMemcpy2DToArrayAsync "_ptsz" (
        default; to: u64, x: usize, y: usize, from: u64, pitch: usize, width: usize, height: usize, kind: c_int, stream: usize
    ) {
        let order = Order::queue(stream_of(stream, default));
        copy_rows(at(to, x, y)?, Pitched::rows(from, pitch as u64), extent(width, height), kind, order)
    }

    fn cudaMemcpy2DFromArray "_ptds" (
        default; to: u64, pitch: usize, from: u64, x: usize, y: usize, width: usize, height: usize, kind: c_int
    ) {
        copy_rows(Pitched::rows(to, pitch as u64), at(from, x, y)?, extent(width, height), kind, Order::wait(default))
    }

    fn cudaMemcpy2DFromArrayAsync "_ptsz" (
        default; to: u64, pitch: usize, from: u64, x: usize, y: usize, width: usize, height: usize, kind: c_int, stream: usize
    ) {
        let order = Order::queue(stream_of(stream, default));
        copy_rows(Pitched::rows(to, pitch as u64), at(from, x, y)?, extent(width, height), kind, order)
    }

    fn cudaMemcpy2DArrayToArray "_ptds" (
        default; to: u64, to_x: usize, to_y: usize, from: u64, from_x: usize, from_y: usize, width: usize, height: usize, kind: c_int
    ) {
        let (to, from) = (at(to, to_x, to_y)?, at(from, from_x, from_y)?);
        copy_rows(to, from, extent(width, height), kind, Order::wait(default))
    }

    fn cudaMemcpyToArray "_ptds" (default; to: u64, x: usize, y: usize, from: u64, bytes: usize, kind: c_int) {
        runs::copy(run(to, x, y)?, Run::memory(from), bytes, wanted(kind)?, Order::wait(default))
    }

    fn cudaMemcpyToArrayAsync "_ptsz" (
        default; to: u64, x: usize, y: usize, from: u64, bytes: usize, kind: c_int, stream: usize
    ) {
        let order = Order::queue(stream_of(stream, default));
        runs::copy(run(to, x, y)?, Run::memory(from), bytes, wanted(kind)?, order)
    }

    fn cudaMemcpyFromArray "_ptds" (default; to: u64, from: u64, x: usize, y: usize, bytes: usize, kind: c_int) {
        runs::copy(Run::memory(to), run(from, x, y)?, bytes, wanted(kind)?, Order::wait(default))
    }

    fn cudaMemcpyFromArrayAsync "_ptsz" (
        default; to: u64, from: u64, x: usize, y: usize, bytes: usize, kind: c_int, stream: usize
    ) {
        let order = Order::queue(stream_of(stream, default));
        runs::copy(Run::memory(to), run(from, x, y)?, bytes, wanted(kind)?, order)
    }

    fn cudaMemcpyArrayToArray "_ptds" (
        default; to: u64, to_x: usize, to_y: usize, from: u64, from_x: usize, from_y: usize, bytes: usize, kind: c_int
    ) {
        let (to, from) = (run(to, to_x, to_y)?, run(from, from_x, from_y)?);
        runs::copy(to, from, bytes, wanted(kind)?, Order::wait(default))
    }
}

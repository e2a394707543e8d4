//! Arrays, and copies of rows and boxes, whose sides are memory or arrays.

use super::{driver, driver_on_stream};
use crate::abi::{ArrayDescription2d, DriverCopy2d, DriverSide2d, In, Out};
use crate::handles::arrays;
use crate::handles::streams::meant;
use crate::runs::{self, Run};
use crate::transfer::{copy_rows, Direction, Order};
use rgaps_remoting::driver_abi::{
    ArrayDescription, Copy3d, CopySide, MEMORY_ARRAY, MEMORY_DEVICE, MEMORY_HOST,
};
use rgaps_remoting::{Code, Extent, Pitched, Shape};
use std::ffi::c_uint;

/// `CU_MEMORYTYPE_UNIFIED`: the address says where the memory is.
const MEMORY_UNIFIED: c_uint = 4;

/// A side of a copy. A layer of memory has `height` rows.
fn side(of: &CopySide) -> Result<Pitched, Code> {
    let base = match of.kind {
        MEMORY_HOST => of.host,
        MEMORY_DEVICE | MEMORY_UNIFIED => of.device,
        MEMORY_ARRAY => return arrays::element(of.array, (of.x as u64, of.y as u64, of.z as u64)),
        _ => return Err(Code::INVALID_VALUE),
    };
    let layer_bytes = of.pitch.checked_mul(of.height).ok_or(Code::INVALID_VALUE)?;
    let offset =
        of.z.checked_mul(layer_bytes)
            .zip(of.y.checked_mul(of.pitch))
            .and_then(|(layers, rows)| layers.checked_add(rows)?.checked_add(of.x));
    Ok(Pitched {
        array: 0,
        address: base.wrapping_add(offset.ok_or(Code::INVALID_VALUE)? as u64),
        row_bytes: of.pitch as u64,
        layer_bytes: layer_bytes as u64,
    })
}

fn in_one_layer(of: &DriverSide2d, height: usize) -> CopySide {
    CopySide {
        x: of.x,
        y: of.y,
        kind: of.kind,
        host: of.host,
        device: of.device,
        array: of.array,
        pitch: of.pitch,
        height,
        ..CopySide::default()
    }
}

fn copy_3d(wanted: &Copy3d, order: Order) -> Result<(), Code> {
    let extent = Extent {
        width_bytes: wanted.width_bytes as u64,
        height: wanted.height as u64,
        depth: wanted.depth as u64,
    };
    let (to, from) = (side(&wanted.to)?, side(&wanted.from)?);
    copy_rows(to, from, extent, Direction::of(&to, &from), order)
}

fn copy_2d(wanted: &DriverCopy2d, order: Order) -> Result<(), Code> {
    let wanted = Copy3d {
        from: in_one_layer(&wanted.from, wanted.height),
        to: in_one_layer(&wanted.to, wanted.height),
        width_bytes: wanted.width,
        height: wanted.height,
        depth: 1,
    };
    copy_3d(&wanted, order)
}

/// The bytes of an array of one row, from an offset.
fn run(array: u64, offset: usize) -> Result<Run, Code> {
    arrays::element(array, (offset as u64, 0, 0)).map(Run::array)
}

driver! {
    fn cuArrayCreate_v2(array: Out<u64>, of: In<ArrayDescription2d>) {
        array.check()?;
        let ArrayDescription2d { width, height, format, channels } = of.get()?;
        let (width, height) = (width as u64, height as u64);
        array.put(arrays::create(Shape { width, height, format, channels, ..Shape::default() })?)
    }

    fn cuArray3DCreate_v2(array: Out<u64>, of: In<ArrayDescription>) {
        array.check()?;
        array.put(arrays::create((&of.get()?).into())?)
    }

    fn cuArrayGetDescriptor_v2(to: Out<ArrayDescription2d>, array: u64) {
        let ArrayDescription { width, height, format, channels, .. } = (&arrays::find(array)?.shape).into();
        to.put(ArrayDescription2d { width, height, format, channels })
    }

    fn cuArray3DGetDescriptor_v2(to: Out<ArrayDescription>, array: u64) {
        to.put((&arrays::find(array)?.shape).into())
    }

    fn cuArrayDestroy(array: u64) {
        arrays::destroy(array)
    }

    fn cuMipmappedArrayCreate(mipmap: Out<u64>, of: In<ArrayDescription>, levels: c_uint) {
        mipmap.check()?;
        mipmap.put(arrays::create_mipmap((&of.get()?).into(), levels)?)
    }

    fn cuMipmappedArrayGetLevel(array: Out<u64>, mipmap: u64, level: c_uint) {
        array.check()?;
        array.put(arrays::level(mipmap, level)?)
    }

    fn cuMipmappedArrayDestroy(mipmap: u64) {
        arrays::destroy_mipmap(mipmap)
    }
}

driver_on_stream! {
    fn cuMemcpy2D_v2 "_ptds" (default; wanted: In<DriverCopy2d>) {
        copy_2d(&wanted.get()?, Order::wait(default))
    }

    fn cuMemcpy2DUnaligned_v2 "_ptds" (default; wanted: In<DriverCopy2d>) {
        copy_2d(&wanted.get()?, Order::wait(default))
    }

    fn cuMemcpy2DAsync_v2 "_ptsz" (default; wanted: In<DriverCopy2d>, stream: u64) {
        let stream = meant(stream, default);
        copy_2d(&wanted.get()?, Order::queue(stream))
    }

    fn cuMemcpy3D_v2 "_ptds" (default; wanted: In<Copy3d>) {
        copy_3d(&wanted.get()?, Order::wait(default))
    }

    fn cuMemcpy3DAsync_v2 "_ptsz" (default; wanted: In<Copy3d>, stream: u64) {
        let stream = meant(stream, default);
        copy_3d(&wanted.get()?, Order::queue(stream))
    }

    fn cuMemcpyHtoA_v2 "_ptds" (default; to: u64, offset: usize, from: u64, bytes: usize) {
        runs::copy(run(to, offset)?, Run::memory(from), bytes, Some(Direction::In), Order::wait(default))
    }

    fn cuMemcpyHtoAAsync_v2 "_ptsz" (default; to: u64, offset: usize, from: u64, bytes: usize, stream: u64) {
        let stream = meant(stream, default);
        runs::copy(run(to, offset)?, Run::memory(from), bytes, Some(Direction::In), Order::queue(stream))
    }

    fn cuMemcpyAtoH_v2 "_ptds" (default; to: u64, from: u64, offset: usize, bytes: usize) {
        runs::copy(Run::memory(to), run(from, offset)?, bytes, Some(Direction::Out), Order::wait(default))
    }

    fn cuMemcpyAtoHAsync_v2 "_ptsz" (default; to: u64, from: u64, offset: usize, bytes: usize, stream: u64) {
        let stream = meant(stream, default);
        runs::copy(Run::memory(to), run(from, offset)?, bytes, Some(Direction::Out), Order::queue(stream))
    }

    fn cuMemcpyDtoA_v2 "_ptds" (default; to: u64, offset: usize, from: u64, bytes: usize) {
        runs::copy(run(to, offset)?, Run::memory(from), bytes, Some(Direction::Within), Order::wait(default))
    }

    fn cuMemcpyAtoD_v2 "_ptds" (default; to: u64, from: u64, offset: usize, bytes: usize) {
        runs::copy(Run::memory(to), run(from, offset)?, bytes, Some(Direction::Within), Order::wait(default))
    }

    fn cuMemcpyAtoA_v2 "_ptds" (default; to: u64, to_offset: usize, from: u64, from_offset: usize, bytes: usize) {
        let (to, from) = (run(to, to_offset)?, run(from, from_offset)?);
        runs::copy(to, from, bytes, Some(Direction::Within), Order::wait(default))
    }
}

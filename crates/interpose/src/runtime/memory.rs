//! Device memory.

use super::{runtime, runtime_12, runtime_on_stream, stream_of};
use crate::abi::{Extent3, Out, PitchedPtr, PointerAttributes};
use crate::allocate::{allocate, allocate_on, pitched};
use crate::handles::streams;
use crate::session::check_alive;
use crate::transfer;
use crate::{managed, memory, session};
use rgaps_remoting::{row, Call, CallValue, Code, Extent, Pitched};
use std::ffi::{c_int, c_uint};

/// `cudaMemoryType`.
const UNREGISTERED: c_int = 0;
const HOST: c_int = 1;
const DEVICE: c_int = 2;
const MANAGED: c_int = 3;

/// Queues a fill with bytes.
fn fill(to: Pitched, extent: Extent, value: c_int, stream: u64) -> Result<(), Code> {
    transfer::fill(to, extent, (value as u32 & 0xff, 1), stream)
}

fn fill_rows(
    to: u64,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
    stream: u64,
) -> Result<(), Code> {
    let at = Pitched::rows(to, pitch as u64);
    let extent = Extent {
        width_bytes: width as u64,
        height: height as u64,
        depth: 1,
    };
    fill(at, extent, value, stream)
}

fn fill_box(to: &PitchedPtr, value: c_int, extent: &Extent3, stream: u64) -> Result<(), Code> {
    let at = Pitched {
        array: 0,
        address: to.start,
        row_bytes: to.pitch as u64,
        layer_bytes: (to.pitch as u64).saturating_mul(to.ysize as u64),
    };
    let extent = Extent {
        width_bytes: extent.width as u64,
        height: extent.height as u64,
        depth: extent.depth as u64,
    };
    fill(at, extent, value, stream)
}

runtime! {
    fn cudaMalloc(address: Out<u64>, bytes: usize) {
        address.check()?;
        address.put(allocate(bytes)?)
    }

    fn cudaFree(address: u64) {
        if address == 0 {
            return check_alive();
        }
        managed::free(address)
    }

    fn cudaMallocManaged(address: Out<u64>, bytes: usize, flags: c_uint) {
        address.check()?;
        address.put(managed::allocate(bytes as u64, flags)?)
    }

    // Managed memory is where it was last used; a location is advice.
    fn cudaMemAdvise(address: u64, bytes: usize, _advice: c_int, _location: u64) {
        managed::check(address, bytes as u64)
    }

    fn cudaMemAdvise_v2(address: u64, bytes: usize, _advice: c_int, _location: u64) {
        managed::check(address, bytes as u64)
    }

    fn cudaMallocPitch(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize) {
        address.check()?;
        pitch.check()?;
        let (row, bytes) = pitched(width, height, 1)?;
        address.put(allocate(bytes)?)?;
        pitch.put(row)
    }

    fn cudaMalloc3D(to: Out<PitchedPtr>, extent: Extent3) {
        to.check()?;
        let (pitch, bytes) = pitched(extent.width, extent.height, extent.depth)?;
        let start = allocate(bytes)?;
        to.put(PitchedPtr { start, pitch, xsize: extent.width, ysize: extent.height })
    }

    fn cudaMemGetInfo(free: Out<usize>, total: Out<usize>) {
        free.check()?;
        total.check()?;
        match session::call(&Call::MemoryInfo, &[])? {
            CallValue::Pair(left, all) => {
                free.put(left as usize)?;
                total.put(all as usize)
            }
            _ => Err(Code::UNKNOWN),
        }
    }

    fn cudaPointerGetAttributes(to: Out<PointerAttributes>, address: u64) {
        session::devices()?;
        session::answered_locally();
        if let Some(range) = memory::device_at(address) {
            let (kind, host_pointer) = match managed::is_managed(address) {
                true => (MANAGED, address),
                false => (DEVICE, 0),
            };
            return to.put(PointerAttributes {
                kind,
                device: range.device.into(),
                device_pointer: address,
                host_pointer,
            });
        }
        // Kernels cannot read this host's memory, so it has no address on the device.
        let (kind, device) = match memory::host_at(address) {
            Some(_) => (HOST, 0),
            None => (UNREGISTERED, -2),
        };
        to.put(PointerAttributes { kind, device, device_pointer: 0, host_pointer: address })
    }
}

runtime_12! {
    fn cudaMemPrefetchAsync(address: u64, bytes: usize, _device: c_int, _stream: usize) {
        managed::check(address, bytes as u64)
    }

    fn cudaMemPrefetchAsync_ptsz(address: u64, bytes: usize, _device: c_int, _stream: usize) {
        managed::check(address, bytes as u64)
    }
}

runtime_on_stream! {
    fn cudaMemPrefetchAsync "_ptsz" (_default; address: u64, bytes: usize, _location: u64, _flags: c_uint, _stream: usize) {
        managed::check(address, bytes as u64)
    }

    fn cudaMemPrefetchAsync_v2 "_ptsz" (
        _default; address: u64, bytes: usize, _location: u64, _flags: c_uint, _stream: usize
    ) {
        managed::check(address, bytes as u64)
    }

    fn cudaStreamAttachMemAsync "_ptsz" (default; stream: usize, address: u64, _bytes: usize, _flags: c_uint) {
        streams::check(stream_of(stream, default))?;
        managed::check(address, 0)
    }

    fn cudaMallocAsync "_ptsz" (default; address: Out<u64>, bytes: usize, stream: usize) {
        address.check()?;
        address.put(allocate_on(bytes, stream_of(stream, default))?)
    }

    fn cudaFreeAsync "_ptsz" (default; address: u64, stream: usize) {
        if address == 0 {
            return Err(Code::INVALID_VALUE);
        }
        transfer::free_on(address, stream_of(stream, default))
    }

    fn cudaMemset "_ptds" (default; to: u64, value: c_int, bytes: usize) {
        let (at, extent) = row(to, bytes as u64);
        fill(at, extent, value, default)
    }

    fn cudaMemsetAsync "_ptsz" (default; to: u64, value: c_int, bytes: usize, stream: usize) {
        let (at, extent) = row(to, bytes as u64);
        fill(at, extent, value, stream_of(stream, default))
    }

    fn cudaMemset2D "_ptds" (default; to: u64, pitch: usize, value: c_int, width: usize, height: usize) {
        fill_rows(to, pitch, value, width, height, default)
    }

    fn cudaMemset2DAsync "_ptsz" (
        default; to: u64, pitch: usize, value: c_int, width: usize, height: usize, stream: usize
    ) {
        fill_rows(to, pitch, value, width, height, stream_of(stream, default))
    }

    fn cudaMemset3D "_ptds" (default; to: PitchedPtr, value: c_int, extent: Extent3) {
        fill_box(&to, value, &extent, default)
    }

    fn cudaMemset3DAsync "_ptsz" (default; to: PitchedPtr, value: c_int, extent: Extent3, stream: usize) {
        fill_box(&to, value, &extent, stream_of(stream, default))
    }
}

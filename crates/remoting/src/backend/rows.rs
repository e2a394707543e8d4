//! Copies and fills of rows and layers, by the driver's functions for rows.

use super::api::{cu, Api};
use crate::codes::Code;
use crate::driver_abi::{Copy3d, CopySide, MEMORY_ARRAY, MEMORY_DEVICE, MEMORY_HOST};
use crate::extent::{Extent, Pitched};

/// One side of a copy.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    /// Device memory of the session, or an array of it by the driver's handle.
    Device(Pitched),
    /// Memory of the backend.
    Host(Pitched),
}

impl Side {
    /// This side of the driver's copy of one layer.
    fn layer(&self, layer: u64, width_bytes: u64) -> CopySide {
        let (Side::Device(at) | Side::Host(at)) = self;
        let address = at.address + layer * at.layer_bytes;
        let rows = CopySide {
            pitch: at.row_bytes.max(width_bytes) as usize,
            ..CopySide::default()
        };
        match self {
            Side::Device(at) if at.array != 0 => {
                let in_layer = address % at.layer_bytes;
                CopySide {
                    kind: MEMORY_ARRAY,
                    array: at.array,
                    x: (in_layer % at.row_bytes) as usize,
                    y: (in_layer / at.row_bytes) as usize,
                    z: (address / at.layer_bytes) as usize,
                    ..CopySide::default()
                }
            }
            Side::Device(_) => CopySide {
                kind: MEMORY_DEVICE,
                device: address,
                ..rows
            },
            Side::Host(_) => CopySide {
                kind: MEMORY_HOST,
                host: address,
                ..rows
            },
        }
    }
}

/// Queues a copy. The ranges were checked by the caller, and what is the backend's stays until the copy is done.
pub(crate) fn copy(
    api: &Api,
    to: Side,
    from: Side,
    extent: Extent,
    stream: usize,
) -> Result<(), Code> {
    for layer in 0..extent.depth {
        let one = Copy3d {
            from: from.layer(layer, extent.width_bytes),
            to: to.layer(layer, extent.width_bytes),
            width_bytes: extent.width_bytes as usize,
            height: extent.height as usize,
            depth: 1,
        };
        // SAFETY: each side is device memory or an array of the session, which the caller checked (`Session::target`, `Session::origin`),
        // or a staging buffer or region of the backend with as many bytes, which stays mapped until the driver has finished with it.
        unsafe { cu!(api, copy_3d(&one, stream))? };
    }
    Ok(())
}

/// Queues a copy between a device and the backend's memory. The device's range was checked by the caller; the backend's has as many
/// bytes, and stays until the copy is done.
pub(crate) fn between(
    api: &Api,
    device: Pitched,
    host: Pitched,
    extent: Extent,
    is_in: bool,
    stream: usize,
) -> Result<(), Code> {
    if extent.height == 1 && extent.depth == 1 && device.array == 0 {
        let (there, here, bytes) = (device.address, host.address, extent.width_bytes as usize);
        // SAFETY: `there` is device memory of the session, which the caller checked (`Session::target`, `Session::origin`); `here` has
        // `bytes` bytes of a staging buffer or region, which stays mapped until the driver has finished with it.
        return unsafe {
            match is_in {
                true => cu!(api, copy_in(there, here as *const _, bytes, stream)),
                false => cu!(api, copy_out(here as *mut _, there, bytes, stream)),
            }
        };
    }
    let (device, host) = (Side::Device(device), Side::Host(host));
    match is_in {
        true => copy(api, device, host, extent, stream),
        false => copy(api, host, device, extent, stream),
    }
}

/// Queues a fill of elements of `width` bytes.
pub(crate) fn fill(
    api: &Api,
    to: Pitched,
    extent: Extent,
    value: u32,
    width: u8,
    stream: usize,
) -> Result<(), Code> {
    if extent.width_bytes == 0 || extent.height == 0 || extent.depth == 0 {
        return Ok(());
    }
    let is_row = extent.height == 1 && extent.depth == 1;
    let count = extent.width_bytes as usize / usize::from(width.max(1));
    if is_row {
        // SAFETY: `Session::copy_call`, the only caller, checked that the row is device memory of the session.
        return unsafe {
            match width {
                1 => cu!(api, fill_8(to.address, value as u8, count, stream)),
                2 => cu!(api, fill_16(to.address, value as u16, count, stream)),
                4 => cu!(api, fill_32(to.address, value, count, stream)),
                _ => Err(Code::INVALID_VALUE),
            }
        };
    }
    for layer in 0..extent.depth {
        let address = to.address + layer * to.layer_bytes;
        let (pitch, height) = (to.row_bytes as usize, extent.height as usize);
        let (short, byte) = (value as u16, value as u8);
        // SAFETY: `Session::copy_call`, the only caller, checked that all layers are device memory of the session.
        unsafe {
            match width {
                1 => cu!(api, fill_2d_8(address, pitch, byte, count, height, stream)),
                2 => cu!(
                    api,
                    fill_2d_16(address, pitch, short, count, height, stream)
                ),
                4 => cu!(
                    api,
                    fill_2d_32(address, pitch, value, count, height, stream)
                ),
                _ => Err(Code::INVALID_VALUE),
            }?
        };
    }
    Ok(())
}

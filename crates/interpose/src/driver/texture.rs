//! Textures and surfaces.

use super::driver;
use crate::abi::{DriverResource, In, Out};
use crate::handles::arrays::{self, Texture};
use rgaps_remoting::{Code, Resource, SAMPLER_BYTES, VIEW_BYTES};
use std::ffi::c_uint;

/// `CUresourcetype`.
const ARRAY: c_uint = 0;
const MIPMAP: c_uint = 1;
const LINEAR: c_uint = 2;
const ROWS: c_uint = 3;

fn resource(of: &DriverResource) -> Result<Resource, Code> {
    // Of memory: the address; format and channels in one word; sizes.
    let [handle, packed, first, second, third, ..] = of.words;
    let (format, channels) = (packed as u32, (packed >> 32) as u32);
    Ok(match of.kind {
        ARRAY => Resource::Array(handle),
        MIPMAP => Resource::Mipmap(handle),
        LINEAR => Resource::Linear {
            address: handle,
            format,
            channels,
            bytes: first,
        },
        ROWS => Resource::Rows {
            address: handle,
            format,
            channels,
            width: first,
            height: second,
            pitch: third,
        },
        _ => return Err(Code::INVALID_VALUE),
    })
}

fn described(of: &Resource) -> DriverResource {
    let packed = |format: u32, channels: u32| u64::from(format) | u64::from(channels) << 32;
    let (kind, first) = match *of {
        Resource::Array(handle) => (ARRAY, [handle, 0, 0, 0, 0]),
        Resource::Mipmap(handle) => (MIPMAP, [handle, 0, 0, 0, 0]),
        Resource::Linear {
            address,
            format,
            channels,
            bytes,
        } => (LINEAR, [address, packed(format, channels), bytes, 0, 0]),
        Resource::Rows {
            address,
            format,
            channels,
            width,
            height,
            pitch,
        } => (
            ROWS,
            [address, packed(format, channels), width, height, pitch],
        ),
    };
    let mut words = [0; 16];
    words[..5].copy_from_slice(&first);
    DriverResource {
        kind,
        words,
        flags: 0,
    }
}

driver! {
    fn cuTexObjectCreate(
        texture: Out<u64>, of: In<DriverResource>, sampler: In<[u8; SAMPLER_BYTES]>, view: In<[u8; VIEW_BYTES]>
    ) {
        texture.check()?;
        let view = if view.is_null() { Vec::new() } else { view.get()?.to_vec() };
        let of = Texture { resource: resource(&of.get()?)?, view };
        texture.put(arrays::create_texture(of, &sampler.get()?)?)
    }

    fn cuTexObjectDestroy(texture: u64) {
        arrays::destroy_texture(texture)
    }

    fn cuTexObjectGetResourceDesc(to: Out<DriverResource>, texture: u64) {
        to.put(described(&arrays::texture(texture)?.resource))
    }

    fn cuTexObjectGetTextureDesc(to: Out<[u8; SAMPLER_BYTES]>, texture: u64) {
        to.put(arrays::sampler(texture)?)
    }

    fn cuTexObjectGetResourceViewDesc(to: Out<[u8; VIEW_BYTES]>, texture: u64) {
        to.put(arrays::texture(texture)?.view.try_into().map_err(|_| Code::INVALID_VALUE)?)
    }

    fn cuSurfObjectCreate(surface: Out<u64>, of: In<DriverResource>) {
        surface.check()?;
        surface.put(arrays::create_surface(resource(&of.get()?)?)?)
    }

    fn cuSurfObjectDestroy(surface: u64) {
        arrays::destroy_surface(surface)
    }

    fn cuSurfObjectGetResourceDesc(to: Out<DriverResource>, surface: u64) {
        to.put(described(&arrays::surface(surface)?))
    }
}

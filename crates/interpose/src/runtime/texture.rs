//! Textures and surfaces. Their descriptions are translated from the runtime's structures to the driver's, and back when the program asks.

use super::{runtime, runtime_12};
use crate::abi::{
    ChannelFormat, In, Out, ResourceDescription, TextureDescription, ViewDescription,
};
use crate::formats;
use crate::handles::arrays::{self, Texture};
use rgaps_remoting::{Code, Resource, SAMPLER_BYTES, VIEW_BYTES};
use std::ffi::c_int;

/// `cudaResourceType`.
const ARRAY: c_int = 0;
const MIPMAP: c_int = 1;
const LINEAR: c_int = 2;
const ROWS: c_int = 3;
/// `CU_TRSF_READ_AS_INTEGER` and others.
const AS_INTEGER: u32 = 0x01;
const NORMALIZED: u32 = 0x02;
const SRGB: u32 = 0x10;
const WITHOUT_TRILINEAR_OPTIMIZATION: u32 = 0x20;
const SEAMLESS: u32 = 0x40;
/// `cudaReadModeElementType` and `cudaReadModeNormalizedFloat`.
const ELEMENTS: u32 = 0;
const FLOATS: u32 = 1;
const WORDS: usize = SAMPLER_BYTES / 4;

/// `cudaResourceDesc` of CUDA 13.
#[repr(C)]
#[derive(Clone, Copy)]
struct ResourceDescription13 {
    first: ResourceDescription,
    reserved: [u64; 9],
    flags: u64,
}

const _: () = assert!(size_of::<ResourceDescription13>() == 144);

fn resource(of: &ResourceDescription) -> Result<Resource, Code> {
    let format = || formats::to_driver(&of.format);
    Ok(match of.kind {
        ARRAY => Resource::Array(of.handle),
        MIPMAP => Resource::Mipmap(of.handle),
        LINEAR => Resource::Linear {
            address: of.handle,
            format: format()?.0,
            channels: format()?.1,
            bytes: of.sizes[0] as u64,
        },
        ROWS => Resource::Rows {
            address: of.handle,
            format: format()?.0,
            channels: format()?.1,
            width: of.sizes[0] as u64,
            height: of.sizes[1] as u64,
            pitch: of.sizes[2] as u64,
        },
        _ => return Err(Code::INVALID_VALUE),
    })
}

fn described(of: &Resource) -> ResourceDescription {
    let memory = |kind, handle, (format, channels), sizes: [u64; 3]| ResourceDescription {
        kind,
        handle,
        format: formats::to_runtime(format, channels),
        sizes: sizes.map(|size| size as usize),
    };
    let array = |kind, handle| ResourceDescription {
        kind,
        handle,
        ..ResourceDescription::default()
    };
    match *of {
        Resource::Array(handle) => array(ARRAY, handle),
        Resource::Mipmap(handle) => array(MIPMAP, handle),
        Resource::Linear {
            address,
            format,
            channels,
            bytes,
        } => memory(LINEAR, address, (format, channels), [bytes, 0, 0]),
        Resource::Rows {
            address,
            format,
            channels,
            width,
            height,
            pitch,
        } => memory(ROWS, address, (format, channels), [width, height, pitch]),
    }
}

/// Translates `cudaTextureDesc` to `CUDA_TEXTURE_DESC`.
fn sampler(of: &TextureDescription) -> Vec<u8> {
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    let flags = flag(of.read_mode == ELEMENTS, AS_INTEGER)
        | flag(of.is_normalized != 0, NORMALIZED)
        | flag(of.srgb != 0, SRGB)
        | flag(
            of.without_trilinear_optimization != 0,
            WITHOUT_TRILINEAR_OPTIMIZATION,
        )
        | flag(of.is_seamless != 0, SEAMLESS);
    let mut words = [0; WORDS];
    words[..3].copy_from_slice(&of.address_modes);
    words[3..6].copy_from_slice(&[of.filter, flags, of.anisotropy_max]);
    words[6..10].copy_from_slice(&of.mipmap);
    words[10..14].copy_from_slice(&of.border);
    words
        .iter()
        .flat_map(|word: &u32| word.to_ne_bytes())
        .collect()
}

/// Translates `CUDA_TEXTURE_DESC` to `cudaTextureDesc`.
fn sampling(sampler: &[u8]) -> TextureDescription {
    let word = |at: usize| {
        let bytes = sampler.get(at * 4..at * 4 + 4);
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u32::from_ne_bytes)
    };
    let flags = word(4);
    let is_set = |flag: u32| c_int::from(flags & flag != 0);
    TextureDescription {
        address_modes: [word(0), word(1), word(2)],
        filter: word(3),
        read_mode: if flags & AS_INTEGER != 0 {
            ELEMENTS
        } else {
            FLOATS
        },
        srgb: is_set(SRGB),
        border: [word(10), word(11), word(12), word(13)],
        is_normalized: is_set(NORMALIZED),
        anisotropy_max: word(5),
        mipmap: [word(6), word(7), word(8), word(9)],
        without_trilinear_optimization: is_set(WITHOUT_TRILINEAR_OPTIMIZATION),
        is_seamless: is_set(SEAMLESS),
    }
}

fn create(
    of: In<ResourceDescription>,
    texture: In<TextureDescription>,
    view: In<ViewDescription>,
) -> Result<u64, Code> {
    let view = match view.is_null() {
        true => Vec::new(),
        false => {
            let mut all = view.get()?.to_vec();
            all.resize(VIEW_BYTES, 0);
            all
        }
    };
    let resource = resource(&of.get()?)?;
    arrays::create_texture(Texture { resource, view }, &sampler(&texture.get()?))
}

/// The view of a texture that was created with one.
fn view(of: u64) -> Result<[u8; VIEW_BYTES], Code> {
    let view = arrays::texture(of)?.view;
    view.try_into().map_err(|_| Code::INVALID_VALUE)
}

fn described_13(of: &Resource) -> ResourceDescription13 {
    ResourceDescription13 {
        first: described(of),
        reserved: [0; 9],
        flags: 0,
    }
}

runtime! {
    fn cudaCreateTextureObject(
        texture: Out<u64>, of: In<ResourceDescription>, sampling: In<TextureDescription>, view: In<ViewDescription>
    ) {
        texture.check()?;
        texture.put(create(of, sampling, view)?)
    }

    fn cudaDestroyTextureObject(texture: u64) {
        arrays::destroy_texture(texture)
    }

    fn cudaGetTextureObjectResourceDesc(to: Out<ResourceDescription13>, texture: u64) {
        to.put(described_13(&arrays::texture(texture)?.resource))
    }

    fn cudaGetTextureObjectTextureDesc(to: Out<TextureDescription>, texture: u64) {
        to.put(sampling(&arrays::sampler(texture)?))
    }

    fn cudaGetTextureObjectResourceViewDesc(to: Out<[u8; VIEW_BYTES]>, texture: u64) {
        to.put(view(texture)?)
    }

    fn cudaCreateSurfaceObject(surface: Out<u64>, of: In<ResourceDescription>) {
        surface.check()?;
        surface.put(arrays::create_surface(resource(&of.get()?)?)?)
    }

    fn cudaDestroySurfaceObject(surface: u64) {
        arrays::destroy_surface(surface)
    }

    fn cudaGetSurfaceObjectResourceDesc(to: Out<ResourceDescription13>, surface: u64) {
        to.put(described_13(&arrays::surface(surface)?))
    }
}

runtime_12! {
    fn cudaGetTextureObjectResourceDesc(to: Out<ResourceDescription>, texture: u64) {
        to.put(described(&arrays::texture(texture)?.resource))
    }

    fn cudaGetTextureObjectResourceViewDesc(to: Out<ViewDescription>, texture: u64) {
        let mut first = [0; size_of::<ViewDescription>()];
        first.copy_from_slice(&view(texture)?[..size_of::<ViewDescription>()]);
        to.put(first)
    }

    fn cudaGetSurfaceObjectResourceDesc(to: Out<ResourceDescription>, surface: u64) {
        to.put(described(&arrays::surface(surface)?))
    }
}

/// Returns the format and no error, since it cannot fail.
#[export_name = "rgaps_rt_cudaCreateChannelDesc"]
extern "C" fn create_channel_description(
    x: c_int,
    y: c_int,
    z: c_int,
    w: c_int,
    kind: c_int,
) -> ChannelFormat {
    ChannelFormat {
        bits: [x, y, z, w],
        kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samplers_and_resources_survive_a_round_trip() {
        let wanted = TextureDescription {
            address_modes: [1, 2, 3],
            filter: 1,
            read_mode: FLOATS,
            srgb: 1,
            border: [4, 5, 6, 7],
            is_normalized: 1,
            anisotropy_max: 8,
            mipmap: [1, 9, 10, 11],
            without_trilinear_optimization: 1,
            is_seamless: 1,
        };
        for of in [wanted, TextureDescription::default()] {
            let translated = sampler(&of);
            assert_eq!(translated.len(), SAMPLER_BYTES);
            assert_eq!(sampler(&sampling(&translated)), translated);
        }
        let back = sampling(&sampler(&wanted));
        assert_eq!(
            (back.border, back.mipmap, back.read_mode),
            ([4, 5, 6, 7], [1, 9, 10, 11], FLOATS)
        );
        let rows = Resource::Rows {
            address: 4096,
            format: 0x20,
            channels: 4,
            width: 5,
            height: 6,
            pitch: 512,
        };
        assert_eq!(resource(&described(&rows)), Ok(rows));
    }
}

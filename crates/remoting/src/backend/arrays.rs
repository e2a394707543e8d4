//! Arrays, mipmapped arrays, and the textures and surfaces through which kernels use them.
//!
//! The driver allocates arrays, and counts their bytes as it likes; here they count with the size of their elements.

use super::api::{cu, Api, ArrayDescription, ResourceDescription, Sampler, View};
use super::session::{done, number, Outcome, Session};
use crate::array::{Resource, Shape};
use crate::call::{Call, Extent, Pitched, Value};
use crate::codes::Code;
use crate::frame::Header;
use crate::limits::HANDLES_MAX;
use std::collections::HashMap;

struct Array {
    raw: usize,
    shape: Shape,
    device: u16,
    /// The mipmapped array of which it is a level; the driver destroys both together.
    mipmap: Option<u64>,
}

struct Mipmap {
    raw: usize,
    shape: Shape,
    levels: u32,
    device: u16,
}

impl Mipmap {
    fn bytes(&self) -> u64 {
        bytes_of(&self.shape, self.levels)
    }
}

fn bytes_of(shape: &Shape, levels: u32) -> u64 {
    (0..levels).map(|level| shape.level(level).bytes()).sum()
}

/// A client's arrays by its numbers; textures and surfaces by the driver's handles, with their device.
#[derive(Default)]
pub(crate) struct Arrays {
    arrays: HashMap<u64, Array>,
    mipmaps: HashMap<u64, Mipmap>,
    textures: HashMap<u64, u16>,
    surfaces: HashMap<u64, u16>,
}

impl Arrays {
    fn is_free(&self, handle: u64) -> Result<(), Code> {
        let is_known = self.arrays.contains_key(&handle) || self.mipmaps.contains_key(&handle);
        let count = self.arrays.len() + self.mipmaps.len();
        match handle != 0 && !is_known && count < HANDLES_MAX {
            true => Ok(()),
            false => Err(Code::INVALID_VALUE),
        }
    }

    fn has_room(&self) -> Result<(), Code> {
        match self.textures.len() + self.surfaces.len() < HANDLES_MAX {
            true => Ok(()),
            false => Err(Code::OUT_OF_RESOURCES),
        }
    }

    fn array(&self, array: u64) -> Result<&Array, Code> {
        self.arrays.get(&array).ok_or(Code::INVALID_HANDLE)
    }

    fn mipmap(&self, mipmap: u64) -> Result<&Mipmap, Code> {
        self.mipmaps.get(&mipmap).ok_or(Code::INVALID_HANDLE)
    }

    /// A place in an array that holds all of an extent, with the driver's handle.
    fn locate(&self, at: &Pitched, extent: &Extent) -> Result<Pitched, Code> {
        let array = self.array(at.array)?;
        array.shape.holds(at, extent)?;
        Ok(Pitched {
            array: array.raw as u64,
            ..*at
        })
    }

    /// Forgets what was on a device that was reset; gives its bytes.
    pub(crate) fn reset(&mut self, device: u16) -> u64 {
        let own = |array: &&Array| array.device == device && array.mipmap.is_none();
        let arrays = self.arrays.values().filter(own);
        let mipmaps = self
            .mipmaps
            .values()
            .filter(|mipmap| mipmap.device == device);
        let bytes = arrays.map(|array| array.shape.bytes()).sum::<u64>()
            + mipmaps.map(Mipmap::bytes).sum::<u64>();
        self.arrays.retain(|_, array| array.device != device);
        self.mipmaps.retain(|_, mipmap| mipmap.device != device);
        self.textures.retain(|_, of| *of != device);
        self.surfaces.retain(|_, of| *of != device);
        bytes
    }
}

/// The words of a structure of the driver.
fn words<const N: usize>(bytes: &[u8]) -> Result<[u64; N], Code> {
    if bytes.len() != N * 8 {
        return Err(Code::INVALID_VALUE);
    }
    let mut words = [0; N];
    for (word, eight) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut copy = [0; 8];
        copy.copy_from_slice(eight);
        *word = u64::from_ne_bytes(copy);
    }
    Ok(words)
}

fn description(shape: &Shape) -> ArrayDescription {
    ArrayDescription {
        width: shape.width as usize,
        height: shape.height as usize,
        depth: shape.depth as usize,
        format: shape.format,
        channels: shape.channels,
        flags: shape.flags,
    }
}

fn create(api: &Api, shape: &Shape) -> Result<usize, Code> {
    let mut raw = 0;
    // SAFETY: the out pointer is to a variable of this function, and the driver checks the description.
    unsafe { cu!(api, array_create(&mut raw, &description(shape)))? };
    Ok(raw)
}

impl Session {
    /// A place that the client may write to, as rows or in an array, with the driver's handle of the array.
    pub(super) fn place_to(&self, at: &Pitched, extent: &Extent) -> Result<Pitched, Code> {
        match at.array {
            0 => self.memory.check_rows(at, extent).map(|()| *at),
            _ => self.arrays.locate(at, extent),
        }
    }

    /// The same for a place that it may read.
    pub(super) fn place_from(&self, at: &Pitched, extent: &Extent) -> Result<Pitched, Code> {
        match at.array {
            0 => self.readable_rows(at, extent).map(|()| *at),
            _ => self.arrays.locate(at, extent),
        }
    }

    pub(super) fn array_call(&mut self, of: &Header, call: &Call<'_>) -> Result<Outcome, Code> {
        match *call {
            Call::ArrayCreate { array, shape } => {
                shape.check()?;
                self.arrays.is_free(array)?;
                self.memory.admit(shape.bytes())?;
                let new = Array {
                    raw: create(&self.api, &shape)?,
                    shape,
                    device: of.device,
                    mipmap: None,
                };
                self.memory.count(shape.bytes());
                self.arrays.arrays.insert(array, new);
                done(Ok(()))
            }
            Call::ArrayDestroy { array } => self.destroy_array(array),
            Call::MipmapCreate {
                mipmap,
                shape,
                levels,
            } => self.create_mipmap(of, mipmap, shape, levels),
            Call::MipmapLevel {
                mipmap,
                level,
                array,
            } => self.level(mipmap, level, array),
            Call::MipmapDestroy { mipmap } => self.destroy_mipmap(mipmap),
            _ => self.texture_call(of, call),
        }
    }

    fn destroy_array(&mut self, array: u64) -> Result<Outcome, Code> {
        if self.arrays.array(array)?.mipmap.is_some() {
            return Err(Code::INVALID_VALUE);
        }
        let gone = self.arrays.arrays.remove(&array);
        let gone = gone.ok_or(Code::INVALID_HANDLE)?;
        self.memory.discount(gone.shape.bytes());
        // SAFETY: an array of this session, which nobody can name any more.
        done(unsafe { cu!(self.api, array_destroy(gone.raw)) })
    }

    fn create_mipmap(
        &mut self,
        of: &Header,
        mipmap: u64,
        shape: Shape,
        levels: u32,
    ) -> Result<Outcome, Code> {
        shape.check()?;
        self.arrays.is_free(mipmap)?;
        if levels == 0 || levels > shape.levels_max() {
            return Err(Code::INVALID_VALUE);
        }
        let bytes = bytes_of(&shape, levels);
        self.memory.admit(bytes)?;
        let mut raw = 0;
        let wanted = description(&shape);
        // SAFETY: the out pointer is to a variable of this function, and the driver checks the description.
        unsafe { cu!(self.api, mipmap_create(&mut raw, &wanted, levels))? };
        self.memory.count(bytes);
        let new = Mipmap {
            raw,
            shape,
            levels,
            device: of.device,
        };
        self.arrays.mipmaps.insert(mipmap, new);
        done(Ok(()))
    }

    fn level(&mut self, mipmap: u64, level: u32, array: u64) -> Result<Outcome, Code> {
        self.arrays.is_free(array)?;
        let of = self.arrays.mipmap(mipmap)?;
        if level >= of.levels {
            return Err(Code::INVALID_VALUE);
        }
        let mut raw = 0;
        // SAFETY: the out pointer is to a variable of this function; the mipmapped array is one of this session.
        unsafe { cu!(self.api, mipmap_level(&mut raw, of.raw, level))? };
        let new = Array {
            raw,
            shape: of.shape.level(level),
            device: of.device,
            mipmap: Some(mipmap),
        };
        self.arrays.arrays.insert(array, new);
        done(Ok(()))
    }

    fn destroy_mipmap(&mut self, mipmap: u64) -> Result<Outcome, Code> {
        let gone = self.arrays.mipmaps.remove(&mipmap);
        let gone = gone.ok_or(Code::INVALID_HANDLE)?;
        self.memory.discount(gone.bytes());
        let is_other = |array: &Array| array.mipmap != Some(mipmap);
        self.arrays.arrays.retain(|_, array| is_other(array));
        // SAFETY: a mipmapped array of this session; nobody can name it or its levels any more.
        done(unsafe { cu!(self.api, mipmap_destroy(gone.raw)) })
    }

    fn texture_call(&mut self, of: &Header, call: &Call<'_>) -> Result<Outcome, Code> {
        let mut handle = 0;
        match *call {
            Call::TextureCreate {
                resource,
                sampler,
                view,
            } => {
                let resource = self.resource(&resource)?;
                self.arrays.has_room()?;
                let sampler: Sampler = words(sampler)?;
                let view: Option<View> = match view.is_empty() {
                    true => None,
                    false => Some(words(view)?),
                };
                let view = view.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                // SAFETY: the out pointer and the structures are to variables of this function. They have the lengths of the driver's,
                // and name only what is this session's.
                unsafe {
                    cu!(
                        self.api,
                        texture_create(&mut handle, &resource, &sampler, view)
                    )?
                };
                self.arrays.textures.insert(handle, of.device);
                number(handle)
            }
            Call::TextureDestroy { texture } => {
                let gone = self.arrays.textures.remove(&texture);
                gone.ok_or(Code::INVALID_VALUE)?;
                // SAFETY: a texture of this session, which nobody can name any more.
                done(unsafe { cu!(self.api, texture_destroy(texture)) })
            }
            Call::TextureSampler { texture } => {
                let known = self.arrays.textures.get(&texture);
                known.ok_or(Code::INVALID_VALUE)?;
                let mut sampler: Sampler = Default::default();
                // SAFETY: the out pointer is to a variable of this function; the texture is one of this session.
                unsafe { cu!(self.api, texture_sampler(&mut sampler, texture))? };
                let words = sampler.iter();
                let bytes = words.flat_map(|word| word.to_ne_bytes()).collect();
                Ok(Outcome::Now(Value::Sampler(bytes)))
            }
            Call::SurfaceCreate { array } => {
                let resource = self.resource(&Resource::Array(array))?;
                self.arrays.has_room()?;
                // SAFETY: the out pointer is to a variable of this function; the array is one of this session.
                unsafe { cu!(self.api, surface_create(&mut handle, &resource))? };
                self.arrays.surfaces.insert(handle, of.device);
                number(handle)
            }
            Call::SurfaceDestroy { surface } => {
                let gone = self.arrays.surfaces.remove(&surface);
                gone.ok_or(Code::INVALID_VALUE)?;
                // SAFETY: a surface of this session, which nobody can name any more.
                done(unsafe { cu!(self.api, surface_destroy(surface)) })
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// What the driver is told of a resource, if the client may name it.
    fn resource(&self, resource: &Resource) -> Result<ResourceDescription, Code> {
        let packed = |format: u32, channels: u32| u64::from(format) | u64::from(channels) << 32;
        let (kind, words) = match *resource {
            Resource::Array(array) => (0, [self.arrays.array(array)?.raw as u64, 0, 0, 0, 0]),
            Resource::Mipmap(mipmap) => (1, [self.arrays.mipmap(mipmap)?.raw as u64, 0, 0, 0, 0]),
            Resource::Linear {
                address,
                format,
                channels,
                bytes,
            } => {
                self.readable(address, bytes)?;
                (2, [address, packed(format, channels), bytes, 0, 0])
            }
            Resource::Rows {
                address,
                format,
                channels,
                width,
                height,
                pitch,
            } => {
                let shape = Shape {
                    width,
                    height,
                    format,
                    channels,
                    ..Shape::default()
                };
                shape.check()?;
                let at = Pitched {
                    address,
                    row_bytes: pitch,
                    ..Pitched::default()
                };
                let extent = Extent {
                    width_bytes: shape.row_bytes(),
                    height,
                    depth: 1,
                };
                self.readable_rows(&at, &extent)?;
                (3, [address, packed(format, channels), width, height, pitch])
            }
        };
        Ok(ResourceDescription::new(kind, words))
    }
}

//! Calls on arrays, textures and surfaces.

use super::api::{cu, Api, Sampler, View};
use super::arrays::{bytes_of, Array, Mipmap};
use super::session::{done, number, Outcome, Session};
use crate::array::{Resource, Shape};
use crate::call::{Call, CallValue};
use crate::codes::Code;
use crate::driver_abi::{ArrayDescription, ResourceDescription};
use crate::extent::{Extent, Pitched};
use crate::frame::FrameHeader;

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

fn create(api: &Api, shape: &Shape) -> Result<usize, Code> {
    let mut raw = 0;
    // SAFETY: the out pointer is to a variable of this function, and the driver checks the description.
    unsafe { cu!(api, array_create(&mut raw, &shape.into()))? };
    Ok(raw)
}

impl Session {
    /// Checks that the client may write an extent of rows or of an array. Gives its position, with the driver's handle of the array.
    pub(super) fn target(&self, at: &Pitched, extent: &Extent) -> Result<Pitched, Code> {
        match at.array {
            0 => self.memory.check_rows(at, extent).map(|()| *at),
            _ => self.arrays.locate(at, extent),
        }
    }

    /// Checks that the client may read an extent of rows or of an array. Gives its position, with the driver's handle of the array.
    pub(super) fn origin(&self, at: &Pitched, extent: &Extent) -> Result<Pitched, Code> {
        match at.array {
            0 => self.readable_rows(at, extent).map(|()| *at),
            _ => self.arrays.locate(at, extent),
        }
    }

    pub(super) fn array_call(
        &mut self,
        of: &FrameHeader,
        call: &Call<'_>,
    ) -> Result<Outcome, Code> {
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
        let removed = self.arrays.arrays.remove(&array);
        let removed = removed.ok_or(Code::INVALID_HANDLE)?;
        self.memory.discount(removed.shape.bytes());
        // SAFETY: an array of this session, just taken out of its table, so no later call uses it.
        done(unsafe { cu!(self.api, array_destroy(removed.raw)) })
    }

    fn create_mipmap(
        &mut self,
        of: &FrameHeader,
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
        let wanted = ArrayDescription::from(&shape);
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
        let removed = self.arrays.mipmaps.remove(&mipmap);
        let removed = removed.ok_or(Code::INVALID_HANDLE)?;
        self.memory.discount(removed.bytes());
        let is_other = |array: &Array| array.mipmap != Some(mipmap);
        self.arrays.arrays.retain(|_, array| is_other(array));
        // SAFETY: a mipmapped array of this session, just taken out of its table with its levels, so no later call uses them.
        done(unsafe { cu!(self.api, mipmap_destroy(removed.raw)) })
    }

    fn texture_call(&mut self, of: &FrameHeader, call: &Call<'_>) -> Result<Outcome, Code> {
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
                let removed = self.arrays.textures.remove(&texture);
                removed.ok_or(Code::INVALID_VALUE)?;
                // SAFETY: a texture of this session, just taken out of its table, so no later call uses it.
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
                Ok(Outcome::Now(CallValue::Sampler(bytes)))
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
                let removed = self.arrays.surfaces.remove(&surface);
                removed.ok_or(Code::INVALID_VALUE)?;
                // SAFETY: a surface of this session, just taken out of its table, so no later call uses it.
                done(unsafe { cu!(self.api, surface_destroy(surface)) })
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// The driver's description of a resource, if the client may read it.
    fn resource(&self, resource: &Resource) -> Result<ResourceDescription, Code> {
        let named = match *resource {
            Resource::Array(array) => Resource::Array(self.arrays.array(array)?.raw as u64),
            Resource::Mipmap(mipmap) => Resource::Mipmap(self.arrays.mipmap(mipmap)?.raw as u64),
            Resource::Linear { address, bytes, .. } => {
                self.readable(address, bytes)?;
                *resource
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
                *resource
            }
        };
        Ok((&named).into())
    }
}

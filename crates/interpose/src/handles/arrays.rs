//! Arrays, and the textures and surfaces that kernels get as parameters.
//!
//! This process mints the handles of arrays. The handles of textures and surfaces are the server's, so two servers may give equal ones:
//! such a handle means one of the current device's server.

use crate::servers::{at, is_here, number_of};
use crate::{session, thread};
use rgaps_remoting::{Call, CallValue, Code, Extent, Pitched, Resource, Shape, SAMPLER_BYTES};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// An array, or one level of a mipmapped one.
#[derive(Clone, Copy)]
pub(crate) struct Array {
    pub(crate) device: u16,
    pub(crate) shape: Shape,
    mipmap: Option<u64>,
}

/// A mipmapped array.
struct Mipmap {
    device: u16,
    shape: Shape,
    /// The arrays of its levels, made when they are asked for.
    levels: Vec<Option<u64>>,
}

/// What a texture was made of, as structures of the driver. The sampler is not kept: the server's driver changes some of it, and is asked
/// for it.
#[derive(Clone)]
pub(crate) struct Texture {
    pub(crate) resource: Resource,
    /// `CUDA_RESOURCE_VIEW_DESC`; empty if the texture has no view.
    pub(crate) view: Vec<u8>,
}

#[derive(Default)]
struct Arrays {
    arrays: HashMap<u64, Array>,
    mipmaps: HashMap<u64, Mipmap>,
    /// With their devices, by server and handle.
    textures: HashMap<(usize, u64), (u16, Texture)>,
    /// The device and the array of each surface, by server and handle.
    surfaces: HashMap<(usize, u64), (u16, u64)>,
}

impl Arrays {
    /// Forgets what was on a device that was reset.
    fn reset(&mut self, device: u16) {
        self.arrays.retain(|_, array| array.device != device);
        self.mipmaps.retain(|_, mipmap| mipmap.device != device);
        self.textures.retain(|_, (of, _)| *of != device);
        self.surfaces.retain(|_, (of, _)| *of != device);
    }
}

fn arrays() -> MutexGuard<'static, Arrays> {
    static ARRAYS: OnceLock<Mutex<Arrays>> = OnceLock::new();
    ARRAYS
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Finds an array by its handle.
pub(crate) fn find(array: u64) -> Result<Array, Code> {
    arrays()
        .arrays
        .get(&array)
        .copied()
        .ok_or(Code::INVALID_HANDLE)
}

/// Where an element of an array is.
pub(crate) fn element(array: u64, position: (u64, u64, u64)) -> Result<Pitched, Code> {
    let element = find(array)?.shape.element(array, position);
    element.ok_or(Code::INVALID_VALUE)
}

/// Refuses a copy that leaves the array.
pub(crate) fn check(at: &Pitched, extent: &Extent) -> Result<(), Code> {
    find(at.array)?.shape.holds(at, extent)
}

/// Creates an array on the current device.
pub(crate) fn create(shape: Shape) -> Result<u64, Code> {
    shape.check()?;
    let array = session::mint();
    session::call(&Call::ArrayCreate { array, shape }, &[])?;
    let new = Array {
        device: thread::device(),
        shape,
        mipmap: None,
    };
    arrays().arrays.insert(array, new);
    Ok(array)
}

pub(crate) fn destroy(array: u64) -> Result<(), Code> {
    let found = find(array)?;
    if found.mipmap.is_some() {
        return Err(Code::INVALID_VALUE);
    }
    arrays().arrays.remove(&array);
    at(found.device, || {
        session::send(&Call::ArrayDestroy { array }, &[])
    })
}

/// Creates a mipmapped array with `levels` levels, or as many as its shape allows if these are fewer.
pub(crate) fn create_mipmap(shape: Shape, levels: u32) -> Result<u64, Code> {
    shape.check()?;
    let levels = levels.clamp(1, shape.levels_max());
    let mipmap = session::mint();
    let call = Call::MipmapCreate {
        mipmap,
        shape,
        levels,
    };
    session::call(&call, &[])?;
    let new = Mipmap {
        device: thread::device(),
        shape,
        levels: vec![None; levels as usize],
    };
    arrays().mipmaps.insert(mipmap, new);
    Ok(mipmap)
}

/// The array of a level.
pub(crate) fn level(mipmap: u64, level: u32) -> Result<u64, Code> {
    let mut all = arrays();
    let found = all.mipmaps.get_mut(&mipmap).ok_or(Code::INVALID_HANDLE)?;
    let slot = found.levels.get_mut(level as usize);
    let slot = slot.ok_or(Code::INVALID_VALUE)?;
    if let Some(array) = *slot {
        return Ok(array);
    }
    let array = session::mint();
    let call = Call::MipmapLevel {
        mipmap,
        level,
        array,
    };
    at(found.device, || session::send(&call, &[]))?;
    *slot = Some(array);
    let new = Array {
        device: found.device,
        shape: found.shape.level(level),
        mipmap: Some(mipmap),
    };
    all.arrays.insert(array, new);
    Ok(array)
}

/// Destroys a mipmapped array, and the arrays of its levels with it.
pub(crate) fn destroy_mipmap(mipmap: u64) -> Result<(), Code> {
    let mut all = arrays();
    let removed = all.mipmaps.remove(&mipmap).ok_or(Code::INVALID_HANDLE)?;
    all.arrays.retain(|_, array| array.mipmap != Some(mipmap));
    drop(all);
    at(removed.device, || {
        session::send(&Call::MipmapDestroy { mipmap }, &[])
    })
}

/// Forgets what was on a device that was reset.
pub(crate) fn reset(device: u16) {
    arrays().reset(device);
}

/// Refuses a resource of another server.
fn check_here(resource: &Resource) -> Result<(), Code> {
    let device = match *resource {
        Resource::Array(array) => find(array)?.device,
        Resource::Mipmap(mipmap) => {
            let all = arrays();
            let found = all.mipmaps.get(&mipmap).ok_or(Code::INVALID_HANDLE)?;
            found.device
        }
        Resource::Linear { address, .. } | Resource::Rows { address, .. } => {
            let range = crate::memory::device_at(address);
            range.ok_or(Code::INVALID_VALUE)?.device
        }
    };
    match is_here(device) {
        true => Ok(()),
        false => Err(Code::INVALID_HANDLE),
    }
}

fn here(handle: u64) -> (usize, u64) {
    (number_of(thread::device()), handle)
}

/// Creates a texture on the current device.
pub(crate) fn create_texture(of: Texture, sampler: &[u8]) -> Result<u64, Code> {
    check_here(&of.resource)?;
    let texture = session::number(&Call::TextureCreate {
        resource: of.resource,
        sampler,
        view: &of.view,
    })?;
    let new = (thread::device(), of);
    arrays().textures.insert(here(texture), new);
    Ok(texture)
}

/// What a texture was made of.
pub(crate) fn texture(texture: u64) -> Result<Texture, Code> {
    let all = arrays();
    let found = all.textures.get(&here(texture));
    found
        .map(|(_, texture)| texture.clone())
        .ok_or(Code::INVALID_VALUE)
}

/// The sampler of a texture, as the server's driver has it.
pub(crate) fn sampler(of: u64) -> Result<[u8; SAMPLER_BYTES], Code> {
    texture(of)?;
    match session::call(&Call::TextureSampler { texture: of }, &[])? {
        CallValue::Sampler(sampler) => sampler.try_into().map_err(|_| Code::UNKNOWN),
        _ => Err(Code::UNKNOWN),
    }
}

pub(crate) fn destroy_texture(texture: u64) -> Result<(), Code> {
    let removed = arrays().textures.remove(&here(texture));
    removed.ok_or(Code::INVALID_VALUE)?;
    session::send(&Call::TextureDestroy { texture }, &[])
}

/// Creates a surface on the current device.
pub(crate) fn create_surface(resource: Resource) -> Result<u64, Code> {
    let Resource::Array(array) = resource else {
        return Err(Code::INVALID_VALUE);
    };
    check_here(&resource)?;
    let surface = session::number(&Call::SurfaceCreate { array })?;
    let new = (thread::device(), array);
    arrays().surfaces.insert(here(surface), new);
    Ok(surface)
}

/// What a surface was made of.
pub(crate) fn surface(surface: u64) -> Result<Resource, Code> {
    let all = arrays();
    let found = all.surfaces.get(&here(surface)).copied();
    found
        .map(|(_, array)| Resource::Array(array))
        .ok_or(Code::INVALID_VALUE)
}

pub(crate) fn destroy_surface(surface: u64) -> Result<(), Code> {
    let removed = arrays().surfaces.remove(&here(surface));
    removed.ok_or(Code::INVALID_VALUE)?;
    session::send(&Call::SurfaceDestroy { surface }, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_forgets_the_textures_and_surfaces_of_its_device() {
        let mut all = Arrays::default();
        for device in [0, 1] {
            let handle = (0, u64::from(device) + 16);
            let texture = Texture {
                resource: Resource::Array(1),
                view: Vec::new(),
            };
            all.textures.insert(handle, (device, texture));
            all.surfaces.insert(handle, (device, 1));
        }
        all.reset(0);
        assert!(all.textures.keys().eq([&(0, 17)]));
        assert!(all.surfaces.keys().eq([&(0, 17)]));
    }
}

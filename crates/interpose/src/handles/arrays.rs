//! Arrays, and the textures and surfaces that kernels get as parameters.
//!
//! The handles of arrays are minted here. Those of textures and surfaces are the server's, so those of two servers may be equal: a
//! handle means one of the current device's server.

use crate::servers::{at, is_here, number_of};
use crate::{session, thread};
use rgaps_remoting::{Call, Code, Extent, Pitched, Resource, Shape, Value, SAMPLER_BYTES};
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

/// What a texture was made of: the structures of the driver. How it is read the server's driver says, which changes some of that.
#[derive(Clone)]
pub(crate) struct Texture {
    pub(crate) resource: Resource,
    /// Empty without one.
    pub(crate) view: Vec<u8>,
}

#[derive(Default)]
struct Arrays {
    arrays: HashMap<u64, Array>,
    mipmaps: HashMap<u64, Mipmap>,
    /// By server and handle; of a surface its array.
    textures: HashMap<(usize, u64), Texture>,
    surfaces: HashMap<(usize, u64), u64>,
}

fn arrays() -> MutexGuard<'static, Arrays> {
    static ARRAYS: OnceLock<Mutex<Arrays>> = OnceLock::new();
    ARRAYS
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// What is known of an array.
pub(crate) fn find(array: u64) -> Result<Array, Code> {
    arrays()
        .arrays
        .get(&array)
        .copied()
        .ok_or(Code::INVALID_HANDLE)
}

/// The place of an element of an array.
pub(crate) fn place(array: u64, position: (u64, u64, u64)) -> Result<Pitched, Code> {
    let place = find(array)?.shape.place(array, position);
    place.ok_or(Code::INVALID_VALUE)
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

/// Destroys an array.
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

/// Creates a mipmapped array of so many levels, or as many as fit.
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
    let gone = all.mipmaps.remove(&mipmap).ok_or(Code::INVALID_HANDLE)?;
    all.arrays.retain(|_, array| array.mipmap != Some(mipmap));
    drop(all);
    at(gone.device, || {
        session::send(&Call::MipmapDestroy { mipmap }, &[])
    })
}

/// Forgets what was on a device that was reset.
pub(crate) fn reset(device: u16) {
    let mut all = arrays();
    all.arrays.retain(|_, array| array.device != device);
    all.mipmaps.retain(|_, mipmap| mipmap.device != device);
}

/// Refuses what another server has.
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
    arrays().textures.insert(here(texture), of);
    Ok(texture)
}

/// What a texture was made of.
pub(crate) fn texture(texture: u64) -> Result<Texture, Code> {
    let all = arrays();
    let found = all.textures.get(&here(texture));
    found.cloned().ok_or(Code::INVALID_VALUE)
}

/// How a texture is read.
pub(crate) fn sampler(of: u64) -> Result<[u8; SAMPLER_BYTES], Code> {
    texture(of)?;
    match session::call(&Call::TextureSampler { texture: of }, &[])? {
        Value::Sampler(sampler) => sampler.try_into().map_err(|_| Code::UNKNOWN),
        _ => Err(Code::UNKNOWN),
    }
}

/// Destroys a texture.
pub(crate) fn destroy_texture(texture: u64) -> Result<(), Code> {
    let gone = arrays().textures.remove(&here(texture));
    gone.ok_or(Code::INVALID_VALUE)?;
    session::send(&Call::TextureDestroy { texture }, &[])
}

/// Creates a surface on the current device.
pub(crate) fn create_surface(resource: Resource) -> Result<u64, Code> {
    let Resource::Array(array) = resource else {
        return Err(Code::INVALID_VALUE);
    };
    check_here(&resource)?;
    let surface = session::number(&Call::SurfaceCreate { array })?;
    arrays().surfaces.insert(here(surface), array);
    Ok(surface)
}

/// What a surface was made of.
pub(crate) fn surface(surface: u64) -> Result<Resource, Code> {
    let all = arrays();
    let found = all.surfaces.get(&here(surface)).copied();
    found.map(Resource::Array).ok_or(Code::INVALID_VALUE)
}

/// Destroys a surface.
pub(crate) fn destroy_surface(surface: u64) -> Result<(), Code> {
    let gone = arrays().surfaces.remove(&here(surface));
    gone.ok_or(Code::INVALID_VALUE)?;
    session::send(&Call::SurfaceDestroy { surface }, &[])
}

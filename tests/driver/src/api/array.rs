//! Arrays, which are memory with rows and layers behind each other; textures and surfaces, which kernels here cannot use; copies of boxes.

use crate::abi::{Code, MEMORY_ARRAY, MEMORY_DEVICE, MEMORY_HOST};
use crate::call::{call, put, Global};
use crate::context::current;
use crate::transfer::{copy, Form};
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Description {
    width: usize,
    height: usize,
    depth: usize,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

/// `CUDA_RESOURCE_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Resource {
    kind: c_uint,
    words: [u64; 16],
    flags: c_uint,
}

/// A side of `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Side {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: c_uint,
    host: u64,
    device: u64,
    array: usize,
    reserved: usize,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
struct Copy3d {
    from: Side,
    to: Side,
    width_bytes: usize,
    height: usize,
    depth: usize,
}

const _: () = assert!(size_of::<Description>() == 40 && size_of::<Resource>() == 144);
const _: () = assert!(size_of::<Copy3d>() == 200);
const LAYERED: c_uint = 1;
const RESOURCE_ARRAY: c_uint = 0;
const RESOURCE_MIPMAP: c_uint = 1;
const RESOURCE_LINEAR: c_uint = 2;
const RESOURCE_ROWS: c_uint = 3;

/// `CUDA_TEXTURE_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sampler {
    address_modes: [c_uint; 3],
    others: [c_uint; 7],
    border: [c_uint; 4],
    reserved: [c_int; 12],
}

const _: () = assert!(size_of::<Sampler>() == 104);

#[derive(Clone, Copy)]
struct Array {
    address: u64,
    of: Description,
    is_level: bool,
}

/// Everything by handle.
#[derive(Default)]
pub(crate) struct Arrays {
    arrays: HashMap<usize, Array>,
    mipmaps: HashMap<usize, Vec<usize>>,
    textures: HashMap<u64, Sampler>,
    surfaces: HashMap<u64, Resource>,
    last: usize,
}

fn element_bytes(of: &Description) -> Result<usize, Code> {
    let channel = match of.format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => return Err(Code::NOT_SUPPORTED),
    };
    match [1, 2, 4].contains(&of.channels) && of.width > 0 {
        true => Ok(channel * of.channels as usize),
        false => Err(Code::INVALID_VALUE),
    }
}

impl Array {
    /// Bytes of a row, rows and layers.
    fn sides(&self) -> Result<[usize; 3], Code> {
        let row = self.of.width * element_bytes(&self.of)?;
        Ok([row, self.of.height.max(1), self.of.depth.max(1)])
    }
}

impl Arrays {
    fn handle(&mut self) -> usize {
        self.last += 1;
        0xa77a_0000_0000 + self.last * 16
    }

    fn get(&self, array: usize) -> Result<&Array, Code> {
        self.arrays.get(&array).ok_or(Code::INVALID_HANDLE)
    }

    fn add(&mut self, g: &Global, of: Description, is_level: bool) -> Result<usize, Code> {
        let array = Array {
            address: 0,
            of,
            is_level,
        };
        let [row, rows, layers] = array.sides()?;
        let bytes = (row * rows * layers) as u64;
        if bytes > g.config().memory_bytes {
            return Err(Code::OUT_OF_MEMORY);
        }
        let address = g.memory_mut().allocate(bytes, current()?.position)?;
        let handle = self.handle();
        self.arrays.insert(handle, Array { address, ..array });
        Ok(handle)
    }

    fn remove(&mut self, g: &Global, array: usize) -> Result<(), Code> {
        let gone = self.arrays.remove(&array).ok_or(Code::INVALID_HANDLE)?;
        g.memory_mut().free(gone.address)
    }

    fn check(&self, g: &Global, of: &Resource) -> Result<(), Code> {
        let handle = of.words[0] as usize;
        match of.kind {
            RESOURCE_ARRAY => self.get(handle).map(drop),
            RESOURCE_MIPMAP if self.mipmaps.contains_key(&handle) => Ok(()),
            RESOURCE_LINEAR | RESOURCE_ROWS if g.memory().extent(of.words[0]).is_some() => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

fn arrays(g: &Global) -> MutexGuard<'_, Arrays> {
    let arrays: &Mutex<Arrays> = &g.arrays;
    arrays.lock().unwrap_or_else(PoisonError::into_inner)
}

#[no_mangle]
unsafe extern "C" fn cuArray3DCreate_v2(array: *mut usize, of: *const Description) -> c_int {
    call("cuArray3DCreate", |g| {
        // SAFETY: the caller's.
        let of = *unsafe { of.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        let handle = arrays(g).add(g, of, false)?;
        // SAFETY: the caller's.
        unsafe { put(array, handle) }
    })
}

#[no_mangle]
extern "C" fn cuArrayDestroy(array: usize) -> c_int {
    call("cuArrayDestroy", |g| {
        current()?.synchronize(g)?;
        let mut arrays = arrays(g);
        if arrays.get(array)?.is_level {
            return Err(Code::INVALID_VALUE);
        }
        arrays.remove(g, array)
    })
}

#[no_mangle]
unsafe extern "C" fn cuMipmappedArrayCreate(
    mipmap: *mut usize,
    of: *const Description,
    levels: c_uint,
) -> c_int {
    call("cuMipmappedArrayCreate", |g| {
        // SAFETY: the caller's.
        let of = *unsafe { of.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        let half = |side: usize, level: c_uint| match side {
            0 => 0,
            side => (side >> level).max(1),
        };
        let mut arrays = arrays(g);
        let mut all = Vec::new();
        for level in 0..levels {
            let depth = match of.flags & LAYERED {
                0 => half(of.depth, level),
                _ => of.depth,
            };
            let one = Description {
                width: half(of.width, level),
                height: half(of.height, level),
                depth,
                ..of
            };
            all.push(arrays.add(g, one, true)?);
        }
        let handle = arrays.handle();
        arrays.mipmaps.insert(handle, all);
        // SAFETY: the caller's.
        unsafe { put(mipmap, handle) }
    })
}

#[no_mangle]
unsafe extern "C" fn cuMipmappedArrayGetLevel(
    array: *mut usize,
    mipmap: usize,
    level: c_uint,
) -> c_int {
    call("cuMipmappedArrayGetLevel", |g| {
        let arrays = arrays(g);
        let all = arrays.mipmaps.get(&mipmap).ok_or(Code::INVALID_HANDLE)?;
        let found = all.get(level as usize).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the caller's.
        unsafe { put(array, *found) }
    })
}

#[no_mangle]
extern "C" fn cuMipmappedArrayDestroy(mipmap: usize) -> c_int {
    call("cuMipmappedArrayDestroy", |g| {
        current()?.synchronize(g)?;
        let mut arrays = arrays(g);
        let levels = arrays.mipmaps.remove(&mipmap).ok_or(Code::INVALID_HANDLE)?;
        levels
            .into_iter()
            .try_for_each(|level| arrays.remove(g, level))
    })
}

#[no_mangle]
unsafe extern "C" fn cuTexObjectCreate(
    texture: *mut u64,
    of: *const Resource,
    sampler: *const Sampler,
    _view: *const c_void,
) -> c_int {
    call("cuTexObjectCreate", |g| {
        // SAFETY: the caller's.
        let of = *unsafe { of.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        let mut arrays = arrays(g);
        arrays.check(g, &of)?;
        // SAFETY: the caller's.
        let mut sampler = *unsafe { sampler.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        // As a real one, it tells nobody the border's colour.
        sampler.border = [0; 4];
        let handle = arrays.handle() as u64;
        arrays.textures.insert(handle, sampler);
        // SAFETY: the caller's.
        unsafe { put(texture, handle) }
    })
}

#[no_mangle]
extern "C" fn cuTexObjectDestroy(texture: u64) -> c_int {
    call("cuTexObjectDestroy", |g| {
        let gone = arrays(g).textures.remove(&texture);
        gone.map(drop).ok_or(Code::INVALID_VALUE)
    })
}

#[no_mangle]
unsafe extern "C" fn cuTexObjectGetTextureDesc(to: *mut Sampler, texture: u64) -> c_int {
    call("cuTexObjectGetTextureDesc", |g| {
        let found = arrays(g).textures.get(&texture).copied();
        // SAFETY: the caller's.
        unsafe { put(to, found.ok_or(Code::INVALID_VALUE)?) }
    })
}

#[no_mangle]
unsafe extern "C" fn cuSurfObjectCreate(surface: *mut u64, of: *const Resource) -> c_int {
    call("cuSurfObjectCreate", |g| {
        // SAFETY: the caller's.
        let of = *unsafe { of.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        let mut arrays = arrays(g);
        // CUDA also takes arrays without the flag for surfaces.
        match of.kind {
            RESOURCE_ARRAY => arrays.get(of.words[0] as usize)?,
            _ => return Err(Code::INVALID_VALUE),
        };
        let handle = arrays.handle() as u64;
        arrays.surfaces.insert(handle, of);
        // SAFETY: the caller's.
        unsafe { put(surface, handle) }
    })
}

#[no_mangle]
extern "C" fn cuSurfObjectDestroy(surface: u64) -> c_int {
    call("cuSurfObjectDestroy", |g| {
        let gone = arrays(g).surfaces.remove(&surface);
        gone.map(drop).ok_or(Code::INVALID_VALUE)
    })
}

/// The address of a side's first byte, and bytes from a row and from a layer to the next.
fn start(g: &Global, side: &Side, wanted: &Copy3d) -> Result<[u64; 3], Code> {
    let (base, row, rows) = match side.kind {
        MEMORY_HOST => (side.host, side.pitch, side.height),
        MEMORY_DEVICE => (side.device, side.pitch, side.height),
        MEMORY_ARRAY => {
            let array = *arrays(g).get(side.array)?;
            let [row, rows, layers] = array.sides()?;
            let is_inside = side.x + wanted.width_bytes <= row
                && side.y + wanted.height <= rows
                && side.z + wanted.depth <= layers;
            if !is_inside {
                return Err(Code::INVALID_VALUE);
            }
            (array.address, row, rows)
        }
        _ => return Err(Code::NOT_SUPPORTED),
    };
    if side.x + wanted.width_bytes > row || wanted.depth > 1 && rows < wanted.height {
        return Err(Code::INVALID_VALUE);
    }
    let offset = (side.z * rows + side.y) * row + side.x;
    Ok([base + offset as u64, row as u64, (row * rows) as u64])
}

#[no_mangle]
unsafe extern "C" fn cuMemcpy3DAsync_v2(wanted: *const Copy3d, stream: usize) -> c_int {
    call("cuMemcpy3DAsync", |g| {
        // SAFETY: the caller's.
        let wanted = unsafe { wanted.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        let to = start(g, &wanted.to, wanted)?;
        let from = start(g, &wanted.from, wanted)?;
        for layer in 0..wanted.depth as u64 {
            for row in 0..wanted.height as u64 {
                let at = |of: [u64; 3]| of[0] + layer * of[2] + row * of[1];
                let bytes = wanted.width_bytes as u64;
                // SAFETY: the caller's.
                unsafe { copy(g, at(to), at(from), bytes, Form::Async(stream))? };
            }
        }
        Ok(())
    })
}

//! Arrays, mipmapped arrays, and the textures and surfaces through which kernels use them.
//!
//! The driver may pad arrays; towards the client's limit they count with the size of their elements.

use crate::array::Shape;
use crate::codes::Code;
use crate::extent::{Extent, Pitched};
use crate::limits::HANDLES_MAX;
use std::collections::HashMap;

pub(super) struct Array {
    pub(super) raw: usize,
    pub(super) shape: Shape,
    pub(super) device: u16,
    /// The mipmapped array of which it is a level; the driver destroys both together.
    pub(super) mipmap: Option<u64>,
}

pub(super) struct Mipmap {
    pub(super) raw: usize,
    pub(super) shape: Shape,
    pub(super) levels: u32,
    pub(super) device: u16,
}

impl Mipmap {
    pub(super) fn bytes(&self) -> u64 {
        bytes_of(&self.shape, self.levels)
    }
}

pub(super) fn bytes_of(shape: &Shape, levels: u32) -> u64 {
    (0..levels).map(|level| shape.level(level).bytes()).sum()
}

/// A client's arrays by its numbers; textures and surfaces by the driver's handles, with their device.
#[derive(Default)]
pub(crate) struct Arrays {
    pub(super) arrays: HashMap<u64, Array>,
    pub(super) mipmaps: HashMap<u64, Mipmap>,
    pub(super) textures: HashMap<u64, u16>,
    pub(super) surfaces: HashMap<u64, u16>,
}

impl Arrays {
    pub(super) fn is_free(&self, handle: u64) -> Result<(), Code> {
        let is_known = self.arrays.contains_key(&handle) || self.mipmaps.contains_key(&handle);
        let count = self.arrays.len() + self.mipmaps.len();
        match handle != 0 && !is_known && count < HANDLES_MAX {
            true => Ok(()),
            false => Err(Code::INVALID_VALUE),
        }
    }

    pub(super) fn has_room(&self) -> Result<(), Code> {
        match self.textures.len() + self.surfaces.len() < HANDLES_MAX {
            true => Ok(()),
            false => Err(Code::OUT_OF_RESOURCES),
        }
    }

    pub(super) fn array(&self, array: u64) -> Result<&Array, Code> {
        self.arrays.get(&array).ok_or(Code::INVALID_HANDLE)
    }

    pub(super) fn mipmap(&self, mipmap: u64) -> Result<&Mipmap, Code> {
        self.mipmaps.get(&mipmap).ok_or(Code::INVALID_HANDLE)
    }

    /// Checks that an extent is inside its array. Gives its position, with the driver's handle of the array.
    pub(super) fn locate(&self, at: &Pitched, extent: &Extent) -> Result<Pitched, Code> {
        let array = self.array(at.array)?;
        array.shape.holds(at, extent)?;
        Ok(Pitched {
            array: array.raw as u64,
            ..*at
        })
    }

    /// Forgets what was on a device that was reset; gives how many bytes that were.
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

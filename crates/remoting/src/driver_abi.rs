//! Structures of CUDA's driver that both ends use: the client gets them from programs, the server gives them to the driver.

use crate::array::{Resource, Shape};
use crate::codes::Code;
use std::ffi::c_uint;

/// `CUmemorytype`.
pub const MEMORY_HOST: c_uint = 1;
/// Memory of a device.
pub const MEMORY_DEVICE: c_uint = 2;
/// An array.
pub const MEMORY_ARRAY: c_uint = 3;

/// A side of `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs, reason = "its fields are those of CUDA's structure")]
pub struct CopySide {
    pub x: usize,
    pub y: usize,
    pub z: usize,
    pub level: usize,
    pub kind: c_uint,
    pub host: u64,
    pub device: u64,
    pub array: u64,
    pub reserved: usize,
    pub pitch: usize,
    pub height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "its fields are those of CUDA's structure")]
pub struct Copy3d {
    pub from: CopySide,
    pub to: CopySide,
    pub width_bytes: usize,
    pub height: usize,
    pub depth: usize,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "its fields are those of CUDA's structure")]
pub struct ArrayDescription {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: c_uint,
    pub channels: c_uint,
    pub flags: c_uint,
}

/// `CUDA_RESOURCE_DESC`, whose kind decides what its words are.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ResourceDescription {
    kind: c_uint,
    words: [u64; 16],
    flags: c_uint,
}

const _: () = assert!(size_of::<Copy3d>() == 200 && size_of::<ArrayDescription>() == 40);
const _: () = assert!(size_of::<ResourceDescription>() == 144);

impl From<&Shape> for ArrayDescription {
    fn from(of: &Shape) -> ArrayDescription {
        ArrayDescription {
            width: of.width as usize,
            height: of.height as usize,
            depth: of.depth as usize,
            format: of.format,
            channels: of.channels,
            flags: of.flags,
        }
    }
}

impl From<&ArrayDescription> for Shape {
    fn from(of: &ArrayDescription) -> Shape {
        Shape {
            width: of.width as u64,
            height: of.height as u64,
            depth: of.depth as u64,
            format: of.format,
            channels: of.channels,
            flags: of.flags,
        }
    }
}

/// `CUresourcetype`.
const ARRAY: c_uint = 0;
const MIPMAP: c_uint = 1;
const LINEAR: c_uint = 2;
const ROWS: c_uint = 3;

impl From<&Resource> for ResourceDescription {
    fn from(of: &Resource) -> ResourceDescription {
        // The words for memory: the address; format and channels in one word; sizes.
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
        ResourceDescription {
            kind,
            words,
            flags: 0,
        }
    }
}

impl TryFrom<&ResourceDescription> for Resource {
    type Error = Code;

    fn try_from(of: &ResourceDescription) -> Result<Resource, Code> {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_survive_a_round_trip() {
        let (address, format, channels) = (4096, 0x20, 4);
        for of in [
            Resource::Array(7),
            Resource::Mipmap(8),
            Resource::Linear {
                address,
                format,
                channels,
                bytes: 512,
            },
            Resource::Rows {
                address,
                format,
                channels,
                width: 5,
                height: 6,
                pitch: 512,
            },
        ] {
            assert_eq!(Resource::try_from(&ResourceDescription::from(&of)), Ok(of));
        }
        let other = ResourceDescription {
            kind: 4,
            ..ResourceDescription::default()
        };
        assert_eq!(Resource::try_from(&other), Err(Code::INVALID_VALUE));
    }
}

//! Parameters of C functions, and structures of `driver_types.h`.

use rgaps_remoting::Code;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};

/// The address where the program wants a result, or null. A parameter of an exported function, so C makes all but [`Out::none`].
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn put(&self, value: T) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by the contract of the exported CUDA function the program passes null, which was just refused, or the address of memory
        // for a `T` (for `put_at`, of an array), which it leaves to the function until its call returns.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the result unless the address is null.
    pub(crate) fn put_if_wanted(&self, value: T) {
        let _ = self.put(value);
    }

    /// Fails if the address is null. Functions check before they do anything.
    pub(crate) fn check(&self) -> Result<(), Code> {
        match self.0.is_null() {
            true => Err(Code::INVALID_VALUE),
            false => Ok(()),
        }
    }

    /// A null address: nobody wants the result.
    pub(crate) fn none() -> Out<T> {
        Out(std::ptr::null_mut())
    }

    /// Writes the element at `position` of an array of results.
    pub(crate) fn put_at(&self, position: usize, value: T) -> Result<(), Code> {
        Out(self.0.wrapping_add(position)).put(value)
    }

    /// The address, as one of bytes.
    pub(crate) fn bytes(&self) -> *mut u8 {
        self.0.cast()
    }
}

impl<T: Copy> Out<T> {
    /// Reads the value that the program left there.
    pub(crate) fn get(&self) -> Result<T, Code> {
        In(self.0.cast_const()).get()
    }
}

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

/// A value that the program passes by its address. Only C makes one.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn get(&self) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by the contract of the exported CUDA function the program passes null, which was just refused, or the address of a `T`,
        // which it keeps as it is until its call returns.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads the element at `position` of an array.
    pub(crate) fn at(&self, position: usize) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by the contract of the exported CUDA function the program passes null, which was just refused, or an array, which it
        // keeps as it is until its call returns. The function reads positions below the length that the contract gives the array.
        Ok(unsafe { self.0.add(position).read_unaligned() })
    }
}

impl<T> In<T> {
    /// Whether the address is null.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

/// A C string that the program passes, or null. A parameter of an exported function, so C makes it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get(&self) -> Result<&CStr, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by the contract of the exported CUDA function the program passes null, which was just refused, or a C string, which it
        // keeps as it is until its call returns. The `Text` is a parameter of that call, so the borrow ends before.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }
}

/// Writes `text` and a zero byte to `to`, which has `room` bytes; fails if they do not fit.
pub(crate) fn put_text(to: Out<c_char>, room: c_int, text: &str) -> Result<(), Code> {
    let room = usize::try_from(room).map_err(|_| Code::INVALID_VALUE)?;
    to.check()?;
    if room < text.len() + 1 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: by the contract of the exported CUDA function `to`, which is not null, has `room` bytes that may be written until the
    // program's call returns. The text with its zero is no longer, as was just checked.
    unsafe {
        to.bytes()
            .copy_from_nonoverlapping(text.as_ptr(), text.len());
        to.bytes().add(text.len()).write(0);
    }
    Ok(())
}

/// `dim3`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Dim3 {
    pub(crate) x: c_uint,
    pub(crate) y: c_uint,
    pub(crate) z: c_uint,
}

impl Dim3 {
    pub(crate) fn all(&self) -> [u32; 3] {
        [self.x, self.y, self.z]
    }
}

/// `cudaPitchedPtr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PitchedPtr {
    pub(crate) start: u64,
    pub(crate) pitch: usize,
    pub(crate) xsize: usize,
    pub(crate) ysize: usize,
}

/// `cudaExtent`, and `cudaPos`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Extent3 {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// `cudaMemcpy3DParms`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Copy3d {
    pub(crate) from_array: u64,
    pub(crate) from_at: Extent3,
    pub(crate) from: PitchedPtr,
    pub(crate) to_array: u64,
    pub(crate) to_at: Extent3,
    pub(crate) to: PitchedPtr,
    pub(crate) extent: Extent3,
    pub(crate) kind: c_int,
}

const _: () = assert!(size_of::<Copy3d>() == 160);

/// `cudaChannelFormatDesc`: bits of each channel, and whether they are signed, unsigned or floats.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct ChannelFormat {
    pub(crate) bits: [c_int; 4],
    pub(crate) kind: c_int,
}

/// `cudaResourceDesc`, as CUDA 12 has it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ResourceDescription {
    pub(crate) kind: c_int,
    /// An array, or an address.
    pub(crate) handle: u64,
    pub(crate) format: ChannelFormat,
    /// Bytes; or width, height and pitch.
    pub(crate) sizes: [usize; 3],
}

const _: () = assert!(size_of::<ResourceDescription>() == 64);

/// `cudaTextureDesc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct TextureDescription {
    pub(crate) address_modes: [c_uint; 3],
    pub(crate) filter: c_uint,
    pub(crate) read_mode: c_uint,
    pub(crate) srgb: c_int,
    pub(crate) border: [c_uint; 4],
    pub(crate) is_normalized: c_int,
    pub(crate) anisotropy_max: c_uint,
    /// Filter, bias, least and greatest level.
    pub(crate) mipmap: [c_uint; 4],
    pub(crate) without_trilinear_optimization: c_int,
    pub(crate) is_seamless: c_int,
}

const _: () = assert!(size_of::<TextureDescription>() == 72);

/// `cudaResourceViewDesc`, as CUDA 12 has it: the beginning of the driver's.
pub(crate) type ViewDescription = [u8; 48];

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ArrayDescription2d {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
}

/// A side of `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DriverSide2d {
    pub(crate) x: usize,
    pub(crate) y: usize,
    pub(crate) kind: c_uint,
    pub(crate) host: u64,
    pub(crate) device: u64,
    pub(crate) array: u64,
    pub(crate) pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DriverCopy2d {
    pub(crate) from: DriverSide2d,
    pub(crate) to: DriverSide2d,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

const _: () = assert!(size_of::<DriverCopy2d>() == 128);

/// `cudaGraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GraphUpdated {
    pub(crate) result: c_uint,
    pub(crate) node: usize,
    pub(crate) from: usize,
}

const _: () = assert!(size_of::<GraphUpdated>() == 24);

/// `cudaKernelNodeParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelNodeParameters {
    pub(crate) function: usize,
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    pub(crate) shared_bytes: c_uint,
    pub(crate) arguments: In<*const u8>,
    pub(crate) extra: In<usize>,
}

const _: () = assert!(size_of::<KernelNodeParameters>() == 56);

/// `cudaMemsetParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemsetNode {
    pub(crate) to: u64,
    pub(crate) pitch: usize,
    pub(crate) value: c_uint,
    pub(crate) element_bytes: c_uint,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

const _: () = assert!(size_of::<MemsetNode>() == 40);

/// `cudaHostNodeParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct HostNode {
    pub(crate) function: Option<extern "C" fn(*mut c_void)>,
    pub(crate) data: usize,
}

/// `cudaMemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PoolProperties {
    pub(crate) allocation: c_int,
    pub(crate) handles: c_int,
    pub(crate) location_kind: c_int,
    pub(crate) device: c_int,
    pub(crate) security: usize,
    pub(crate) bytes_max: usize,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 54],
}

const _: () = assert!(size_of::<PoolProperties>() == 88);

/// `cudaFuncAttributes`.
#[repr(C)]
pub(crate) struct FunctionAttributes {
    pub(crate) shared_bytes: usize,
    pub(crate) constant_bytes: usize,
    pub(crate) local_bytes: usize,
    pub(crate) threads_max: c_int,
    pub(crate) registers: c_int,
    pub(crate) ptx_version: c_int,
    pub(crate) binary_version: c_int,
    pub(crate) cache_mode: c_int,
    pub(crate) dynamic_shared_bytes_max: c_int,
    pub(crate) carveout: c_int,
    pub(crate) cluster_must_be_set: c_int,
    pub(crate) cluster: [c_int; 3],
    pub(crate) cluster_policy: c_int,
    pub(crate) non_portable_cluster: c_int,
    pub(crate) reserved: [c_int; 16],
}

const _: () = assert!(size_of::<FunctionAttributes>() == 144);

/// `cudaPointerAttributes` as CUDA 12 has it. CUDA 13 has reserved words behind it, which are not written.
#[repr(C)]
pub(crate) struct PointerAttributes {
    pub(crate) kind: c_int,
    pub(crate) device: c_int,
    pub(crate) device_pointer: u64,
    pub(crate) host_pointer: u64,
}

/// `cudaLaunchConfig_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    pub(crate) shared_bytes: usize,
    pub(crate) stream: usize,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) attribute_count: c_uint,
}

const _: () = assert!(size_of::<LaunchConfig>() == 56);

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DriverLaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: u64,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) attribute_count: c_uint,
}

const _: () = assert!(size_of::<DriverLaunchConfig>() == 56);

/// `cudaLaunchAttribute`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct LaunchAttribute {
    pub(crate) id: c_uint,
    pub(crate) pad: c_uint,
    pub(crate) value: [u8; 64],
}

/// An address that the program passes, of a structure that has no type here.
pub(crate) type Address = *const c_void;

//! Element types and tensors.

use crate::boundary::{guard, text, Out};
use crate::status::{rgaps_status_t, Failure, Outcome};
use rgaps_layout::{DType, MAX_DIMS};
use rgaps_rs::tensor::{contiguous, strided};
use rgaps_rs::Tensor;
use std::ffi::c_char;

/// `rgaps_dtype_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct rgaps_dtype_t {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `rgaps_tensor_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct rgaps_tensor_t {
    dtype: rgaps_dtype_t,
    ndim: u32,
    shape: [u64; MAX_DIMS],
    strides: [i64; MAX_DIMS],
}

impl From<DType> for rgaps_dtype_t {
    fn from(dtype: DType) -> Self {
        rgaps_dtype_t {
            code: dtype.code,
            bits: dtype.bits,
            lanes: dtype.lanes,
        }
    }
}

impl rgaps_dtype_t {
    fn checked(self) -> Outcome<DType> {
        if self.bits == 0 || self.lanes == 0 {
            return Err(Failure::argument(format!(
                "an element type of {} bits and {} lanes has no bytes; see rgaps_dtype_parse",
                self.bits, self.lanes
            )));
        }
        Ok(DType {
            code: self.code,
            bits: self.bits,
            lanes: self.lanes,
        })
    }
}

impl From<&Tensor> for rgaps_tensor_t {
    fn from(tensor: &Tensor) -> Self {
        rgaps_tensor_t {
            dtype: tensor.dtype.into(),
            ndim: u32::from(tensor.ndim),
            shape: tensor.shape,
            strides: tensor.strides,
        }
    }
}

impl rgaps_tensor_t {
    pub(crate) const NONE: rgaps_tensor_t = rgaps_tensor_t {
        dtype: rgaps_dtype_t {
            code: 0,
            bits: 0,
            lanes: 0,
        },
        ndim: 0,
        shape: [0; MAX_DIMS],
        strides: [0; MAX_DIMS],
    };

    pub(crate) fn checked(&self) -> Outcome<Tensor> {
        let dims = dimensions(self.ndim)?;
        let dtype = self.dtype.checked()?;
        strided(dtype, &self.shape[..dims], &self.strides[..dims])
            .map_err(|error| Failure::argument(error.to_string()))
    }
}

fn dimensions(ndim: u32) -> Outcome<usize> {
    let dims = ndim as usize;
    if dims > MAX_DIMS {
        return Err(Failure::argument(format!(
            "{ndim} dimensions are over the limit of {MAX_DIMS}; merge some dimensions"
        )));
    }
    Ok(dims)
}

/// The element type of a name.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_dtype_parse(
    name: *const c_char,
    dtype: *mut rgaps_dtype_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes text that nobody changes before we return, and results that only we write until then
        // (rgaps.h: Pointers).
        let (out, name) = unsafe {
            let out = Out::new("dtype", dtype, rgaps_dtype_t::default())?;
            (out, text("name", name)?)
        };
        let dtype: Result<DType, _> = name.parse();
        out.set(
            dtype
                .map_err(|error| Failure::argument(error.to_string()))?
                .into(),
        );
        Ok(())
    })
}

/// A tensor in row-major order.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_tensor_contiguous(
    dtype: rgaps_dtype_t,
    ndim: u32,
    shape: *const u64,
    tensor: *mut rgaps_tensor_t,
    bytes: *mut usize,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes results that only we write until we return (rgaps.h: Pointers).
        let (out, out_bytes) = unsafe {
            let out = Out::new("tensor", tensor, rgaps_tensor_t::default())?;
            (out, Out::optional(bytes, 0))
        };
        let dims = dimensions(ndim)?;
        if shape.is_null() && dims > 0 {
            return Err(Failure::argument("the shape is NULL"));
        }
        let mut lengths = [0u64; MAX_DIMS];
        for (dim, length) in lengths[..dims].iter_mut().enumerate() {
            // SAFETY: `shape` is not NULL, and C passes `ndim` lengths that nobody changes before we return (rgaps.h:
            // Pointers).
            *length = unsafe { shape.add(dim).read() };
        }
        let (tensor, bytes) = contiguous(dtype.checked()?, &lengths[..dims])
            .map_err(|error| Failure::argument(error.to_string()))?;
        out.set((&tensor).into());
        out_bytes.set(bytes as usize);
        Ok(())
    })
}

//! Shape, strides and element type of a message, with the signed numbers that Python's protocols use.

use rgaps::{DType, Tensor};
use rgaps_layout::MAX_DIMS;

/// The array that the bytes of a message are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// The element type; `U8` for plain bytes.
    pub(crate) dtype: DType,
    /// Whether the message has an element type. False: plain bytes.
    pub(crate) typed: bool,
    ndim: usize,
    shape: [i64; MAX_DIMS],
    /// In elements.
    strides: [i64; MAX_DIMS],
}

impl Geometry {
    /// Plain bytes.
    pub(crate) fn bytes(bytes: u64) -> Geometry {
        let mut geometry = Geometry {
            dtype: DType::U8,
            typed: false,
            ndim: 1,
            shape: [0; MAX_DIMS],
            strides: [0; MAX_DIMS],
        };
        // No block is larger than a pool, 2^40 bytes.
        (geometry.shape[0], geometry.strides[0]) = (bytes as i64, 1);
        geometry
    }

    /// The geometry of a message's tensor, which lies within the message's bytes. Plain bytes if there is no tensor, or if no
    /// array can have its dimensions.
    pub(crate) fn of(tensor: Option<&Tensor>, bytes: u64) -> Geometry {
        tensor
            .and_then(Geometry::of_tensor)
            .unwrap_or_else(|| Geometry::bytes(bytes))
    }

    fn of_tensor(tensor: &Tensor) -> Option<Geometry> {
        let ndim = usize::from(tensor.ndim);
        let mut shape = [0; MAX_DIMS];
        for (to, from) in shape.iter_mut().zip(tensor.shape.get(..ndim)?) {
            *to = i64::try_from(*from).ok()?;
        }
        // The other dimensions of an empty array may be huge. Refuse those whose product overflows, since consumers compute it.
        let mut lengths = shape[..ndim].iter().map(|length| (*length).max(1));
        let elements = lengths.try_fold(1i64, i64::checked_mul)?;
        elements.checked_mul(i64::try_from(tensor.dtype.element_bytes()).ok()?)?;
        if !tensor.dtype.is_typed() {
            return None;
        }
        Some(Geometry {
            dtype: tensor.dtype,
            typed: true,
            ndim,
            shape,
            strides: tensor.strides,
        })
    }

    pub(crate) fn shape(&self) -> &[i64] {
        &self.shape[..self.ndim]
    }

    /// In elements.
    pub(crate) fn strides(&self) -> &[i64] {
        &self.strides[..self.ndim]
    }

    pub(crate) fn element_bytes(&self) -> i64 {
        self.dtype.element_bytes() as i64
    }

    pub(crate) fn strides_bytes(&self) -> Vec<i64> {
        let each = self.element_bytes();
        self.strides()
            .iter()
            .map(|stride| stride.saturating_mul(each))
            .collect()
    }

    /// The number of bytes of all elements, without gaps between them.
    pub(crate) fn elements_bytes(&self) -> i64 {
        self.shape().iter().product::<i64>() * self.element_bytes()
    }

    /// Whether the elements lie one behind the other in row-major order.
    pub(crate) fn is_contiguous(&self) -> bool {
        is_row_major(self.shape(), self.strides())
    }

    /// Whether the elements lie one behind the other in column-major order.
    pub(crate) fn is_fortran(&self) -> bool {
        let reversed = |values: &[i64]| values.iter().rev().copied().collect::<Vec<_>>();
        is_row_major(&reversed(self.shape()), &reversed(self.strides()))
    }
}

/// Whether elements with these strides lie one behind the other, the last dimension fastest.
pub(crate) fn is_row_major(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1i64;
    for (length, stride) in shape.iter().zip(strides).rev() {
        // The stride of a dimension of one element is never used.
        if *length != 1 && *stride != expected {
            return false;
        }
        expected = expected.saturating_mul(*length);
    }
    true
}

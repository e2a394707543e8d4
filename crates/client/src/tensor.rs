//! Tensors: shape and element type of a message.

use rgaps_layout::{DType, MAX_DIMS};
use rgaps_topic::Tensor;

/// A shape or strides that a message cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// More dimensions than a message can describe.
    #[error("{0} dimensions are over the limit of {MAX_DIMS}; merge some dimensions")]
    TooManyDimensions(usize),
    /// The number of bytes overflows 64 bits.
    #[error("a tensor of this shape has more than 2^64 bytes; check the shape")]
    TooLarge,
    /// The number of strides differs from the number of dimensions.
    #[error(
        "{strides} strides do not match {dimensions} dimensions; give one stride per dimension"
    )]
    Strides {
        /// Number of strides.
        strides: usize,
        /// Number of dimensions.
        dimensions: usize,
    },
    /// The tensor extends beyond the message, or a stride is negative.
    #[error("the tensor spans {spans} bytes, but the message has {bytes}; loan more bytes, or use a smaller shape or smaller strides")]
    OutOfMessage {
        /// Bytes that shape and strides span; `u64::MAX` if a stride is negative.
        spans: u64,
        /// Length of the message in bytes.
        bytes: u64,
    },
}

/// A tensor in row-major order without gaps, and its length in bytes.
pub fn contiguous(dtype: DType, shape: &[u64]) -> Result<(Tensor, u64), ShapeError> {
    let mut strides = [0i64; MAX_DIMS];
    if shape.len() > MAX_DIMS {
        return Err(ShapeError::TooManyDimensions(shape.len()));
    }
    let mut elements = 1u64;
    for (dim, length) in shape.iter().enumerate().rev() {
        strides[dim] = i64::try_from(elements).map_err(|_| ShapeError::TooLarge)?;
        // A dimension of 0 leaves the others' strides as if it were 1, like numpy.
        elements = elements
            .checked_mul((*length).max(1))
            .ok_or(ShapeError::TooLarge)?;
    }
    let tensor = strided(dtype, shape, &strides[..shape.len()])?;
    let empty = shape.contains(&0);
    let bytes = elements
        .checked_mul(dtype.element_bytes())
        .ok_or(ShapeError::TooLarge)?;
    Ok((tensor, if empty { 0 } else { bytes }))
}

/// A tensor with the given strides, in elements (not bytes).
pub fn strided(dtype: DType, shape: &[u64], strides: &[i64]) -> Result<Tensor, ShapeError> {
    if shape.len() > MAX_DIMS {
        return Err(ShapeError::TooManyDimensions(shape.len()));
    }
    if shape.len() != strides.len() {
        return Err(ShapeError::Strides {
            strides: strides.len(),
            dimensions: shape.len(),
        });
    }
    let mut tensor = Tensor {
        dtype,
        ndim: shape.len() as u8,
        ..Tensor::default()
    };
    tensor.shape[..shape.len()].copy_from_slice(shape);
    tensor.strides[..shape.len()].copy_from_slice(strides);
    Ok(tensor)
}

/// Bytes from the start of the first element to the end of the last. Fails if a stride is negative, or if the number
/// overflows 64 bits.
pub fn span_bytes(tensor: &Tensor) -> Result<u64, ShapeError> {
    let dims = usize::from(tensor.ndim).min(MAX_DIMS);
    if tensor.shape[..dims].contains(&0) {
        return Ok(0);
    }
    let mut last = 0u64;
    for dim in 0..dims {
        let stride = u64::try_from(tensor.strides[dim]).map_err(|_| ShapeError::OutOfMessage {
            spans: u64::MAX,
            bytes: 0,
        })?;
        let reach = stride
            .checked_mul(tensor.shape[dim] - 1)
            .ok_or(ShapeError::TooLarge)?;
        last = last.checked_add(reach).ok_or(ShapeError::TooLarge)?;
    }
    let elements = last.checked_add(1).ok_or(ShapeError::TooLarge)?;
    elements
        .checked_mul(tensor.dtype.element_bytes())
        .ok_or(ShapeError::TooLarge)
}

/// Checks that a tensor, which another process may have described, lies inside a message of `bytes` bytes.
pub fn check_extent(tensor: &Tensor, bytes: u64) -> Result<(), ShapeError> {
    let spans = match span_bytes(tensor) {
        Err(ShapeError::OutOfMessage { spans, .. }) => spans,
        other => other?,
    };
    match spans <= bytes {
        true => Ok(()),
        false => Err(ShapeError::OutOfMessage { spans, bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contiguous_tensor_spans_exactly_its_bytes() {
        for shape in [&[][..], &[1], &[3, 1080, 1920], &[2, 1, 5, 1], &[1; 8]] {
            let (tensor, bytes) = contiguous(DType::F32, shape).unwrap();
            assert_eq!(bytes, 4 * shape.iter().product::<u64>());
            check_extent(&tensor, bytes).unwrap();
            assert!(check_extent(&tensor, bytes - 1).is_err());
        }
        let (empty, bytes) = contiguous(DType::F32, &[0, 7]).unwrap();
        assert_eq!((bytes, empty.strides[0]), (0, 7));
        check_extent(&empty, 0).unwrap();
    }

    #[test]
    fn shapes_that_lie_are_refused() {
        assert_eq!(
            contiguous(DType::U8, &[1; 9]).unwrap_err(),
            ShapeError::TooManyDimensions(9)
        );
        assert_eq!(
            contiguous(DType::U8, &[1 << 40, 1 << 40]).unwrap_err(),
            ShapeError::TooLarge
        );
        let backwards = strided(DType::U8, &[4], &[-1]).unwrap();
        assert!(check_extent(&backwards, 100).is_err());
        let far = strided(DType::U8, &[u64::MAX, 3], &[i64::MAX, i64::MAX]).unwrap();
        assert!(check_extent(&far, u64::MAX).is_err());
    }
}

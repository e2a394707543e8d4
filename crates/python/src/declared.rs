//! The type that a publisher or a subscriber declares for its messages, where it is a tensor's
//! ([`TensorType`]): its type name is then a text like `float16[3,1080,1920]`.

use crate::argument::about;
use crate::error::{invalid, raise, unless_raised};
use pyo3::prelude::*;
use rgaps::{DType, TensorType};

/// What a user declared: an element type, and a shape with None for lengths that are free.
pub(crate) fn of(
    dtype: Option<DType>,
    shape: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<TensorType>> {
    let lengths = shape.map(lengths).transpose()?;
    let Some(dtype) = dtype else {
        return match lengths {
            None => Ok(None),
            Some(_) => Err(invalid("shape needs dtype; give both, or neither")),
        };
    };
    let declared = TensorType::new(dtype, lengths);
    declared
        .map(Some)
        .map_err(|error| invalid(error.to_string()))
}

/// An error that names both, unless the message is of the type. `which` is what the error calls it.
pub(crate) fn check(
    declared: &TensorType,
    topic: &str,
    which: impl FnOnce() -> String,
    tensor: Option<(DType, &[u64])>,
) -> PyResult<()> {
    let found = match tensor {
        Some((dtype, shape)) if declared.holds(dtype, shape) => return Ok(()),
        Some((dtype, shape)) => TensorType::of(dtype, shape).to_string(),
        None => "plain bytes".to_owned(),
    };
    Err(raise(
        "TypeMismatch",
        format!(
            "{} is {found}, but the publisher declares {declared} for topic '{topic}'; publish that type, or declare another",
            which()
        ),
    ))
}

/// Lengths as a user declares them.
fn lengths(shape: &Bound<'_, PyAny>) -> PyResult<Vec<Option<u64>>> {
    if let Some(length) = unless_raised(shape.extract::<u64>())? {
        return Ok(vec![Some(length)]);
    }
    unless_raised(shape.extract())?.ok_or_else(|| {
        about(shape, |shown| {
            invalid(format!(
                "shape must be a length, or a sequence of lengths with None for any length, not {shown}"
            ))
        })
    })
}

//! Declared tensor types ([`TensorType`]) of publishers and subscribers. The type name of the topic is then a text like
//! `float16[3,1080,1920]`.

use crate::argument::about;
use crate::error::{invalid, raise, unless_raised};
use pyo3::prelude::*;
use rgaps::{DType, TensorType};

/// The type that a user declares by an element type and a shape, which has None for free lengths. None: neither was given.
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

/// Raises `TypeMismatch` unless the message is of the declared type. `which` names the message in the error; `tensor` is None
/// for plain bytes.
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

/// The lengths of a declared shape; None for a free length.
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

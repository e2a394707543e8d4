//! Whole numbers that callers give. Each error names the argument and what it takes.
//!
//! pyo3 names the argument where a type is wrong, but not where a number is out of range, and takes True for 1.

use crate::error::invalid;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBool;
use rgaps_layout::{MAX_BLOCKS, MAX_DEPTH, MAX_HELD};

/// Of an object in an error, at most this many characters.
const SHOWN_CHARS_MAX: usize = 60;

/// An object as an error shows it.
pub(crate) fn shown(object: &Bound<'_, PyAny>) -> String {
    let text = object.repr().map(|text| text.to_string());
    let text = text.unwrap_or_else(|_| format!("a {}", type_name(object)));
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// The name of an object's type.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    let name = object.get_type().name();
    name.map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

/// A whole number from `least` to `most`; none if the object is none at all (a bool, a float, text).
pub(crate) fn integer(
    object: &Bound<'_, PyAny>,
    name: &str,
    (least, most): (u64, u64),
) -> PyResult<Option<u64>> {
    if object.is_instance_of::<PyBool>() || !object.hasattr("__index__")? {
        return Ok(None);
    }
    // One that does not fit in 128 bits is out of range, too.
    let number = object.extract::<i128>().ok();
    let number = number.and_then(|number| u64::try_from(number).ok());
    match number.filter(|number| (least..=most).contains(number)) {
        Some(number) => Ok(Some(number)),
        None => Err(invalid(format!(
            "{name}={} is outside the limits of {least} to {most}",
            shown(object)
        ))),
    }
}

fn whole(object: &Bound<'_, PyAny>, name: &str, limits: (u64, u64)) -> PyResult<u64> {
    integer(object, name, limits)?.ok_or_else(|| {
        PyTypeError::new_err(format!(
            "{name} must be a whole number from {} to {}, not {}",
            limits.0,
            limits.1,
            shown(object)
        ))
    })
}

fn whole_u32(object: &Bound<'_, PyAny>, name: &str, limits: (u32, u32)) -> PyResult<u32> {
    let limits = (u64::from(limits.0), u64::from(limits.1));
    // Within the limits, it fits.
    whole(object, name, limits).map(|number| number as u32)
}

pub(crate) fn depth(object: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    match object.is_none() {
        true => Ok(None),
        false => whole_u32(object, "depth", (1, MAX_DEPTH)).map(Some),
    }
}

pub(crate) fn max_held(object: &Bound<'_, PyAny>) -> PyResult<u32> {
    whole_u32(object, "max_held", (1, MAX_HELD))
}

pub(crate) fn max_loans(object: &Bound<'_, PyAny>) -> PyResult<u32> {
    whole_u32(object, "max_loans", (1, MAX_BLOCKS))
}

pub(crate) fn n(object: &Bound<'_, PyAny>) -> PyResult<u32> {
    whole_u32(object, "n", (0, u32::MAX))
}

pub(crate) fn tag(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(object, "tag", (0, u64::MAX))
}

pub(crate) fn keep_bytes(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(object, "keep_bytes", (0, u64::MAX))
}

pub(crate) fn at(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(object, "at", (0, u64::MAX))
}

pub(crate) fn length(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(object, "length", (0, u64::MAX))
}

/// What is to be called.
pub(crate) fn callable(name: &str, object: &Bound<'_, PyAny>) -> PyResult<()> {
    match object.is_callable() {
        true => Ok(()),
        false => Err(PyTypeError::new_err(format!(
            "{name} must be a function or another callable, not {}",
            shown(object)
        ))),
    }
}

//! Extracts arguments of calls. Each error names the argument and the values that it takes.
//!
//! pyo3's own errors name only the type that it found, and pyo3 accepts True for 1. When Rust formats an object whose `__str__`
//! raises, pyo3 prints the exception and continues; [`text_of`] returns it instead.

use crate::error::{invalid, unless_raised};
use crate::subscriber::Subscriber;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyMapping, PyString};
use pyo3::PyTypeInfo;
use rgaps_layout::{MAX_BLOCKS, MAX_DEPTH, MAX_HELD};
use std::path::PathBuf;

/// How many characters of an object an error shows at most.
const SHOWN_CHARS_MAX: usize = 60;

/// `str(object)`.
pub(crate) fn text_of(object: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(object.str()?.to_string_lossy().into_owned())
}

/// The error that `error` makes of the object's text; or the exception that showing the object raised, such as
/// `KeyboardInterrupt`.
pub(crate) fn about(object: &Bound<'_, PyAny>, error: impl FnOnce(String) -> PyErr) -> PyErr {
    shown(object).map_or_else(|interrupt| interrupt, error)
}

/// The text by which an error shows an object.
fn shown(object: &Bound<'_, PyAny>) -> PyResult<String> {
    let text = match unless_raised(object.repr())? {
        Some(text) => text.to_string_lossy().into_owned(),
        None => format!("a {}", type_name(object)?),
    };
    Ok(match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    })
}

/// The name of an object's type.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> PyResult<String> {
    let name = unless_raised(object.get_type().name())?;
    Ok(name.map_or_else(
        || "?".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    ))
}

/// The object as a mapping, if it is one. pyo3's own cast would drop an exception that the class check raises.
pub(crate) fn mapping<'a, 'py>(
    object: &'a Bound<'py, PyAny>,
) -> PyResult<Option<&'a Bound<'py, PyMapping>>> {
    let is_mapping = object.is_instance_of::<PyDict>()
        || object.is_instance(PyMapping::type_object(object.py()).as_any())?;
    // SAFETY: `is_mapping` is true, so the object is a dict or an instance of `collections.abc.Mapping`.
    Ok(is_mapping.then(|| unsafe { object.cast_unchecked() }))
}

/// A whole number from `least` to `most`; None if the object is not a whole number (a bool, a float, text).
pub(crate) fn integer(
    object: &Bound<'_, PyAny>,
    name: &str,
    (least, most): (u64, u64),
) -> PyResult<Option<u64>> {
    if object.is_instance_of::<PyBool>() || !object.hasattr("__index__")? {
        return Ok(None);
    }
    // A number that does not fit in 128 bits is out of range, too.
    let number = unless_raised(object.extract::<i128>())?;
    let number = number.and_then(|number| u64::try_from(number).ok());
    match number.filter(|number| (least..=most).contains(number)) {
        Some(number) => Ok(Some(number)),
        None => Err(about(object, |shown| {
            invalid(format!(
                "{name}={shown} is outside the limits of {least} to {most}"
            ))
        })),
    }
}

fn whole(object: &Bound<'_, PyAny>, name: &str, limits: (u64, u64)) -> PyResult<u64> {
    integer(object, name, limits)?.ok_or_else(|| {
        let takes = format!("a whole number from {} to {}", limits.0, limits.1);
        wrong_type(object, name, &takes)
    })
}

fn whole_u32(object: &Bound<'_, PyAny>, name: &str, limits: (u32, u32)) -> PyResult<u32> {
    let limits = (u64::from(limits.0), u64::from(limits.1));
    // Within the limits, the number fits in u32.
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

fn wrong_type(object: &Bound<'_, PyAny>, name: &str, takes: &str) -> PyErr {
    about(object, |shown| {
        PyTypeError::new_err(format!("{name} must be {takes}, not {shown}"))
    })
}

fn text(object: &Bound<'_, PyAny>, name: &str) -> PyResult<String> {
    match object.cast::<PyString>() {
        Ok(text) => text.extract(),
        Err(_) => Err(wrong_type(object, name, "text")),
    }
}

fn text_or_none(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<String>> {
    if object.is_none() {
        return Ok(None);
    }
    match object.cast::<PyString>() {
        Ok(text) => text.extract().map(Some),
        Err(_) => Err(wrong_type(object, name, "text or None")),
    }
}

fn path_or_none(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<PathBuf>> {
    if object.is_none() {
        return Ok(None);
    }
    let path = unless_raised(object.extract())?;
    path.map(Some)
        .ok_or_else(|| wrong_type(object, name, "a path or None"))
}

fn yes_or_no(object: &Bound<'_, PyAny>, name: &str) -> PyResult<bool> {
    unless_raised(object.extract())?.ok_or_else(|| wrong_type(object, name, "True or False"))
}

fn number(object: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    match object.is_instance_of::<PyBool>() {
        true => Ok(None),
        false => unless_raised(object.extract()),
    }
}

fn seconds(object: &Bound<'_, PyAny>, name: &str) -> PyResult<f64> {
    number(object)?.ok_or_else(|| wrong_type(object, name, "a number of seconds"))
}

fn seconds_or_none(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<f64>> {
    if object.is_none() {
        return Ok(None);
    }
    let takes = "a number of seconds, or None to wait without limit";
    number(object)?
        .map(Some)
        .ok_or_else(|| wrong_type(object, name, takes))
}

/// One function for each argument: pyo3 gives it the object, but not the argument's name.
macro_rules! named {
    ($($function:ident = $read:ident($name:literal) -> $type:ty;)*) => {$(
        pub(crate) fn $function(object: &Bound<'_, PyAny>) -> PyResult<$type> {
            $read(object, $name)
        }
    )*};
}

named! {
    topic = text("topic") -> String;
    type_ = text("type") -> String;
    name = text("name") -> String;
    name_or_none = text_or_none("name") -> Option<String>;
    realm = text_or_none("realm") -> Option<String>;
    namespace = text_or_none("namespace") -> Option<String>;
    socket = path_or_none("socket") -> Option<PathBuf>;
    domain = text_or_none("domain") -> Option<String>;
    require = text_or_none("require") -> Option<String>;
    keep = text_or_none("keep") -> Option<String>;
    slow_reader = text("slow_reader") -> String;
    reliable = yes_or_no("reliable") -> bool;
    transient_local = yes_or_no("transient_local") -> bool;
    timeout = seconds_or_none("timeout") -> Option<f64>;
    deadline = seconds_or_none("deadline") -> Option<f64>;
    loan_timeout = seconds_or_none("loan_timeout") -> Option<f64>;
    spin = seconds("spin") -> f64;
}

/// The path of a configuration file: the argument `config`, if it is not a mapping.
pub(crate) fn config_path(object: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    let takes = "a path, a mapping of keys, or None";
    unless_raised(object.extract())?.ok_or_else(|| wrong_type(object, "config", takes))
}

/// The name of a part, between the brackets after a loan or a sample.
pub(crate) fn part_name(object: &Bound<'_, PyAny>) -> PyResult<String> {
    match object.cast::<PyString>() {
        Ok(text) => text.extract(),
        Err(_) => Err(about(object, |shown| {
            PyTypeError::new_err(format!(
                "the name of a part must be text, not {shown}; for elements, index an array over the message: \
                 message.numpy()[...]"
            ))
        })),
    }
}

/// The strides of a loan, in bytes.
pub(crate) fn strides(object: &Bound<'_, PyAny>) -> PyResult<Option<Vec<i64>>> {
    if object.is_none() {
        return Ok(None);
    }
    let takes = "a sequence of whole numbers (bytes per dimension) or None";
    let strides = unless_raised(object.extract())?;
    strides
        .map(Some)
        .ok_or_else(|| wrong_type(object, "strides", takes))
}

/// A subscriber for a wait set.
pub(crate) fn subscriber(object: &Bound<'_, PyAny>) -> PyResult<Py<Subscriber>> {
    match object.cast::<Subscriber>() {
        Ok(subscriber) => Ok(subscriber.clone().unbind()),
        Err(_) => Err(wrong_type(object, "subscriber", "an rgaps.Subscriber")),
    }
}

/// Fails unless the object can be called.
pub(crate) fn callable(name: &str, object: &Bound<'_, PyAny>) -> PyResult<()> {
    match object.is_callable() {
        true => Ok(()),
        false => Err(wrong_type(object, name, "a function or another callable")),
    }
}

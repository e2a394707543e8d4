//! Converts element types to and from numpy's names, the buffer protocol's letters, Arrow's letters and the array interface's
//! codes.

use crate::argument::text_of;
use crate::error::{invalid, unless_raised};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};
use rgaps::DType;
use std::ffi::CStr;

/// DLPack's codes.
const SIGNED: u8 = 0;
const UNSIGNED: u8 = 1;
const FLOAT: u8 = 2;
const COMPLEX: u8 = 5;
const BOOL: u8 = 6;

/// The buffer protocol's letter for a type, if it has one.
pub(crate) fn format(dtype: DType) -> Option<&'static CStr> {
    if dtype.lanes != 1 {
        return None;
    }
    Some(match (dtype.code, dtype.bits) {
        (SIGNED, 8) => c"b",
        (SIGNED, 16) => c"h",
        (SIGNED, 32) => c"i",
        (SIGNED, 64) => c"l",
        (UNSIGNED, 8) => c"B",
        (UNSIGNED, 16) => c"H",
        (UNSIGNED, 32) => c"I",
        (UNSIGNED, 64) => c"L",
        (FLOAT, 16) => c"e",
        (FLOAT, 32) => c"f",
        (FLOAT, 64) => c"d",
        (COMPLEX, 64) => c"Zf",
        (COMPLEX, 128) => c"Zd",
        (BOOL, 8) => c"?",
        _ => return None,
    })
}

/// Arrow's letter for a type, if it has one. True: the elements are booleans, whose bytes Arrow gets as 8-bit integers.
pub(crate) fn arrow(dtype: DType) -> Option<(&'static CStr, bool)> {
    if dtype.lanes != 1 {
        return None;
    }
    let letter = match (dtype.code, dtype.bits) {
        (SIGNED | BOOL, 8) => c"c",
        (SIGNED, 16) => c"s",
        (SIGNED, 32) => c"i",
        (SIGNED, 64) => c"l",
        (UNSIGNED, 8) => c"C",
        (UNSIGNED, 16) => c"S",
        (UNSIGNED, 32) => c"I",
        (UNSIGNED, 64) => c"L",
        (FLOAT, 16) => c"e",
        (FLOAT, 32) => c"f",
        (FLOAT, 64) => c"g",
        _ => return None,
    };
    Some((letter, dtype.code == BOOL))
}

/// The array interface's code for a type, if it has one.
pub(crate) fn typestr(dtype: DType) -> Option<String> {
    format(dtype)?;
    let (order, letter) = match dtype.code {
        SIGNED => ('<', 'i'),
        UNSIGNED => ('<', 'u'),
        FLOAT => ('<', 'f'),
        COMPLEX => ('<', 'c'),
        _ => ('|', 'b'),
    };
    let order = if dtype.bits == 8 { '|' } else { order };
    Some(format!("{order}{letter}{}", dtype.bits / 8))
}

/// The type of a buffer's items, by the letter and size of an item.
pub(crate) fn of_format(format: &CStr, item_bytes: usize) -> Result<DType, String> {
    let text = format.to_str().unwrap_or("?");
    let foreign = text.starts_with(['>', '!']) && item_bytes > 1;
    let letter = text.trim_start_matches(['@', '=', '<', '>', '!', '|']);
    let code = match letter {
        _ if foreign => None,
        "b" | "h" | "i" | "l" | "q" | "n" => Some(SIGNED),
        "c" | "B" | "H" | "I" | "L" | "Q" | "N" => Some(UNSIGNED),
        "e" | "f" | "d" => Some(FLOAT),
        "Zf" | "Zd" => Some(COMPLEX),
        "?" => Some(BOOL),
        _ => None,
    };
    let code = code.ok_or_else(|| {
        format!(
            "a message cannot have elements of the format '{text}'; convert them first, or publish \
             memoryview(array).cast('B')"
        )
    })?;
    Ok(DType {
        code,
        bits: (item_bytes * 8) as u8,
        lanes: 1,
    })
}

/// The type of an array interface's code.
pub(crate) fn of_typestr(text: &str) -> Result<DType, String> {
    let unknown =
        || format!("a message cannot have elements of the type '{text}'; convert them first");
    let mut letters = text.chars();
    let (order, letter) = (letters.next(), letters.next());
    let bytes: u8 = letters.as_str().parse().map_err(|_| unknown())?;
    let code = match letter.ok_or_else(unknown)? {
        'i' => SIGNED,
        'u' => UNSIGNED,
        'f' => FLOAT,
        'c' => COMPLEX,
        'b' => BOOL,
        _ => return Err(unknown()),
    };
    if order == Some('>') && bytes > 1 {
        return Err(unknown());
    }
    let bits = bytes.checked_mul(8).ok_or_else(unknown)?;
    Ok(DType {
        code,
        bits,
        lanes: 1,
    })
}

/// The type that a user names: `"float32"`, `numpy.float32`, `numpy.dtype("<f4")`, `torch.float32`, or anything that
/// `numpy.dtype()` takes.
pub(crate) fn of_object(object: &Bound<'_, PyAny>) -> PyResult<DType> {
    let py = object.py();
    let native = match object.getattr_opt("isnative")? {
        Some(native) => native.is_truthy()?,
        None => true,
    };
    if !native {
        return Err(invalid(format!(
            "dtype {} has the other byte order; convert it to the native one",
            text_of(object)?
        )));
    }
    let name = match object.cast::<PyString>() {
        Ok(text) => text.extract()?,
        Err(_) if object.is_instance_of::<PyType>() => text_of(&object.getattr("__name__")?)?,
        Err(_) => match object.getattr_opt("name")? {
            Some(name) => text_of(&name)?,
            None => text_of(object)?,
        },
    };
    if let Ok(dtype) = name.parse() {
        return Ok(dtype);
    }
    let unknown = |error: String| invalid(format!("dtype: {error}, as numpy calls them"));
    let by_numpy = py
        .import("rgaps._numpy")?
        .call_method1("dtype_name", (object,));
    let name = match unless_raised(by_numpy)? {
        Some(by_numpy) => text_of(&by_numpy)?,
        None => name,
    };
    name.parse()
        .map_err(|error: rgaps_layout::DTypeParseError| unknown(error.to_string()))
}

//! Headers and attachments: dictionaries and bytes that travel beside a message.

use crate::argument::{about, mapping, type_name};
use crate::error::{invalid, unless_raised, IntoPyErr};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyMappingProxy, PyMemoryView,
    PyString, PyTuple,
};
use rgaps::{Header, HeaderError, Value, HEADER_DEPTH_MAX};
use std::collections::BTreeMap;

/// The metadata of a message, from a call's arguments.
pub(crate) enum Beside {
    Nothing,
    Header(Header),
    Attachment(Vec<u8>),
}

impl Beside {
    /// From the arguments `meta` and `attachment`.
    pub(crate) fn of(
        meta: Option<&Bound<'_, PyAny>>,
        attachment: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Beside> {
        match (meta, attachment) {
            (None, None) => Ok(Beside::Nothing),
            (Some(meta), None) => Ok(Beside::Header(header_of(meta)?)),
            (None, Some(bytes)) => Ok(Beside::Attachment(bytes_of(bytes)?)),
            (Some(_), Some(_)) => Err(invalid(
                "give meta or attachment, not both: meta is written into the attachment",
            )),
        }
    }

    pub(crate) fn set(&self, loan: &mut rgaps::Loan) -> PyResult<()> {
        let set = match self {
            Beside::Nothing => Ok(()),
            Beside::Header(header) => loan.set_header(header),
            Beside::Attachment(bytes) => loan.set_attachment(bytes),
        };
        set.map_err(IntoPyErr::into_py_err)
    }
}

/// The bytes of any object with the buffer protocol.
pub(crate) fn bytes_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let view = unless_raised(PyMemoryView::from(object))?.ok_or_else(|| {
        about(object, |shown| {
            PyTypeError::new_err(format!(
                "attachment must be bytes or another object with the buffer protocol, not {shown}"
            ))
        })
    })?;
    let bytes = view.call_method0("tobytes")?;
    Ok(bytes.cast::<PyBytes>()?.as_bytes().to_vec())
}

/// A header from a mapping.
pub(crate) fn header_of(meta: &Bound<'_, PyAny>) -> PyResult<Header> {
    let mapping = mapping(meta)?.ok_or_else(|| {
        about(meta, |shown| {
            invalid(format!(
                "meta must be a dictionary with text keys, not {shown}"
            ))
        })
    })?;
    let mut header = Header::default();
    for item in mapping.items()? {
        let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
        let key = key_of(&key)?;
        match key.as_str() {
            "capture_ns" | "frame_id" if value.is_none() => {}
            "capture_ns" => {
                header.capture_ns = Some(unless_raised(value.extract())?.ok_or_else(|| {
                    invalid("meta['capture_ns'] must be an integer of nanoseconds since 1970, from 0 to 2**64 - 1")
                })?);
            }
            "frame_id" => {
                let text = unless_raised(value.extract())?;
                header.frame_id =
                    Some(text.ok_or_else(|| invalid("meta['frame_id'] must be text"))?);
            }
            _ => {
                let value = value_of(&value, &format!("meta['{key}']"), 1)?;
                header.values.insert(key, value);
            }
        }
    }
    Ok(header)
}

fn key_of(key: &Bound<'_, PyAny>) -> PyResult<String> {
    match unless_raised(key.extract())? {
        Some(key) => Ok(key),
        None => Err(invalid(format!(
            "the keys of meta must be text, not {}",
            type_name(key)?
        ))),
    }
}

/// A value of a header. Errors call it `path`, such as `meta['a'][0]`; `depth` is the number of containers around it.
fn value_of(object: &Bound<'_, PyAny>, path: &str, depth: usize) -> PyResult<Value> {
    if depth > HEADER_DEPTH_MAX {
        return Err(HeaderError::TooDeep.into_py_err());
    }
    if object.is_none() {
        return Ok(Value::Nil);
    }
    if let Ok(value) = object.cast::<PyBool>() {
        return Ok(Value::Bool(value.is_true()));
    }
    if object.is_instance_of::<PyInt>() {
        let value = match unless_raised(object.extract())? {
            Some(signed) => Some(Value::Int(signed)),
            None => unless_raised(object.extract())?.map(Value::Unsigned),
        };
        return value.ok_or_else(|| invalid(format!("{path} does not fit in 64 bits")));
    }
    if object.is_instance_of::<PyFloat>() {
        return Ok(Value::Float(object.extract()?));
    }
    if object.is_instance_of::<PyString>() {
        return Ok(Value::Text(object.extract()?));
    }
    let is_bytes = object.is_instance_of::<PyBytes>() || object.is_instance_of::<PyByteArray>();
    if is_bytes || object.is_instance_of::<PyMemoryView>() {
        return Ok(Value::Bytes(bytes_of(object)?));
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        let mut values = Vec::new();
        for (index, item) in object.try_iter()?.enumerate() {
            values.push(value_of(&item?, &format!("{path}[{index}]"), depth + 1)?);
        }
        return Ok(Value::List(values));
    }
    if let Some(mapping) = mapping(object)? {
        let mut values = BTreeMap::new();
        for item in mapping.items()? {
            let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            let key = key_of(&key)?;
            let value = value_of(&value, &format!("{path}['{key}']"), depth + 1)?;
            values.insert(key, value);
        }
        return Ok(Value::Map(values));
    }
    // Numbers and arrays of numpy, tensors of torch.
    if let Some(to_list) = object.getattr_opt("tolist")? {
        return value_of(&to_list.call0()?, path, depth);
    }
    Err(invalid(format!(
        "{path} is of type {}; a header can have None, bool, int, float, str, bytes, arrays, and lists and dictionaries \
         of these",
        type_name(object)?
    )))
}

/// A header as a read-only dictionary, since a change of it would not reach the message.
pub(crate) fn to_mapping<'py>(
    py: Python<'py>,
    header: &Header,
) -> PyResult<Bound<'py, PyMappingProxy>> {
    let dict = to_dict(py, header)?;
    Ok(PyMappingProxy::new(py, dict.as_mapping()))
}

fn to_dict<'py>(py: Python<'py>, header: &Header) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    if let Some(capture_ns) = header.capture_ns {
        dict.set_item("capture_ns", capture_ns)?;
    }
    if let Some(frame_id) = &header.frame_id {
        dict.set_item("frame_id", frame_id)?;
    }
    for (key, value) in &header.values {
        dict.set_item(key, to_object(py, value)?)?;
    }
    Ok(dict)
}

fn to_object<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Nil => py.None().into_bound(py),
        Value::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        Value::Int(value) => value.into_pyobject(py)?.into_any(),
        Value::Unsigned(value) => value.into_pyobject(py)?.into_any(),
        Value::Float(value) => PyFloat::new(py, *value).into_any(),
        Value::Text(text) => PyString::new(py, text).into_any(),
        Value::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        Value::List(values) => {
            let values = values.iter().map(|value| to_object(py, value));
            PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)?.into_any()
        }
        Value::Map(values) => {
            let dict = PyDict::new(py);
            for (key, value) in values {
                dict.set_item(key, to_object(py, value)?)?;
            }
            dict.into_any()
        }
    })
}

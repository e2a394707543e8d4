//! The type of a topic's messages, where it is a tensor's: the topic's type name is then a text
//! like `float16[3,1080,1920]`, in which `*` stands for a length that is free. Without brackets
//! any shape will do; `[]` is a tensor without dimensions.

use crate::error::{invalid, raise};
use pyo3::prelude::*;
use rgaps::DType;
use rgaps_layout::MAX_DIMS;
use std::fmt;

/// What all messages of a topic are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Declared {
    pub(crate) dtype: DType,
    /// None where any shape will do; a length is none where it is free.
    shape: Option<Vec<Option<u64>>>,
}

impl fmt::Display for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dtype)?;
        let Some(shape) = &self.shape else {
            return Ok(());
        };
        let lengths = shape.iter().map(|length| match length {
            Some(length) => length.to_string(),
            None => "*".to_owned(),
        });
        write!(f, "[{}]", lengths.collect::<Vec<_>>().join(","))
    }
}

impl Declared {
    /// What a user declared: an element type, and a shape with None for lengths that are free.
    pub(crate) fn of(
        dtype: Option<DType>,
        shape: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Declared>> {
        let lengths = shape.map(lengths).transpose()?;
        let Some(dtype) = dtype else {
            return match lengths {
                None => Ok(None),
                Some(_) => Err(invalid("a topic's shape is declared with its dtype")),
            };
        };
        let declared = Declared {
            dtype,
            shape: lengths,
        };
        Ok(Some(declared))
    }

    /// Of a topic's type name; none where that is any other name.
    pub(crate) fn parse(name: &str) -> Option<Declared> {
        let (dtype, shape) = match name.split_once('[') {
            None => (name, None),
            Some((dtype, rest)) => (dtype, Some(rest.strip_suffix(']')?)),
        };
        let length = |text: &str| match text.trim() {
            "*" => Some(None),
            number => number.parse().ok().map(Some),
        };
        let shape = match shape.map(str::trim) {
            None => None,
            Some("") => Some(Vec::new()),
            Some(text) => Some(text.split(',').map(length).collect::<Option<Vec<_>>>()?),
        };
        let dtype = dtype.trim().parse().ok()?;
        Some(Declared { dtype, shape })
    }

    /// The shape, if no length of it is free.
    pub(crate) fn whole_shape(&self) -> Option<Vec<u64>> {
        self.shape.as_ref()?.iter().copied().collect()
    }

    /// Whether a tensor is of this type.
    fn fits(&self, dtype: DType, shape: &[u64]) -> bool {
        let fits = |(declared, length): (&Option<u64>, &u64)| {
            declared.is_none_or(|declared| declared == *length)
        };
        dtype == self.dtype
            && self.shape.as_ref().is_none_or(|declared| {
                declared.len() == shape.len() && declared.iter().zip(shape).all(fits)
            })
    }

    /// An error that names both, unless the message fits. `which` is what the error calls it.
    pub(crate) fn check(
        &self,
        topic: &str,
        which: impl FnOnce() -> String,
        tensor: Option<(DType, &[u64])>,
    ) -> PyResult<()> {
        let found = match tensor {
            Some((dtype, shape)) if self.fits(dtype, shape) => return Ok(()),
            Some((dtype, shape)) => Declared {
                dtype,
                shape: Some(shape.iter().copied().map(Some).collect()),
            }
            .to_string(),
            None => "plain bytes".to_owned(),
        };
        Err(raise(
            "TypeMismatch",
            format!(
                "{} is {found}, but topic '{topic}' is declared as {self}",
                which()
            ),
        ))
    }
}

/// Lengths as a user declares them.
fn lengths(shape: &Bound<'_, PyAny>) -> PyResult<Vec<Option<u64>>> {
    let lengths = match shape.extract::<u64>() {
        Ok(length) => vec![Some(length)],
        Err(_) => shape.extract::<Vec<Option<u64>>>().map_err(|_| {
            invalid(format!(
                "{shape} is not a shape: give lengths, and None for those that are free"
            ))
        })?,
    };
    match lengths.len() <= MAX_DIMS {
        true => Ok(lengths),
        false => Err(invalid(format!(
            "{} dimensions are more than the {MAX_DIMS} that a message can carry",
            lengths.len()
        ))),
    }
}

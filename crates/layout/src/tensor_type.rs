//! Names of types that are tensors: `float16[3,1080,1920]`, in which `*` stands for any length. A name without
//! brackets stands for any shape; `[]` is a tensor without dimensions. All other names are opaque.

use crate::{DType, MAX_DIMS};
use std::fmt;
use std::str::FromStr;

/// The type of a tensor: an element type, and optionally a shape in which any length may be free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorType {
    dtype: DType,
    /// `None` is any shape; a length of `None` is any length.
    shape: Option<Vec<Option<u64>>>,
}

/// A text that is not the type of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorTypeError {
    /// The text has another form.
    #[error("'{0}' is not the type of a tensor; write it like float16[3,1080,1920], with * for any length")]
    Text(String),
    /// Too many dimensions.
    #[error("{0} dimensions are over the limit of {MAX_DIMS}; merge some dimensions")]
    Dimensions(usize),
}

impl fmt::Display for TensorType {
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

impl FromStr for TensorType {
    type Err = TensorTypeError;

    fn from_str(text: &str) -> Result<TensorType, TensorTypeError> {
        let text = text.trim();
        let wrong = || TensorTypeError::Text(text.to_owned());
        let (dtype, shape) = match text.split_once('[') {
            None => (text, None),
            Some((dtype, rest)) => (dtype, Some(rest.strip_suffix(']').ok_or_else(wrong)?)),
        };
        let length = |text: &str| match text.trim() {
            "*" => Some(None),
            number => number.parse().ok().map(Some),
        };
        let shape = match shape.map(str::trim) {
            None => None,
            Some("") => Some(Vec::new()),
            Some(text) => {
                let lengths = text.split(',').map(length).collect::<Option<Vec<_>>>();
                Some(lengths.ok_or_else(wrong)?)
            }
        };
        TensorType::new(dtype.trim().parse().map_err(|_| wrong())?, shape)
    }
}

impl TensorType {
    /// The type of tensors with this element type and, if given, this shape.
    pub fn new(
        dtype: DType,
        shape: Option<Vec<Option<u64>>>,
    ) -> Result<TensorType, TensorTypeError> {
        match shape.as_ref().map_or(0, Vec::len) {
            0..=MAX_DIMS => Ok(TensorType { dtype, shape }),
            dimensions => Err(TensorTypeError::Dimensions(dimensions)),
        }
    }

    /// The type of one tensor.
    pub fn of(dtype: DType, shape: &[u64]) -> TensorType {
        TensorType {
            dtype,
            shape: Some(shape.iter().copied().map(Some).collect()),
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape, if all its lengths are fixed.
    pub fn whole_shape(&self) -> Option<Vec<u64>> {
        self.shape.as_ref()?.iter().copied().collect()
    }

    /// Whether this type includes every tensor of type `other`.
    pub fn accepts(&self, other: &TensorType) -> bool {
        let fits = |(own, other): (&Option<u64>, &Option<u64>)| own.is_none() || own == other;
        let shape = match (&self.shape, &other.shape) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(other)) => own.len() == other.len() && own.iter().zip(other).all(fits),
        };
        self.dtype == other.dtype && shape
    }

    /// Whether a tensor is of this type.
    pub fn holds(&self, dtype: DType, shape: &[u64]) -> bool {
        let fits = |(own, length): (&Option<u64>, &u64)| own.is_none_or(|own| own == *length);
        let is_of_shape =
            |own: &Vec<Option<u64>>| own.len() == shape.len() && own.iter().zip(shape).all(fits);
        self.dtype == dtype && self.shape.as_ref().is_none_or(is_of_shape)
    }
}

/// Whether a subscriber of type `expected` accepts every message that a publisher of type `sent` may publish. An empty name
/// declares nothing: such a publisher may send anything, such a subscriber accepts anything.
pub fn type_accepts(expected: &str, sent: &str) -> bool {
    if expected.is_empty() || expected == sent {
        return true;
    }
    match (expected.parse::<TensorType>(), sent.parse::<TensorType>()) {
        (Ok(expected), Ok(sent)) => expected.accepts(&sent),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for text in ["float16[3,1080,1920]", "uint8[]", "bfloat16", "bool[*,2]"] {
            assert_eq!(text.parse::<TensorType>().unwrap().to_string(), text);
        }
        let spaced: TensorType = " int8 [ 2 , * ] ".parse().unwrap();
        assert_eq!(spaced.to_string(), "int8[2,*]");
        for text in [
            "",
            "image",
            "float7[2]",
            "uint8[2",
            "uint8[-1]",
            "uint8[1,]",
        ] {
            assert!(text.parse::<TensorType>().is_err(), "{text}");
        }
        let nine = format!("uint8[{}]", ["1"; 9].join(","));
        assert_eq!(
            nine.parse::<TensorType>(),
            Err(TensorTypeError::Dimensions(9))
        );
    }

    #[test]
    fn a_subscriber_takes_all_that_its_publisher_may_send() {
        let accepted = [
            ("", ""),
            ("", "image"),
            ("image", "image"),
            ("float16", "float16[3,4]"),
            ("float16[*,4]", "float16[3,4]"),
            ("float16[*,4]", "float16[*,4]"),
            ("float16[3, 4]", "float16[3,4]"),
        ];
        let refused = [
            ("image", ""),
            ("image", "cloud"),
            ("float16[3,4]", "float16[*,4]"),
            ("float16[3,4]", "float16"),
            ("float16[3,4]", "float16[3,4,1]"),
            ("float16", "float32"),
            ("uint8", ""),
        ];
        for (expected, sent) in accepted {
            assert!(type_accepts(expected, sent), "{expected} {sent}");
        }
        for (expected, sent) in refused {
            assert!(!type_accepts(expected, sent), "{expected} {sent}");
        }
    }

    #[test]
    fn a_type_holds_tensors_of_its_shape() {
        let f16: DType = "float16".parse().unwrap();
        let some: TensorType = "float16[3,*]".parse().unwrap();
        assert!(some.holds(f16, &[3, 9]) && !some.holds(f16, &[2, 9]) && !some.holds(f16, &[3]));
        assert!(!some.holds(DType::U8, &[3, 9]));
        assert_eq!(some.whole_shape(), None);
        assert_eq!(TensorType::of(f16, &[2]).whole_shape(), Some(vec![2]));
    }
}

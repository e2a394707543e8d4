//! An array in host memory: its elements as numbers, in row-major order whatever its strides.

use rgaps::{DType, Tensor};
use std::borrow::Cow;

/// An array: its description and its bytes.
#[derive(Debug)]
pub struct Array<'a> {
    /// Every element lies within `bytes`.
    pub tensor: Tensor,
    pub bytes: Cow<'a, [u8]>,
}

/// An element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Int(i128),
    Float(f64),
    Complex(f64, f64),
}

impl Number {
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Int(int) => int as f64,
            Number::Float(float) => float,
            Number::Complex(..) => f64::NAN,
        }
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Number::Int(int) => write!(f, "{int}"),
            Number::Float(float) => f.write_str(&short(*float)),
            Number::Complex(re, im) if *im < 0.0 => write!(f, "{}-{}j", short(*re), short(-im)),
            Number::Complex(re, im) => write!(f, "{}+{}j", short(*re), short(*im)),
        }
    }
}

/// Formats with six significant digits, without trailing zeros.
pub fn short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let digits = value.abs().log10().floor() as i32;
    if !(-4..15).contains(&digits) {
        return format!("{value:.5e}");
    }
    let decimals = (5 - digits).max(0) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

impl Array<'_> {
    pub fn shape(&self) -> &[u64] {
        &self.tensor.shape[..usize::from(self.tensor.ndim)]
    }

    fn strides(&self) -> &[i64] {
        &self.tensor.strides[..usize::from(self.tensor.ndim)]
    }

    /// The offset in `bytes` of the element at these indices.
    pub fn offset(&self, index: &[u64]) -> usize {
        let steps = index.iter().zip(self.strides());
        let elements: i64 = steps.map(|(index, stride)| *index as i64 * stride).sum();
        elements as usize * self.tensor.dtype.element_bytes() as usize
    }

    /// Whether its elements are numbers that this program can read.
    pub fn is_numeric(&self) -> bool {
        reader(self.tensor.dtype).is_some()
    }

    /// The elements in row-major order. None: they are of a type without numbers.
    pub fn numbers(&self) -> Option<impl Iterator<Item = Number> + '_> {
        let read = reader(self.tensor.dtype)?;
        let bytes = self.tensor.dtype.element_bytes() as usize;
        Some(Offsets::new(self).map(move |at| read(&self.bytes[at..at + bytes])))
    }

    /// One element.
    pub fn number(&self, index: &[u64]) -> Option<Number> {
        let at = self.offset(index);
        let bytes = self.tensor.dtype.element_bytes() as usize;
        Some(reader(self.tensor.dtype)?(&self.bytes[at..at + bytes]))
    }

    /// The elements' bytes in row-major order without gaps.
    pub fn row_major(&self) -> Cow<'_, [u8]> {
        let bytes = self.tensor.dtype.element_bytes() as usize;
        let whole = rgaps::tensor::contiguous(self.tensor.dtype, self.shape());
        match whole {
            Ok((tensor, length)) if tensor.strides == self.tensor.strides => {
                Cow::Borrowed(&self.bytes[..length as usize])
            }
            _ => Offsets::new(self)
                .flat_map(|at| &self.bytes[at..at + bytes])
                .copied()
                .collect(),
        }
    }
}

/// Iterates over the byte offsets of the elements, in row-major order.
struct Offsets<'a> {
    array: &'a Array<'a>,
    index: Vec<u64>,
    is_done: bool,
}

impl<'a> Offsets<'a> {
    fn new(array: &'a Array<'a>) -> Self {
        Offsets {
            index: vec![0; array.shape().len()],
            is_done: array.shape().contains(&0),
            array,
        }
    }
}

impl Iterator for Offsets<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.is_done {
            return None;
        }
        let at = self.array.offset(&self.index);
        self.is_done = true;
        for (index, length) in self.index.iter_mut().zip(self.array.shape()).rev() {
            *index += 1;
            if *index < *length {
                self.is_done = false;
                break;
            }
            *index = 0;
        }
        Some(at)
    }
}

/// The function that decodes an element of this type. None: the type has no numbers.
fn reader(dtype: DType) -> Option<fn(&[u8]) -> Number> {
    macro_rules! read {
        ($kind:ident, $type:ty) => {
            |bytes| Number::$kind(<$type>::from_le_bytes(exact(bytes)).into())
        };
    }
    if dtype.lanes != 1 {
        return None;
    }
    Some(match (dtype.code, dtype.bits) {
        (0, 8) => read!(Int, i8),
        (0, 16) => read!(Int, i16),
        (0, 32) => read!(Int, i32),
        (0, 64) => read!(Int, i64),
        (1, 8) | (6, 8) => read!(Int, u8),
        (1, 16) => read!(Int, u16),
        (1, 32) => read!(Int, u32),
        (1, 64) => read!(Int, u64),
        (2, 16) => |bytes| Number::Float(half(bytes)),
        (2, 32) => read!(Float, f32),
        (2, 64) => read!(Float, f64),
        (4, 16) => |bytes| Number::Float(bfloat(bytes)),
        (5, 32) => |bytes| Number::Complex(half(&bytes[..2]), half(&bytes[2..])),
        (5, 64) => |bytes| {
            let part = |bytes| f64::from(f32::from_le_bytes(exact(bytes)));
            Number::Complex(part(&bytes[..4]), part(&bytes[4..]))
        },
        (5, 128) => |bytes| {
            let part = |bytes| f64::from_le_bytes(exact(bytes));
            Number::Complex(part(&bytes[..8]), part(&bytes[8..]))
        },
        _ => return None,
    })
}

/// An element's bytes as an array. Panics if there are not exactly `N`.
fn exact<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut exact = [0; N];
    exact.copy_from_slice(bytes);
    exact
}

/// Decodes IEEE 754 binary16.
fn half(bytes: &[u8]) -> f64 {
    let bits = u16::from_le_bytes(exact(bytes));
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 {
        -magnitude
    } else {
        magnitude
    }
}

/// Decodes bfloat16, the upper half of a binary32.
fn bfloat(bytes: &[u8]) -> f64 {
    f64::from(f32::from_bits(
        u32::from(u16::from_le_bytes(exact(bytes))) << 16,
    ))
}

/// Figures of an array.
#[derive(Debug, PartialEq)]
pub struct Summary {
    /// The first elements.
    pub first: Vec<Number>,
    pub count: u64,
    /// The least element, NaN left out. None for complex elements, and if every element is NaN. The same for `max` and `mean`.
    pub min: Option<Number>,
    pub max: Option<Number>,
    pub mean: Option<f64>,
    pub nan: u64,
}

/// Computes the figures of an array and takes its `first` elements. None: the elements are of a type without numbers.
pub fn summary(array: &Array<'_>, first: usize) -> Option<Summary> {
    let mut summary = Summary {
        first: array.numbers()?.take(first).collect(),
        count: 0,
        min: None,
        max: None,
        mean: None,
        nan: 0,
    };
    let mut sum = 0.0;
    for number in array.numbers()? {
        summary.count += 1;
        let value = number.as_f64();
        if value.is_nan() {
            summary.nan += 1;
            continue;
        }
        sum += value;
        if summary.min.is_none_or(|min| is_less(number, min)) {
            summary.min = Some(number);
        }
        if summary.max.is_none_or(|max| is_less(max, number)) {
            summary.max = Some(number);
        }
    }
    if array.tensor.dtype.code == 5 {
        summary.nan = 0;
    }
    summary.mean = summary
        .min
        .map(|_| sum / (summary.count - summary.nan) as f64);
    Some(summary)
}

fn is_less(a: Number, b: Number) -> bool {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => a < b,
        (a, b) => a.as_f64() < b.as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps::tensor::{contiguous, strided};

    fn array(name: &str, shape: &[u64], bytes: Vec<u8>) -> Array<'static> {
        let (tensor, length) = contiguous(name.parse().unwrap(), shape).unwrap();
        assert_eq!(length, bytes.len() as u64);
        Array {
            tensor,
            bytes: bytes.into(),
        }
    }

    #[test]
    fn numbers_of_all_types() {
        let of = |name: &str, bytes: &[u8]| {
            let array = array(name, &[], bytes.to_vec());
            let number = array.number(&[]);
            number.map(|number| number.to_string())
        };
        assert_eq!(of("int8", &[0xff]).unwrap(), "-1");
        assert_eq!(
            of("uint64", &u64::MAX.to_le_bytes()).unwrap(),
            "18446744073709551615"
        );
        assert_eq!(of("float32", &1.5f32.to_le_bytes()).unwrap(), "1.5");
        assert_eq!(of("float64", &1e-9f64.to_le_bytes()).unwrap(), "1.00000e-9");
        // 1, -2, the smallest, infinity, NaN.
        for (bits, text) in [
            (0x3c00u16, "1"),
            (0xc000, "-2"),
            (0x0001, "5.96046e-8"),
            (0x7c00, "inf"),
            (0x7e00, "NaN"),
        ] {
            assert_eq!(of("float16", &bits.to_le_bytes()).unwrap(), text);
        }
        assert_eq!(of("bfloat16", &0x3fc0u16.to_le_bytes()).unwrap(), "1.5");
        let complex = [1f32.to_le_bytes(), (-2f32).to_le_bytes()].concat();
        assert_eq!(of("complex64", &complex).unwrap(), "1-2j");
        assert_eq!(of("bool", &[1]).unwrap(), "1");
        assert_eq!(of("float8_e5m2", &[1]), None);
    }

    #[test]
    fn figures_leave_out_what_is_no_number() {
        let values = [3f32, f32::NAN, -1.0, 4.0];
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let found = summary(&array("float32", &[2, 2], bytes), 2).unwrap();
        assert_eq!((found.count, found.nan, found.first.len()), (4, 1, 2));
        assert_eq!(
            (found.min, found.max),
            (Some(Number::Float(-1.0)), Some(Number::Float(4.0)))
        );
        assert_eq!(found.mean, Some(2.0));
        let empty = summary(&array("uint8", &[0, 5], vec![]), 8).unwrap();
        assert_eq!((empty.count, empty.min, empty.mean), (0, None, None));
    }

    #[test]
    fn strides_are_followed() {
        // Columns of a 2 by 3 matrix, one after the other.
        let tensor = strided(DType::U8, &[2, 3], &[1, 2]).unwrap();
        let array = Array {
            tensor,
            bytes: vec![0, 3, 1, 4, 2, 5].into(),
        };
        assert_eq!(*array.row_major(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(array.number(&[1, 0]), Some(Number::Int(3)));
    }

    #[test]
    fn floats_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (117.3333333, "117.333"),
            (-0.001, "-0.001"),
            (123456789.0, "123456789"),
            (1e20, "1.00000e20"),
        ] {
            assert_eq!(short(value), text);
        }
    }
}

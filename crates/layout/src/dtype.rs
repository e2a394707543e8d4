//! Element types of tensors, with DLPack's codes.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// An element type as DLPack 1.1 writes it: a type code, bits per lane, lanes.
///
/// Code 0 is a signed integer, 1 unsigned, 2 floating point, 4 bfloat, 5 complex, 6 bool,
/// 7.. the float8 kinds. `bits == 0` means that the message carries no element type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct DType {
    /// DLPack's `DLDataTypeCode`.
    pub code: u8,
    /// Bits of one lane.
    pub bits: u8,
    /// Lanes; 1 except for vector types.
    pub lanes: u16,
}

/// The text names no element type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an element type; use one of {known}", known = names())]
pub struct DTypeParseError(pub String);

/// Name, code, bits of one lane.
const TABLE: &[(&str, u8, u8)] = &[
    ("int8", 0, 8),
    ("int16", 0, 16),
    ("int32", 0, 32),
    ("int64", 0, 64),
    ("uint8", 1, 8),
    ("uint16", 1, 16),
    ("uint32", 1, 32),
    ("uint64", 1, 64),
    ("float16", 2, 16),
    ("float32", 2, 32),
    ("float64", 2, 64),
    ("bfloat16", 4, 16),
    ("complex32", 5, 32),
    ("complex64", 5, 64),
    ("complex128", 5, 128),
    ("bool", 6, 8),
    ("float8_e3m4", 7, 8),
    ("float8_e4m3", 8, 8),
    ("float8_e4m3b11fnuz", 9, 8),
    ("float8_e4m3fn", 10, 8),
    ("float8_e4m3fnuz", 11, 8),
    ("float8_e5m2", 12, 8),
    ("float8_e5m2fnuz", 13, 8),
    ("float8_e8m0fnu", 14, 8),
    ("float4_e2m1fn_x2", 17, 4),
];

/// The lanes of a type in the table, by its name.
fn lanes(name: &str) -> u16 {
    if name.ends_with("_x2") {
        2
    } else {
        1
    }
}

fn names() -> String {
    TABLE.iter().map(|row| row.0).collect::<Vec<_>>().join(", ")
}

impl DType {
    /// Bytes.
    pub const U8: DType = DType {
        code: 1,
        bits: 8,
        lanes: 1,
    };
    /// 32-bit floating point.
    pub const F32: DType = DType {
        code: 2,
        bits: 32,
        lanes: 1,
    };

    /// Whether the message carries an element type at all.
    pub fn is_typed(self) -> bool {
        self.bits != 0
    }

    /// Bytes of one element, rounded up to whole bytes.
    pub fn element_bytes(self) -> u64 {
        (u64::from(self.bits) * u64::from(self.lanes)).div_ceil(8)
    }

    /// The name that [`FromStr`] takes, if it has one.
    pub fn name(self) -> Option<&'static str> {
        let row = TABLE
            .iter()
            .find(|row| (row.1, row.2) == (self.code, self.bits))?;
        (self.lanes == lanes(row.0)).then_some(row.0)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None if !self.is_typed() => f.write_str("bytes"),
            None => write!(f, "dlpack({},{},{})", self.code, self.bits, self.lanes),
        }
    }
}

impl FromStr for DType {
    type Err = DTypeParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bare = text.strip_prefix("torch.").unwrap_or(text);
        let row = TABLE.iter().find(|row| row.0 == bare);
        let (_, code, bits) = row.ok_or_else(|| DTypeParseError(text.to_owned()))?;
        Ok(DType {
            code: *code,
            bits: *bits,
            lanes: lanes(bare),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_survives_text() {
        for row in TABLE {
            let dtype: DType = row.0.parse().unwrap();
            assert_eq!(dtype.to_string(), row.0);
            assert_eq!(
                dtype.element_bytes() * 8,
                u64::from(row.2) * u64::from(lanes(row.0))
            );
        }
        assert!("float7".parse::<DType>().is_err());
    }
}

//! Parts: several named arrays in one message.
//!
//! The parts share the message's block, each at a multiple of [`BLOCK_ALIGN`] bytes. A table beside the descriptor
//! (`rgaps_layout::PartEntry`) describes them. The reader does not trust the table: it checks all of it before it returns any part.

use crate::tensor::{check_extent, contiguous, ShapeError};
use rgaps_layout::{DType, PartEntry, BLOCK_ALIGN, MAX_DIMS, MAX_MESSAGE_PARTS, MAX_PART_NAME};
use rgaps_topic::{Metadata, Tensor};

/// Describes one part to loan: its name, element type and shape, in row-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSpec<'a> {
    /// Unique in the message: 1 to 63 bytes of UTF-8.
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Elements per dimension.
    pub shape: &'a [u64],
}

impl PartSpec<'_> {
    /// Bytes of a message with these parts, alignment included. Fails for parts that a message cannot have.
    pub fn total_bytes(specs: &[PartSpec<'_>]) -> Result<u64, PartsError> {
        lay_out(specs, &mut Metadata::default())
    }
}

/// Parts that a message cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartsError {
    /// The list of parts is empty.
    #[error("the list of parts is empty; name at least one part, or loan plain bytes")]
    None,
    /// More than [`MAX_MESSAGE_PARTS`] parts.
    #[error("{parts} parts are over the limit of {MAX_MESSAGE_PARTS} parts per message; put several into one array, or use several messages")]
    TooMany {
        /// How many parts the loan asked for.
        parts: usize,
    },
    /// The name is empty or too long.
    #[error("the name of part '{name}' has {bytes} bytes; a name has 1 to {MAX_PART_NAME} bytes", bytes = name.len())]
    Name {
        /// The name.
        name: String,
    },
    /// Two parts have the same name.
    #[error("two parts are called '{name}'; give each part a name of its own")]
    Twice {
        /// The name.
        name: String,
    },
    /// The shape of a part is invalid.
    #[error("part '{name}': {source}")]
    Shape {
        /// The part.
        name: String,
        /// What is wrong with the shape.
        source: ShapeError,
    },
    /// The sum of the parts' bytes overflows 64 bits.
    #[error("the parts together have more than 2^64 bytes; check their shapes")]
    TooLarge,
    /// The message has no part of this name.
    #[error("the message has no part '{name}'; its parts are: {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The names of the message's parts.
        known: String,
    },
}

/// One named part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    entry: PartEntry,
}

impl Part {
    /// The name of the part.
    pub fn name(&self) -> &str {
        self.entry.name().expect("checked when the part was made")
    }

    /// Offset of the part's first byte in the message: a multiple of 256 in messages that rgaps laid out.
    pub fn offset(&self) -> u64 {
        self.entry.offset
    }

    /// Length of the part in bytes.
    pub fn len(&self) -> u64 {
        self.entry.bytes
    }

    /// Whether the part has no bytes.
    pub fn is_empty(&self) -> bool {
        self.entry.bytes == 0
    }

    /// Element type, shape and strides of the part.
    pub fn tensor(&self) -> Tensor {
        Tensor {
            dtype: self.entry.dtype(),
            ndim: self.entry.ndim,
            shape: self.entry.shape,
            strides: self.entry.strides,
        }
    }

    /// The part that an entry describes, in a message of `bytes` bytes. None: the entry is invalid.
    fn check(entry: PartEntry, bytes: u64) -> Option<Part> {
        entry.name()?;
        let end = entry.offset.checked_add(entry.bytes)?;
        let part = Part { entry };
        let fits = end <= bytes && usize::from(entry.ndim) <= MAX_DIMS;
        (fits && check_extent(&part.tensor(), entry.bytes).is_ok()).then_some(part)
    }
}

/// The parts of a message, in the order of the call that loaned them.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    metadata: &'a Metadata,
}

impl<'a> Parts<'a> {
    /// Checks the parts of a message of `bytes` bytes. An error says how its publisher violates the protocol.
    pub(crate) fn check(
        metadata: Option<&'a Metadata>,
        bytes: u64,
    ) -> Result<Parts<'a>, &'static str> {
        static NONE: Metadata = Metadata::EMPTY;
        let metadata = metadata.unwrap_or(&NONE);
        let parts = Parts { metadata };
        for (index, entry) in parts.entries().enumerate() {
            if Part::check(entry, bytes).is_none() {
                return Err("a part has an invalid name, offset or shape");
            }
            let mut before = parts.entries().take(index);
            if before.any(|other| other.name() == entry.name()) {
                return Err("two of its parts have the same name");
            }
        }
        Ok(parts)
    }

    fn entries(&self) -> impl ExactSizeIterator<Item = PartEntry> + 'a {
        self.metadata.parts()
    }

    /// Number of parts.
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    /// Whether the message has no parts: it is one array, or plain bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All parts, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Part> + 'a {
        self.entries().map(|entry| Part { entry })
    }

    /// The part called `name`, or `None`.
    pub fn get(&self, name: &str) -> Option<Part> {
        self.iter().find(|part| part.name() == name)
    }

    /// The part called `name`, or an error that lists the names of all parts.
    pub(crate) fn named(&self, name: &str) -> Result<Part, PartsError> {
        self.get(name).ok_or_else(|| PartsError::Unknown {
            name: name.to_owned(),
            known: match self.is_empty() {
                true => "none".to_owned(),
                false => {
                    let names = self.iter().map(|part| format!("'{}'", part.name()));
                    names.collect::<Vec<_>>().join(", ")
                }
            },
        })
    }
}

/// Lays out parts and adds their table to `metadata`, which has no parts yet. Returns the bytes of the message.
pub(crate) fn lay_out(specs: &[PartSpec<'_>], metadata: &mut Metadata) -> Result<u64, PartsError> {
    if specs.is_empty() {
        return Err(PartsError::None);
    }
    let mut end = 0u64;
    for (index, spec) in specs.iter().enumerate() {
        let PartSpec { name, dtype, shape } = *spec;
        if name.is_empty() || name.len() > MAX_PART_NAME {
            let name = name.to_owned();
            return Err(PartsError::Name { name });
        }
        if specs[..index].iter().any(|other| other.name == name) {
            let name = name.to_owned();
            return Err(PartsError::Twice { name });
        }
        let (tensor, bytes) = contiguous(dtype, shape).map_err(|source| PartsError::Shape {
            name: name.to_owned(),
            source,
        })?;
        let offset = end.checked_next_multiple_of(BLOCK_ALIGN);
        let offset = offset.ok_or(PartsError::TooLarge)?;
        end = offset.checked_add(bytes).ok_or(PartsError::TooLarge)?;
        if !metadata.push_part(&part_entry(name, offset, bytes, &tensor)) {
            let parts = specs.len();
            return Err(PartsError::TooMany { parts });
        }
    }
    Ok(end)
}

/// A row of the table of parts. The caller has checked that the name has at most `MAX_PART_NAME` bytes.
pub(crate) fn part_entry(name: &str, offset: u64, bytes: u64, tensor: &Tensor) -> PartEntry {
    let mut all = [0; MAX_PART_NAME + 1];
    all[..name.len()].copy_from_slice(name.as_bytes());
    PartEntry {
        offset,
        bytes,
        dtype_code: tensor.dtype.code,
        dtype_bits: tensor.dtype.bits,
        dtype_lanes: tensor.dtype.lanes,
        ndim: tensor.ndim,
        name_bytes: name.len() as u8,
        reserved: 0,
        shape: tensor.shape,
        strides: tensor.strides,
        name: all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rgaps_layout::PART_ENTRY_BYTES;

    const RGB: PartSpec<'_> = PartSpec {
        name: "rgb",
        dtype: DType::U8,
        shape: &[3, 5, 7],
    };
    const DEPTH: PartSpec<'_> = PartSpec {
        name: "depth",
        dtype: DType::F32,
        shape: &[],
    };
    const NONE: PartSpec<'_> = PartSpec {
        name: "none",
        dtype: DType::F32,
        shape: &[0, 4],
    };

    #[test]
    fn parts_lie_behind_each_other_and_aligned() {
        let mut metadata = Metadata::default();
        let bytes = lay_out(&[RGB, DEPTH, NONE], &mut metadata).unwrap();
        assert_eq!(bytes, 512);
        let parts = Parts::check(Some(&metadata), bytes).unwrap();
        let places: Vec<_> = parts
            .iter()
            .map(|part| (part.offset(), part.len()))
            .collect();
        assert_eq!(places, [(0, 105), (256, 4), (512, 0)]);
        assert_eq!(parts.get("depth").unwrap().tensor().ndim, 0);
        assert_eq!(parts.get("rgb").unwrap().tensor().shape[..3], [3, 5, 7]);
        let error = parts.named("pose").unwrap_err().to_string();
        assert_eq!(
            error,
            "the message has no part 'pose'; its parts are: 'rgb', 'depth', 'none'"
        );
        Parts::check(Some(&metadata), bytes - 1).unwrap_err();
    }

    #[test]
    fn parts_beyond_the_limits_are_refused_with_the_limit() {
        let refused = |specs: &[PartSpec<'_>]| {
            let error = lay_out(specs, &mut Metadata::default()).unwrap_err();
            error.to_string()
        };
        assert_eq!(
            refused(&[]),
            "the list of parts is empty; name at least one part, or loan plain bytes"
        );
        let names: Vec<String> = (0..33).map(|index| index.to_string()).collect();
        let many: Vec<_> = names
            .iter()
            .map(|name| PartSpec { name, ..DEPTH })
            .collect();
        assert!(refused(&many).starts_with("33 parts are over the limit of 32 parts"));
        assert!(lay_out(&many[1..], &mut Metadata::default()).is_ok());
        assert_eq!(
            refused(&[RGB, RGB]),
            "two parts are called 'rgb'; give each part a name of its own"
        );
        let long = "x".repeat(64);
        let long = PartSpec { name: &long, ..RGB };
        assert!(refused(&[long]).contains("has 64 bytes; a name has 1 to 63 bytes"));
        assert!(refused(&[PartSpec { name: "", ..RGB }]).contains("0 bytes"));
        let nine = PartSpec {
            shape: &[1; 9],
            ..RGB
        };
        assert!(refused(&[nine]).contains("'rgb': 9 dimensions"));
        let huge = PartSpec {
            name: "a",
            dtype: DType::U8,
            shape: &[u64::MAX],
        };
        assert_eq!(
            refused(&[huge, RGB]),
            "the parts together have more than 2^64 bytes; check their shapes"
        );
    }

    fn lie(at: usize, byte: u8) -> Metadata {
        let mut honest = Metadata::default();
        lay_out(&[RGB, DEPTH], &mut honest).unwrap();
        let mut bytes = honest.as_bytes().to_vec();
        bytes[at] = byte;
        let mut lie = Metadata::default();
        assert!(lie.assign(honest.lengths(), &bytes));
        lie
    }

    #[test]
    fn tables_that_lie_are_refused() {
        // Dimensions, an offset, a length, a shape, a negative stride, a name that is another's.
        let depth = PART_ENTRY_BYTES;
        for (at, byte) in [
            (20, 9),
            (7, 1),
            (9, 1),
            (25, 1),
            (95, 0xff),
            (depth + 21, 0),
        ] {
            assert!(Parts::check(Some(&lie(at, byte)), 260).is_err(), "{at}");
        }
        let mut twice = Metadata::default();
        for _ in 0..2 {
            let (tensor, bytes) = contiguous(DType::U8, &[4]).unwrap();
            assert!(twice.push_part(&part_entry("a", 0, bytes, &tensor)));
        }
        assert!(Parts::check(Some(&twice), 260).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn whatever_a_table_says_its_parts_lie_in_the_message(
            at in 0..2 * PART_ENTRY_BYTES,
            byte in any::<u8>(),
            bytes in 0u64..400,
        ) {
            let metadata = lie(at, byte);
            if let Ok(parts) = Parts::check(Some(&metadata), bytes) {
                for part in parts.iter() {
                    prop_assert!(part.offset() + part.len() <= bytes);
                    prop_assert!(check_extent(&part.tensor(), part.len()).is_ok());
                    prop_assert_eq!(parts.get(part.name()), Some(part));
                }
            }
        }
    }
}

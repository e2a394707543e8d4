//! Headers: the standard encoding of a message's attachment.
//!
//! A header is a [MessagePack](https://msgpack.org) map with text keys, which any language can read. Two optional
//! keys have a fixed meaning; the application chooses all others:
//!
//! | key | MessagePack type | meaning |
//! |---|---|---|
//! | `capture_ns` | unsigned integer | when the data was captured, nanoseconds since 1970-01-01 UTC |
//! | `frame_id` | text | the coordinate frame or the sensor that the data belongs to |
//! | others | nil, boolean, integer, float, text, binary, array, map with text keys | up to the application |
//!
//! A key occurs once per map, containers are nested at most [`HEADER_DEPTH_MAX`] deep, and extension types are
//! not used. The descriptor of the message says that its attachment is a header
//! (`rgaps_layout::ATTACHMENT_HEADER`), so a header counts against the same limit as any attachment.

use rgaps_layout::MAX_ATTACHMENT_BYTES;
use rgaps_sync::wall_ns;
use rmpv::decode::read_value_with_max_depth;
use std::collections::BTreeMap;

/// Deepest nesting of a header's lists and maps, the header itself included.
pub const HEADER_DEPTH_MAX: usize = 16;
/// Key of [`Header::capture_ns`].
const CAPTURE_NS: &str = "capture_ns";
/// Key of [`Header::frame_id`].
const FRAME_ID: &str = "frame_id";

/// Metadata of a message in rgaps's standard encoding: when and where the data was captured, and any further keys.
///
/// A header travels as the message's attachment: a [MessagePack](https://msgpack.org) map with text keys, at most
/// [`MAX_ATTACHMENT_BYTES`](crate::MAX_ATTACHMENT_BYTES) long and nested at most [`HEADER_DEPTH_MAX`] deep. Any
/// language can read it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    /// When the data was captured: nanoseconds since 1970-01-01 UTC. `None`: the header has no such key.
    pub capture_ns: Option<u64>,
    /// The coordinate frame or the sensor that the data belongs to. `None`: the header has no such key.
    pub frame_id: Option<String>,
    /// All other keys; their meaning is up to the application.
    pub values: BTreeMap<String, Value>,
}

/// A value in a [`Header`].
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the names say it
pub enum Value {
    Nil,
    Bool(bool),
    Int(i64),
    /// An integer above `i64::MAX`.
    Unsigned(u64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Map(BTreeMap<String, Value>),
}

/// A header that cannot be encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The encoded header is longer than an attachment.
    #[error("the header has {bytes} bytes in MessagePack, over the limit of {MAX_ATTACHMENT_BYTES} bytes; put large data into the message, or into a part of it")]
    TooLarge {
        /// Length of the encoded header in bytes.
        bytes: usize,
    },
    /// Lists and maps are nested more than [`HEADER_DEPTH_MAX`] deep.
    #[error(
        "the header's lists and maps are nested more than {HEADER_DEPTH_MAX} deep; flatten them"
    )]
    TooDeep,
    /// A key in [`Header::values`] is reserved for a field of the header.
    #[error("the key '{key}' is reserved; set the field Header::{key} instead")]
    Reserved {
        /// The key.
        key: &'static str,
    },
    /// The publisher marked the attachment as a header, but it does not decode.
    #[error("the attachment is marked as a header, but cannot be read as one: {reason}")]
    Malformed {
        /// What is wrong with it.
        reason: String,
    },
}

impl Header {
    /// A header whose `capture_ns` is the current time of the wall clock.
    pub fn captured_now() -> Header {
        Header {
            capture_ns: Some(wall_ns()),
            ..Header::default()
        }
    }

    /// Sets the frame id.
    pub fn frame_id(mut self, frame_id: impl Into<String>) -> Header {
        self.frame_id = Some(frame_id.into());
        self
    }

    /// Sets a key of [`values`](Self::values).
    pub fn value(mut self, key: impl Into<String>, value: impl Into<Value>) -> Header {
        self.values.insert(key.into(), value.into());
        self
    }

    /// Whether no field and no key is set.
    pub fn is_empty(&self) -> bool {
        *self == Header::default()
    }

    /// Encodes the header in MessagePack. Errors: [`HeaderError::TooLarge`], [`HeaderError::TooDeep`], [`HeaderError::Reserved`].
    pub fn encode(&self) -> Result<Vec<u8>, HeaderError> {
        let fixed = [
            (CAPTURE_NS, self.capture_ns.map(rmpv::Value::from)),
            (FRAME_ID, self.frame_id.as_deref().map(rmpv::Value::from)),
        ];
        let mut entries = Vec::with_capacity(self.values.len() + fixed.len());
        for (key, value) in fixed {
            if self.values.contains_key(key) {
                return Err(HeaderError::Reserved { key });
            }
            entries.extend(value.map(|value| (key.into(), value)));
        }
        for (key, value) in &self.values {
            entries.push((key.as_str().into(), to_msgpack(value, 1)?));
        }
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &rmpv::Value::Map(entries))
            .expect("a vector takes all that is written");
        match bytes.len() <= MAX_ATTACHMENT_BYTES {
            true => Ok(bytes),
            false => Err(HeaderError::TooLarge { bytes: bytes.len() }),
        }
    }

    /// Decodes a header from MessagePack. Errors: [`HeaderError::TooLarge`], [`HeaderError::TooDeep`], [`HeaderError::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Header, HeaderError> {
        if bytes.len() > MAX_ATTACHMENT_BYTES {
            return Err(HeaderError::TooLarge { bytes: bytes.len() });
        }
        let mut rest = bytes;
        // The library counts two levels per container and up to three for what is in it; `from_msgpack` counts exactly.
        let value =
            read_value_with_max_depth(&mut rest, 2 * HEADER_DEPTH_MAX + 3).map_err(malformed)?;
        if !rest.is_empty() {
            return Err(malformed(format!("{} bytes follow it", rest.len())));
        }
        let Value::Map(mut values) = from_msgpack(value, 0)? else {
            return Err(malformed("it is no map"));
        };
        let capture_ns = match values.remove(CAPTURE_NS) {
            None => None,
            Some(Value::Unsigned(ns)) => Some(ns),
            Some(Value::Int(ns)) if ns >= 0 => Some(ns as u64),
            Some(_) => return Err(malformed("'capture_ns' is not an unsigned integer")),
        };
        let frame_id = match values.remove(FRAME_ID) {
            None => None,
            Some(Value::Text(text)) => Some(text),
            Some(_) => return Err(malformed("'frame_id' is no text")),
        };
        Ok(Header {
            capture_ns,
            frame_id,
            values,
        })
    }
}

fn malformed(reason: impl ToString) -> HeaderError {
    HeaderError::Malformed {
        reason: reason.to_string(),
    }
}

/// Converts a value that lies inside `depth` containers.
fn to_msgpack(value: &Value, depth: usize) -> Result<rmpv::Value, HeaderError> {
    let is_container = matches!(value, Value::List(_) | Value::Map(_));
    if is_container && depth >= HEADER_DEPTH_MAX {
        return Err(HeaderError::TooDeep);
    }
    Ok(match value {
        Value::Nil => rmpv::Value::Nil,
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => (*value).into(),
        Value::Unsigned(value) => (*value).into(),
        Value::Float(value) => (*value).into(),
        Value::Text(text) => text.as_str().into(),
        Value::Bytes(bytes) => bytes.as_slice().into(),
        Value::List(values) => {
            let values = values.iter().map(|value| to_msgpack(value, depth + 1));
            rmpv::Value::Array(values.collect::<Result<_, _>>()?)
        }
        Value::Map(values) => {
            let entries = values
                .iter()
                .map(|(key, value)| Ok((key.as_str().into(), to_msgpack(value, depth + 1)?)));
            rmpv::Value::Map(entries.collect::<Result<_, _>>()?)
        }
    })
}

fn from_msgpack(value: rmpv::Value, depth: usize) -> Result<Value, HeaderError> {
    if depth >= HEADER_DEPTH_MAX && (value.is_array() || value.is_map()) {
        return Err(HeaderError::TooDeep);
    }
    Ok(match value {
        rmpv::Value::Nil => Value::Nil,
        rmpv::Value::Boolean(value) => Value::Bool(value),
        rmpv::Value::Integer(value) => match (value.as_i64(), value.as_u64()) {
            (Some(value), _) => Value::Int(value),
            (None, Some(value)) => Value::Unsigned(value),
            (None, None) => return Err(malformed("an integer of more than 64 bits")),
        },
        rmpv::Value::F32(value) => Value::Float(value.into()),
        rmpv::Value::F64(value) => Value::Float(value),
        rmpv::Value::String(text) => Value::Text(to_text(text)?),
        rmpv::Value::Binary(bytes) => Value::Bytes(bytes),
        rmpv::Value::Array(values) => {
            let values = values
                .into_iter()
                .map(|value| from_msgpack(value, depth + 1));
            Value::List(values.collect::<Result<_, _>>()?)
        }
        rmpv::Value::Map(entries) => {
            let mut values = BTreeMap::new();
            for (key, value) in entries {
                let rmpv::Value::String(key) = key else {
                    return Err(malformed("a key is no text"));
                };
                let key = to_text(key)?;
                let value = from_msgpack(value, depth + 1)?;
                if values.insert(key, value).is_some() {
                    return Err(malformed("a key occurs twice"));
                }
            }
            Value::Map(values)
        }
        rmpv::Value::Ext(kind, _) => {
            return Err(malformed(format!("a value of extension type {kind}")));
        }
    })
}

fn to_text(text: rmpv::Utf8String) -> Result<String, HeaderError> {
    text.into_str()
        .ok_or_else(|| malformed("a text is not UTF-8"))
}

macro_rules! from {
    ($($type:ty, $value:ident => $to:expr;)*) => {
        $(impl From<$type> for Value {
            fn from($value: $type) -> Value {
                $to
            }
        })*
    };
}

from! {
    bool, value => Value::Bool(value);
    i32, value => Value::Int(value.into());
    u32, value => Value::Int(value.into());
    i64, value => Value::Int(value);
    u64, value => i64::try_from(value).map_or(Value::Unsigned(value), Value::Int);
    f32, value => Value::Float(value.into());
    f64, value => Value::Float(value);
    &str, value => Value::Text(value.to_owned());
    String, value => Value::Text(value);
    &[u8], value => Value::Bytes(value.to_vec());
    Vec<u8>, value => Value::Bytes(value);
    Vec<Value>, value => Value::List(value);
    BTreeMap<String, Value>, value => Value::Map(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_is_a_map_that_any_messagepack_library_reads() {
        let header = Header {
            capture_ns: Some(1_700_000_000_000_000_000),
            ..Header::default()
        };
        let header = header.frame_id("cam").value("gain", 1.5).value("n", 7i64);
        let expected = [
            &b"\x84\xaacapture_ns\xcf"[..],
            &1_700_000_000_000_000_000u64.to_be_bytes(),
            b"\xa8frame_id\xa3cam\xa4gain\xcb",
            &1.5f64.to_be_bytes(),
            b"\xa1n\x07",
        ];
        assert_eq!(header.encode().unwrap(), expected.concat());
    }

    #[test]
    fn an_empty_header_is_an_empty_map() {
        assert_eq!(Header::default().encode().unwrap(), [0x80]);
        assert!(Header::decode(&[0x80]).unwrap().is_empty());
    }

    fn nested(depth: usize) -> Value {
        (0..depth).fold(Value::Nil, |value, _| Value::List(vec![value]))
    }

    #[test]
    fn limits_are_told() {
        let large = Header::default().value("a", vec![0u8; MAX_ATTACHMENT_BYTES]);
        let bytes = 1 + 2 + 3 + MAX_ATTACHMENT_BYTES;
        assert_eq!(large.encode(), Err(HeaderError::TooLarge { bytes }));
        assert!(large.encode().unwrap_err().to_string().contains("4096"));
        let deepest = Header::default().value("a", nested(HEADER_DEPTH_MAX - 1));
        assert_eq!(Header::decode(&deepest.encode().unwrap()), Ok(deepest));
        let deeper = Header::default().value("a", nested(HEADER_DEPTH_MAX));
        assert_eq!(deeper.encode(), Err(HeaderError::TooDeep));
        let reserved = Header::default().value("frame_id", 1i64);
        let key = "frame_id";
        assert_eq!(reserved.encode(), Err(HeaderError::Reserved { key }));
    }

    #[test]
    fn what_is_no_header_is_an_error() {
        let ext = b"\x81\xa1a\xd4\x01\x00";
        let twice = b"\x82\xa1a\x01\xa1a\x02";
        let deep = [&[0x91u8; 4000][..], &[0xc0]].concat();
        let capture = b"\x81\xaacapture_ns\xff";
        for bytes in [
            &b""[..],
            b"\x90",
            b"\x80\x80",
            b"\x81\x01\x02",
            b"\x81\xa1\xff\x02",
            b"\xdf\xff\xff\xff\xff",
            ext,
            twice,
            capture,
            &deep,
        ] {
            Header::decode(bytes).unwrap_err();
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e300f64..1e300).prop_map(Value::from),
            "[a-zä]{0,40}".prop_map(Value::from),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
                prop::collection::btree_map("[a-z]{0,4}", inner, 0..4).prop_map(Value::Map),
            ]
        })
    }

    fn header() -> impl Strategy<Value = Header> {
        let values = prop::collection::btree_map("[a-z]{0,8}", value(), 0..6);
        let frame_id = prop::option::of("[a-z/]{0,40}");
        (any::<Option<u64>>(), frame_id, values).prop_map(|(capture_ns, frame_id, values)| Header {
            capture_ns,
            frame_id,
            values,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn headers_come_back_as_they_were(header in header()) {
            if let Ok(bytes) = header.encode() {
                prop_assert_eq!(Header::decode(&bytes), Ok(header));
            }
        }

        #[test]
        fn hostile_bytes_are_headers_or_errors(
            header in header(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            noise in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = Header::decode(&noise);
            if let Ok(mut bytes) = header.encode() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
                // A header that was decoded can be encoded again.
                if let Ok(header) = Header::decode(&bytes) {
                    let again = header.encode().unwrap();
                    prop_assert_eq!(Header::decode(&again).is_ok(), true);
                }
                let _ = Header::decode(&bytes[..at]);
            }
        }
    }
}

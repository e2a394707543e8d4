//! From a message of ROS 2 to one of rgaps.

use super::cdr::{Kind, Reader};
use super::types::{Bytes, Field, Type};
use super::{cloud, image};
use crate::beside::Beside;
use rgaps_client::tensor::contiguous;
use rgaps_client::{Header, Value};
use rgaps_layout::BLOCK_ALIGN;
use std::collections::BTreeMap;
use zenoh::bytes::ZBytes;

/// Most points' fields of a cloud, and texts of a list.
const LIST_MAX: u32 = 1024;

/// What a message's bytes are.
pub(crate) struct Decoded {
    pub(crate) payload: ZBytes,
    pub(crate) skip: usize,
    pub(crate) len: usize,
    pub(crate) header: Header,
    /// Without the header.
    pub(crate) beside: Beside,
}

/// Decodes a message of a known type. Large `uint8[]` stay where they are.
pub(crate) fn decode(kind: &Type, payload: &ZBytes) -> Result<Decoded, String> {
    let mut reader = Reader::new(payload)?;
    let mut found = Found::default();
    for field in kind.fields {
        found.take(field, &mut reader)?;
    }
    match kind.name {
        "sensor_msgs/msg/Image" => found.beside.tensor = image::tensor(&found.header, found.len),
        "sensor_msgs/msg/PointCloud2" => {
            found.beside.tensor = cloud::tensor(&found.header, found.len);
        }
        _ => {}
    }
    let is_own = found.skip.is_none();
    Ok(Decoded {
        payload: match is_own {
            true => ZBytes::from(found.own),
            false => payload.clone(),
        },
        skip: found.skip.unwrap_or_default(),
        len: found.len,
        header: found.header,
        beside: found.beside,
    })
}

#[derive(Default)]
struct Found {
    header: Header,
    /// The arrays, where the bytes are not those of the payload.
    own: Vec<u8>,
    skip: Option<usize>,
    len: usize,
    beside: Beside,
}

impl Found {
    fn take(&mut self, field: &Field, reader: &mut Reader<'_>) -> Result<(), String> {
        match *field {
            Field::Header => self.take_header(reader)?,
            Field::Value(name, kind) => {
                let value = value(kind, &reader.numbers(kind, 1)?);
                self.set(name, value);
            }
            Field::Text(name) => {
                let text = reader.text()?;
                self.set(name, text.into());
            }
            Field::Texts(name) => {
                let texts = list(reader, |reader| reader.text().map(Value::from))?;
                self.set(name, texts);
            }
            Field::Fields => {
                let fields = list(reader, point_field)?;
                self.set(cloud::FIELDS, fields);
            }
            Field::Array(name, kind, shape) => self.take_part(name, kind, shape, reader)?,
            Field::List(name, kind) => {
                let count = u64::from(reader.u32()?);
                self.take_part(name, kind, &[count], reader)?;
            }
            Field::Whole(kind, shape) => {
                let count: u64 = shape.iter().product();
                self.own = reader.numbers(kind, count as usize)?;
                self.len = self.own.len();
                self.beside.tensor = Some(tensor(kind, shape)?.0);
            }
            Field::Data(bytes) => {
                let len = reader.u32()? as usize;
                self.skip = Some(reader.skip(len)?);
                self.len = match bytes {
                    Bytes::Sequence => len,
                    // Without the 0 at its end.
                    Bytes::String => len.saturating_sub(1),
                };
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: Value) {
        self.header.values.insert(name.to_owned(), value);
    }

    fn take_header(&mut self, reader: &mut Reader<'_>) -> Result<(), String> {
        let (s, ns) = (reader.u32()?, reader.u32()?);
        let frame_id = reader.text()?;
        let is_set = (s, ns) != (0, 0) && i32::try_from(s).is_ok();
        let capture_ns = u64::from(s) * 1_000_000_000 + u64::from(ns);
        self.header.capture_ns = is_set.then_some(capture_ns);
        self.header.frame_id = (!frame_id.is_empty()).then_some(frame_id);
        Ok(())
    }

    fn take_part(
        &mut self,
        name: &str,
        kind: Kind,
        shape: &[u64],
        reader: &mut Reader<'_>,
    ) -> Result<(), String> {
        let count: u64 = shape.iter().product();
        let numbers = reader.numbers(kind, count as usize)?;
        let (tensor, bytes) = tensor(kind, shape)?;
        let at = self.own.len().next_multiple_of(BLOCK_ALIGN as usize);
        self.own.resize(at, 0);
        self.own.extend_from_slice(&numbers);
        self.len = self.own.len();
        self.beside.add_part(name, tensor, at as u64, bytes)
    }
}

fn tensor(kind: Kind, shape: &[u64]) -> Result<(rgaps_client::Tensor, u64), String> {
    let dtype = kind.dtype().parse().expect("a name of the table");
    contiguous(dtype, shape).map_err(|error| error.to_string())
}

fn value(kind: Kind, bytes: &[u8]) -> Value {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    let unsigned = u64::from_le_bytes(all);
    match kind {
        Kind::Bool => Value::Bool(unsigned != 0),
        Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 => unsigned.into(),
        Kind::I8 => Value::Int((unsigned as i8).into()),
        Kind::I16 => Value::Int((unsigned as i16).into()),
        Kind::I32 => Value::Int((unsigned as i32).into()),
        Kind::I64 => Value::Int(unsigned as i64),
        Kind::F32 => f32::from_bits(unsigned as u32).into(),
        Kind::F64 => f64::from_bits(unsigned).into(),
    }
}

fn list(
    reader: &mut Reader<'_>,
    mut one: impl FnMut(&mut Reader<'_>) -> Result<Value, String>,
) -> Result<Value, String> {
    let count = reader.u32()?;
    if count > LIST_MAX {
        return Err(format!("a list of it has {count} entries"));
    }
    let entries = (0..count).map(|_| one(reader));
    entries.collect::<Result<Vec<_>, _>>().map(Value::from)
}

fn point_field(reader: &mut Reader<'_>) -> Result<Value, String> {
    let name = reader.text()?;
    let offset = reader.u32()?;
    let datatype = value(Kind::U8, &reader.numbers(Kind::U8, 1)?);
    let count = reader.u32()?;
    let field = [
        ("name", name.into()),
        ("offset", offset.into()),
        ("datatype", datatype),
        ("count", count.into()),
    ];
    let field = field.map(|(key, value): (&str, Value)| (key.to_owned(), value));
    Ok(BTreeMap::from(field).into())
}

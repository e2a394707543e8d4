//! Decodes messages of ROS 2 to messages of rgaps.

use crate::cdr::{CdrReader, NumberType};
use crate::types::{Bytes, Field, Type};
use crate::{cloud, image};
use rgaps_client::bindings::Beside;
use rgaps_client::tensor::contiguous;
use rgaps_client::{Header, Tensor, Value};
use rgaps_layout::BLOCK_ALIGN;
use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::ops::Range;

/// Most texts in a list, and most point fields of a cloud.
const LIST_MAX: u32 = 1024;

/// A message of ROS 2, decoded to a message of rgaps.
#[derive(Debug)]
pub struct Decoded {
    /// Its bytes.
    pub data: Data,
    /// Its header.
    pub header: Header,
    /// Its element type and shape, or its parts.
    pub beside: Beside,
    /// The type for its publisher to declare: the encoding of an image that is an array, otherwise the type in ROS 2.
    pub type_name: String,
}

/// The bytes of a decoded message.
#[derive(Debug)]
pub enum Data {
    /// Bytes that decoding has copied.
    Own(Vec<u8>),
    /// A range of the encoded message.
    Within(Range<usize>),
}

/// Decodes a message of a known type, of `len` bytes. Does not copy a `uint8[]` or the text of a `std_msgs/String`.
///
/// # Errors
/// Why the bytes are no message of this type.
pub fn decode(kind: &Type, bytes: impl Read + Seek, len: usize) -> Result<Decoded, String> {
    let mut reader = CdrReader::new(bytes, len)?;
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
    let type_name = match found.header.values.get("encoding") {
        Some(Value::Text(encoding)) if found.beside.tensor.is_some() => encoding.clone(),
        _ => kind.name.to_owned(),
    };
    Ok(Decoded {
        data: match found.skip {
            Some(skip) => Data::Within(skip..skip + found.len),
            None => Data::Own(found.own),
        },
        header: found.header,
        beside: found.beside,
        type_name,
    })
}

#[derive(Default)]
struct Found {
    header: Header,
    /// The arrays, unless the bytes of the message are a range of the encoded one.
    own: Vec<u8>,
    skip: Option<usize>,
    len: usize,
    beside: Beside,
}

impl Found {
    fn take(
        &mut self,
        field: &Field,
        reader: &mut CdrReader<impl Read + Seek>,
    ) -> Result<(), String> {
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
                    // Leaves out the 0 at the end of the text.
                    Bytes::String => len.saturating_sub(1),
                };
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: Value) {
        self.header.values.insert(name.to_owned(), value);
    }

    fn take_header(&mut self, reader: &mut CdrReader<impl Read + Seek>) -> Result<(), String> {
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
        kind: NumberType,
        shape: &[u64],
        reader: &mut CdrReader<impl Read + Seek>,
    ) -> Result<(), String> {
        let count: u64 = shape.iter().product();
        let numbers = reader.numbers(kind, count as usize)?;
        let (tensor, bytes) = tensor(kind, shape)?;
        let at = self.own.len().next_multiple_of(BLOCK_ALIGN as usize);
        self.own.resize(at, 0);
        self.own.extend_from_slice(&numbers);
        self.len = self.own.len();
        self.beside.add_part(name, &tensor, at as u64, bytes)
    }
}

fn tensor(kind: NumberType, shape: &[u64]) -> Result<(Tensor, u64), String> {
    let dtype = kind.dtype().parse().expect("a name of the table");
    contiguous(dtype, shape).map_err(|error| error.to_string())
}

fn value(kind: NumberType, bytes: &[u8]) -> Value {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    let unsigned = u64::from_le_bytes(all);
    match kind {
        NumberType::Bool => Value::Bool(unsigned != 0),
        NumberType::U8 | NumberType::U16 | NumberType::U32 | NumberType::U64 => unsigned.into(),
        NumberType::I8 => Value::Int((unsigned as i8).into()),
        NumberType::I16 => Value::Int((unsigned as i16).into()),
        NumberType::I32 => Value::Int((unsigned as i32).into()),
        NumberType::I64 => Value::Int(unsigned as i64),
        NumberType::F32 => f32::from_bits(unsigned as u32).into(),
        NumberType::F64 => f64::from_bits(unsigned).into(),
    }
}

fn list<R: Read + Seek>(
    reader: &mut CdrReader<R>,
    mut one: impl FnMut(&mut CdrReader<R>) -> Result<Value, String>,
) -> Result<Value, String> {
    let count = reader.u32()?;
    if count > LIST_MAX {
        return Err(format!("a list of it has {count} entries"));
    }
    let entries = (0..count).map(|_| one(reader));
    entries.collect::<Result<Vec<_>, _>>().map(Value::from)
}

fn point_field(reader: &mut CdrReader<impl Read + Seek>) -> Result<Value, String> {
    let name = reader.text()?;
    let offset = reader.u32()?;
    let datatype = value(NumberType::U8, &reader.numbers(NumberType::U8, 1)?);
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

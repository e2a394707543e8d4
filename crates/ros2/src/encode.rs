//! Encodes messages of rgaps as messages of ROS 2.

use crate::cdr::{CdrWriter, NumberType};
use crate::types::{Bytes, Field, Type};
use crate::{cloud, form, image};
use rgaps_client::{Header, Sample, Value};

/// A message in CDR.
#[derive(Debug)]
pub struct CdrMessage {
    /// The encoded message, without the bytes of the message of rgaps if these are a `uint8[]` or a text in it.
    pub bytes: Vec<u8>,
    /// Where the caller inserts the bytes of the message of rgaps. None: `bytes` is the whole message.
    pub data_at: Option<usize>,
}

/// Encodes a message, which is in host memory, as a known type. Does not copy its bytes if they are a `uint8[]`. `type_name`: what
/// its publisher declares. `published_ns`: nanoseconds since 1970.
///
/// # Errors
/// Why the message does not match the type.
pub fn encode(
    kind: &Type,
    type_name: &str,
    published_ns: u64,
    sample: &Sample,
) -> Result<CdrMessage, String> {
    let mut header = sample.header().ok().flatten().unwrap_or_default();
    form::check(kind, &header, sample)?;
    match kind.name {
        "sensor_msgs/msg/Image" => image::describe(&mut header, type_name, sample)?,
        "sensor_msgs/msg/PointCloud2" => cloud::describe(&mut header, sample)?,
        _ => {}
    }
    let mut writer = CdrWriter::new();
    let mut data = None;
    for field in kind.fields {
        if let Field::Data(bytes) = field {
            let len = sample.len() as usize;
            let is_text = *bytes == Bytes::String;
            let limit = u32::try_from(len + usize::from(is_text));
            writer.u32(limit.map_err(|_| "it has more than 4 GiB".to_owned())?);
            data = Some(writer.leave_out(len));
            if is_text {
                writer.numbers(NumberType::U8, &[0]);
            }
        } else {
            put(field, &header, published_ns, sample, &mut writer)?;
        }
    }
    Ok(CdrMessage {
        bytes: writer.finish(),
        data_at: data,
    })
}

fn put(
    field: &Field,
    header: &Header,
    published_ns: u64,
    sample: &Sample,
    writer: &mut CdrWriter,
) -> Result<(), String> {
    match *field {
        Field::Header => {
            let ns = header.capture_ns.unwrap_or(published_ns);
            writer.u32((ns / 1_000_000_000) as u32);
            writer.u32((ns % 1_000_000_000) as u32);
            writer.text(header.frame_id.as_deref().unwrap_or_default());
        }
        Field::Value(name, kind) => {
            let number = match header.values.get(name) {
                None => 0f64.to_bits(),
                Some(value) => number(kind, value)
                    .ok_or_else(|| format!("'{name}' of its header is no {}", kind.dtype()))?,
            };
            writer.numbers(kind, &number.to_le_bytes()[..kind.bytes()]);
        }
        Field::Text(name) => writer.text(text(name, header.values.get(name))?),
        Field::Texts(name) => {
            let texts = entries(name, header)?;
            writer.u32(texts.len() as u32);
            for entry in texts {
                writer.text(text(name, Some(entry))?);
            }
        }
        Field::Fields => {
            let fields = entries(cloud::FIELDS, header)?;
            writer.u32(fields.len() as u32);
            for field in fields {
                put_point_field(field, writer)?;
            }
        }
        Field::Array(name, kind, shape) => {
            let count = shape.iter().product::<u64>() as usize;
            let numbers = part(name, kind, sample)?;
            let numbers = numbers.unwrap_or_else(|| vec![0; count * kind.bytes()]);
            check(name, numbers.len(), count * kind.bytes())?;
            writer.numbers(kind, &numbers);
        }
        Field::List(name, kind) => {
            let numbers = part(name, kind, sample)?.unwrap_or_default();
            writer.u32((numbers.len() / kind.bytes()) as u32);
            writer.numbers(kind, &numbers);
        }
        Field::Whole(kind, shape) => {
            let bytes = sample.as_slice().map_err(|error| error.to_string())?;
            let count = shape.iter().product::<u64>() as usize;
            check("the message", bytes.len(), count * kind.bytes())?;
            writer.numbers(kind, bytes);
        }
        // `encode` handles this field.
        Field::Data(_) => {}
    }
    Ok(())
}

fn check(name: &str, bytes: usize, wanted: usize) -> Result<(), String> {
    match bytes == wanted {
        true => Ok(()),
        false => Err(format!(
            "{name} has {bytes} bytes, and the type has {wanted}"
        )),
    }
}

/// The bits of a number of the header, as this type. None: the value does not fit the type.
fn number(kind: NumberType, value: &Value) -> Option<u64> {
    let float = |value: f64| match kind {
        NumberType::F32 => Some(u64::from((value as f32).to_bits())),
        NumberType::F64 => Some(value.to_bits()),
        _ => None,
    };
    match value {
        Value::Bool(value) => Some((*value).into()),
        Value::Float(value) => float(*value),
        Value::Unsigned(value) if kind == NumberType::U64 => Some(*value),
        Value::Int(value) => float(*value as f64).or_else(|| {
            let bits = kind.bytes() as u32 * 8;
            let (low, high) = match kind {
                NumberType::I8 | NumberType::I16 | NumberType::I32 | NumberType::I64 => {
                    (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits))
                }
                _ => (0, (u64::MAX >> (64 - bits)).min(i64::MAX as u64) as i64),
            };
            (low..=high).contains(value).then_some(*value as u64)
        }),
        _ => None,
    }
}

fn text<'a>(name: &str, value: Option<&'a Value>) -> Result<&'a str, String> {
    match value {
        None => Ok(""),
        Some(Value::Text(text)) => Ok(text),
        Some(_) => Err(format!("'{name}' of its header is no text")),
    }
}

fn entries<'a>(name: &str, header: &'a Header) -> Result<&'a [Value], String> {
    match header.values.get(name) {
        None => Ok(&[]),
        Some(Value::List(entries)) => Ok(entries),
        Some(_) => Err(format!("'{name}' of its header is no list")),
    }
}

fn put_point_field(field: &Value, writer: &mut CdrWriter) -> Result<(), String> {
    let Value::Map(field) = field else {
        return Err("a field of its points is no map".to_owned());
    };
    let bits = |key: &str, kind| {
        let bits = field.get(key).and_then(|value| number(kind, value));
        bits.ok_or_else(|| format!("a field of its points has no '{key}'"))
    };
    writer.text(text("name", field.get("name"))?);
    writer.u32(bits("offset", NumberType::U32)? as u32);
    writer.numbers(NumberType::U8, &[bits("datatype", NumberType::U8)? as u8]);
    writer.u32(bits("count", NumberType::U32)? as u32);
    Ok(())
}

/// The numbers of a part. None: the message does not have it.
fn part(name: &str, kind: NumberType, sample: &Sample) -> Result<Option<Vec<u8>>, String> {
    let Ok(part) = sample.part(name) else {
        return Ok(None);
    };
    form::check_array(
        &format!("its part '{name}'"),
        kind,
        &part.tensor(),
        part.len(),
    )
    .map_err(|why| format!("{why}, and the type has {}", kind.dtype()))?;
    let bytes = sample.part_slice(name).map_err(|error| error.to_string())?;
    Ok(Some(bytes.to_vec()))
}

//! Encodes samples for viewers: reduced to a size, with point clouds and log messages as Foxglove draws them. The publisher's type
//! tells which messages are clouds and logs. Recordings have these as `rgaps.Message`, as they were published.

use crate::encode::{append, image_of, read_all, timestamp, Encoded};
use crate::jpeg::CompressedImage;
use crate::schema::SchemaKind;
use prost::Message as _;
use prost_types::Timestamp;
use rgaps::{DType, Header, RecvError, Sample, Value};
use rgaps_ros2::{CdrReader, NumberType};
use std::borrow::Cow;
use std::io::Cursor;

/// Names, without packages, of types whose messages are clouds.
const CLOUDS: [&str; 2] = ["PointCloud2", "PointCloud"];
const LOG: &str = "Log";
const COMPRESSED: &str = "CompressedImage";
/// Columns of a cloud whose header does not name them.
const COLUMNS: [&str; 4] = ["x", "y", "z", "intensity"];
/// `PackedElementField.NumericType.FLOAT32`.
const FLOAT32: i32 = 7;

#[derive(Clone, PartialEq, prost::Message)]
struct PointCloud {
    #[prost(message, optional, tag = "1")]
    timestamp: Option<Timestamp>,
    #[prost(string, tag = "2")]
    frame_id: String,
    #[prost(message, optional, tag = "3")]
    pose: Option<Pose>,
    #[prost(fixed32, tag = "4")]
    point_stride: u32,
    #[prost(message, repeated, tag = "5")]
    fields: Vec<Field>,
    #[prost(bytes = "vec", tag = "6")]
    data: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Pose {
    #[prost(message, optional, tag = "1")]
    position: Option<Numbers>,
    #[prost(message, optional, tag = "2")]
    orientation: Option<Numbers>,
}

/// `foxglove.Vector3`, and `foxglove.Quaternion`, which has a fourth number.
#[derive(Clone, PartialEq, prost::Message)]
struct Numbers {
    #[prost(double, tag = "1")]
    x: f64,
    #[prost(double, tag = "2")]
    y: f64,
    #[prost(double, tag = "3")]
    z: f64,
    #[prost(double, tag = "4")]
    w: f64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Field {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(fixed32, tag = "2")]
    offset: u32,
    #[prost(int32, tag = "3")]
    kind: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Log {
    #[prost(message, optional, tag = "1")]
    timestamp: Option<Timestamp>,
    #[prost(int32, tag = "2")]
    level: i32,
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    name: String,
    #[prost(string, tag = "5")]
    file: String,
    #[prost(fixed32, tag = "6")]
    line: u32,
}

/// Encodes `sample`, which is complete and in any domain, for a viewer, and appends it to `to`. A larger image than `bytes_max`
/// is reduced to every n-th pixel of every n-th row, a larger point cloud to every n-th point. None: another message is larger,
/// and nothing was appended. `type_name`: the publisher's type, which tells clouds and logs. `publish_ns`: when it was published,
/// in nanoseconds since 1970.
pub fn encode_within(
    sample: &Sample,
    type_name: &str,
    publish_ns: u64,
    bytes_max: u64,
    to: &mut Vec<u8>,
) -> Result<Option<Encoded>, RecvError> {
    if let Some(encoded) = drawn(sample, type_name, publish_ns, bytes_max, to)? {
        return Ok(Some(encoded));
    }
    let image = image_of(sample, type_name)?;
    if image.is_none() && sample.len() > bytes_max {
        return Ok(None);
    }
    let mut bytes = read_all(sample)?;
    let small = image.map(|image| image.within(bytes_max));
    if let (Some(whole), Some((small, nth))) = (image, small) {
        if nth > 1 {
            let mut taken = Vec::with_capacity(small.bytes() as usize);
            for pixel in whole.every(nth, &bytes) {
                taken.extend_from_slice(pixel);
            }
            bytes = Cow::Owned(taken);
        }
    }
    append(sample, publish_ns, &bytes, small.map(|small| small.0), to).map(Some)
}

/// Encodes a cloud, a log message or a compressed image as Foxglove draws it. None: the type is none of these, or the message does
/// not match its type. Reduces a cloud of more than `bytes_max` bytes to every n-th point.
fn drawn(
    sample: &Sample,
    type_name: &str,
    publish_ns: u64,
    bytes_max: u64,
    to: &mut Vec<u8>,
) -> Result<Option<Encoded>, RecvError> {
    let name = type_name.rsplit(['/', '.', ':']).next().unwrap_or_default();
    let kind = match name {
        LOG if sample.len() <= bytes_max => SchemaKind::Log,
        COMPRESSED if sample.len() <= bytes_max => SchemaKind::CompressedImage,
        name if CLOUDS.contains(&name) => SchemaKind::PointCloud,
        _ => return Ok(None),
    };
    let header = sample.header().ok().flatten().unwrap_or_default();
    let capture_ns = header.capture_ns;
    let time = timestamp(capture_ns.unwrap_or(publish_ns));
    let bytes = read_all(sample)?;
    let encoded = match kind {
        SchemaKind::Log => log(&header, &bytes, time).map(|log| log.encode(to)),
        SchemaKind::CompressedImage => {
            compressed(&header, &bytes, time).map(|image| image.encode(to))
        }
        _ => cloud(sample, &header, &bytes, bytes_max, time).map(|cloud| cloud.encode(to)),
    };
    Ok(encoded.map(|written| {
        written.expect("a vector takes all that is written");
        Encoded {
            kind,
            capture_ns,
            image: None,
            ros2: None,
        }
    }))
}

/// An image file with `format` in its header. ROS 2 may write more than the format there: `rgb8; jpeg compressed bgr8`.
fn compressed(header: &Header, bytes: &[u8], time: Timestamp) -> Option<CompressedImage> {
    let Some(Value::Text(text)) = header.values.get("format") else {
        return None;
    };
    let known = ["jpeg", "png", "webp", "avif"];
    let format = known.into_iter().find(|known| text.contains(known))?;
    Some(CompressedImage {
        timestamp: Some(time),
        data: bytes.to_vec().into(),
        format: format.to_owned(),
        frame_id: header.frame_id.clone().unwrap_or_default(),
        rgaps: None,
    })
}

/// A log message: text whose header has `level`, `name`, `file` and `line`, or `rcl_interfaces/msg/Log` in CDR.
fn log(header: &Header, bytes: &[u8], time: Timestamp) -> Option<Log> {
    if let Some(log) = ros_log(bytes) {
        return Some(log);
    }
    let text = |key: &str| match header.values.get(key) {
        Some(Value::Text(text)) => text.clone(),
        _ => String::new(),
    };
    Some(Log {
        timestamp: Some(time),
        level: level(header.values.get("level")),
        message: String::from_utf8(bytes.to_vec()).ok()?,
        name: text("name"),
        file: text("file"),
        line: number(header, "line").unwrap_or_default() as u32,
    })
}

/// `foxglove.Log.Level` of a word, or of a number, which is the same in Python's `logging` and ROS 2.
fn level(value: Option<&Value>) -> i32 {
    match value {
        Some(Value::Int(number)) => (*number / 10).clamp(0, 5) as i32,
        Some(Value::Text(word)) => match word.to_ascii_lowercase().as_str() {
            "debug" => 1,
            "info" => 2,
            "warn" | "warning" => 3,
            "error" => 4,
            "fatal" | "critical" => 5,
            _ => 0,
        },
        _ => 0,
    }
}

/// Reads the CDR of `rcl_interfaces/msg/Log`.
fn ros_log(bytes: &[u8]) -> Option<Log> {
    let mut cdr = CdrReader::new(Cursor::new(bytes), bytes.len()).ok()?;
    let stamp = Timestamp {
        seconds: cdr.u32().ok()?.into(),
        nanos: cdr.u32().ok()? as i32,
    };
    let number = cdr.numbers(NumberType::U8, 1).ok()?[0];
    let (name, message, file) = (cdr.text().ok()?, cdr.text().ok()?, cdr.text().ok()?);
    let _function = cdr.text().ok()?;
    Some(Log {
        timestamp: Some(stamp),
        level: level(Some(&Value::Int(number.into()))),
        message,
        name,
        file,
        line: cdr.u32().ok()?,
    })
}

fn number(header: &Header, key: &str) -> Option<u64> {
    match header.values.get(key)? {
        Value::Int(value) => u64::try_from(*value).ok(),
        _ => None,
    }
}

fn cloud(
    sample: &Sample,
    header: &Header,
    bytes: &[u8],
    bytes_max: u64,
    time: Timestamp,
) -> Option<PointCloud> {
    let tensor = sample.tensor()?;
    let shape = &tensor.shape[..usize::from(tensor.ndim)];
    let columns = *shape.last()?;
    let stride = columns.checked_mul(tensor.dtype.element_bytes())?;
    let fields = match header.values.get("fields") {
        Some(Value::List(fields)) => fields.iter().map(field).collect::<Option<Vec<_>>>()?,
        _ if tensor.dtype == DType::F32 && (3..=4).contains(&columns) => columns_as_fields(columns),
        _ => return None,
    };
    let fits = |field: &Field| u64::from(field.offset) < stride;
    let dense = rgaps::tensor::contiguous(tensor.dtype, shape).ok()?;
    if dense != (*tensor, bytes.len() as u64) || stride == 0 || !fields.iter().all(fits) {
        return None;
    }
    let nth = (bytes.len() as u64).div_ceil(bytes_max.max(stride)).max(1);
    let points = bytes.chunks_exact(stride as usize).step_by(nth as usize);
    Some(PointCloud {
        timestamp: Some(time),
        frame_id: header.frame_id.clone().unwrap_or_default(),
        pose: Some(Pose {
            position: Some(Numbers::default()),
            orientation: Some(Numbers {
                w: 1.0,
                ..Numbers::default()
            }),
        }),
        point_stride: stride as u32,
        fields,
        data: points.flatten().copied().collect(),
    })
}

fn columns_as_fields(columns: u64) -> Vec<Field> {
    let names = COLUMNS[..columns as usize].iter().zip(0..);
    let field = |(name, at): (&&str, u32)| Field {
        name: (*name).to_owned(),
        offset: 4 * at,
        kind: FLOAT32,
    };
    names.map(field).collect()
}

/// A `sensor_msgs/PointField` of a header. ROS 2 numbers types int8, uint8, ..., Foxglove uint8, int8, ...
fn field(value: &Value) -> Option<Field> {
    let Value::Map(field) = value else {
        return None;
    };
    let (Value::Text(name), Value::Int(offset), Value::Int(datatype)) = (
        field.get("name")?,
        field.get("offset")?,
        field.get("datatype")?,
    ) else {
        return None;
    };
    Some(Field {
        name: name.clone(),
        offset: u32::try_from(*offset).ok()?,
        kind: match datatype {
            1 | 3 | 5 => *datatype as i32 + 1,
            2 | 4 | 6 => *datatype as i32 - 1,
            7 | 8 => *datatype as i32,
            _ => return None,
        },
    })
}

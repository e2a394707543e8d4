//! The encoding of messages in a recording: Protocol Buffers, whose descriptions each file contains.
//!
//! An image is a `foxglove.RawImage` (or a `foxglove.CompressedImage`, see `jpeg`), which Foxglove, Rerun and others draw; a message
//! that is CDR of ROS 2 stays CDR; every other message is an `rgaps.Message`. Images and `rgaps.Message` have the fields that any
//! reader expects (time, frame, data), and a field `rgaps` for what only rgaps knows: tag, attachment, element type, shape, parts.
//! Other readers skip that field. `docs/how-to/record-replay.md` shows both types as a `.proto` file.
//!
//! One Rust type, [`Envelope`], reads and writes both, since their fields have the same numbers.

use bytes::Bytes;
use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, Timestamp,
};

/// Number of the field `data`, which is the last of an encoded message.
pub(crate) const DATA: u32 = 6;

/// `foxglove.RawImage` or `rgaps.Message`. The latter leaves out width, height, encoding and step.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Envelope {
    #[prost(message, optional, tag = "1")]
    pub timestamp: Option<Timestamp>,
    #[prost(fixed32, tag = "2")]
    pub width: u32,
    #[prost(fixed32, tag = "3")]
    pub height: u32,
    #[prost(string, tag = "4")]
    pub encoding: String,
    #[prost(fixed32, tag = "5")]
    pub step: u32,
    #[prost(bytes = "bytes", tag = "6")]
    pub data: Bytes,
    #[prost(string, tag = "7")]
    pub frame_id: String,
    /// Only in `rgaps.Message`: the numbers of a small array, for plots.
    #[prost(double, repeated, tag = "8")]
    pub values: Vec<f64>,
    #[prost(message, optional, tag = "1000")]
    pub rgaps: Option<Beside>,
}

/// `rgaps.Beside`: everything of a message besides its bytes that only rgaps knows.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Beside {
    #[prost(uint64, tag = "1")]
    pub tag: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub attachment: Bytes,
    #[prost(bool, tag = "3")]
    pub attachment_is_header: bool,
    #[prost(message, optional, tag = "4")]
    pub tensor: Option<Array>,
    #[prost(message, repeated, tag = "5")]
    pub parts: Vec<NamedPart>,
    #[prost(uint64, tag = "6")]
    pub sequence: u64,
    #[prost(uint64, tag = "7")]
    pub missed: u64,
}

/// `rgaps.Array`: element type, shape and strides.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Array {
    /// The name of the element type, for people; empty if it has none.
    #[prost(string, tag = "1")]
    pub dtype: String,
    /// DLPack's code, bits and lanes, from the lowest byte on.
    #[prost(fixed32, tag = "2")]
    pub dlpack: u32,
    #[prost(uint64, repeated, tag = "3")]
    pub shape: Vec<u64>,
    /// Steps in elements.
    #[prost(int64, repeated, tag = "4")]
    pub strides: Vec<i64>,
}

/// `rgaps.Part`: a named array among the bytes.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NamedPart {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub array: Option<Array>,
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    #[prost(uint64, tag = "4")]
    pub bytes: u64,
    /// The numbers of a small array, for plots.
    #[prost(double, repeated, tag = "5")]
    pub values: Vec<f64>,
}

/// The type of a channel's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SchemaKind {
    /// `foxglove.RawImage`.
    Image,
    /// `foxglove.CompressedImage`.
    CompressedImage,
    /// `foxglove.PointCloud`. Only for viewers: a recording has clouds as `rgaps.Message`.
    PointCloud,
    /// `foxglove.Log`. Only for viewers, too.
    Log,
    /// `rgaps.Message`.
    Message,
    /// A message of ROS 2 in CDR. Only in recordings, where the schema's name is the message's type.
    Ros2,
}

impl SchemaKind {
    /// The name of the schema; empty for messages of ROS 2, whose schemas have the names of their types.
    pub fn name(self) -> &'static str {
        match self {
            SchemaKind::Image => "foxglove.RawImage",
            SchemaKind::CompressedImage => "foxglove.CompressedImage",
            SchemaKind::PointCloud => "foxglove.PointCloud",
            SchemaKind::Log => "foxglove.Log",
            SchemaKind::Message => "rgaps.Message",
            SchemaKind::Ros2 => "",
        }
    }

    /// The descriptor set of the schema and of all types that it uses, as an MCAP schema record holds it. Empty for ROS 2.
    pub fn descriptor(self) -> Vec<u8> {
        let mut files = vec![timestamp_file()];
        match self {
            // ROS 2 defines types in text: see `rgaps_ros2::definition`.
            SchemaKind::Ros2 => return Vec::new(),
            SchemaKind::Image => files.extend([own_file(), image_file()]),
            SchemaKind::CompressedImage => files.extend([own_file(), compressed_file()]),
            SchemaKind::PointCloud => files.push(cloud_file()),
            SchemaKind::Log => files.push(log_file()),
            SchemaKind::Message => files.push(own_file()),
        }
        FileDescriptorSet { file: files }.encode_to_vec()
    }
}

const TIMESTAMP: &str = ".google.protobuf.Timestamp";

fn timestamp_file() -> FileDescriptorProto {
    let timestamp = message(
        "Timestamp",
        vec![
            field(1, "seconds", Type::Int64),
            field(2, "nanos", Type::Int32),
        ],
    );
    file(
        "google/protobuf/timestamp.proto",
        "google.protobuf",
        &[],
        vec![timestamp],
    )
}

fn own_file() -> FileDescriptorProto {
    let array = message(
        "Array",
        vec![
            field(1, "dtype", Type::String),
            field(2, "dlpack", Type::Fixed32),
            repeated(field(3, "shape", Type::Uint64)),
            repeated(field(4, "strides", Type::Int64)),
        ],
    );
    let part = message(
        "Part",
        vec![
            field(1, "name", Type::String),
            of_type(2, "array", ".rgaps.Array"),
            field(3, "offset", Type::Uint64),
            field(4, "bytes", Type::Uint64),
            repeated(field(5, "values", Type::Double)),
        ],
    );
    let beside = message(
        "Beside",
        vec![
            field(1, "tag", Type::Uint64),
            field(2, "attachment", Type::Bytes),
            field(3, "attachment_is_header", Type::Bool),
            of_type(4, "tensor", ".rgaps.Array"),
            repeated(of_type(5, "parts", ".rgaps.Part")),
            field(6, "sequence", Type::Uint64),
            field(7, "missed", Type::Uint64),
        ],
    );
    let plain = message(
        "Message",
        vec![
            of_type(1, "timestamp", TIMESTAMP),
            field(DATA as i32, "data", Type::Bytes),
            field(7, "frame_id", Type::String),
            repeated(field(8, "values", Type::Double)),
            of_type(1000, "rgaps", ".rgaps.Beside"),
        ],
    );
    file(
        "rgaps/recording.proto",
        "rgaps",
        &["google/protobuf/timestamp.proto"],
        vec![array, part, beside, plain],
    )
}

fn image_file() -> FileDescriptorProto {
    let image = message(
        "RawImage",
        vec![
            of_type(1, "timestamp", TIMESTAMP),
            field(2, "width", Type::Fixed32),
            field(3, "height", Type::Fixed32),
            field(4, "encoding", Type::String),
            field(5, "step", Type::Fixed32),
            field(DATA as i32, "data", Type::Bytes),
            field(7, "frame_id", Type::String),
            of_type(1000, "rgaps", ".rgaps.Beside"),
        ],
    );
    file(
        "foxglove/RawImage.proto",
        "foxglove",
        &["google/protobuf/timestamp.proto", "rgaps/recording.proto"],
        vec![image],
    )
}

fn compressed_file() -> FileDescriptorProto {
    let image = message(
        "CompressedImage",
        vec![
            of_type(1, "timestamp", TIMESTAMP),
            field(2, "data", Type::Bytes),
            field(3, "format", Type::String),
            field(4, "frame_id", Type::String),
            of_type(1000, "rgaps", ".rgaps.Beside"),
        ],
    );
    file(
        "foxglove/CompressedImage.proto",
        "foxglove",
        &["google/protobuf/timestamp.proto", "rgaps/recording.proto"],
        vec![image],
    )
}

fn cloud_file() -> FileDescriptorProto {
    let numbers = |name: &str, names: &[&str]| {
        let fields = names.iter().zip(1..);
        message(
            name,
            fields
                .map(|(name, at)| field(at, name, Type::Double))
                .collect(),
        )
    };
    let pose = message(
        "Pose",
        vec![
            of_type(1, "position", ".foxglove.Vector3"),
            of_type(2, "orientation", ".foxglove.Quaternion"),
        ],
    );
    let mut packed = message(
        "PackedElementField",
        vec![
            field(1, "name", Type::String),
            field(2, "offset", Type::Fixed32),
            of_enum(3, "type", ".foxglove.PackedElementField.NumericType"),
        ],
    );
    packed.enum_type.push(numbered(
        "NumericType",
        &[
            "UNKNOWN", "UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "FLOAT32", "FLOAT64",
        ],
    ));
    let cloud = message(
        "PointCloud",
        vec![
            of_type(1, "timestamp", TIMESTAMP),
            field(2, "frame_id", Type::String),
            of_type(3, "pose", ".foxglove.Pose"),
            field(4, "point_stride", Type::Fixed32),
            repeated(of_type(5, "fields", ".foxglove.PackedElementField")),
            field(DATA as i32, "data", Type::Bytes),
        ],
    );
    file(
        "foxglove/PointCloud.proto",
        "foxglove",
        &["google/protobuf/timestamp.proto"],
        vec![
            numbers("Vector3", &["x", "y", "z"]),
            numbers("Quaternion", &["x", "y", "z", "w"]),
            pose,
            packed,
            cloud,
        ],
    )
}

fn log_file() -> FileDescriptorProto {
    let mut log = message(
        "Log",
        vec![
            of_type(1, "timestamp", TIMESTAMP),
            of_enum(2, "level", ".foxglove.Log.Level"),
            field(3, "message", Type::String),
            field(4, "name", Type::String),
            field(5, "file", Type::String),
            field(6, "line", Type::Fixed32),
        ],
    );
    log.enum_type.push(numbered(
        "Level",
        &["UNKNOWN", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"],
    ));
    file(
        "foxglove/Log.proto",
        "foxglove",
        &["google/protobuf/timestamp.proto"],
        vec![log],
    )
}

/// An enumeration whose names have the values from 0 on.
fn numbered(name: &str, names: &[&str]) -> EnumDescriptorProto {
    let values = names
        .iter()
        .zip(0..)
        .map(|(name, number)| EnumValueDescriptorProto {
            name: Some((*name).to_owned()),
            number: Some(number),
            ..Default::default()
        });
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: values.collect(),
        ..Default::default()
    }
}

fn of_enum(number: i32, name: &str, type_name: &str) -> FieldDescriptorProto {
    FieldDescriptorProto {
        type_name: Some(type_name.to_owned()),
        ..field(number, name, Type::Enum)
    }
}

fn file(
    name: &str,
    package: &str,
    imports: &[&str],
    messages: Vec<DescriptorProto>,
) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        dependency: imports.iter().map(|&import| import.to_owned()).collect(),
        message_type: messages,
        syntax: Some("proto3".to_owned()),
        ..Default::default()
    }
}

fn message(name: &str, fields: Vec<FieldDescriptorProto>) -> DescriptorProto {
    DescriptorProto {
        name: Some(name.to_owned()),
        field: fields,
        ..Default::default()
    }
}

fn field(number: i32, name: &str, kind: Type) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(Label::Optional as i32),
        r#type: Some(kind as i32),
        ..Default::default()
    }
}

fn of_type(number: i32, name: &str, type_name: &str) -> FieldDescriptorProto {
    FieldDescriptorProto {
        type_name: Some(type_name.to_owned()),
        ..field(number, name, Type::Message)
    }
}

fn repeated(field: FieldDescriptorProto) -> FieldDescriptorProto {
    FieldDescriptorProto {
        label: Some(Label::Repeated as i32),
        ..field
    }
}

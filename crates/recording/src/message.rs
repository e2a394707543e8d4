//! Decodes the messages of a recording.

use crate::channel::{Channel, Coding};
use crate::error::ReadError;
use crate::jpeg::CompressedImage;
use crate::schema::{self, Array, Envelope, NamedPart};
use bytes::Bytes;
use prost::Message as _;
use rgaps::{DType, Header, HeaderError, Tensor};
use rgaps_client::bindings::Beside;
use rgaps_layout::{PartEntry, MAX_DIMS};
use rgaps_ros2::{Data, Type};
use std::io::Cursor;
use std::sync::Arc;

/// A message that was recorded. Its bytes are a slice of its chunk's, without a copy.
#[derive(Clone, Debug)]
pub struct Message {
    pub(crate) channel: Arc<Channel>,
    pub(crate) log_ns: u64,
    pub(crate) publish_ns: u64,
    data: Bytes,
    sequence: u64,
    missed: u64,
    beside: Beside,
}

/// The decoded data of a message.
struct Read {
    data: Bytes,
    /// None: the number in the record's header counts.
    sequence: Option<u64>,
    missed: u64,
    beside: Beside,
}

impl Message {
    pub(crate) fn decode(
        channel: Arc<Channel>,
        log_ns: u64,
        publish_ns: u64,
        sequence: u32,
        data: Bytes,
    ) -> Result<Message, ReadError> {
        let read = match channel.coding {
            Coding::Rgaps => by_schema(data),
            Coding::Jpeg => jpeg(data),
            Coding::Ros2(known) => ros2(known, data),
            Coding::Plain => Ok(Read {
                data,
                sequence: None,
                missed: 0,
                beside: Beside::default(),
            }),
        };
        let read = read.map_err(|reason| ReadError::Message {
            topic: channel.topic.clone(),
            reason,
        })?;
        Ok(Message {
            log_ns,
            publish_ns,
            data: read.data,
            sequence: read.sequence.unwrap_or(sequence.into()),
            missed: read.missed,
            beside: read.beside,
            channel,
        })
    }

    /// The name of the topic.
    pub fn topic(&self) -> &str {
        &self.channel.topic
    }

    /// The publisher and message type.
    pub fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// When it was published: nanoseconds since 1970.
    pub fn log_ns(&self) -> u64 {
        self.log_ns
    }

    /// The capture time in its header, or else when it was published: nanoseconds since 1970.
    pub fn publish_ns(&self) -> u64 {
        self.publish_ns
    }

    /// Its bytes.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// The number that its publisher set.
    pub fn tag(&self) -> u64 {
        self.beside.tag
    }

    /// Its number: each publisher counts its messages from 0.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// How many messages of the same publisher the recorder missed before this one.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Element type, shape and strides; None if the message is not one array.
    pub fn tensor(&self) -> Option<&Tensor> {
        self.beside.tensor.as_ref()
    }

    /// The attachment; None without one.
    pub fn attachment(&self) -> Option<&[u8]> {
        let attachment = self.beside.metadata.attachment();
        (!attachment.is_empty()).then_some(attachment)
    }

    /// The header; None if the message has no attachment, or one that is not a header.
    pub fn header(&self) -> Result<Option<Header>, HeaderError> {
        let beside = &self.beside.metadata;
        let header = beside.is_header().then(|| beside.attachment());
        header.map(Header::decode).transpose()
    }

    /// The named arrays among its bytes. They may lie outside of the bytes if the file was changed by others.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = PartEntry> + '_ {
        self.beside.metadata.parts()
    }

    /// Everything besides the bytes: tag, element type and shape, attachment, parts.
    pub(crate) fn beside(&self) -> &Beside {
        &self.beside
    }
}

/// Decodes an [`Envelope`].
fn by_schema(data: Bytes) -> Result<Read, String> {
    let envelope = Envelope::decode(data).map_err(|error| error.to_string())?;
    let fields = envelope.rgaps.unwrap_or_default();
    let mut beside = attached(&fields)?;
    beside.tensor = fields.tensor.as_ref().map(tensor).transpose()?;
    for part in &fields.parts {
        add_part(&mut beside, part)?;
    }
    Ok(Read {
        data: envelope.data,
        sequence: Some(fields.sequence),
        missed: fields.missed,
        beside,
    })
}

/// Decodes an image that was recorded as JPEG. The message is the JPEG file, with `format` in its header.
fn jpeg(data: Bytes) -> Result<Read, String> {
    let image = CompressedImage::decode(data).map_err(|error| error.to_string())?;
    let fields = image.rgaps.unwrap_or_default();
    let mut beside = attached(&fields)?;
    let header = match fields.attachment_is_header {
        true => Header::decode(&fields.attachment).ok(),
        false => fields.attachment.is_empty().then(Header::default),
    };
    if let Some(header) = header {
        beside.set_header(&header.value("format", image.format))?;
    }
    Ok(Read {
        data: image.data,
        sequence: Some(fields.sequence),
        missed: fields.missed,
        beside,
    })
}

/// Decodes a message of a bag of ROS 2.
fn ros2(known: &Type, data: Bytes) -> Result<Read, String> {
    let mut decoded = rgaps_ros2::decode(known, Cursor::new(&data), data.len())?;
    decoded.beside.set_header(&decoded.header)?;
    Ok(Read {
        data: match decoded.data {
            Data::Own(bytes) => bytes.into(),
            Data::Within(range) => data.slice(range),
        },
        sequence: None,
        missed: 0,
        beside: decoded.beside,
    })
}

/// Takes the tag and the attachment.
fn attached(fields: &schema::Beside) -> Result<Beside, String> {
    let mut beside = Beside {
        tag: fields.tag,
        ..Beside::default()
    };
    if !fields.attachment.is_empty() {
        beside.attach(&fields.attachment, fields.attachment_is_header)?;
    }
    Ok(beside)
}

fn add_part(beside: &mut Beside, part: &NamedPart) -> Result<(), String> {
    let array = part.array.as_ref().ok_or("a part of it is no array")?;
    beside.add_part(&part.name, &tensor(array)?, part.offset, part.bytes)
}

fn tensor(array: &Array) -> Result<Tensor, String> {
    let dims = array.shape.len();
    if dims > MAX_DIMS || array.strides.len() != dims {
        return Err("its shape is invalid".to_owned());
    }
    let mut tensor = Tensor {
        dtype: DType {
            code: array.dlpack as u8,
            bits: (array.dlpack >> 8) as u8,
            lanes: (array.dlpack >> 16) as u16,
        },
        ndim: dims as u8,
        ..Tensor::default()
    };
    tensor.shape[..dims].copy_from_slice(&array.shape);
    tensor.strides[..dims].copy_from_slice(&array.strides);
    Ok(tensor)
}

//! A message that was recorded.

use crate::channel::Channel;
use crate::error::ReadError;
use crate::schema::{Array, Beside, Envelope, NamedPart};
use bytes::Bytes;
use prost::Message as _;
use rgaps::{DType, Header, HeaderError, Tensor};
use rgaps_layout::{PartEntry, MAX_DIMS, MAX_PART_NAME};
use rgaps_topic::Metadata;
use std::sync::Arc;

/// A message that was recorded. Its bytes are a slice of its chunk's, without a copy.
#[derive(Clone, Debug)]
pub struct Message {
    pub(crate) channel: Arc<Channel>,
    pub(crate) log_ns: u64,
    pub(crate) publish_ns: u64,
    data: Bytes,
    tag: u64,
    sequence: u64,
    missed: u64,
    tensor: Option<Tensor>,
    beside: Metadata,
}

impl Message {
    pub(crate) fn decode(
        channel: Arc<Channel>,
        log_ns: u64,
        publish_ns: u64,
        sequence: u32,
        data: Bytes,
    ) -> Result<Message, ReadError> {
        if !channel.is_from_rgaps {
            return Ok(Message {
                channel,
                log_ns,
                publish_ns,
                data,
                tag: 0,
                sequence: sequence.into(),
                missed: 0,
                tensor: None,
                beside: Metadata::EMPTY,
            });
        }
        let damaged = |reason: String| ReadError::Message {
            topic: channel.topic.clone(),
            reason,
        };
        let envelope = Envelope::decode(data).map_err(|error| damaged(error.to_string()))?;
        let beside = envelope.rgaps.unwrap_or_default();
        let metadata =
            metadata(&beside).ok_or_else(|| damaged("its parts are invalid".to_owned()))?;
        let tensor = match beside.tensor.as_ref().map(tensor) {
            None => None,
            Some(Some(tensor)) => Some(tensor),
            Some(None) => return Err(damaged("its shape is invalid".to_owned())),
        };
        Ok(Message {
            log_ns,
            publish_ns,
            data: envelope.data,
            tag: beside.tag,
            sequence: beside.sequence,
            missed: beside.missed,
            tensor,
            beside: metadata,
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

    /// When its data was captured, if its header says so, or else when it was published: nanoseconds since 1970.
    pub fn publish_ns(&self) -> u64 {
        self.publish_ns
    }

    /// Its bytes.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// The number that its publisher set.
    pub fn tag(&self) -> u64 {
        self.tag
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
        self.tensor.as_ref()
    }

    /// The attachment; None without one.
    pub fn attachment(&self) -> Option<&[u8]> {
        let attachment = self.beside.attachment();
        (!attachment.is_empty()).then_some(attachment)
    }

    /// The header; None if the message has no attachment, or one that is not a header.
    pub fn header(&self) -> Result<Option<Header>, HeaderError> {
        let header = self.beside.is_header().then(|| self.beside.attachment());
        header.map(Header::decode).transpose()
    }

    /// The named arrays among its bytes. They may lie outside of the bytes if the file was changed by others.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = PartEntry> + '_ {
        self.beside.parts()
    }

    /// Attachment and parts as they lay beside the message.
    pub(crate) fn beside(&self) -> &Metadata {
        &self.beside
    }
}

fn metadata(beside: &Beside) -> Option<Metadata> {
    let mut metadata = Metadata::default();
    if !beside.attachment.is_empty()
        && !metadata.set_attachment(&beside.attachment, beside.attachment_is_header)
    {
        return None;
    }
    for part in &beside.parts {
        if !metadata.push_part(&entry(part)?) {
            return None;
        }
    }
    Some(metadata)
}

fn entry(part: &NamedPart) -> Option<PartEntry> {
    let tensor = tensor(part.array.as_ref()?)?;
    let mut name = [0; MAX_PART_NAME + 1];
    let fits = part.name.len() <= MAX_PART_NAME;
    name.get_mut(..part.name.len())
        .filter(|_| fits)?
        .copy_from_slice(part.name.as_bytes());
    Some(PartEntry {
        offset: part.offset,
        bytes: part.bytes,
        dtype_code: tensor.dtype.code,
        dtype_bits: tensor.dtype.bits,
        dtype_lanes: tensor.dtype.lanes,
        ndim: tensor.ndim,
        name_bytes: part.name.len() as u8,
        reserved: 0,
        shape: tensor.shape,
        strides: tensor.strides,
        name,
    })
}

fn tensor(array: &Array) -> Option<Tensor> {
    let dims = array.shape.len();
    if dims > MAX_DIMS || array.strides.len() != dims {
        return None;
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
    Some(tensor)
}

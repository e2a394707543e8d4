//! Compresses images to JPEG, in the writing thread.
//!
//! The result is a `foxglove.CompressedImage` with the field `rgaps` that all messages of a recording have. JPEG changes pixels, so a
//! replay does not restore the array: it publishes the JPEG file's bytes, as ROS 2 does with `sensor_msgs/CompressedImage`.

use crate::encode::Image;
use crate::schema::{Beside, Envelope};
use bytes::Bytes;
use jpeg_encoder::{ColorType, Encoder};
use prost::encoding::{encoded_len_varint, key_len};
use prost::Message as _;
use prost_types::Timestamp;

/// The type of a replayed JPEG image, and `format` in its header.
pub(crate) const TYPE: &str = "sensor_msgs/msg/CompressedImage";
pub(crate) const FORMAT: &str = "jpeg";

/// `foxglove.CompressedImage`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CompressedImage {
    #[prost(message, optional, tag = "1")]
    pub timestamp: Option<Timestamp>,
    #[prost(bytes = "bytes", tag = "2")]
    pub data: Bytes,
    #[prost(string, tag = "3")]
    pub format: String,
    #[prost(string, tag = "4")]
    pub frame_id: String,
    #[prost(message, optional, tag = "1000")]
    pub rgaps: Option<Beside>,
}

/// Turns an encoded `foxglove.RawImage` into a `foxglove.CompressedImage`. None: JPEG cannot hold this pixel format or size.
pub(crate) fn compress(raw: &[u8], image: Image, quality: u8) -> Option<Vec<u8>> {
    let color = match image.encoding {
        "mono8" => ColorType::Luma,
        "rgb8" => ColorType::Rgb,
        "bgr8" => ColorType::Bgr,
        "rgba8" => ColorType::Rgba,
        "bgra8" => ColorType::Bgra,
        _ => return None,
    };
    let (width, height) = (image.width.try_into().ok()?, image.height.try_into().ok()?);
    let pixels_at = raw.len().checked_sub(image.bytes() as usize)?;
    let (before, pixels) = raw.split_at(pixels_at);
    let head = key_len(crate::schema::DATA) + encoded_len_varint(image.bytes());
    let envelope = Envelope::decode(&before[..before.len().checked_sub(head)?]).ok()?;
    let mut data = Vec::new();
    let encoder = Encoder::new(&mut data, quality);
    encoder.encode(pixels, width, height, color).ok()?;
    let image = CompressedImage {
        timestamp: envelope.timestamp,
        data: data.into(),
        format: FORMAT.to_owned(),
        frame_id: envelope.frame_id,
        rgaps: envelope.rgaps,
    };
    Some(image.encode_to_vec())
}

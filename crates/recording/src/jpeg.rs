//! Images in JPEG, which the thread that writes makes of those that were received.
//!
//! A `foxglove.CompressedImage` has the fields that its readers expect, and the field `rgaps` of all our messages. JPEG changes pixels,
//! so a replay publishes the file's bytes, as ROS 2 does with `sensor_msgs/CompressedImage`.

use crate::encode::Image;
use crate::schema::{Beside, Envelope};
use bytes::Bytes;
use jpeg_encoder::{ColorType, Encoder};
use prost::encoding::{encoded_len_varint, key_len};
use prost::Message as _;
use prost_types::Timestamp;

/// What a publisher of JPEG images declares, and what `format` in the header of its messages is.
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

/// An encoded `foxglove.RawImage` as a `foxglove.CompressedImage`. None: JPEG has no such pixels, or not so many.
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
    let said = Envelope::decode(&before[..before.len().checked_sub(head)?]).ok()?;
    let mut data = Vec::new();
    let encoder = Encoder::new(&mut data, quality);
    encoder.encode(pixels, width, height, color).ok()?;
    let image = CompressedImage {
        timestamp: said.timestamp,
        data: data.into(),
        format: FORMAT.to_owned(),
        frame_id: said.frame_id,
        rgaps: said.rgaps,
    };
    Some(image.encode_to_vec())
}

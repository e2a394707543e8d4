//! From a sample to the bytes of a message in a recording.

use crate::schema::{Array, Beside, Envelope, Kind, NamedPart, DATA};
use prost::encoding::{encode_key, encode_varint, WireType};
use prost::Message as _;
use prost_types::Timestamp;
use rgaps::{DType, RecvError, Sample, Tensor};
use rgaps_client::bindings::WithMetadata as _;

/// What a recording says about a message besides its bytes.
pub(crate) struct Encoded {
    pub(crate) kind: Kind,
    /// When the data was captured, if its header says so: nanoseconds since 1970.
    pub(crate) capture_ns: Option<u64>,
}

/// Appends the message of `sample`, which lies in host memory and is complete, to `to`. It was published at
/// `publish_ns`, nanoseconds since 1970. The bytes are copied once.
pub(crate) fn encode(
    sample: &Sample,
    publish_ns: u64,
    to: &mut Vec<u8>,
) -> Result<Encoded, RecvError> {
    let bytes = sample.as_slice()?;
    // An attachment that is no header, whatever its publisher says, is kept as bytes.
    let header = sample.header().ok().flatten().unwrap_or_default();
    let capture_ns = header.capture_ns;
    let mut envelope = Envelope {
        timestamp: Some(timestamp(capture_ns.unwrap_or(publish_ns))),
        frame_id: header.frame_id.unwrap_or_default(),
        rgaps: Some(beside(sample)?),
        ..Envelope::default()
    };
    let kind = match sample
        .tensor()
        .and_then(|tensor| image(tensor, sample.len()))
    {
        Some(image) if sample.parts()?.is_empty() => {
            envelope.width = image.width;
            envelope.height = image.height;
            envelope.encoding = image.encoding.to_owned();
            envelope.step = image.step;
            Kind::Image
        }
        _ => Kind::Message,
    };
    to.reserve(envelope.encoded_len() + bytes.len() + 16);
    envelope
        .encode(to)
        .expect("a vector takes all that is written");
    if !bytes.is_empty() {
        encode_key(DATA, WireType::LengthDelimited, to);
        encode_varint(bytes.len() as u64, to);
        to.extend_from_slice(bytes);
    }
    Ok(Encoded { kind, capture_ns })
}

fn beside(sample: &Sample) -> Result<Beside, RecvError> {
    let parts = sample.parts()?;
    Ok(Beside {
        tag: sample.tag(),
        attachment: sample.attachment().unwrap_or_default().to_vec().into(),
        attachment_is_header: sample.metadata().is_some_and(|beside| beside.is_header()),
        tensor: sample.tensor().map(array),
        parts: parts
            .iter()
            .map(|part| NamedPart {
                name: part.name().to_owned(),
                array: Some(array(&part.tensor())),
                offset: part.offset(),
                bytes: part.len(),
            })
            .collect(),
        sequence: sample.sequence(),
        missed: sample.missed(),
    })
}

fn array(tensor: &Tensor) -> Array {
    let DType { code, bits, lanes } = tensor.dtype;
    let dims = usize::from(tensor.ndim);
    Array {
        dtype: tensor.dtype.name().unwrap_or_default().to_owned(),
        dlpack: u32::from(code) | u32::from(bits) << 8 | u32::from(lanes) << 16,
        shape: tensor.shape[..dims].to_vec(),
        strides: tensor.strides[..dims].to_vec(),
    }
}

pub(crate) fn timestamp(ns: u64) -> Timestamp {
    Timestamp {
        seconds: (ns / 1_000_000_000) as i64,
        nanos: (ns % 1_000_000_000) as i32,
    }
}

struct Image {
    width: u32,
    height: u32,
    encoding: &'static str,
    step: u32,
}

/// The image that a message of `bytes` bytes is: uint8 or uint16 in rows without gaps, of one, three or four channels.
fn image(tensor: &Tensor, bytes: u64) -> Option<Image> {
    let shape = &tensor.shape[..usize::from(tensor.ndim)];
    let (height, width, channels) = match *shape {
        [height, width] => (height, width, 1),
        [height, width, channels] => (height, width, channels),
        _ => return None,
    };
    let encoding = match (tensor.dtype.name()?, channels) {
        ("uint8", 1) => "mono8",
        ("uint8", 3) => "rgb8",
        ("uint8", 4) => "rgba8",
        ("uint16", 1) => "mono16",
        ("float32", 1) if shape.len() == 3 => "32FC1",
        _ => return None,
    };
    let (dense, dense_bytes) = rgaps::tensor::contiguous(tensor.dtype, shape).ok()?;
    if dense != *tensor || dense_bytes != bytes || bytes == 0 {
        return None;
    }
    Some(Image {
        width: width.try_into().ok()?,
        height: height.try_into().ok()?,
        encoding,
        step: (bytes / height).try_into().ok()?,
    })
}

/// What a channel says of its messages, for people: `image rgb8 1080x1920x3`.
pub(crate) fn describe(sample: &Sample) -> Vec<(&'static str, String)> {
    let shape = |tensor: &Tensor| {
        let dims = tensor.shape[..usize::from(tensor.ndim)].iter();
        dims.map(u64::to_string).collect::<Vec<_>>().join(",")
    };
    let mut said = Vec::new();
    if let Some(tensor) = sample.tensor() {
        said.push(("rgaps.dtype", tensor.dtype.to_string()));
        said.push(("rgaps.shape", shape(tensor)));
    }
    if let Ok(parts) = sample.parts() {
        let parts = parts.iter().map(|part| {
            let tensor = part.tensor();
            format!("{}:{}[{}]", part.name(), tensor.dtype, shape(&tensor))
        });
        let parts = parts.collect::<Vec<_>>().join(" ");
        if !parts.is_empty() {
            said.push(("rgaps.parts", parts));
        }
    }
    let attachment = match sample.metadata() {
        Some(beside) if beside.is_header() => "header in MessagePack",
        Some(beside) if !beside.attachment().is_empty() => "bytes",
        _ => return said,
    };
    said.push(("rgaps.attachment", attachment.to_owned()));
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(dtype: &str, shape: &[u64]) -> Option<&'static str> {
        let (tensor, bytes) = rgaps::tensor::contiguous(dtype.parse().unwrap(), shape).unwrap();
        image(&tensor, bytes).map(|image| image.encoding)
    }

    #[test]
    fn images_are_recognised_by_type_and_shape() {
        assert_eq!(kind("uint8", &[4, 6]), Some("mono8"));
        assert_eq!(kind("uint8", &[4, 6, 1]), Some("mono8"));
        assert_eq!(kind("uint8", &[4, 6, 3]), Some("rgb8"));
        assert_eq!(kind("uint8", &[4, 6, 4]), Some("rgba8"));
        assert_eq!(kind("uint16", &[4, 6]), Some("mono16"));
        assert_eq!(kind("float32", &[4, 6, 1]), Some("32FC1"));
        for (dtype, shape) in [
            ("float32", &[4, 6][..]),
            ("uint8", &[4, 6, 2]),
            ("uint8", &[24]),
            ("uint8", &[0, 6, 3]),
            ("int64", &[4, 6]),
        ] {
            assert_eq!(kind(dtype, shape), None, "{dtype} {shape:?}");
        }
    }

    #[test]
    fn a_row_has_its_bytes() {
        let (tensor, bytes) = rgaps::tensor::contiguous(DType::U8, &[4, 6, 3]).unwrap();
        let image = image(&tensor, bytes).unwrap();
        assert_eq!((image.width, image.height, image.step), (6, 4, 18));
    }
}

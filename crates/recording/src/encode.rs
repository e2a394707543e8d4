//! Encodes samples as messages for recordings and for viewers.

use crate::schema::{Array, Beside, Envelope, NamedPart, SchemaKind, DATA};
use prost::encoding::{encode_key, encode_varint, WireType};
use prost::Message as _;
use prost_types::Timestamp;
use rgaps::{DType, Domain, Header, RecvError, Sample, Tensor, Value};
use rgaps_client::bindings::WithMetadata as _;
use rgaps_ros2::Type;
use std::borrow::Cow;

/// Arrays with more elements than this have no numbers for plots.
const VALUES_MAX: u64 = 64;

/// Describes an encoded message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The type of the message.
    pub kind: SchemaKind,
    /// When the data was captured, if its header says so: nanoseconds since 1970.
    pub capture_ns: Option<u64>,
    /// The layout of an image, whose pixels are the last bytes of the encoded message. None: the message is no image.
    pub image: Option<Image>,
    /// The type of the message in ROS 2, if its publisher declares another one.
    pub(crate) ros2: Option<&'static Type>,
}

/// An image of rows without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Foxglove's name for the pixel format: `mono8`, `rgb8`, `rgba8`, `bgr8`, `bgra8`, `mono16`, `32FC1`.
    pub encoding: &'static str,
    /// Bytes of a row.
    pub step: u32,
}

/// Encodes `sample`, which is in host memory and complete, and appends it to `to`. Copies the bytes once. `type_name`: what the
/// publisher declares. `publish_ns`: when it was published, in nanoseconds since 1970.
pub(crate) fn encode(
    sample: &Sample,
    type_name: &str,
    publish_ns: u64,
    to: &mut Vec<u8>,
) -> Result<Encoded, RecvError> {
    if is_plain_cdr(sample, type_name) {
        to.extend_from_slice(sample.as_slice()?);
        return Ok(in_cdr(&header_of(sample), None));
    }
    let image = image_of(sample, type_name)?;
    append(sample, publish_ns, sample.as_slice()?, image, to)
}

/// Like [`encode`] for a bag of ROS 2: in CDR. The inner error says why it is no message of ROS 2.
pub(crate) fn encode_ros2(
    sample: &Sample,
    type_name: &str,
    publish_ns: u64,
    to: &mut Vec<u8>,
) -> Result<Result<Encoded, String>, RecvError> {
    let bytes = sample.as_slice()?;
    let header = header_of(sample);
    if rgaps_ros2::is_cdr(type_name, sample) {
        to.extend_from_slice(bytes);
        return Ok(Ok(in_cdr(&header, None)));
    }
    let name = match mark(&header, "type") {
        Some(Value::Text(brought)) => brought,
        _ => type_name,
    };
    let Some(known) = rgaps_ros2::find(name) else {
        return Ok(Err(unknown(name)));
    };
    let encoded = match rgaps_ros2::encode(known, type_name, publish_ns, sample) {
        Ok(encoded) => encoded,
        Err(why) => return Ok(Err(format!("{why} ({name})"))),
    };
    let (before, after) = encoded.bytes.split_at(encoded.data_at.unwrap_or_default());
    to.extend_from_slice(before);
    if encoded.data_at.is_some() {
        to.extend_from_slice(bytes);
    }
    to.extend_from_slice(after);
    Ok(Ok(in_cdr(&header, Some(known))))
}

/// The error about a message that is none of ROS 2, with advice.
fn unknown(type_name: &str) -> String {
    let declared = match type_name {
        "" => "its publisher declares no type".to_owned(),
        name => format!("its publisher declares type '{name}'"),
    };
    format!(
        "{declared}; give it one of ROS 2 that rgaps knows, such as type=\"sensor_msgs/msg/Image\", or publish CDR bytes"
    )
}

fn in_cdr(header: &Header, ros2: Option<&'static Type>) -> Encoded {
    let source_ns = match mark(header, "source_ns") {
        Some(Value::Int(ns)) => u64::try_from(*ns).ok(),
        _ => None,
    };
    Encoded {
        kind: SchemaKind::Ros2,
        capture_ns: header.capture_ns.or(source_ns),
        image: None,
        ros2,
    }
}

/// The header of a message; empty if it has none.
fn header_of(sample: &Sample) -> Header {
    sample.header().ok().flatten().unwrap_or_default()
}

/// A value of the bridge's mark in the header of a message from ROS 2. None: the mark has no such key, or there is no mark.
fn mark<'a>(header: &'a Header, key: &str) -> Option<&'a Value> {
    match header.values.get(rgaps_ros2::MARK) {
        Some(Value::Map(mark)) => mark.get(key),
        _ => None,
    }
}

/// Whether a message is CDR of ROS 2 without anything that CDR cannot hold: no tag, and a header with at most the bridge's mark.
fn is_plain_cdr(sample: &Sample, type_name: &str) -> bool {
    let is_plain = |header: Header| {
        let mut keys = header.values.keys();
        header.frame_id.is_none() && keys.all(|key| key == rgaps_ros2::MARK)
    };
    rgaps_ros2::is_cdr(type_name, sample)
        && sample.tag() == 0
        && match sample.attachment() {
            Some(_) => sample.header().ok().flatten().is_some_and(is_plain),
            None => true,
        }
}

/// The bytes of a sample. Copies them if they are on a GPU.
pub(crate) fn read_all(sample: &Sample) -> Result<Cow<'_, [u8]>, RecvError> {
    Ok(match sample.domain() {
        Domain::Host => Cow::Borrowed(sample.as_slice()?),
        Domain::Cuda(_) => {
            let mut bytes = vec![0; sample.len() as usize];
            sample.read(0, &mut bytes)?;
            Cow::Owned(bytes)
        }
    })
}

pub(crate) fn append(
    sample: &Sample,
    publish_ns: u64,
    bytes: &[u8],
    image: Option<Image>,
    to: &mut Vec<u8>,
) -> Result<Encoded, RecvError> {
    // An invalid header is recorded as the bytes of its attachment.
    let header = header_of(sample);
    let capture_ns = header.capture_ns;
    let mut envelope = Envelope {
        timestamp: Some(timestamp(capture_ns.unwrap_or(publish_ns))),
        frame_id: header.frame_id.unwrap_or_default(),
        rgaps: Some(beside(sample, bytes, image)?),
        ..Envelope::default()
    };
    if let (None, Some(tensor)) = (image, sample.tensor()) {
        envelope.values = values(tensor, bytes);
    }
    if let Some(image) = image {
        envelope.width = image.width;
        envelope.height = image.height;
        envelope.encoding = image.encoding.to_owned();
        envelope.step = image.step;
    }
    to.reserve(envelope.encoded_len() + bytes.len() + 16);
    envelope
        .encode(to)
        .expect("a vector takes all that is written");
    if !bytes.is_empty() {
        encode_key(DATA, WireType::LengthDelimited, to);
        encode_varint(bytes.len() as u64, to);
        to.extend_from_slice(bytes);
    }
    let kind = match image {
        Some(_) => SchemaKind::Image,
        None => SchemaKind::Message,
    };
    Ok(Encoded {
        kind,
        capture_ns,
        image,
        ros2: None,
    })
}

fn beside(sample: &Sample, bytes: &[u8], image: Option<Image>) -> Result<Beside, RecvError> {
    let parts = sample.parts()?;
    let tensor = match (sample.tensor(), image) {
        (Some(tensor), Some(image)) => Some(image.tensor(tensor)),
        (tensor, _) => tensor.copied(),
    };
    Ok(Beside {
        tag: sample.tag(),
        attachment: sample.attachment().unwrap_or_default().to_vec().into(),
        attachment_is_header: sample.metadata().is_some_and(|beside| beside.is_header()),
        tensor: tensor.as_ref().map(array),
        parts: parts
            .iter()
            .map(|part| {
                let (from, tensor) = (part.offset() as usize, part.tensor());
                let own = bytes.get(from..from + part.len() as usize);
                NamedPart {
                    name: part.name().to_owned(),
                    array: Some(array(&tensor)),
                    offset: part.offset(),
                    bytes: part.len(),
                    values: values(&tensor, own.unwrap_or_default()),
                }
            })
            .collect(),
        sequence: sample.sequence(),
        missed: sample.missed(),
    })
}

/// The numbers of a small array without gaps, for plots. Empty for other arrays.
fn values(tensor: &Tensor, bytes: &[u8]) -> Vec<f64> {
    let shape = &tensor.shape[..usize::from(tensor.ndim)];
    let dense = rgaps::tensor::contiguous(tensor.dtype, shape);
    let size = tensor.dtype.element_bytes();
    let is_small = size > 0 && bytes.len() as u64 / size <= VALUES_MAX;
    if !is_small || dense.ok() != Some((*tensor, bytes.len() as u64)) {
        return Vec::new();
    }
    let Some(read) = tensor.dtype.name().and_then(reader) else {
        return Vec::new();
    };
    bytes.chunks_exact(size as usize).map(read).collect()
}

/// The function that decodes this element type. None: plots have no such numbers.
fn reader(dtype: &str) -> Option<fn(&[u8]) -> f64> {
    macro_rules! of {
        ($type:ty) => {
            |bytes: &[u8]| <$type>::from_le_bytes(bytes.try_into().expect("its bytes")) as f64
        };
    }
    Some(match dtype {
        "bool" | "uint8" => of!(u8),
        "int8" => of!(i8),
        "uint16" => of!(u16),
        "int16" => of!(i16),
        "uint32" => of!(u32),
        "int32" => of!(i32),
        "uint64" => of!(u64),
        "int64" => of!(i64),
        "float32" => of!(f32),
        "float64" => of!(f64),
        _ => return None,
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

impl Image {
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.step) * u64::from(self.height)
    }

    /// Reduces the image to every n-th pixel of every n-th row, with the least n for at most `bytes_max` bytes, or to one pixel.
    /// Returns the smaller image and n.
    pub(crate) fn within(self, bytes_max: u64) -> (Image, u32) {
        let pixel = self.step / self.width;
        let taken = |nth| Image {
            width: self.width.div_ceil(nth),
            height: self.height.div_ceil(nth),
            step: self.width.div_ceil(nth) * pixel,
            encoding: self.encoding,
        };
        let side = self.width.max(self.height);
        // Starts a little below n: the square root is a lower bound.
        let least = (self.bytes() as f64 / bytes_max.max(1) as f64).sqrt() as u32;
        let mut nth = least.clamp(1, side);
        while nth < side && taken(nth).bytes() > bytes_max {
            nth += 1;
        }
        (taken(nth), nth)
    }

    /// Iterates over every n-th pixel of every n-th row. `bytes`: the image's pixels.
    pub fn every(self, nth: u32, bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
        let pixel = (self.step / self.width) as usize;
        let rows = bytes.chunks_exact(self.step as usize);
        let rows = rows.step_by(nth as usize);
        rows.flat_map(move |row| row.chunks_exact(pixel).step_by(nth as usize))
    }

    /// The tensor of this image, which has some or all pixels of `tensor`.
    fn tensor(self, tensor: &Tensor) -> Tensor {
        let mut shape = tensor.shape;
        (shape[0], shape[1]) = (self.height.into(), self.width.into());
        let shape = &shape[..usize::from(tensor.ndim)];
        // This cannot fail: the image is not larger than the sample's array.
        rgaps::tensor::contiguous(tensor.dtype, shape).map_or(*tensor, |(tensor, _)| tensor)
    }
}

/// The layout of a sample that is an image. None: the sample is no image, or has parts. The pixel format comes from the header, or else
/// from `type_name`, which the publisher declares.
pub(crate) fn image_of(sample: &Sample, type_name: &str) -> Result<Option<Image>, RecvError> {
    let Some(tensor) = sample.tensor() else {
        return Ok(None);
    };
    if !sample.parts()?.is_empty() {
        return Ok(None);
    }
    let header = sample.header().ok().flatten();
    let pixel_format = match header
        .as_ref()
        .and_then(|header| header.values.get("encoding"))
    {
        Some(Value::Text(encoding)) => encoding,
        _ => type_name,
    };
    Ok(image(tensor, sample.len(), pixel_format))
}

/// The layout of an image of `bytes` bytes: rows without gaps, of one, three or four channels. None: the array is no such image. Red
/// comes first unless `pixel_format` is `bgr8` or `bgra8`.
fn image(tensor: &Tensor, bytes: u64, pixel_format: &str) -> Option<Image> {
    let shape = &tensor.shape[..usize::from(tensor.ndim)];
    let (height, width, channels) = match *shape {
        [height, width] => (height, width, 1),
        [height, width, channels] => (height, width, channels),
        _ => return None,
    };
    let encoding = match (tensor.dtype.name()?, channels) {
        ("uint8", 1) => "mono8",
        ("uint8", 3) if pixel_format == "bgr8" => "bgr8",
        ("uint8", 3) => "rgb8",
        ("uint8", 4) if pixel_format == "bgra8" => "bgra8",
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

/// Describes a message for the metadata of its channel, for people.
pub fn describe(sample: &Sample) -> Vec<(&'static str, String)> {
    let shape = |tensor: &Tensor| {
        let dims = tensor.shape[..usize::from(tensor.ndim)].iter();
        dims.map(u64::to_string).collect::<Vec<_>>().join(",")
    };
    let mut metadata = Vec::new();
    if let Some(tensor) = sample.tensor() {
        metadata.push(("rgaps.dtype", tensor.dtype.to_string()));
        metadata.push(("rgaps.shape", shape(tensor)));
    }
    if let Ok(parts) = sample.parts() {
        let parts = parts.iter().map(|part| {
            let tensor = part.tensor();
            format!("{}:{}[{}]", part.name(), tensor.dtype, shape(&tensor))
        });
        let parts = parts.collect::<Vec<_>>().join(" ");
        if !parts.is_empty() {
            metadata.push(("rgaps.parts", parts));
        }
    }
    let attachment = match sample.metadata() {
        Some(beside) if beside.is_header() => "header in MessagePack",
        Some(beside) if !beside.attachment().is_empty() => "bytes",
        _ => return metadata,
    };
    metadata.push(("rgaps.attachment", attachment.to_owned()));
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(dtype: &str, shape: &[u64]) -> Option<&'static str> {
        let (tensor, bytes) = rgaps::tensor::contiguous(dtype.parse().unwrap(), shape).unwrap();
        image(&tensor, bytes, "").map(|image| image.encoding)
    }

    #[test]
    fn colours_are_in_the_order_that_the_publisher_says() {
        let (tensor, bytes) = rgaps::tensor::contiguous(DType::U8, &[4, 6, 3]).unwrap();
        for (pixel_format, encoding) in [("bgr8", "bgr8"), ("bgra8", "rgb8"), ("Image", "rgb8")] {
            assert_eq!(
                image(&tensor, bytes, pixel_format).unwrap().encoding,
                encoding
            );
        }
    }

    #[test]
    fn small_arrays_have_their_numbers_and_large_ones_none() {
        let (tensor, _) = rgaps::tensor::contiguous("int16".parse().unwrap(), &[2]).unwrap();
        assert_eq!(values(&tensor, &[1, 0, 255, 255]), [1.0, -1.0]);
        assert!(values(&tensor, &[1, 0]).is_empty());
        let (tensor, bytes) = rgaps::tensor::contiguous(DType::U8, &[65]).unwrap();
        assert!(values(&tensor, &vec![0; bytes as usize]).is_empty());
        let (tensor, bytes) =
            rgaps::tensor::contiguous("complex64".parse().unwrap(), &[1]).unwrap();
        assert!(values(&tensor, &vec![0; bytes as usize]).is_empty());
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
        let image = image(&tensor, bytes, "").unwrap();
        assert_eq!((image.width, image.height, image.step), (6, 4, 18));
    }

    #[test]
    fn an_image_is_made_as_small_as_needed_and_no_smaller() {
        let (tensor, bytes) = rgaps::tensor::contiguous(DType::U8, &[1080, 1920, 3]).unwrap();
        let whole = image(&tensor, bytes, "").unwrap();
        assert_eq!(whole.within(bytes), (whole, 1));
        let (half, nth) = whole.within(bytes - 1);
        assert_eq!(
            (half.width, half.height, half.step, nth),
            (960, 540, 2880, 2)
        );
        assert_eq!(half.tensor(&tensor).shape[..3], [540, 960, 3]);
        for bytes_max in [1, 2, 3, 7, 1000, 100_000, 1 << 20] {
            let (small, nth) = whole.within(bytes_max);
            assert!(small.bytes() <= bytes_max.max(3), "{bytes_max}: {small:?}");
            let larger =
                (1920u64.div_ceil(u64::from(nth) - 1) * 1080u64.div_ceil(u64::from(nth) - 1)) * 3;
            assert!(larger > bytes_max || nth == 1920, "{bytes_max}: {nth}");
        }
    }

    #[test]
    fn a_small_image_has_every_nth_pixel() {
        let (tensor, bytes) = rgaps::tensor::contiguous(DType::U8, &[3, 5, 3]).unwrap();
        let whole = image(&tensor, bytes, "").unwrap();
        let pixels: Vec<u8> = (0..45).collect();
        let (small, nth) = whole.within(18);
        assert_eq!((small.width, small.height, nth), (3, 2, 2));
        let taken: Vec<u8> = whole.every(nth, &pixels).flatten().copied().collect();
        assert_eq!(
            taken,
            [0, 1, 2, 6, 7, 8, 12, 13, 14, 30, 31, 32, 36, 37, 38, 42, 43, 44]
        );
    }
}

//! `sensor_msgs/Image`: translates between encodings and arrays.

use rgaps_client::tensor::strided;
use rgaps_client::{DType, Header, Sample, Tensor, Value};

/// Name, element type and channels of an encoding. An array that names no encoding gets the first one of its element type and
/// channels.
const ENCODINGS: [(&str, &str, u64); 18] = [
    ("mono8", "uint8", 1),
    ("rgb8", "uint8", 3),
    ("rgba8", "uint8", 4),
    ("mono16", "uint16", 1),
    ("rgb16", "uint16", 3),
    ("rgba16", "uint16", 4),
    ("bgr8", "uint8", 3),
    ("bgra8", "uint8", 4),
    ("bgr16", "uint16", 3),
    ("bgra16", "uint16", 4),
    ("bayer_rggb8", "uint8", 1),
    ("bayer_bggr8", "uint8", 1),
    ("bayer_gbrg8", "uint8", 1),
    ("bayer_grbg8", "uint8", 1),
    ("yuv422", "uint8", 2),
    ("yuv422_yuy2", "uint8", 2),
    ("uyvy", "uint8", 2),
    ("yuyv", "uint8", 2),
];
/// Element types in OpenCV's names for encodings, such as `32FC1`.
const OPEN_CV: [(&str, &str); 7] = [
    ("8U", "uint8"),
    ("8S", "int8"),
    ("16U", "uint16"),
    ("16S", "int16"),
    ("32S", "int32"),
    ("32F", "float32"),
    ("64F", "float64"),
];

/// Element type and channels of an encoding. None: it is unknown.
fn meaning(encoding: &str) -> Option<(DType, u64)> {
    let known = ENCODINGS.iter().find(|known| known.0 == encoding);
    if let Some((_, dtype, channels)) = known {
        return Some((dtype.parse().ok()?, *channels));
    }
    let (depth, channels) = encoding.split_once('C')?;
    let (_, dtype) = OPEN_CV.iter().find(|known| known.0 == depth)?;
    let channels = match channels {
        "" => 1,
        channels => channels.parse().ok()?,
    };
    Some((dtype.parse().ok()?, channels))
}

/// The encoding for an array that names none. None: ROS 2 has no such encoding.
fn encoding(dtype: DType, channels: u64) -> Option<String> {
    let name = dtype.name()?;
    let mut known = ENCODINGS.iter();
    if let Some(known) = known.find(|known| (known.1, known.2) == (name, channels)) {
        return Some(known.0.to_owned());
    }
    let (depth, _) = OPEN_CV.iter().find(|known| known.1 == name)?;
    Some(format!("{depth}C{channels}"))
}

fn number(header: &Header, name: &str) -> Option<u64> {
    match header.values.get(name)? {
        Value::Int(value) => u64::try_from(*value).ok(),
        _ => None,
    }
}

/// The array of a decoded image. None: its encoding is unknown, or the number of bytes does not match its rows.
pub(crate) fn tensor(header: &Header, bytes: usize) -> Option<Tensor> {
    let (height, width) = (number(header, "height")?, number(header, "width")?);
    let step = number(header, "step")?;
    let Some(Value::Text(encoding)) = header.values.get("encoding") else {
        return None;
    };
    let (dtype, channels) = meaning(encoding)?;
    let size = dtype.element_bytes();
    let row = width.checked_mul(channels)?;
    let is_whole = step % size == 0 && row.checked_mul(size)? <= step;
    if !is_whole || height.checked_mul(step)? != bytes as u64 {
        return None;
    }
    let step = (step / size) as i64;
    // A depth image keeps its channel, as Foxglove's images do.
    let tensor = match channels {
        1 if dtype != DType::F32 => strided(dtype, &[height, width], &[step, 1]),
        _ => strided(
            dtype,
            &[height, width, channels],
            &[step, channels as i64, 1],
        ),
    };
    tensor.ok()
}

/// Sets the values of the header that describe the image's bytes: size, step and encoding. Fails if the array is no image.
pub(crate) fn describe(
    header: &mut Header,
    type_name: &str,
    sample: &Sample,
) -> Result<(), String> {
    let tensor = sample.tensor().ok_or("it is no array")?;
    let dims = usize::from(tensor.ndim);
    let (shape, strides) = (&tensor.shape[..dims], &tensor.strides[..dims]);
    let (height, width, channels) = match *shape {
        [height, width] => (height, width, 1),
        [height, width, channels] => (height, width, channels),
        _ => return Err(format!("an image has 2 or 3 dimensions, and it has {dims}")),
    };
    let is_dense = match *strides {
        [_, 1] => true,
        [_, pixel, 1] => pixel as u64 == channels,
        _ => false,
    };
    let step = strides[0] as u64 * tensor.dtype.element_bytes();
    if !is_dense || height * step != sample.len() {
        return Err("its rows have gaps within, or bytes behind them".to_owned());
    }
    let own = match header.values.get("encoding") {
        Some(Value::Text(encoding)) => encoding.as_str(),
        _ => type_name,
    };
    let encoding = match meaning(own) {
        Some(meant) if meant == (tensor.dtype, channels) => Some(own.to_owned()),
        _ => encoding(tensor.dtype, channels),
    };
    let encoding =
        encoding.ok_or_else(|| format!("ROS 2 has no image of {channels} x {}", tensor.dtype))?;
    for (name, value) in [
        ("height", height.into()),
        ("width", width.into()),
        ("step", step.into()),
        ("encoding", encoding.into()),
        ("is_bigendian", Value::Int(0)),
    ] {
        header.values.insert(name.to_owned(), value);
    }
    Ok(())
}

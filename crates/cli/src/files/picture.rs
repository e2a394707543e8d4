//! PNG and JPEG files as arrays of uint8 or uint16: `(H, W)` for grey, `(H, W, 3)` for RGB, `(H, W, 4)` with alpha.

use crate::array::Array;
use anyhow::{bail, ensure, Context};
use png::{BitDepth, ColorType, Transformations};
use rgaps::{tensor, DType};
use std::io::Cursor;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

const U16: DType = DType {
    code: 1,
    bits: 16,
    lanes: 1,
};

fn pixels(
    dtype: DType,
    (height, width): (usize, usize),
    channels: usize,
    bytes: Vec<u8>,
) -> anyhow::Result<Array<'static>> {
    let mut shape = vec![height as u64, width as u64];
    shape.extend((channels > 1).then_some(channels as u64));
    let (tensor, wanted) = tensor::contiguous(dtype, &shape)?;
    ensure!(
        wanted == bytes.len() as u64,
        "it has {} bytes of pixels instead of {wanted}",
        bytes.len()
    );
    Ok(Array {
        tensor,
        bytes: bytes.into(),
    })
}

pub fn read_png(file: &[u8]) -> anyhow::Result<Array<'static>> {
    let mut decoder = png::Decoder::new(Cursor::new(file));
    // Palettes and fewer than 8 bits become 8 bits, a transparent colour becomes alpha.
    decoder.set_transformations(Transformations::EXPAND);
    let mut reader = decoder.read_info()?;
    let mut bytes = vec![0; reader.output_buffer_size().context("it is too large")?];
    let info = reader.next_frame(&mut bytes)?;
    bytes.truncate(info.buffer_size());
    let (dtype, is_wide) = match info.bit_depth {
        BitDepth::Sixteen => (U16, true),
        _ => (DType::U8, false),
    };
    if is_wide {
        // PNG is big-endian.
        bytes.chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
    }
    let size = (info.height as usize, info.width as usize);
    let channels = info.color_type.samples();
    ensure!(
        channels != 2,
        "images of grey with alpha are not supported; convert it to RGBA or grey"
    );
    pixels(dtype, size, channels, bytes)
}

pub fn read_jpeg(file: &[u8]) -> anyhow::Result<Array<'static>> {
    // Strict mode refuses files that are cut short.
    let options = DecoderOptions::default().set_strict_mode(true);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers()?;
    let is_grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let (space, channels) = if is_grey {
        (ColorSpace::Luma, 1)
    } else {
        (ColorSpace::RGB, 3)
    };
    decoder.set_options(options.jpeg_set_out_colorspace(space));
    let bytes = decoder.decode()?;
    let info = decoder.info().context("it has no header")?;
    pixels(
        DType::U8,
        (info.height.into(), info.width.into()),
        channels,
        bytes,
    )
}

pub fn write_png(array: &Array<'_>) -> anyhow::Result<Vec<u8>> {
    let dtype = array.tensor.dtype;
    let shape = array.shape();
    let color = match shape {
        [_, _] | [_, _, 1] => ColorType::Grayscale,
        [_, _, 3] => ColorType::Rgb,
        [_, _, 4] => ColorType::Rgba,
        _ => bail!("{dtype}{shape:?} is not the shape of a picture, which is (H, W), (H, W, 1), (H, W, 3) or (H, W, 4); save it as .npy"),
    };
    let mut bytes = array.row_major().into_owned();
    let depth = match dtype {
        DType::U8 => BitDepth::Eight,
        U16 => {
            bytes.chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
            BitDepth::Sixteen
        }
        _ => bail!("PNG stores uint8 and uint16, and the message is {dtype}; save it as .npy"),
    };
    let side = |length: u64| u32::try_from(length).context("it is too large for PNG");
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, side(shape[1])?, side(shape[0])?);
    encoder.set_color(color);
    encoder.set_depth(depth);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&bytes)?;
    writer.finish()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(dtype: DType, shape: &[u64]) -> Array<'static> {
        let (tensor, bytes) = tensor::contiguous(dtype, shape).unwrap();
        let bytes: Vec<u8> = (0..bytes).map(|at| (at * 7) as u8).collect();
        Array {
            tensor,
            bytes: bytes.into(),
        }
    }

    #[test]
    fn pictures_survive_png() {
        for (dtype, shape) in [
            (DType::U8, &[9, 5][..]),
            (DType::U8, &[9, 5, 3]),
            (DType::U8, &[9, 5, 4]),
            (U16, &[9, 5]),
            (U16, &[9, 5, 3]),
        ] {
            let picture = array(dtype, shape);
            let read = read_png(&write_png(&picture).unwrap()).unwrap();
            assert_eq!(
                (read.tensor, &read.bytes),
                (picture.tensor, &picture.bytes),
                "{shape:?}"
            );
        }
        let refused =
            |dtype, shape: &[u64]| write_png(&array(dtype, shape)).unwrap_err().to_string();
        assert!(refused(DType::F32, &[9, 5]).contains(".npy"));
        assert!(refused(DType::U8, &[9, 5, 2]).contains("(H, W, 3)"));
        let whole = write_png(&array(DType::U8, &[9, 5])).unwrap();
        assert!(read_png(&whole[..whole.len() / 2]).is_err());
    }
}

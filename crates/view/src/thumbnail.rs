//! Makes small pictures of images for the page.

use crate::outbox::Frame;
use png::{BitDepth, ColorType, Compression};
use rgaps_recording::Image;

/// Most pixels of the longer side.
const SIDE_MAX: u32 = 192;

/// Encodes an image as a small PNG. None: the message is no image.
pub(crate) fn png(frame: &Frame) -> Option<Vec<u8>> {
    let image = frame.image?;
    let length = image.step as usize * image.height as usize;
    let bytes = &frame.bytes[frame.bytes.len().checked_sub(length)?..];
    let nth = image.width.max(image.height).div_ceil(SIDE_MAX).max(1);
    let (color, pixels) = pixels(image, nth, bytes)?;
    let (width, height) = (image.width.div_ceil(nth), image.height.div_ceil(nth));
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(color);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_compression(Compression::Fast);
    let mut writer = encoder.write_header().ok()?;
    writer.write_image_data(&pixels).ok()?;
    writer.finish().ok()?;
    Some(file)
}

/// Every n-th pixel of every n-th row, with 8 bits per channel.
fn pixels(image: Image, nth: u32, bytes: &[u8]) -> Option<(ColorType, Vec<u8>)> {
    let taken = image.every(nth, bytes);
    Some(match image.encoding {
        "mono8" => (ColorType::Grayscale, taken.flatten().copied().collect()),
        "rgb8" => (ColorType::Rgb, taken.flatten().copied().collect()),
        "rgba8" => (ColorType::Rgba, taken.flatten().copied().collect()),
        "bgr8" => (ColorType::Rgb, taken.flat_map(red_first).collect()),
        "bgra8" => (ColorType::Rgba, taken.flat_map(red_first).collect()),
        "mono16" => {
            let values = taken.map(|two| f32::from(u16::from_le_bytes([two[0], two[1]])));
            (ColorType::Grayscale, grey(values.collect()))
        }
        "32FC1" => {
            let values = taken.map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
            (ColorType::Grayscale, grey(values.collect()))
        }
        _ => return None,
    })
}

/// Reorders blue, green and red for PNG. Keeps alpha, if there is one.
fn red_first(pixel: &[u8]) -> impl Iterator<Item = u8> + '_ {
    pixel[..3].iter().rev().chain(&pixel[3..]).copied()
}

/// Depth has no range of its own, so the least value is black and the greatest white.
fn grey(values: Vec<f32>) -> Vec<u8> {
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let least = finite().fold(f32::INFINITY, f32::min);
    let greatest = finite().fold(f32::NEG_INFINITY, f32::max);
    let scaled = values.iter().map(|value| {
        let share = (value - least) / (greatest - least).max(f32::MIN_POSITIVE);
        // NaN becomes black.
        (share * 255.0) as u8
    });
    scaled.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(
        encoding: &'static str,
        (width, height): (u32, u32),
        bytes: Vec<u8>,
    ) -> (u32, u32, Vec<u8>) {
        let step = bytes.len() as u32 / height;
        let mut encoded = b"what comes before".to_vec();
        encoded.extend(bytes);
        let image = Image {
            width,
            height,
            encoding,
            step,
        };
        let file = png(&Frame {
            log_ns: 0,
            bytes: encoded,
            image: Some(image),
        });
        let decoder = png::Decoder::new(std::io::Cursor::new(file.unwrap()));
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        (info.width, info.height, pixels)
    }

    #[test]
    fn thumbnails_have_the_pixels() {
        let small = decoded("rgb8", (2, 1), vec![1, 2, 3, 4, 5, 6]);
        assert_eq!(small, (2, 1, vec![1, 2, 3, 4, 5, 6]));
        let swapped = decoded("bgra8", (1, 1), vec![1, 2, 3, 4]);
        assert_eq!(swapped, (1, 1, vec![3, 2, 1, 4]));
        let row: Vec<u8> = (0..=255).chain(0..129).collect();
        let (width, height, pixels) = decoded("mono8", (385, 1), row);
        assert_eq!((width, height), (129, 1));
        assert_eq!(pixels[..4], [0, 3, 6, 9]);
    }

    #[test]
    fn depth_fills_the_range() {
        let depth: Vec<u8> = [1000u16, 2000, 3000]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        assert_eq!(decoded("mono16", (3, 1), depth), (3, 1, vec![0, 127, 255]));
        let metres = [1.0f32, f32::NAN, f32::INFINITY, 2.0];
        let metres: Vec<u8> = metres.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(
            decoded("32FC1", (4, 1), metres),
            (4, 1, vec![0, 0, 255, 255])
        );
        assert_eq!(
            decoded("32FC1", (1, 1), f32::NAN.to_le_bytes().to_vec()).2,
            [0]
        );
    }
}

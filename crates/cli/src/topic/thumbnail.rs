//! Draws a small picture of an array in characters.

use crate::array::Array;
use rgaps::DType;
use std::fmt::Write;

/// An array with a side shorter than this is not drawn.
const SIDE_MIN: u64 = 8;
/// Most columns of a picture.
pub const COLUMNS_MAX: u16 = 64;
/// Most rows of pixels. A line of text shows two.
const PIXEL_ROWS_MAX: u64 = 32;
/// Characters from dark to bright.
const RAMP: &[u8] = b" .:-=+*#%@";

/// How pixels become characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Two coloured pixels per character: 24-bit colour.
    Color,
    /// One grey pixel per character, by its density.
    Grey,
}

/// Height, width and channels of an array that is a picture. None: the array is no picture.
fn size(array: &Array<'_>) -> Option<(u64, u64, u64)> {
    let dtype = array.tensor.dtype;
    let is_sample = dtype == DType::U8
        || (dtype.code, dtype.bits) == (1, 16)
        || matches!(dtype.code, 2 | 4) && array.is_numeric();
    let (height, width, channels) = match *array.shape() {
        [height, width] => (height, width, 1),
        [height, width, channels @ (1 | 3 | 4)] => (height, width, channels),
        _ => return None,
    };
    (is_sample && height.min(width) >= SIDE_MIN).then_some((height, width, channels))
}

/// Draws the array as lines of text. None: the array is no picture.
pub fn draw(array: &Array<'_>, style: Style, columns: u16) -> Option<String> {
    let (height, width, channels) = size(array)?;
    let columns = u64::from(columns.clamp(1, COLUMNS_MAX)).min(width);
    let columns = columns.min((PIXEL_ROWS_MAX * width / height).max(1));
    // A character is twice as high as it is wide, and shows two pixels.
    let lines = (columns * height / width).div_ceil(2).max(1);
    let picked = pick(array, (height, width, channels), (lines * 2, columns));
    let (dark, bright) = range(array.tensor.dtype, &picked);
    let scale = |value: f64| match bright > dark && value.is_finite() {
        true => ((value - dark) / (bright - dark) * 255.0).clamp(0.0, 255.0) as u8,
        false => 0,
    };
    let pixels: Vec<[u8; 3]> = picked.iter().map(|pixel| pixel.map(scale)).collect();
    let rows: Vec<&[[u8; 3]]> = pixels.chunks_exact(columns as usize).collect();
    let mut text = String::new();
    for pair in rows.chunks_exact(2) {
        line(pair[0], pair[1], style, &mut text);
    }
    Some(text)
}

fn line(upper: &[[u8; 3]], lower: &[[u8; 3]], style: Style, text: &mut String) {
    for (up, low) in upper.iter().zip(lower) {
        match style {
            Style::Color => {
                let ([r, g, b], [s, h, c]) = (up, low);
                // Writing to a string does not fail.
                let _ = write!(text, "\x1b[38;2;{r};{g};{b}m\x1b[48;2;{s};{h};{c}m\u{2580}");
            }
            Style::Grey => {
                let sum: u32 = up.iter().chain(low).map(|value| u32::from(*value)).sum();
                let at = sum as usize * (RAMP.len() - 1) / (6 * 255);
                text.push(char::from(RAMP[at]));
            }
        }
    }
    if style == Style::Color {
        text.push_str("\x1b[0m");
    }
    text.push('\n');
}

/// For each pixel, the element nearest to its middle, in three channels.
fn pick(
    array: &Array<'_>,
    (height, width, channels): (u64, u64, u64),
    (rows, columns): (u64, u64),
) -> Vec<[f64; 3]> {
    let value = |y: u64, x: u64, channel: u64| {
        let index = [y, x, channel];
        let index = &index[..array.shape().len()];
        array.number(index).map_or(0.0, |number| number.as_f64())
    };
    let mut picked = Vec::with_capacity((rows * columns) as usize);
    for row in 0..rows {
        let y = (2 * row + 1) * height / (2 * rows);
        for column in 0..columns {
            let x = (2 * column + 1) * width / (2 * columns);
            picked.push(match channels {
                1 => [value(y, x, 0); 3],
                _ => [0, 1, 2].map(|channel| value(y, x, channel)),
            });
        }
    }
    picked
}

/// The values of black and white. Depth and radiance have no range of their own, so their range is that of the picked values.
fn range(dtype: DType, picked: &[[f64; 3]]) -> (f64, f64) {
    if dtype == DType::U8 {
        return (0.0, 255.0);
    }
    let finite = || {
        picked
            .iter()
            .flatten()
            .copied()
            .filter(|value| value.is_finite())
    };
    (
        finite().fold(f64::INFINITY, f64::min),
        finite().fold(f64::NEG_INFINITY, f64::max),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps::tensor::contiguous;

    fn array(name: &str, shape: &[u64], bytes: Vec<u8>) -> Array<'static> {
        let (tensor, length) = contiguous(name.parse().unwrap(), shape).unwrap();
        assert_eq!(length, bytes.len() as u64);
        Array {
            tensor,
            bytes: bytes.into(),
        }
    }

    #[test]
    fn a_ramp_of_grey_goes_from_dark_to_bright() {
        let bytes = (0..16 * 16)
            .map(|at| (at % 16) * 17)
            .map(|v| v as u8)
            .collect();
        let drawn = draw(&array("uint8", &[16, 16], bytes), Style::Grey, 80).unwrap();
        assert_eq!(drawn.lines().count(), 8);
        let first = drawn.lines().next().unwrap();
        assert_eq!((first.len(), &first[..1], &first[15..]), (16, " ", "@"));
    }

    #[test]
    fn colours_are_those_of_the_pixels() {
        // Red above, blue below.
        let bytes = (0..8 * 8)
            .flat_map(|at| if at < 32 { [200, 0, 0] } else { [0, 0, 100] })
            .collect();
        let drawn = draw(&array("uint8", &[8, 8, 3], bytes), Style::Color, 80).unwrap();
        let lines: Vec<_> = drawn.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(
            lines[0].starts_with("\x1b[38;2;200;0;0m\x1b[48;2;200;0;0m\u{2580}"),
            "{drawn:?}"
        );
        assert!(lines[3].contains("48;2;0;0;100m") && lines[3].ends_with("\x1b[0m"));
    }

    #[test]
    fn depth_in_metres_fills_the_ramp_and_a_hole_is_dark() {
        let mut values: Vec<f32> = (0..64).map(|at| 1.0 + (at % 8) as f32).collect();
        values[0] = f32::NAN;
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let drawn = draw(&array("float32", &[8, 8], bytes), Style::Grey, 80).unwrap();
        assert!(drawn.contains('@') && drawn.starts_with(' '), "{drawn}");
    }

    #[test]
    fn large_pictures_are_made_small_and_others_are_none() {
        let wide = draw(
            &array("uint8", &[480, 640], vec![9; 480 * 640]),
            Style::Grey,
            200,
        )
        .unwrap();
        let widths: Vec<_> = wide.lines().map(str::len).collect();
        assert!(
            widths.len() <= 16 && widths.iter().all(|w| *w == widths[0] && *w <= 64),
            "{widths:?}"
        );
        assert!(draw(&array("uint8", &[1000, 8], vec![0; 8000]), Style::Grey, 80).is_some());
        for (name, shape) in [
            ("uint8", &[3, 3][..]),
            ("int32", &[8, 8]),
            ("uint8", &[8, 8, 2]),
        ] {
            let bytes: u64 = shape.iter().product::<u64>() * if name == "int32" { 4 } else { 1 };
            assert!(draw(
                &array(name, shape, vec![0; bytes as usize]),
                Style::Grey,
                80
            )
            .is_none());
        }
    }
}

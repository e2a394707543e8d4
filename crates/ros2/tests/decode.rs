//! Decodes messages that the Python library rosbags has encoded (`vectors.txt`; `tests/python/test_ros2.py` compares them), whole
//! and cut off. The tests of `bridge` and `recording` check the results.

use rgaps_ros2::{decode, find, Data};
use std::io::Cursor;

fn vectors() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    include_str!("vectors.txt").lines().map(|line| {
        let (name, hex) = line.split_once(' ').unwrap();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (name, (0..hex.len()).step_by(2).map(byte).collect())
    })
}

#[test]
fn a_message_that_was_cut_is_refused_at_any_byte() {
    for (name, bytes) in vectors() {
        let known = find(name).unwrap();
        for end in 0..bytes.len() {
            let cut = decode(known, Cursor::new(&bytes[..end]), end);
            assert!(cut.is_err(), "{name} cut at {end}");
        }
        assert!(
            decode(known, Cursor::new(&bytes), bytes.len()).is_ok(),
            "{name}"
        );
    }
}

/// A wrong length in a message is refused, or at least never makes decoding take much more memory than the message.
#[test]
fn lengths_that_lie_are_refused() {
    for (name, bytes) in vectors() {
        let known = find(name).unwrap();
        for at in (4..bytes.len().saturating_sub(4)).step_by(4) {
            let mut wrong = bytes.clone();
            wrong[at..at + 4].fill(0xff);
            if let Ok(decoded) = decode(known, Cursor::new(&wrong), wrong.len()) {
                let len = match decoded.data {
                    Data::Own(own) => own.len(),
                    Data::Within(range) => range.end,
                };
                assert!(len <= 64 * wrong.len(), "{name} at {at}: {len}");
            }
        }
    }
}

#[test]
fn an_image_is_its_rows_where_they_are() {
    let (name, bytes) = vectors()
        .find(|vector| vector.0 == "sensor_msgs/msg/Image")
        .unwrap();
    let image = decode(find(name).unwrap(), Cursor::new(&bytes), bytes.len()).unwrap();
    let tensor = image.beside.tensor.unwrap();
    assert_eq!(
        (&tensor.shape[..3], &tensor.strides[..3]),
        (&[5, 7, 3][..], &[24, 3, 1][..])
    );
    assert_eq!(image.type_name, "rgb8");
    assert!(matches!(image.data, Data::Within(range) if range.len() == 5 * 24));
}

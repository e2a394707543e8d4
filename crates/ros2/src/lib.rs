//! Translates messages of ROS 2 to messages of rgaps, and back, for the bridge, recordings and viewers.
//!
//! ROS 2 encodes a message in CDR: its members one after the other, each aligned to its size. For each known type, a table (`types`)
//! maps members to the bytes of the message, to named parts, or to values of its header. Only images and clouds have code of their
//! own. A message of any other type is its CDR bytes: see [`is_cdr`].
//!
//! Invariant: large `uint8[]` (images, clouds) are not copied. [`decode`] returns their position in the encoded message, and
//! [`encode`] the position at which the caller inserts them.
#![warn(clippy::too_many_lines)]
#![forbid(unsafe_code)]

mod cdr;
mod cloud;
mod decode;
mod definitions;
mod encode;
mod form;
mod image;
mod types;

pub use cdr::{CdrReader, NumberType};
pub use decode::{decode, Data, Decoded};
pub use definitions::definition;
pub use encode::{encode, CdrMessage};
pub use types::{find, Type};

use rgaps_client::Sample;

/// The key of a header for what only ROS 2 knows of a message. The bridge sets it in messages from ROS 2.
pub const MARK: &str = "ros";

/// Whether a publisher's type is the name of a type of ROS 2: `package/msg/Name`.
fn is_type_name(type_name: &str) -> bool {
    let mut words = type_name.split('/');
    let is_word = |word: Option<&str>| word.is_some_and(|word| !word.is_empty());
    is_word(words.next())
        && words.next() == Some("msg")
        && is_word(words.next())
        && words.next().is_none()
}

/// Whether a message, which is in host memory, is a message of ROS 2 in CDR: its publisher declares a type of ROS 2, its bytes begin
/// with CDR's header, and it has no array and no parts.
pub fn is_cdr(type_name: &str, sample: &Sample) -> bool {
    is_type_name(type_name)
        && sample.tensor().is_none()
        && sample.parts().is_ok_and(|parts| parts.is_empty())
        // Only little-endian, which all nodes write: the bytes of an H.264 video may begin like the header of big-endian CDR.
        && sample.as_slice().is_ok_and(|bytes| matches!(bytes, [0, 1, 0, 0..=3, ..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_ros_2_have_a_package() {
        assert!(is_type_name("tf2_msgs/msg/TFMessage"));
        for other in [
            "",
            "rgb8",
            "Log",
            "a/b",
            "a/msg/",
            "/msg/B",
            "a/srv/B",
            "a/msg/B/c",
        ] {
            assert!(!is_type_name(other), "{other}");
        }
    }
}

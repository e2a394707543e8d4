//! Messages of ROS 2 as messages of rgaps, and back: for the bridge, for recordings, and for who looks at topics.
//!
//! ROS 2 encodes a message in CDR: its members one after the other, each aligned to its size. A table (`types`) says for each known
//! type what its members become: the bytes of the message, named parts of it, or values of its header. There is no code for single
//! types but images and clouds. Messages of all other types are their CDR bytes: see [`is_cdr`].
//!
//! Invariant: large `uint8[]` (images, clouds) are not copied. [`decode`] says where they lie in the encoded message, and [`encode`]
//! where they belong.
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

pub use cdr::{Kind, Reader};
pub use decode::{decode, Data, Decoded};
pub use definitions::definition;
pub use encode::{encode, Encoded};
pub use types::{find, Type};

use rgaps_client::Sample;

/// The key of a header with what only ROS 2 knows of a message. The bridge sets it in messages that it brings.
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

/// Whether a message, in host memory, is the CDR bytes of a message of ROS 2: its publisher declares such a type, the bytes begin as
/// CDR does, and they are neither an array nor parts.
pub fn is_cdr(type_name: &str, sample: &Sample) -> bool {
    is_type_name(type_name)
        && sample.tensor().is_none()
        && sample.parts().is_ok_and(|parts| parts.is_empty())
        // Little-endian, as all nodes write it. A video's bytes (H.264) may begin as if they were big-endian.
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

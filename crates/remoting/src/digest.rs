//! Names for the images of libraries, by their content: the same image has the same name on every host.

use ring::digest::{digest, SHA256};

/// SHA-256 of a content.
pub type Digest = [u8; 32];

/// The name of an image.
pub fn digest_of(image: &[u8]) -> Digest {
    let mut name = [0; 32];
    name.copy_from_slice(digest(&SHA256, image).as_ref());
    name
}

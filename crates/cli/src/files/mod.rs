//! Arrays in files: numpy's `.npy`, and pictures.

mod npy;
mod picture;

use crate::array::Array;
use anyhow::{anyhow, bail, Context};
use std::path::Path;

/// What a file's name says of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Npy,
    Png,
    Jpeg,
    /// The bytes as they are.
    Raw,
}

/// By the end of the name. None: an end that stands for nothing here.
pub fn kind(path: &Path) -> Option<Kind> {
    let end = path.extension()?.to_str()?.to_ascii_lowercase();
    match end.as_str() {
        "npy" => Some(Kind::Npy),
        "png" => Some(Kind::Png),
        "jpg" | "jpeg" => Some(Kind::Jpeg),
        "raw" | "bin" => Some(Kind::Raw),
        _ => None,
    }
}

/// The array that a `.npy`, `.png` or `.jpg` file holds. None: the file is of another kind.
pub fn load(path: &Path) -> anyhow::Result<Option<Array<'static>>> {
    let read = || std::fs::read(path).with_context(|| format!("cannot read '{}'", path.display()));
    let array = match kind(path) {
        Some(Kind::Npy) => npy::read(&read()?),
        Some(Kind::Png) => picture::read_png(&read()?),
        Some(Kind::Jpeg) => picture::read_jpeg(&read()?),
        Some(Kind::Raw) | None => return Ok(None),
    };
    array.map(Some).map_err(|error| {
        // Decoders' texts end with a full stop, or not.
        let reason = rgaps_session::explain(error.as_ref());
        anyhow!(
            "cannot decode '{}': {}; to publish the bytes of the file as they are, add --raw",
            path.display(),
            reason.trim_end_matches('.')
        )
    })
}

/// The array as the content of a file.
pub fn encode(array: &Array<'_>, kind: Kind) -> anyhow::Result<Vec<u8>> {
    match kind {
        Kind::Npy => npy::write(array),
        Kind::Png => picture::write_png(array),
        Kind::Raw => Ok(array.bytes.to_vec()),
        Kind::Jpeg => bail!("JPEG files can be published, not saved: save .png, .npy or .raw"),
    }
}

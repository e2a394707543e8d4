//! Reads and writes arrays as files: numpy's `.npy`, and pictures.

mod npy;
mod picture;

use crate::array::Array;
use anyhow::{anyhow, bail, Context};
use std::path::Path;

/// The format of a file, by the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    Npy,
    Png,
    Jpeg,
    /// The bytes as they are.
    Raw,
}

/// The format of a file by the end of its name. None: the end is unknown.
pub fn format_of(path: &Path) -> Option<FileFormat> {
    let end = path.extension()?.to_str()?.to_ascii_lowercase();
    match end.as_str() {
        "npy" => Some(FileFormat::Npy),
        "png" => Some(FileFormat::Png),
        "jpg" | "jpeg" => Some(FileFormat::Jpeg),
        "raw" | "bin" => Some(FileFormat::Raw),
        _ => None,
    }
}

/// Reads the array of a `.npy`, `.png` or `.jpg` file. None: the file has another format.
pub fn load(path: &Path) -> anyhow::Result<Option<Array<'static>>> {
    let read = || std::fs::read(path).with_context(|| format!("cannot read '{}'", path.display()));
    let array = match format_of(path) {
        Some(FileFormat::Npy) => npy::read(&read()?),
        Some(FileFormat::Png) => picture::read_png(&read()?),
        Some(FileFormat::Jpeg) => picture::read_jpeg(&read()?),
        Some(FileFormat::Raw) | None => return Ok(None),
    };
    array.map(Some).map_err(|error| {
        // Some decoders end their texts with a full stop.
        let reason = rgaps_session::explain(error.as_ref());
        anyhow!(
            "cannot decode '{}': {}; to publish the bytes of the file as they are, add --raw",
            path.display(),
            reason.trim_end_matches('.')
        )
    })
}

/// Encodes the array as the content of a file.
pub fn encode(array: &Array<'_>, format: FileFormat) -> anyhow::Result<Vec<u8>> {
    match format {
        FileFormat::Npy => npy::write(array),
        FileFormat::Png => picture::write_png(array),
        FileFormat::Raw => Ok(array.bytes.to_vec()),
        FileFormat::Jpeg => {
            bail!("JPEG files can be published, not saved: save .png, .npy or .raw")
        }
    }
}

//! `topic echo --save`: writes messages, or their parts, to files.

use super::content::Content;
use crate::exit::Usage;
use crate::files::{self, FileFormat};
use anyhow::Context;
use rgaps::Sample;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

const SEQUENCE: &str = "{sequence}";
const PART: &str = "{part}";

/// Writes messages to files whose names follow a pattern.
pub struct Save {
    pattern: String,
    format: FileFormat,
    saved: u64,
}

impl Save {
    pub fn new(path: &Path) -> anyhow::Result<Save> {
        let pattern = path.to_str().map(str::to_owned);
        let pattern = pattern.ok_or_else(|| Usage("--save: the name is not UTF-8".to_owned()))?;
        match files::format_of(path) {
            Some(format) if format != FileFormat::Jpeg => Ok(Save {
                pattern,
                format,
                saved: 0,
            }),
            _ => Err(Usage(format!(
                "--save '{pattern}': end the name with .png, .npy or .raw"
            ))
            .into()),
        }
    }

    /// Whether each message has a file of its own.
    pub fn is_numbered(&self) -> bool {
        self.pattern.contains(SEQUENCE) || counter(&self.pattern).is_some()
    }

    /// Whether the pattern has `{part}`, so that each part has a file of its own.
    pub fn names_parts(&self) -> bool {
        self.pattern.contains(PART)
    }

    /// Writes a message. Returns the names of its files.
    pub fn save(&mut self, sample: &Sample, content: &Content<'_>) -> anyhow::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for part in &content.parts {
            let path = self.path(sample.sequence(), part.name.as_deref());
            let bytes = files::encode(&part.as_array()?, self.format).with_context(|| {
                let part = part.name.as_deref();
                let what =
                    part.map_or_else(|| "the message".to_owned(), |name| format!("part '{name}'"));
                format!(
                    "{what} cannot be saved as '{}' (.npy and .raw hold every array)",
                    path.display()
                )
            })?;
            write(&path, &bytes)?;
            files.push(path);
        }
        self.saved += 1;
        Ok(files)
    }

    fn path(&self, sequence: u64, part: Option<&str>) -> PathBuf {
        // The publisher chose the part's name: without separators it cannot leave the user's folder.
        let plain = part.map(|part| part.replace(['/', '\\'], "_"));
        let mut name = self.pattern.clone();
        // Each part needs a file of its own: adds `-{part}` to a pattern without it.
        if let (true, false, Some(end)) = (plain.is_some(), name.contains(PART), name.rfind('.')) {
            name.insert_str(end, &format!("-{PART}"));
        }
        let part = plain.as_deref().unwrap_or("message");
        if let Some((at, width, length)) = counter(&name) {
            name.replace_range(at..at + length, &format!("{:0width$}", self.saved));
        }
        name.replace(SEQUENCE, &sequence.to_string())
            .replace(PART, part)
            .into()
    }
}

/// Writes a file. Removes it if it cannot be written whole, as on a full disk: half an array is of no use.
fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let file = File::create(path);
    let written = file.and_then(|mut file| {
        let written = file.write_all(bytes);
        if written.is_err() {
            let _ = std::fs::remove_file(path);
        }
        written
    });
    written.with_context(|| format!("cannot write '{}'", path.display()))
}

/// Finds `%d` or `%06d` in a name. Returns its position, the width of the number, and the length of the placeholder.
fn counter(name: &str) -> Option<(usize, usize, usize)> {
    name.match_indices('%').find_map(|(at, _)| {
        let rest = &name[at + 1..];
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let width = if digits == 0 {
            0
        } else {
            rest[..digits].parse().ok()?
        };
        (rest[digits..].starts_with('d') && width <= 20).then_some((at, width, digits + 2))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbered() {
        let mut save = Save::new(Path::new("a_%04d_{sequence}.png")).unwrap();
        save.saved = 7;
        assert!(save.is_numbered());
        assert_eq!(save.path(12, None), Path::new("a_0007_12.png"));
        let save = Save::new(Path::new("{part}.npy")).unwrap();
        assert!(!save.is_numbered());
        assert_eq!(save.path(1, Some("../rgb")), Path::new(".._rgb.npy"));
        let save = Save::new(Path::new("a.b/robot.npy")).unwrap();
        assert_eq!(save.path(1, Some("rgb")), Path::new("a.b/robot-rgb.npy"));
        assert_eq!(save.path(1, None), Path::new("a.b/robot.npy"));
        assert!(!Save::new(Path::new("100%.raw")).unwrap().is_numbered());
        for wrong in ["frame", "frame.jpg", "frame.tiff"] {
            assert!(Save::new(Path::new(wrong)).is_err(), "{wrong}");
        }
    }
}

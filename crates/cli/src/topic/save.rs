//! `topic echo --save`: messages, or their parts, as files.

use super::content::{Content, Part};
use crate::exit::Usage;
use crate::files::{self, Kind};
use anyhow::{bail, Context};
use rgaps::Sample;
use std::path::{Path, PathBuf};

const SEQUENCE: &str = "{sequence}";
const PART: &str = "{part}";

/// Where messages are saved.
pub struct Save {
    pattern: String,
    kind: Kind,
    saved: u64,
}

impl Save {
    pub fn new(path: &Path) -> anyhow::Result<Save> {
        let pattern = path.to_str().map(str::to_owned);
        let pattern = pattern.ok_or_else(|| Usage("--save: the name is not UTF-8".to_owned()))?;
        match files::kind(path) {
            Some(kind) if kind != Kind::Jpeg => Ok(Save {
                pattern,
                kind,
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

    /// Writes a message; the files' names.
    pub fn save(&mut self, sample: &Sample, content: &Content<'_>) -> anyhow::Result<Vec<PathBuf>> {
        let by_part = self.pattern.contains(PART);
        let parts: Vec<&Part<'_>> = content
            .parts
            .iter()
            .filter(|part| part.name.is_some())
            .collect();
        if parts.len() > 1 && !by_part {
            let names: Vec<_> = parts
                .iter()
                .filter_map(|part| part.name.as_deref())
                .collect();
            bail!(
                "message {} has the parts {}; write {PART} in the file name of --save",
                sample.sequence(),
                names.join(", ")
            );
        }
        let mut files = Vec::new();
        for part in &content.parts {
            let path = self.path(sample.sequence(), part.name.as_deref());
            let bytes = files::encode(&part.as_array()?, self.kind)?;
            std::fs::write(&path, bytes)
                .with_context(|| format!("cannot write '{}'", path.display()))?;
            files.push(path);
        }
        self.saved += 1;
        Ok(files)
    }

    fn path(&self, sequence: u64, part: Option<&str>) -> PathBuf {
        // A publisher's name for a part stays in the folder that was asked for.
        let part = part.unwrap_or("message").replace(['/', '\\'], "_");
        let mut name = self.pattern.clone();
        if let Some((at, width, length)) = counter(&name) {
            name.replace_range(at..at + length, &format!("{:0width$}", self.saved));
        }
        name.replace(SEQUENCE, &sequence.to_string())
            .replace(PART, &part)
            .into()
    }
}

/// `%d` or `%06d` in a name: where, how wide, how long.
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
        assert!(!Save::new(Path::new("100%.raw")).unwrap().is_numbered());
        for wrong in ["frame", "frame.jpg", "frame.tiff"] {
            assert!(Save::new(Path::new(wrong)).is_err(), "{wrong}");
        }
    }
}

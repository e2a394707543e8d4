//! The options of a recorder.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// How chunks are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// No compression: the fastest.
    #[default]
    None,
    /// LZ4: fast.
    Lz4,
    /// Zstandard: small.
    Zstd,
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Compression::None),
            "lz4" => Ok(Compression::Lz4),
            "zstd" => Ok(Compression::Zstd),
            _ => Err(format!("'{text}' is not none, lz4 or zstd")),
        }
    }
}

/// What a [`Recorder`](crate::Recorder) records, and where to.
#[derive(Clone, Debug)]
pub struct Options {
    /// Topics, and patterns in which `*` matches any characters of one part of a name and `**` any number of parts. Topics
    /// that appear later and match a pattern are included.
    pub patterns: Vec<String>,
    /// The file, which must not exist. With `split_bytes`, `split_time` or `keep` a number is added to the name.
    pub file: PathBuf,
    /// How chunks are compressed. Default: not at all.
    pub compression: Compression,
    /// Write a bag of ROS 2, which has only messages in CDR. The recorder leaves out and counts other messages. Default: false.
    pub ros2: bool,
    /// Write images of 8 bits as JPEG of this quality, 1 to 100, which changes their pixels. Default: no JPEG.
    pub jpeg: Option<u8>,
    /// A chunk ends after this many bytes, or after a second. Default: 4 MiB.
    pub chunk_bytes: u64,
    /// Messages that wait for the disk take at most this much memory. Default: 512 MiB.
    pub queue_bytes: u64,
    /// A new file begins when the current one has this many bytes.
    pub split_bytes: Option<u64>,
    /// A new file begins after this time.
    pub split_time: Option<Duration>,
    /// Keep the messages of this last period in memory, and write them only at [`trigger`](crate::Recorder::trigger). The
    /// recorder discards older messages, and the oldest if `queue_bytes` is not enough.
    pub keep: Option<Duration>,
    /// Whether to miss no message: publishers then wait when the disk is too slow. Default: false.
    pub reliable: bool,
    /// Take this many messages and no more: the recorder then [is complete](crate::Recorder::is_complete).
    pub count: Option<u64>,
}

impl Options {
    /// Records these topics to this file, with defaults for the rest.
    pub fn new(
        patterns: impl IntoIterator<Item = impl Into<String>>,
        file: impl Into<PathBuf>,
    ) -> Options {
        Options {
            patterns: patterns.into_iter().map(Into::into).collect(),
            file: file.into(),
            compression: Compression::default(),
            ros2: false,
            jpeg: None,
            chunk_bytes: 4 << 20,
            queue_bytes: 512 << 20,
            split_bytes: None,
            split_time: None,
            keep: None,
            reliable: false,
            count: None,
        }
    }

    /// Whether the recording may have several files.
    pub(crate) fn is_series(&self) -> bool {
        self.split_bytes.is_some() || self.split_time.is_some() || self.keep.is_some()
    }

    /// The name of file `number`, counted from 0.
    pub(crate) fn path(&self, number: u32) -> PathBuf {
        if !self.is_series() {
            return self.file.clone();
        }
        let stem = self.file.file_stem().unwrap_or_default();
        let mut name = stem.to_owned();
        name.push(format!("-{number:04}"));
        if let Some(extension) = self.file.extension() {
            name.push(".");
            name.push(extension);
        }
        self.file.with_file_name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn files_of_a_series_are_numbered() {
        let mut options = Options::new(["*"], "/data/run.mcap");
        assert_eq!(options.path(0), Path::new("/data/run.mcap"));
        options.split_bytes = Some(1);
        assert_eq!(options.path(0), Path::new("/data/run-0000.mcap"));
        assert_eq!(options.path(12), Path::new("/data/run-0012.mcap"));
    }
}

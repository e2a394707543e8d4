//! One file of a recording: chunks that are whole as soon as they are written.
//!
//! A chunk ends when it has its bytes or its time. Up to there the file is readable, whatever happens afterwards: a
//! process that is killed leaves at most the beginning of one chunk behind it, and a write that fails is cut off.

use crate::channel::Described;
use crate::entry::Entry;
use crate::jpeg;
use crate::options::{Compression, Options};
use crate::schema::Kind;
use mcap::records::{MessageHeader, Metadata};
use mcap::{McapError, WriteOptions, Writer};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest that a message waits for its chunk to be full.
const CHUNK_TIME: Duration = Duration::from_secs(1);
/// Small writes are put together. What is larger goes to the file at once.
const BUFFER_BYTES: usize = 256 << 10;
/// The metadata record at the start of each file.
pub(crate) const ABOUT: &str = "rgaps";
/// The metadata record at the end of each file: messages that were not written, by reason.
pub(crate) const DROPPED: &str = "rgaps.dropped";
pub(crate) const BEGUN_NS: &str = "begun_ns";
/// In the first record: how many messages the first chunk repeats from files before it. There is no such chunk if it is missing.
pub(crate) const REPEATED: &str = "repeated";

/// A file to which nothing more is written after a write has failed.
struct Output {
    to: BufWriter<File>,
    failed: bool,
}

impl Output {
    fn guard<T>(
        &mut self,
        act: impl FnOnce(&mut BufWriter<File>) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.failed {
            return Err(io::Error::other("an earlier write failed"));
        }
        let done = act(&mut self.to);
        self.failed = done.is_err();
        done
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.guard(|to| to.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.guard(|to| to.flush())
    }
}

impl Seek for Output {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.guard(|file| file.seek(to))
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        // Without a flush.
        self.guard(|file| file.stream_position())
    }
}

/// A file that is being written.
pub(crate) struct OpenFile {
    writer: Writer<Output>,
    /// The same file, to ask for its length.
    file: File,
    path: PathBuf,
    channels: HashMap<(u64, Kind), u16>,
    /// By name.
    schemas: HashMap<String, u16>,
    /// The quality of images in JPEG.
    jpeg: Option<u8>,
    pub(crate) opened: Instant,
    chunk_bytes_max: u64,
    /// The chunk that is being written: bytes of its messages, their number, since when.
    chunk_bytes: u64,
    chunk_messages: u64,
    chunk_begun: Option<Instant>,
    /// Up to here the file is readable.
    whole_bytes: u64,
    /// Bytes of the chunk that repeats messages of files before it.
    repeated_bytes: u64,
    has_messages: bool,
}

/// A file whose last write failed. It ends with its last whole chunk and has no index.
pub(crate) struct Failed {
    pub(crate) path: PathBuf,
    pub(crate) error: McapError,
    /// Messages that were in the chunk.
    pub(crate) lost: u64,
    pub(crate) bytes: u64,
}

impl OpenFile {
    /// Creates the file, which must not exist, and begins it with a chunk of messages of files before it.
    pub(crate) fn create(
        path: &Path,
        options: &Options,
        begun_ns: u64,
        repeated: &[Arc<Entry>],
    ) -> Result<OpenFile, McapError> {
        let file = File::create_new(path)?;
        let same = file.try_clone()?;
        let compression = match options.compression {
            Compression::None => None,
            Compression::Lz4 => Some(mcap::Compression::Lz4),
            Compression::Zstd => Some(mcap::Compression::Zstd),
        };
        let output = Output {
            to: BufWriter::with_capacity(BUFFER_BYTES, file),
            failed: false,
        };
        // Chunks have their checksums. One of the whole file would cost a second pass over all bytes.
        let writer = WriteOptions::new()
            .compression(compression)
            .compression_threads(0)
            .chunk_size(None)
            .calculate_data_section_crc(false)
            .profile(if options.ros2 { "ros2" } else { "" })
            .library(concat!("rgaps ", env!("CARGO_PKG_VERSION")))
            .create(output)?;
        let mut open = OpenFile {
            writer,
            file: same,
            path: path.to_owned(),
            channels: HashMap::new(),
            schemas: HashMap::new(),
            jpeg: options.jpeg,
            opened: Instant::now(),
            chunk_bytes_max: options.chunk_bytes,
            chunk_bytes: 0,
            chunk_messages: 0,
            chunk_begun: None,
            whole_bytes: 0,
            repeated_bytes: 0,
            has_messages: false,
        };
        let mut about = BTreeMap::from([
            ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            (BEGUN_NS.to_owned(), begun_ns.to_string()),
            ("patterns".to_owned(), options.patterns.join(" ")),
        ]);
        if !repeated.is_empty() {
            about.insert(REPEATED.to_owned(), repeated.len().to_string());
        }
        open.write_metadata(ABOUT, about)?;
        open.end_chunk()?;
        open.repeat(repeated)?;
        Ok(open)
    }

    fn repeat(&mut self, messages: &[Arc<Entry>]) -> Result<(), McapError> {
        let before = self.whole_bytes;
        for entry in messages {
            self.append(entry)?;
        }
        if !messages.is_empty() {
            self.end_chunk()?;
        }
        self.repeated_bytes = self.whole_bytes - before;
        Ok(())
    }

    fn write_metadata(
        &mut self,
        name: &str,
        metadata: BTreeMap<String, String>,
    ) -> Result<(), McapError> {
        let name = name.to_owned();
        self.writer.write_metadata(&Metadata { name, metadata })
    }

    /// Writes a message. Returns the number of messages whose chunk became whole.
    pub(crate) fn write(&mut self, entry: &Entry) -> Result<u64, McapError> {
        self.chunk_begun.get_or_insert_with(Instant::now);
        self.chunk_messages += 1;
        self.has_messages = true;
        self.append(entry)?;
        match self.chunk_bytes >= self.chunk_bytes_max {
            true => self.end_chunk(),
            false => self.end_old_chunk(),
        }
    }

    /// Adds a message to the chunk.
    fn append(&mut self, entry: &Entry) -> Result<(), McapError> {
        let jpeg = self.jpeg.zip(entry.image);
        let jpeg = jpeg.and_then(|(quality, image)| jpeg::compress(&entry.bytes, image, quality));
        let (kind, bytes) = match &jpeg {
            Some(bytes) => (Kind::CompressedImage, bytes),
            None => (entry.channel.kind, &entry.bytes),
        };
        let header = MessageHeader {
            channel_id: self.channel(&entry.channel, kind)?,
            sequence: entry.sequence,
            log_time: entry.log_ns,
            publish_time: entry.publish_ns,
        };
        self.writer.write_to_known_channel(&header, bytes)?;
        self.chunk_bytes += bytes.len() as u64;
        Ok(())
    }

    fn channel(&mut self, channel: &Described, kind: Kind) -> Result<u16, McapError> {
        if let Some(id) = self.channels.get(&(channel.id, kind)) {
            return Ok(*id);
        }
        let is_ros2 = kind == Kind::Ros2;
        let (name, coding, topic) = match is_ros2 {
            // Nodes of ROS 2 write names with their slash.
            true => (
                channel.type_name.as_str(),
                "cdr",
                format!("/{}", channel.topic),
            ),
            false => (kind.name(), "protobuf", channel.topic.clone()),
        };
        let schema = match self.schemas.get(name) {
            Some(id) => *id,
            None => {
                let defined = is_ros2.then(|| rgaps_ros2::definition(name));
                let (described_in, definition) = match defined {
                    Some(Some(text)) => ("ros2msg", text.into_bytes()),
                    // Only its nodes know this type.
                    Some(None) => ("", Vec::new()),
                    None => (coding, kind.descriptor()),
                };
                let id = self.writer.add_schema(name, described_in, &definition)?;
                self.schemas.insert(name.to_owned(), id);
                id
            }
        };
        let id = self
            .writer
            .add_channel(schema, &topic, coding, &channel.metadata)?;
        self.channels.insert((channel.id, kind), id);
        Ok(id)
    }

    /// Ends the chunk if it has waited long enough. Returns the number of messages whose chunk became whole.
    pub(crate) fn end_old_chunk(&mut self) -> Result<u64, McapError> {
        match self.chunk_begun {
            Some(begun) if begun.elapsed() >= CHUNK_TIME => self.end_chunk(),
            _ => Ok(0),
        }
    }

    fn end_chunk(&mut self) -> Result<u64, McapError> {
        self.writer.flush()?;
        self.chunk_bytes = 0;
        self.chunk_begun = None;
        self.whole_bytes = self.file.metadata()?.len();
        Ok(std::mem::take(&mut self.chunk_messages))
    }

    /// Whether a message was written that is in no file before it.
    pub(crate) fn has_messages(&self) -> bool {
        self.has_messages
    }

    /// Up to here the file is readable.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.whole_bytes
    }

    /// Bytes of the whole chunks, but for the one that repeats messages, and of the messages in the chunk that is being written.
    pub(crate) fn own_bytes(&self) -> u64 {
        self.whole_bytes - self.repeated_bytes + self.chunk_bytes
    }

    /// Ends the file: its last chunk, what was dropped, its index. Returns the number of messages whose chunk became whole,
    /// and the length of the file.
    pub(crate) fn finish(
        mut self,
        dropped: BTreeMap<String, String>,
    ) -> Result<(u64, u64), Box<Failed>> {
        let whole = match self.end_chunk() {
            Ok(whole) => whole,
            Err(error) => return Err(self.fail(error)),
        };
        let index = |file: &mut OpenFile| {
            file.write_metadata(DROPPED, dropped)?;
            file.writer.finish()
        };
        if let Err(error) = index(&mut self) {
            let mut failed = self.fail(error);
            // They are in the file.
            failed.lost = 0;
            return Err(failed);
        }
        let (file, whole_bytes, path) = (self.file, self.whole_bytes, self.path);
        let mut output = self.writer.into_inner();
        let flushed = output.flush().and_then(|()| Ok(file.metadata()?.len()));
        match flushed {
            Ok(bytes) => Ok((whole, bytes)),
            Err(error) => Err(cut(output, path, whole_bytes, error.into(), 0)),
        }
    }

    /// Gives the file up after a failed write: cuts off what is not whole, which also gives back its room on the disk.
    pub(crate) fn fail(self, error: McapError) -> Box<Failed> {
        let lost = self.chunk_messages;
        let (path, whole_bytes) = (self.path, self.whole_bytes);
        cut(self.writer.into_inner(), path, whole_bytes, error, lost)
    }
}

fn cut(output: Output, path: PathBuf, bytes: u64, error: McapError, lost: u64) -> Box<Failed> {
    let (file, _not_written) = output.to.into_parts();
    // If this fails, too, what is left is the beginning of a chunk, which readers skip.
    if let Err(error) = file.set_len(bytes) {
        tracing::warn!(
            "{} cannot be cut to its whole chunks: {error}",
            path.display()
        );
    }
    Box::new(Failed {
        path,
        error,
        lost,
        bytes,
    })
}

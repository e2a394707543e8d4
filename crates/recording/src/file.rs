//! Writes one file of a recording.
//!
//! A chunk ends at its size limit or its time limit, and is then written whole. The file is readable up to its last whole chunk,
//! whatever happens afterwards: a killed process leaves at most the beginning of one chunk behind it, and after a failed write
//! the file is cut to its whole chunks.

use crate::channel::Described;
use crate::entry::Entry;
use crate::jpeg;
use crate::options::{Compression, Options};
use crate::schema::SchemaKind;
use mcap::records::{MessageHeader, Metadata};
use mcap::{McapError, WriteOptions, Writer};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A chunk ends at this age, even if it is not full.
const CHUNK_TIME: Duration = Duration::from_secs(1);
/// Buffer for small writes. Larger writes go to the file at once.
const BUFFER_BYTES: usize = 256 << 10;
/// The metadata record at the start of each file.
pub(crate) const ABOUT: &str = "rgaps";
/// The metadata record at the end of each file: messages that were not written, by reason.
pub(crate) const DROPPED: &str = "rgaps.dropped";
pub(crate) const BEGUN_NS: &str = "begun_ns";
/// A key of the first metadata record: how many messages the first chunk repeats from earlier files. Missing: no chunk repeats any.
pub(crate) const REPEATED: &str = "repeated";

/// A file that refuses all writes after one has failed.
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
        // The default of `Seek` calls `seek`, which flushes the buffer.
        self.guard(|file| file.stream_position())
    }
}

/// A file that is being written.
pub(crate) struct OpenFile {
    writer: Writer<Output>,
    /// The same file, to ask for its length.
    file: File,
    path: PathBuf,
    channels: HashMap<(u64, SchemaKind), u16>,
    /// Schemas of the file, by name.
    schemas: HashMap<String, u16>,
    /// The quality of images in JPEG.
    jpeg: Option<u8>,
    pub(crate) opened: Instant,
    chunk_bytes_max: u64,
    /// The current chunk: bytes of its messages, their number, and when it began.
    chunk_bytes: u64,
    chunk_messages: u64,
    chunk_begun: Option<Instant>,
    /// Length of the file up to its last whole chunk, which is readable.
    whole_bytes: u64,
    /// Bytes of the chunk that repeats messages of earlier files.
    repeated_bytes: u64,
    has_messages: bool,
}

/// A file whose last write failed. It ends with its last whole chunk and has no index.
pub(crate) struct Failed {
    pub(crate) path: PathBuf,
    pub(crate) error: McapError,
    /// Messages of the chunk that was cut off.
    pub(crate) lost: u64,
    pub(crate) bytes: u64,
}

impl OpenFile {
    /// Creates the file, which must not exist. It begins with a chunk of the `repeated` messages of earlier files.
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
        // Each chunk has a checksum. One over the whole file would cost a second pass over all bytes.
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

    /// Writes a message. Returns how many messages are in the chunk that this completed; 0: none completed.
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
            Some(bytes) => (SchemaKind::CompressedImage, bytes),
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

    fn channel(&mut self, channel: &Described, kind: SchemaKind) -> Result<u16, McapError> {
        if let Some(id) = self.channels.get(&(channel.id, kind)) {
            return Ok(*id);
        }
        let is_ros2 = kind == SchemaKind::Ros2;
        let (name, coding, topic) = match is_ros2 {
            // Bags of ROS 2 have topic names with a leading slash.
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
                    // rgaps does not know the type, so the file has no definition of it.
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

    /// Ends the current chunk if it is old enough. Returns how many messages it had.
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

    /// Whether the file has messages of its own, besides those that it repeats.
    pub(crate) fn has_messages(&self) -> bool {
        self.has_messages
    }

    /// Length of the file up to its last whole chunk, which is readable.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.whole_bytes
    }

    /// Bytes of the whole chunks, without the one that repeats messages, and of the messages in the current chunk.
    pub(crate) fn own_bytes(&self) -> u64 {
        self.whole_bytes - self.repeated_bytes + self.chunk_bytes
    }

    /// Ends the file: writes its last chunk, the counts of `dropped` messages and the index. Returns how many messages the last chunk
    /// had, and the length of the file.
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
            // Its messages are in whole chunks; only the index is missing.
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

    /// Ends the file after a failed write: cuts it to its whole chunks, which also frees space on the disk.
    pub(crate) fn fail(self, error: McapError) -> Box<Failed> {
        let lost = self.chunk_messages;
        let (path, whole_bytes) = (self.path, self.whole_bytes);
        cut(self.writer.into_inner(), path, whole_bytes, error, lost)
    }
}

fn cut(output: Output, path: PathBuf, bytes: u64, error: McapError, lost: u64) -> Box<Failed> {
    let (file, _not_written) = output.to.into_parts();
    // If this fails too, the file ends with the beginning of a chunk, which readers skip.
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

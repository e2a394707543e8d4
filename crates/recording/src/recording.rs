//! Opens recordings: reads the channels and the positions of chunks.
//!
//! A finished file has an index at its end. A file whose recorder was killed has none, so opening it reads all records once,
//! up to the first one that is not whole.

use crate::channel::Channel;
use crate::chunk::{read_chunk, read_record, ChunkRange, RECORD_HEAD};
use crate::error::ReadError;
use crate::file::{ABOUT, BEGUN_NS, DROPPED, REPEATED};
use mcap::read::ChannelAccumulator;
use mcap::records::{op, MetadataIndex, Record};
use mcap::sans_io::{SummaryReadEvent, SummaryReader, SummaryReaderOptions};
use mcap::{McapError, Summary, MAGIC};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Larger metadata records are not read. Those of a recorder have some hundred bytes.
const METADATA_BYTES_MAX: u64 = 1 << 20;

/// A recording in a file. rgaps or any other program that writes MCAP in chunks may have written it.
#[derive(Debug)]
pub struct Recording {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) channels: BTreeMap<u16, Arc<Channel>>,
    /// Ordered by their first log times.
    pub(crate) chunks: Vec<ChunkRange>,
    /// Messages of each channel.
    pub(crate) counts: BTreeMap<u16, u64>,
    pub(crate) file_bytes: u64,
    pub(crate) missing: Option<Missing>,
    begun_ns: Option<u64>,
    /// Whether its first chunk repeats messages of earlier files.
    repeats: bool,
    /// Messages that were not written, by reason.
    pub(crate) dropped: BTreeMap<String, u64>,
}

/// The unreadable end of a file that was not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Bytes after the last whole record.
    pub bytes: u64,
    /// Why these bytes cannot be read.
    pub reason: String,
}

/// The files of a recording: `path` itself, or the MCAP files of a folder such as a bag of ROS 2, by name.
pub fn files_of(path: impl AsRef<Path>) -> Result<Vec<PathBuf>, ReadError> {
    let path = path.as_ref().to_owned();
    if !path.is_dir() {
        return Ok(vec![path]);
    }
    let entries = std::fs::read_dir(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = match entries {
        Ok(entries) => entries,
        Err(error) => return Err(ReadError::Io { path, error }),
    };
    let files = entries.into_iter().map(|entry| entry.path());
    let is_mcap = |file: &PathBuf| file.extension().is_some_and(|ending| ending == "mcap");
    let mut files: Vec<PathBuf> = files.filter(is_mcap).collect();
    files.sort();
    match files.is_empty() {
        true => Err(ReadError::NoFiles { path }),
        false => Ok(files),
    }
}

/// Names the format of a file that is not MCAP, by its first bytes.
fn other_format(begin: &[u8; MAGIC.len()]) -> &'static str {
    match begin {
        b"SQLite f" => "it is a bag in SQLite; 'ros2 bag convert' or 'rosbags-convert' makes one in MCAP of its folder",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "it is compressed as a whole; 'zstd -d' unpacks it",
        _ => "it does not begin like one",
    }
}

impl Recording {
    /// Opens a recording. Reads the index, or all records of a file without one.
    pub fn open(path: impl AsRef<Path>) -> Result<Recording, ReadError> {
        let path = path.as_ref().to_owned();
        let io = |error| ReadError::Io {
            path: path.clone(),
            error,
        };
        let mut file = File::open(&path).map_err(io)?;
        let about = file.metadata().map_err(io)?;
        let file_bytes = about.len();
        let mut magic = [0; MAGIC.len()];
        if file.read_exact(&mut magic).is_err() || magic != MAGIC {
            let found = match about.is_dir() {
                true => "it is a folder; name a file in it, and a bag's messages are in those that end with .mcap",
                false => other_format(&magic),
            };
            return Err(ReadError::NotMcap { path, found });
        }
        let summary = match is_finished(&file, file_bytes) {
            true => read_summary(&mut file, file_bytes).map_err(|error| ReadError::Index {
                path: path.clone(),
                error,
            })?,
            false => None,
        };
        let mut recording = Recording {
            path,
            file,
            channels: BTreeMap::new(),
            chunks: Vec::new(),
            counts: BTreeMap::new(),
            file_bytes,
            missing: None,
            begun_ns: None,
            repeats: false,
            dropped: BTreeMap::new(),
        };
        match summary {
            Some(summary) => recording.take_summary(&summary)?,
            None => recording.scan(),
        }
        let first = recording.chunks.iter_mut().min_by_key(|range| range.at);
        if let Some(first) = first.filter(|_| recording.repeats) {
            first.repeats = true;
        }
        recording
            .chunks
            .sort_by_key(|range| (range.start_ns, range.at));
        Ok(recording)
    }

    fn take_summary(&mut self, summary: &Summary) -> Result<(), ReadError> {
        let stats = summary.stats.as_ref();
        let messages = stats.map_or(0, |stats| stats.message_count);
        if summary.chunk_indexes.is_empty() && messages > 0 {
            let path = self.path.clone();
            return Err(ReadError::NoChunks { path });
        }
        self.counts =
            stats.map_or_else(BTreeMap::new, |stats| stats.channel_message_counts.clone());
        let channels = summary.channels.iter();
        self.channels = channels
            .map(|(id, channel)| (*id, Arc::new(Channel::of(channel))))
            .collect();
        let chunks = summary.chunk_indexes.iter().map(|index| ChunkRange {
            at: index.chunk_start_offset,
            bytes: index.chunk_length,
            start_ns: index.message_start_time,
            end_ns: index.message_end_time,
            repeats: false,
        });
        // The index may name a chunk outside of the file. `read_chunk` returns an error for it.
        self.chunks = chunks.collect();
        for MetadataIndex { offset, length, .. } in &summary.metadata_indexes {
            if *length > METADATA_BYTES_MAX {
                continue;
            }
            if let Ok((op::METADATA, body)) = read_record(&self.file, *offset, *length) {
                self.take_metadata(&body);
            }
        }
        Ok(())
    }

    fn take_metadata(&mut self, body: &[u8]) {
        let Ok(Record::Metadata(record)) = mcap::parse_record(op::METADATA, body) else {
            return;
        };
        match record.name.as_str() {
            ABOUT => {
                self.begun_ns = record.metadata.get(BEGUN_NS).and_then(|ns| ns.parse().ok());
                self.repeats = record.metadata.contains_key(REPEATED);
            }
            DROPPED => {
                let counts = record.metadata.into_iter();
                let counts =
                    counts.filter_map(|(reason, count)| Some((reason, count.parse().ok()?)));
                self.dropped = counts.collect();
            }
            _ => {}
        }
    }

    /// Reads the records of a file without an index, up to the first one that is not whole.
    fn scan(&mut self) {
        let mut known = ChannelAccumulator::default();
        let mut at = MAGIC.len() as u64;
        let reason = loop {
            match self.scan_record(at, &mut known) {
                Ok(Some(bytes)) => at += bytes,
                Ok(None) => break "its recorder did not finish it; there is no index".to_owned(),
                Err(reason) => break reason,
            }
        };
        self.missing = Some(Missing {
            bytes: self.file_bytes - at,
            reason,
        });
    }

    /// Reads the record at `at`. Returns its length with its head; None: the file ends here. The error says why it is not whole.
    fn scan_record(
        &mut self,
        at: u64,
        known: &mut ChannelAccumulator<'static>,
    ) -> Result<Option<u64>, String> {
        if at == self.file_bytes {
            return Ok(None);
        }
        let mut head = [0; RECORD_HEAD as usize];
        let not_whole = |_| "the last record is not whole".to_owned();
        self.file.read_exact_at(&mut head, at).map_err(not_whole)?;
        let length = u64::from_le_bytes(head[1..].try_into().expect("eight bytes"));
        let bytes = length.checked_add(RECORD_HEAD);
        let bytes = bytes.filter(|bytes| {
            at.checked_add(*bytes)
                .is_some_and(|end| end <= self.file_bytes)
        });
        let Some(bytes) = bytes else {
            return Err(
                "the last chunk is not whole: its recorder was killed, or the disk was full"
                    .to_owned(),
            );
        };
        match head[0] {
            op::CHUNK => self.scan_chunk(at, bytes, known).map_err(|error| {
                format!(
                    "the last chunk is damaged: {}",
                    rgaps_session::explain(&error)
                )
            })?,
            op::METADATA if bytes <= METADATA_BYTES_MAX => {
                let read = read_record(&self.file, at, bytes);
                self.take_metadata(&read.map_err(|error| error.to_string())?.1);
            }
            // The index follows the data, and is not whole, since the file is not finished.
            op::DATA_END => return Err("its index is not whole".to_owned()),
            0 => {
                return Err(
                    "the rest is zeros: the machine stopped before it was written".to_owned(),
                )
            }
            _ => {}
        }
        Ok(Some(bytes))
    }

    fn scan_chunk(
        &mut self,
        at: u64,
        bytes: u64,
        known: &mut ChannelAccumulator<'static>,
    ) -> Result<(), McapError> {
        let mut range = ChunkRange {
            at,
            bytes,
            start_ns: u64::MAX,
            end_ns: 0,
            repeats: false,
        };
        let mut channels = Vec::new();
        let messages = read_chunk(&self.file, range, |record| match record {
            Record::Schema { header, data } => known.add_schema_from_slice(header, &data),
            Record::Channel(channel) => {
                channels.push(channel.id);
                known.add_channel(channel)
            }
            _ => Ok(()),
        })?;
        for id in channels {
            if let Some(channel) = known.get(id) {
                self.channels.insert(id, Arc::new(Channel::of(&channel)));
            }
        }
        for message in &messages {
            range.start_ns = range.start_ns.min(message.header.log_time);
            range.end_ns = range.end_ns.max(message.header.log_time);
            *self.counts.entry(message.header.channel_id).or_default() += 1;
        }
        if !messages.is_empty() {
            self.chunks.push(range);
        }
        Ok(())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its channels: one for each publisher and schema of a topic.
    pub fn channels(&self) -> impl Iterator<Item = &Channel> {
        self.channels.values().map(|channel| &**channel)
    }

    /// The first log time of the file's own messages, without those that it repeats; `u64::MAX` if it has none.
    pub(crate) fn first_ns(&self) -> u64 {
        let mut own = self.chunks.iter().filter(|range| !range.repeats);
        own.next().map_or(u64::MAX, |range| range.start_ns)
    }

    pub(crate) fn has_transient_local(&self) -> bool {
        self.channels
            .values()
            .any(|channel| channel.transient_local)
    }

    /// The unreadable end of the file. None: the file is finished.
    pub fn missing(&self) -> Option<&Missing> {
        self.missing.as_ref()
    }

    /// When the file's own first message was published: nanoseconds since 1970. Messages from histories, and those that the file
    /// repeats from earlier files, are older.
    pub fn begun_ns(&self) -> u64 {
        let begun_ns = self.begun_ns.unwrap_or_default();
        match self.first_ns() {
            u64::MAX => begun_ns,
            first_ns => begun_ns.max(first_ns),
        }
    }

    /// The time of the last message: nanoseconds since 1970.
    pub fn end_ns(&self) -> u64 {
        let ends = self.chunks.iter().map(|range| range.end_ns);
        ends.max().unwrap_or_else(|| self.begun_ns())
    }
}

/// Whether the file ends with MCAP's magic bytes, which a recorder writes last.
fn is_finished(file: &File, file_bytes: u64) -> bool {
    let mut magic = [0; MAGIC.len()];
    let at = file_bytes.saturating_sub(MAGIC.len() as u64);
    at > MAGIC.len() as u64 && file.read_exact_at(&mut magic, at).is_ok() && magic == MAGIC
}

/// Reads the index of a finished file. None: it has none.
fn read_summary(file: &mut File, file_bytes: u64) -> Result<Option<Summary>, McapError> {
    file.seek(SeekFrom::Start(0))?;
    let options = SummaryReaderOptions::default()
        .with_file_size(file_bytes)
        .with_record_length_limit(usize::try_from(file_bytes).unwrap_or(usize::MAX));
    let mut reader = SummaryReader::new_with_options(options);
    while let Some(event) = reader.next_event() {
        match event? {
            SummaryReadEvent::ReadRequest(bytes) => {
                let read = file.read(reader.insert(bytes))?;
                reader.notify_read(read);
            }
            SummaryReadEvent::SeekRequest(to) => reader.notify_seeked(file.seek(to)?),
        }
    }
    Ok(reader.finish())
}

//! Reads chunks and their records from a file. Messages are slices of the chunk's bytes, without a copy.

use bytes::Bytes;
use mcap::records::{op, ChunkHeader, MessageHeader, Record};
use mcap::McapError;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;

/// Bytes of the head of each record: its opcode and its length.
pub(crate) const RECORD_HEAD: u64 = 9;

/// Most memory that is reserved for a chunk on the word of its header, before the bytes are decompressed.
const UNSEEN_BYTES_MAX: u64 = 64 << 20;

/// Where a chunk lies in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkRange {
    /// Offset of its opcode in the file.
    pub(crate) at: u64,
    /// Bytes of the record, with its head.
    pub(crate) bytes: u64,
    /// The log times of its messages.
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    /// Whether the chunk repeats messages of earlier files.
    pub(crate) repeats: bool,
}

/// A message of a chunk, not decoded yet.
pub(crate) struct Raw {
    pub(crate) header: MessageHeader,
    pub(crate) data: Bytes,
}

/// Reads the record at `at`, which has `bytes` bytes with its head. Returns its opcode and its body.
pub(crate) fn read_record(file: &File, at: u64, bytes: u64) -> std::io::Result<(u8, Vec<u8>)> {
    let bytes = usize::try_from(bytes).map_err(std::io::Error::other)?;
    let mut all = vec![0; bytes];
    file.read_exact_at(&mut all, at)?;
    let opcode = all.first().copied().unwrap_or_default();
    let head = (RECORD_HEAD as usize).min(all.len());
    Ok((opcode, all.split_off(head)))
}

/// Reads, decompresses and checks a chunk. Returns all its messages, or why the chunk is damaged. Passes other records to `each`.
pub(crate) fn read_chunk(
    file: &File,
    range: ChunkRange,
    mut each: impl FnMut(Record<'_>) -> Result<(), McapError>,
) -> Result<Vec<Raw>, McapError> {
    let end = range.at.checked_add(range.bytes);
    if end.is_none_or(|end| end > file.metadata().map_or(0, |about| about.len())) {
        return Err(McapError::UnexpectedEof);
    }
    let mut all = vec![0; range.bytes as usize];
    file.read_exact_at(&mut all, range.at)?;
    let all = Bytes::from(all);
    let body = all.get(RECORD_HEAD as usize..).ok_or(McapError::BadIndex)?;
    if all[0] != op::CHUNK {
        return Err(McapError::BadIndex);
    }
    let Record::Chunk { header, data } = mcap::parse_record(op::CHUNK, body)? else {
        return Err(McapError::BadIndex);
    };
    let records = decompress(&header, all.slice_ref(&data))?;
    let saved = header.uncompressed_crc;
    let calculated = crc32fast::hash(&records);
    // 0 means that the writer calculated no checksum.
    if saved != 0 && saved != calculated {
        return Err(McapError::BadChunkCrc { saved, calculated });
    }
    let mut messages = Vec::new();
    let mut rest: &[u8] = &records;
    while !rest.is_empty() {
        let (opcode, body);
        (opcode, body, rest) = split_record(rest)?;
        match mcap::parse_record(opcode, body)? {
            Record::Message { header, data } => messages.push(Raw {
                header,
                data: records.slice_ref(&data),
            }),
            other => each(other)?,
        }
    }
    Ok(messages)
}

/// The first record of `bytes`: its opcode, its body, and what follows it.
fn split_record(bytes: &[u8]) -> Result<(u8, &[u8], &[u8]), McapError> {
    let (head, rest) = bytes
        .split_at_checked(RECORD_HEAD as usize)
        .ok_or(McapError::UnexpectedEoc)?;
    let length = u64::from_le_bytes(head[1..].try_into().expect("eight bytes"));
    let length = usize::try_from(length).map_err(|_| McapError::UnexpectedEoc)?;
    let (body, rest) = rest
        .split_at_checked(length)
        .ok_or(McapError::UnexpectedEoc)?;
    Ok((head[0], body, rest))
}

/// Decompresses a chunk. A damaged header may claim any size, so this reserves at most [`UNSEEN_BYTES_MAX`] in advance.
fn decompress(header: &ChunkHeader, data: Bytes) -> Result<Bytes, McapError> {
    let size = header.uncompressed_size;
    let mut records = Vec::with_capacity(size.min(UNSEEN_BYTES_MAX) as usize);
    let reads = |reader: &mut dyn std::io::Read, records: &mut Vec<u8>| {
        reader.take(size).read_to_end(records)
    };
    match header.compression.as_str() {
        "" => return check_size(data, size),
        "zstd" => reads(&mut zstd::Decoder::with_buffer(&data[..])?, &mut records)?,
        "lz4" => reads(&mut lz4::Decoder::new(&data[..])?, &mut records)?,
        other => return Err(McapError::UnsupportedCompression(other.to_owned())),
    };
    check_size(records.into(), size)
}

fn check_size(records: Bytes, size: u64) -> Result<Bytes, McapError> {
    match records.len() as u64 == size {
        true => Ok(records),
        false => Err(McapError::UnexpectedEoc),
    }
}

//! CDR, the encoding of messages of ROS 2 (XCDR1 in either byte order): a header of four bytes, then the fields, each aligned to its
//! size from the end of the header.

use std::io::{Read, Seek, SeekFrom};

/// Bytes before the first field: the encoding, and options that nobody uses.
pub(crate) const HEADER_BYTES: usize = 4;
/// Plain CDR, little-endian.
const LITTLE_ENDIAN: [u8; HEADER_BYTES] = [0, 1, 0, 0];

/// A number in CDR.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bool,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

impl Kind {
    /// Its size and alignment.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Kind::Bool | Kind::I8 | Kind::U8 => 1,
            Kind::I16 | Kind::U16 => 2,
            Kind::I32 | Kind::U32 | Kind::F32 => 4,
            Kind::I64 | Kind::U64 | Kind::F64 => 8,
        }
    }

    /// The element type of arrays of it.
    pub(crate) fn dtype(self) -> &'static str {
        match self {
            Kind::Bool => "bool",
            Kind::I8 => "int8",
            Kind::U8 => "uint8",
            Kind::I16 => "int16",
            Kind::U16 => "uint16",
            Kind::I32 => "int32",
            Kind::U32 => "uint32",
            Kind::I64 => "int64",
            Kind::U64 => "uint64",
            Kind::F32 => "float32",
            Kind::F64 => "float64",
        }
    }
}

/// Reads a message. It copies fields that it is asked for, and no others.
#[derive(Debug)]
pub struct Reader<R> {
    bytes: R,
    /// Since the end of the header.
    at: usize,
    len: usize,
    is_big: bool,
}

impl<R: Read + Seek> Reader<R> {
    /// Begins to read a message of `len` bytes.
    pub fn new(mut bytes: R, len: usize) -> Result<Reader<R>, String> {
        let mut header = [0; HEADER_BYTES];
        let read = bytes.read_exact(&mut header);
        if read.is_err() || len < HEADER_BYTES || !matches!(header, [0, 0 | 1, ..]) {
            return Err("it is not CDR".to_owned());
        }
        Ok(Reader {
            bytes,
            at: 0,
            len: len - HEADER_BYTES,
            is_big: header[1] == 0,
        })
    }

    fn check(&self, bytes: usize) -> Result<(), String> {
        match bytes <= self.len - self.at {
            true => Ok(()),
            false => Err("it ends before its fields do".to_owned()),
        }
    }

    /// Passes over bytes, and returns where they begin in the payload.
    pub fn skip(&mut self, bytes: usize) -> Result<usize, String> {
        self.check(bytes)?;
        let begin = HEADER_BYTES + self.at;
        self.at += bytes;
        let sought = self.bytes.seek(SeekFrom::Current(bytes as i64));
        sought.map_err(|error| error.to_string())?;
        Ok(begin)
    }

    fn take(&mut self, bytes: usize) -> Result<Vec<u8>, String> {
        self.check(bytes)?;
        let mut taken = vec![0; bytes];
        let read = self.bytes.read_exact(&mut taken);
        read.map_err(|error| error.to_string())?;
        self.at += bytes;
        Ok(taken)
    }

    /// So many numbers, in little-endian.
    pub fn numbers(&mut self, kind: Kind, count: usize) -> Result<Vec<u8>, String> {
        let size = kind.bytes();
        if count > 0 {
            self.skip(self.at.next_multiple_of(size) - self.at)?;
        }
        let bytes = count.checked_mul(size).ok_or("it has too many elements")?;
        let mut taken = self.take(bytes)?;
        if self.is_big {
            taken.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        Ok(taken)
    }

    /// A number of 32 bits.
    pub fn u32(&mut self) -> Result<u32, String> {
        let bytes = self.numbers(Kind::U32, 1)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    /// A text.
    pub fn text(&mut self) -> Result<String, String> {
        let bytes = self.u32()? as usize;
        let mut text = self.take(bytes)?;
        if text.last() == Some(&0) {
            text.pop();
        }
        String::from_utf8(text).map_err(|_| "a text of it is not UTF-8".to_owned())
    }
}

/// Writes a message in little-endian.
pub(crate) struct Writer {
    bytes: Vec<u8>,
    /// Bytes that are not in `bytes`: they lie between two pieces of the message.
    rest: usize,
}

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer {
            bytes: LITTLE_ENDIAN.to_vec(),
            rest: 0,
        }
    }

    fn at(&self) -> usize {
        self.bytes.len() - HEADER_BYTES + self.rest
    }

    /// Numbers in little-endian.
    pub(crate) fn numbers(&mut self, kind: Kind, numbers: &[u8]) {
        if !numbers.is_empty() {
            let padding = self.at().next_multiple_of(kind.bytes()) - self.at();
            self.bytes.extend(std::iter::repeat_n(0, padding));
        }
        self.bytes.extend_from_slice(numbers);
    }

    pub(crate) fn u32(&mut self, number: u32) {
        self.numbers(Kind::U32, &number.to_le_bytes());
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.u32(text.len() as u32 + 1);
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
    }

    /// Counts bytes that are written elsewhere, and returns where they belong.
    pub(crate) fn leave_out(&mut self, bytes: usize) -> usize {
        self.rest += bytes;
        self.bytes.len()
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

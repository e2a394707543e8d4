//! Reads and writes CDR, the encoding of messages of ROS 2 (XCDR1; reads both byte orders, writes little-endian): a header of four
//! bytes, then the fields, each aligned to its size, counted from the end of the header.

use std::io::{Read, Seek, SeekFrom};

/// Bytes of the header: the encoding, and two bytes of options, which are unused.
pub(crate) const HEADER_BYTES: usize = 4;
/// Plain CDR, little-endian.
const LITTLE_ENDIAN: [u8; HEADER_BYTES] = [0, 1, 0, 0];

/// The type of a number in CDR.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberType {
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

impl NumberType {
    /// Its size and alignment.
    pub(crate) fn bytes(self) -> usize {
        match self {
            NumberType::Bool | NumberType::I8 | NumberType::U8 => 1,
            NumberType::I16 | NumberType::U16 => 2,
            NumberType::I32 | NumberType::U32 | NumberType::F32 => 4,
            NumberType::I64 | NumberType::U64 | NumberType::F64 => 8,
        }
    }

    /// The name of the element type of arrays of this number.
    pub(crate) fn dtype(self) -> &'static str {
        match self {
            NumberType::Bool => "bool",
            NumberType::I8 => "int8",
            NumberType::U8 => "uint8",
            NumberType::I16 => "int16",
            NumberType::U16 => "uint16",
            NumberType::I32 => "int32",
            NumberType::U32 => "uint32",
            NumberType::I64 => "int64",
            NumberType::U64 => "uint64",
            NumberType::F32 => "float32",
            NumberType::F64 => "float64",
        }
    }
}

/// Reads the fields of a message in their order. Copies only the fields that the caller reads, not those that it skips.
#[derive(Debug)]
pub struct CdrReader<R> {
    bytes: R,
    /// Position of the next field, counted from the end of the header.
    at: usize,
    len: usize,
    is_big: bool,
}

impl<R: Read + Seek> CdrReader<R> {
    /// Reads the header of a message of `len` bytes.
    pub fn new(mut bytes: R, len: usize) -> Result<CdrReader<R>, String> {
        let mut header = [0; HEADER_BYTES];
        let read = bytes.read_exact(&mut header);
        if read.is_err() || len < HEADER_BYTES || !matches!(header, [0, 0 | 1, ..]) {
            return Err("it is not CDR".to_owned());
        }
        Ok(CdrReader {
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

    /// Skips `bytes` bytes. Returns where they begin in the message, header included.
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

    /// Reads `count` numbers. Returns them in little-endian.
    pub fn numbers(&mut self, kind: NumberType, count: usize) -> Result<Vec<u8>, String> {
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

    /// Reads an unsigned number of 32 bits.
    pub fn u32(&mut self) -> Result<u32, String> {
        let bytes = self.numbers(NumberType::U32, 1)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    /// Reads a text: its length, its bytes, and a 0, which is left out.
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
pub(crate) struct CdrWriter {
    bytes: Vec<u8>,
    /// Bytes of the message that are not in `bytes`, since the caller inserts them.
    rest: usize,
}

impl CdrWriter {
    pub(crate) fn new() -> CdrWriter {
        CdrWriter {
            bytes: LITTLE_ENDIAN.to_vec(),
            rest: 0,
        }
    }

    fn at(&self) -> usize {
        self.bytes.len() - HEADER_BYTES + self.rest
    }

    /// Writes numbers, which `numbers` has in little-endian, with padding before them.
    pub(crate) fn numbers(&mut self, kind: NumberType, numbers: &[u8]) {
        if !numbers.is_empty() {
            let padding = self.at().next_multiple_of(kind.bytes()) - self.at();
            self.bytes.extend(std::iter::repeat_n(0, padding));
        }
        self.bytes.extend_from_slice(numbers);
    }

    pub(crate) fn u32(&mut self, number: u32) {
        self.numbers(NumberType::U32, &number.to_le_bytes());
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.u32(text.len() as u32 + 1);
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
    }

    /// Leaves out bytes that the caller inserts. Returns the position for them in the written bytes.
    pub(crate) fn leave_out(&mut self, bytes: usize) -> usize {
        self.rest += bytes;
        self.bytes.len()
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

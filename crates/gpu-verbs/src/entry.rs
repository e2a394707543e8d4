//! Decodes the entries of send queues and encodes completions, in the format of mlx5's manual (PRM) and rdma-core's `mlx5dv.h`. All
//! fields are big-endian. The code shares nothing with the encoder of `rgaps/device_rdma.cuh`, so each checks the other.
//!
//! ```text
//! send queue entry     0 opmod, 1-2 index, 3 opcode, 4-6 queue pair, 7 ds (16-byte units), 8-10 zero, 11 fm_ce_se, 12 immediate
//!                     16 remote address, 24 remote key, 28 zero
//!   write, read       32 bytes, 36 local key, 40 local address
//!   inline write      32 bytes with bit 31, 36 the bytes themselves
//!   atomic            32 add or swap, 40 compare, 48 bytes (8), 52 local key, 56 local address
//! completion          36 immediate, 44 bytes, 54 vendor's syndrome, 55 syndrome, 57-59 queue pair, 60 index, 63 opcode and owner
//! ```

use crate::regions::Change;
use crate::view::{Syndrome, ENTRY_BYTES, WORK_BYTES_MAX};

const NOP: u8 = 0x00;
const WRITE: u8 = 0x08;
const WRITE_IMMEDIATE: u8 = 0x09;
const READ: u8 = 0x10;
const COMPARE_SWAP: u8 = 0x11;
const FETCH_ADD: u8 = 0x12;

/// Bits 3:2 of fm_ce_se (completion enable) that ask for a completion. Without them only an error completes.
const COMPLETES: u8 = 0b1000;
/// Bit of the byte count that marks inline bytes.
const INLINE: u32 = 1 << 31;
/// Most inline bytes of an entry of 64 bytes.
pub(crate) const INLINE_BYTES_MAX: usize = 28;

/// One entry, as raw bytes.
pub(crate) type Raw = [u8; ENTRY_BYTES as usize];

/// The operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// Does nothing.
    Nop,
    /// Writes into the peer's memory.
    Write,
    /// Writes into the peer's memory, and completes a receive of the peer with this immediate.
    WriteImmediate(u32),
    /// Reads the peer's memory.
    Read,
    /// Changes a word of the peer's memory atomically, and reads its old value.
    Change(Change),
}

/// Where this side's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// In registered memory.
    Region {
        /// Their address.
        address: u64,
        /// The memory's key.
        key: u32,
    },
    /// In the entry.
    Inline([u8; INLINE_BYTES_MAX]),
}

/// A work, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// How many works were posted to the queue before it, ever.
    pub index: u64,
    /// Its operation.
    pub kind: WorkKind,
    /// Whether it completes also when it succeeds.
    pub completes: bool,
    /// The peer's address.
    pub remote: u64,
    /// The key of the peer's memory.
    pub remote_key: u32,
    /// This side's bytes.
    pub local: Local,
    /// How many bytes.
    pub bytes: u32,
}

/// Why an entry cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The entry is not the one for which the doorbell was rung, for example a stale one of an earlier round.
    #[error("entry {wanted:#x} has the index {found:#x}")]
    Index {
        /// The low 16 bits of the expected index.
        wanted: u16,
        /// The entry's index.
        found: u16,
    },
    /// The entry names another queue pair.
    #[error("an entry of queue pair {wanted:#x} is for {found:#x}")]
    Number {
        /// The number of the queue pair in whose queue the entry lies.
        wanted: u32,
        /// The number in the entry.
        found: u32,
    },
    /// The opcode is unknown.
    #[error("there is no opcode {0:#04x} here")]
    Opcode(u8),
    /// The entry's length in 16-byte units does not go with its opcode.
    #[error("opcode {0:#04x} cannot have {1} units")]
    Units(u8, u8),
    /// A field has bits that must be zero.
    #[error("bytes at {0} are not zero")]
    Reserved(usize),
    /// No work may have this number of bytes.
    #[error("no work has {0} bytes")]
    Bytes(u32),
}

fn field<const BYTES: usize>(raw: &Raw, at: usize) -> [u8; BYTES] {
    raw[at..at + BYTES].try_into().expect("inside of an entry")
}

fn half(raw: &Raw, at: usize) -> u32 {
    u32::from_be_bytes(field(raw, at))
}

fn word(raw: &Raw, at: usize) -> u64 {
    u64::from_be_bytes(field(raw, at))
}

/// Decodes the entry with index `index` of the queue pair `number`.
pub(crate) fn decode(raw: &Raw, index: u64, number: u32) -> Result<Work, EntryError> {
    let wanted = index as u16;
    let found = u16::from_be_bytes(field(raw, 1));
    if found != wanted {
        return Err(EntryError::Index { wanted, found });
    }
    let found = half(raw, 4) >> 8;
    if found != number {
        return Err(EntryError::Number {
            wanted: number,
            found,
        });
    }
    let (opcode, units, flags) = (raw[3], raw[7], raw[11]);
    let zero = |at: usize, bytes: usize| match raw[at..at + bytes].iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => Err(EntryError::Reserved(at)),
    };
    zero(0, 1)?;
    zero(8, 3)?;
    if flags & !COMPLETES != 0 {
        return Err(EntryError::Reserved(11));
    }
    let kind = match opcode {
        NOP => WorkKind::Nop,
        WRITE => WorkKind::Write,
        WRITE_IMMEDIATE => WorkKind::WriteImmediate(half(raw, 12)),
        READ => WorkKind::Read,
        COMPARE_SWAP => WorkKind::Change(Change::Swap(word(raw, 40), word(raw, 32))),
        FETCH_ADD => WorkKind::Change(Change::Add(word(raw, 32))),
        other => return Err(EntryError::Opcode(other)),
    };
    if !matches!(kind, WorkKind::WriteImmediate(_)) {
        zero(12, 4)?;
    }
    let mut work = Work {
        index,
        kind,
        completes: flags & COMPLETES != 0,
        remote: 0,
        remote_key: 0,
        local: Local::Inline([0; INLINE_BYTES_MAX]),
        bytes: 0,
    };
    if kind == WorkKind::Nop {
        return match units {
            1 => Ok(work),
            other => Err(EntryError::Units(opcode, other)),
        };
    }
    zero(28, 4)?;
    work.remote = word(raw, 16);
    work.remote_key = half(raw, 24);
    (work.local, work.bytes) = local(raw, kind, units)?;
    Ok(work)
}

fn local(raw: &Raw, kind: WorkKind, units: u8) -> Result<(Local, u32), EntryError> {
    let opcode = raw[3];
    let data_at = match kind {
        WorkKind::Change(_) => 48,
        _ => 32,
    };
    let bytes = half(raw, data_at);
    if bytes & INLINE != 0 {
        let bytes = bytes & !INLINE;
        let may = matches!(kind, WorkKind::Write | WorkKind::WriteImmediate(_));
        if !may || bytes as usize > INLINE_BYTES_MAX {
            return Err(EntryError::Bytes(bytes));
        }
        // Units of the control segment, of the remote address, and of the length with the bytes.
        let wanted = 2 + (4 + bytes).div_ceil(16);
        return match u32::from(units) == wanted {
            true => Ok((Local::Inline(field(raw, 36)), bytes)),
            false => Err(EntryError::Units(opcode, units)),
        };
    }
    if usize::from(units) != data_at / 16 + 1 {
        return Err(EntryError::Units(opcode, units));
    }
    let is_word = matches!(kind, WorkKind::Change(_));
    if bytes > WORK_BYTES_MAX || (is_word && bytes != 8) {
        return Err(EntryError::Bytes(bytes));
    }
    let region = Local::Region {
        key: half(raw, data_at + 4),
        address: word(raw, data_at + 8),
    };
    Ok((region, bytes))
}

/// The content of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Failed(Syndrome),
    Received { immediate: u32, bytes: u32 },
    ReceiveFailed(Syndrome),
}

/// The last byte of a completion that was never written: opcode 15, owned by the card.
pub(crate) const NO_COMPLETION: u8 = 0xf1;

/// Encodes a completion. `owner` is the lowest bit of the number of times that the completion queue has wrapped.
pub(crate) fn completion(outcome: Outcome, number: u32, counter: u16, owner: u8) -> Raw {
    let mut raw: Raw = [0; ENTRY_BYTES as usize];
    let (opcode, syndrome) = match outcome {
        Outcome::Done => (0, None),
        Outcome::Received { immediate, bytes } => {
            raw[36..40].copy_from_slice(&immediate.to_be_bytes());
            raw[44..48].copy_from_slice(&bytes.to_be_bytes());
            (1, None)
        }
        Outcome::Failed(syndrome) => (13, Some(syndrome)),
        Outcome::ReceiveFailed(syndrome) => (14, Some(syndrome)),
    };
    raw[55] = syndrome.map_or(0, |syndrome| syndrome as u8);
    raw[56..60].copy_from_slice(&(number & 0xff_ffff).to_be_bytes());
    raw[60..62].copy_from_slice(&counter.to_be_bytes());
    raw[63] = opcode << 4 | owner;
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Raw {
        let mut raw = [0; ENTRY_BYTES as usize];
        for (at, half) in text.split_whitespace().enumerate() {
            let half = u32::from_str_radix(half, 16).unwrap();
            raw[at * 4..at * 4 + 4].copy_from_slice(&half.to_be_bytes());
        }
        raw
    }

    /// The example of `shared/reference/gpu-initiated.md`. Its offsets were checked by compiling rdma-core's header.
    const WRITE_ENTRY: &str =
        "00123408 00abcd03 00000008 00000000 11223344 55667788 00c0ffee 00000000 \
                               00001000 00beef01 00007f00 00001000";

    #[test]
    fn the_vector_of_the_reference_is_a_write() {
        let work = decode(&raw(WRITE_ENTRY), 0x1234, 0xabcd).unwrap();
        let wanted = Work {
            index: 0x1234,
            kind: WorkKind::Write,
            completes: true,
            remote: 0x1122_3344_5566_7788,
            remote_key: 0xc0_ffee,
            local: Local::Region {
                address: 0x7f00_0000_1000,
                key: 0xbe_ef01,
            },
            bytes: 4096,
        };
        assert_eq!(work, wanted);
        // The index has 16 bits on the wire.
        assert!(decode(&raw(WRITE_ENTRY), 0x5_1234, 0xabcd).is_ok());
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        let entry = raw(WRITE_ENTRY);
        let changed = |at: usize, value: u8| {
            let mut entry = entry;
            entry[at] = value;
            decode(&entry, 0x1234, 0xabcd)
        };
        let refused = [
            (0, 1, EntryError::Reserved(0)),
            (
                2,
                0x33,
                EntryError::Index {
                    wanted: 0x1234,
                    found: 0x1233,
                },
            ),
            (3, 0x0b, EntryError::Opcode(0x0b)),
            (
                6,
                0xcc,
                EntryError::Number {
                    wanted: 0xabcd,
                    found: 0xabcc,
                },
            ),
            (7, 4, EntryError::Units(8, 4)),
            (9, 1, EntryError::Reserved(8)),
            (11, 0x48, EntryError::Reserved(11)),
            (15, 1, EntryError::Reserved(12)),
            (31, 1, EntryError::Reserved(28)),
            (32, 0x60, EntryError::Bytes(0x6000_1000)),
            (32, 0x80, EntryError::Bytes(0x1000)),
        ];
        for (at, value, error) in refused {
            assert_eq!(changed(at, value), Err(error), "byte {at}");
        }
    }

    #[test]
    fn completions_have_their_fields_where_the_manual_has_them() {
        let outcome = Outcome::Received {
            immediate: 0x0102_0304,
            bytes: 0x0506,
        };
        let received = completion(outcome, 0xab_cdef, 0x1234, 1);
        assert_eq!(received[36..40], [1, 2, 3, 4]);
        assert_eq!(received[44..48], [0, 0, 5, 6]);
        assert_eq!(received[56..], [0, 0xab, 0xcd, 0xef, 0x12, 0x34, 0, 0x11]);
        let failed = completion(Outcome::Failed(Syndrome::RemoteAccess), 1, 2, 0);
        assert_eq!((failed[54], failed[55], failed[63]), (0, 0x13, 0xd0));
    }
}

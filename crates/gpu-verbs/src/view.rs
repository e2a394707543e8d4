//! The layout that host and kernels share: the parameter that describes a queue pair to kernels, and the words of a queue
//! pair that only kernels use. Kernels are compiled against `rgaps/device_rdma_layout.h`, which [`header`] generates. A test
//! compares the two.

use std::mem::{offset_of, size_of};

/// Bytes of an entry of a send queue or a completion queue.
pub const ENTRY_BYTES: u64 = 64;
/// Bytes of an entry of a receive queue. Its entries name no memory: only immediates arrive.
pub(crate) const RECEIVE_BYTES: u64 = 16;
/// Most entries of a queue, as a power of two: indices on the wire have 16 bits.
pub const QUEUE_LOG2_MAX: u32 = 15;
/// Fewest entries of a queue, as a power of two: a quarter of them must be at least one.
pub const QUEUE_LOG2_MIN: u32 = 2;
/// Most bytes of one work.
pub const WORK_BYTES_MAX: u32 = 1 << 30;

/// Ability of a back end: writes, with or without immediate.
pub const CAN_WRITE: u32 = 1;
/// Ability of a back end: reads.
pub const CAN_READ: u32 = 2;
/// Ability of a back end: atomics.
pub const CAN_CHANGE: u32 = 4;

/// Word of a doorbell record for receives.
pub(crate) const RECORD_RECEIVE: u64 = 0;
/// Word of a doorbell record for sends.
pub(crate) const RECORD_SEND: u64 = 4;

// Offsets of the words that kernels keep between launches, and share if several kernels use the queue pair.
const STATE_RESERVED: u64 = 0;
const STATE_READY: u64 = 64;
const STATE_RINGER: u64 = 128;
const STATE_COMPLETED: u64 = 192;
const STATE_FAILURE: u64 = 200;
const STATE_TAKEN: u64 = 256;
const STATE_DRAINER: u64 = 320;
const STATE_RECEIVED: u64 = 384;
const STATE_FILLED: u64 = 448;

/// Bytes of the words of a queue pair that only kernels use: the fixed ones, and one for each entry of the send queue.
pub(crate) fn state_bytes(sends_log2: u32) -> u64 {
    STATE_FILLED + (size_of::<u64>() as u64) * (1 << sends_log2)
}

/// Addresses of a queue pair, as kernels see them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePairView {
    /// The send queue.
    pub sends: u64,
    /// Its completion queue.
    pub completions: u64,
    /// The completion queue of receives.
    pub receive_completions: u64,
    /// The doorbell record.
    pub record: u64,
    /// The doorbell record of the completion queue.
    pub completion_record: u64,
    /// That of the completion queue of receives.
    pub receive_completion_record: u64,
    /// The doorbell.
    pub doorbell: u64,
    /// Words that only kernels use.
    pub state: u64,
    /// The queue pair's number.
    pub number: u32,
    /// Entries of the send queue, as a power of two.
    pub sends_log2: u32,
    /// Entries of its completion queue.
    pub completions_log2: u32,
    /// Entries of the receive queue and of its completion queue.
    pub receives_log2: u32,
    /// What the back end can do: [`CAN_WRITE`], [`CAN_READ`], [`CAN_CHANGE`].
    pub abilities: u32,
    /// Padding.
    pub reserved: u32,
}

/// Why a work failed, with the numbers of mlx5 (`mlx5_ifc`, and the `enum` of `mlx5dv.h`), apart from [`Syndrome::Corrupt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Syndrome {
    /// More bytes than the work or the device takes.
    LocalLength = 0x01,
    /// A card cannot carry out such an entry.
    LocalOperation = 0x02,
    /// The key is not that of this side's memory at the address.
    LocalProtection = 0x04,
    /// The work was not carried out, since the queue pair had failed before.
    Flushed = 0x05,
    /// The peer does not support the request, or not for this memory.
    RemoteInvalid = 0x12,
    /// This side has no right to use the peer's memory at the address in this way.
    RemoteAccess = 0x13,
    /// The peer failed.
    RemoteOperation = 0x14,
    /// The peer does not answer.
    Unreachable = 0x15,
    /// The peer has posted no receive.
    ReceiverNotReady = 0x16,
    /// A kernel found a completion that its queue cannot have. No card writes this syndrome.
    Corrupt = 0xff,
}

impl Syndrome {
    /// All of them.
    pub const ALL: [Syndrome; 10] = [
        Syndrome::LocalLength,
        Syndrome::LocalOperation,
        Syndrome::LocalProtection,
        Syndrome::Flushed,
        Syndrome::RemoteInvalid,
        Syndrome::RemoteAccess,
        Syndrome::RemoteOperation,
        Syndrome::Unreachable,
        Syndrome::ReceiverNotReady,
        Syndrome::Corrupt,
    ];

    /// The syndrome with this number, if there is one.
    pub fn from_code(code: u8) -> Option<Syndrome> {
        Self::ALL.into_iter().find(|known| *known as u8 == code)
    }

    fn c_name(self) -> &'static str {
        match self {
            Syndrome::LocalLength => "LOCAL_LENGTH",
            Syndrome::LocalOperation => "LOCAL_OPERATION",
            Syndrome::LocalProtection => "LOCAL_PROTECTION",
            Syndrome::Flushed => "FLUSHED",
            Syndrome::RemoteInvalid => "REMOTE_INVALID",
            Syndrome::RemoteAccess => "REMOTE_ACCESS",
            Syndrome::RemoteOperation => "REMOTE_OPERATION",
            Syndrome::Unreachable => "UNREACHABLE",
            Syndrome::ReceiverNotReady => "RECEIVER_NOT_READY",
            Syndrome::Corrupt => "CORRUPT",
        }
    }
}

/// The text of `rgaps/device_rdma_layout.h`.
pub fn header() -> String {
    let constants: [(&str, u64); 16] = [
        ("ENTRY_BYTES", ENTRY_BYTES),
        ("BYTES_MAX", WORK_BYTES_MAX.into()),
        ("CAN_WRITE", CAN_WRITE.into()),
        ("CAN_READ", CAN_READ.into()),
        ("CAN_CHANGE", CAN_CHANGE.into()),
        ("RECORD_RECEIVE", RECORD_RECEIVE),
        ("RECORD_SEND", RECORD_SEND),
        ("STATE_RESERVED", STATE_RESERVED),
        ("STATE_READY", STATE_READY),
        ("STATE_RINGER", STATE_RINGER),
        ("STATE_COMPLETED", STATE_COMPLETED),
        ("STATE_FAILURE", STATE_FAILURE),
        ("STATE_TAKEN", STATE_TAKEN),
        ("STATE_DRAINER", STATE_DRAINER),
        ("STATE_RECEIVED", STATE_RECEIVED),
        ("STATE_FILLED", STATE_FILLED),
    ];
    macro_rules! fields {
        ($($kind:literal $name:ident)*) => {
            [$(($kind, stringify!($name), offset_of!(QueuePairView, $name)),)*]
        };
    }
    let fields = fields! {
        "uint64_t" sends "uint64_t" completions "uint64_t" receive_completions "uint64_t" record
        "uint64_t" completion_record "uint64_t" receive_completion_record "uint64_t" doorbell "uint64_t" state
        "uint32_t" number "uint32_t" sends_log2 "uint32_t" completions_log2 "uint32_t" receives_log2
        "uint32_t" abilities "uint32_t" reserved
    };
    let mut text = String::from(
        "/* A queue pair as kernels see it. Written by crates/gpu-verbs/src/view.rs, which explains it: do not edit. */\n\
         #ifndef RGAPS_DEVICE_RDMA_LAYOUT_H\n#define RGAPS_DEVICE_RDMA_LAYOUT_H\n\n#include <stddef.h>\n#include <stdint.h>\n\n",
    );
    for (name, value) in constants {
        text += &format!("#define RGAPS_RDMA_{name} {value}\n");
    }
    for syndrome in Syndrome::ALL {
        text += &format!(
            "#define RGAPS_RDMA_SYNDROME_{} {:#04x}\n",
            syndrome.c_name(),
            syndrome as u8
        );
    }
    text += "\n/* A queue pair as kernels of one process see it. Passed to them by value. */\ntypedef struct rgaps_queue_pair {\n";
    for (kind, name, _) in fields {
        text += &format!("    {kind} {name};\n");
    }
    text += "} rgaps_queue_pair_t;\n\n#ifdef __cplusplus\n";
    for (_, name, at) in fields {
        text += &format!(
            "static_assert(offsetof(rgaps_queue_pair_t, {name}) == {at}, \"layout of {name}\");\n"
        );
    }
    text += &format!(
        "static_assert(sizeof(rgaps_queue_pair_t) == {}, \"layout of a queue pair\");\n#endif\n\n#endif\n",
        size_of::<QueuePairView>()
    );
    text
}

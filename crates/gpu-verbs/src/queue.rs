//! The memory of a queue pair: rings, doorbell and records in one piece, and the words that only kernels use in another.

use crate::entry::{Raw, NO_COMPLETION};
use crate::memory::Memory;
use crate::view::*;
use crate::GpuVerbsError;
use rgaps_layout::Domain;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Words that different sides write lie so far apart.
const LINE_BYTES: u64 = 64;
/// The key that a receive without memory has in mlx5 (`MLX5_INVALID_LKEY`).
const NO_KEY: u32 = 0x100;

/// Entries of each queue, as powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// Of the send queue, and of its completion queue.
    pub sends_log2: u32,
    /// Of the receive queue, and of its completion queue.
    pub receives_log2: u32,
}

impl Default for Depths {
    fn default() -> Depths {
        Depths {
            sends_log2: 8,
            receives_log2: 6,
        }
    }
}

impl Depths {
    fn check(self) -> Result<Depths, GpuVerbsError> {
        let range = QUEUE_LOG2_MIN..=QUEUE_LOG2_MAX;
        match range.contains(&self.sends_log2) && range.contains(&self.receives_log2) {
            true => Ok(self),
            false => Err(GpuVerbsError::Argument(format!(
                "a queue has 2^{QUEUE_LOG2_MIN} to 2^{QUEUE_LOG2_MAX} entries, not 2^{} and 2^{}",
                self.sends_log2, self.receives_log2
            ))),
        }
    }
}

/// Where rings and doorbell lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rings {
    /// In host memory, where the software card and the proxy read them.
    Host,
    /// With the kernels. No card of ours reads them; for figures of what posting costs.
    WithKernels,
}

/// The memory of one queue pair.
pub struct QueueMemory {
    rings: Arc<Memory>,
    state: Arc<Memory>,
    depths: Depths,
    number: u32,
}

impl QueueMemory {
    /// Queues that nobody has used.
    pub fn new(
        kernels: Domain,
        rings: Rings,
        depths: Depths,
        number: u32,
    ) -> Result<QueueMemory, GpuVerbsError> {
        let depths = depths.check()?;
        let state = Memory::new(kernels, state_bytes(depths.sends_log2))?;
        let bytes = Offsets::of(depths).end;
        let rings = match rings {
            Rings::Host => Memory::host(kernels, bytes)?,
            Rings::WithKernels => Memory::new(kernels, bytes)?,
        };
        let queue = QueueMemory {
            rings,
            state,
            depths,
            number,
        };
        queue.initialise();
        Ok(queue)
    }

    /// No completion is there, and all receives are the same.
    fn initialise(&self) {
        let at = Offsets::of(self.depths);
        let mut none: Raw = [0; ENTRY_BYTES as usize];
        none[63] = NO_COMPLETION;
        let completions = (at.receives - at.completions) / ENTRY_BYTES;
        self.rings
            .write(at.completions, &none.repeat(completions as usize));
        let mut receive = [0; RECEIVE_BYTES as usize];
        receive[4..8].copy_from_slice(&NO_KEY.to_be_bytes());
        let receives = 1 << self.depths.receives_log2;
        self.rings.write(at.receives, &receive.repeat(receives));
    }

    /// All completions zeroed, as a card is never given them. For tests of those who find it out.
    pub fn zero_completions(&self) {
        let at = Offsets::of(self.depths);
        let bytes = (at.receives - at.completions) as usize;
        self.rings.write(at.completions, &vec![0; bytes]);
    }

    /// What kernels take as a parameter.
    pub fn view(&self, abilities: u32) -> QueuePairView {
        let at = Offsets::of(self.depths);
        let base = self.rings.address();
        QueuePairView {
            sends: base,
            completions: base + at.completions,
            receive_completions: base + at.receive_completions,
            record: base + at.record,
            completion_record: base + at.completion_record,
            receive_completion_record: base + at.receive_completion_record,
            doorbell: base + at.doorbell,
            state: self.state.address(),
            number: self.number,
            sends_log2: self.depths.sends_log2,
            completions_log2: self.depths.sends_log2,
            receives_log2: self.depths.receives_log2,
            abilities,
            reserved: 0,
        }
    }

    /// Bytes of all its memory that are used.
    pub fn bytes(&self) -> u64 {
        Offsets::of(self.depths).end + state_bytes(self.depths.sends_log2)
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn depths(&self) -> Depths {
        self.depths
    }

    /// The doorbell's bytes; zeros: it was never rung.
    pub(crate) fn doorbell(&self) -> [u8; 8] {
        self.rings.load_bytes(Offsets::of(self.depths).doorbell)
    }

    /// A word of the doorbell record.
    pub(crate) fn record(&self, word: u64) -> u32 {
        let at = Offsets::of(self.depths).record + word;
        // SYNC POINT entries: pairs with the fences of `Words::ring` and `ReceiveQueue::post` in rgaps/device_rdma.cuh.
        u32::from_be(self.rings.half_word(at).load(Ordering::Acquire))
    }

    /// The send entry with this index.
    pub(crate) fn entry(&self, index: u64) -> Raw {
        let slot = index & ((1 << self.depths.sends_log2) - 1);
        let mut raw: Raw = [0; ENTRY_BYTES as usize];
        self.rings.read(slot * ENTRY_BYTES, &mut raw);
        raw
    }

    /// Completions that kernels have taken, modulo 2^24.
    pub(crate) fn taken(&self, which: Which) -> u32 {
        let at = Offsets::of(self.depths);
        let record = match which {
            Which::Sends => at.completion_record,
            Which::Receives => at.receive_completion_record,
        };
        u32::from_be(self.rings.half_word(record).load(Ordering::Acquire))
    }

    /// Writes a completion: all but its last four bytes first, which say whose it is. `between` runs between the two.
    pub(crate) fn complete(&self, which: Which, index: u64, raw: &Raw, between: impl FnOnce()) {
        let at = Offsets::of(self.depths);
        let (queue, log2) = match which {
            Which::Sends => (at.completions, self.depths.sends_log2),
            Which::Receives => (at.receive_completions, self.depths.receives_log2),
        };
        let entry = queue + (index & ((1 << log2) - 1)) * ENTRY_BYTES;
        self.rings.write(entry, &raw[..60]);
        between();
        let last = u32::from_ne_bytes(raw[60..].try_into().expect("four bytes are left"));
        // SYNC POINT completion: pairs with the fence of `Completions::is_there` in rgaps/device_rdma.cuh.
        let word = self.rings.half_word(entry + 60);
        word.store(last, Ordering::Release);
    }
}

/// One of the two completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Sends,
    Receives,
}

impl Which {
    pub(crate) fn log2(self, depths: Depths) -> u32 {
        match self {
            Which::Sends => depths.sends_log2,
            Which::Receives => depths.receives_log2,
        }
    }
}

struct Offsets {
    completions: u64,
    receive_completions: u64,
    receives: u64,
    record: u64,
    completion_record: u64,
    receive_completion_record: u64,
    doorbell: u64,
    end: u64,
}

impl Offsets {
    fn of(depths: Depths) -> Offsets {
        let (sends, receives) = (1 << depths.sends_log2, 1 << depths.receives_log2);
        let completions = sends * ENTRY_BYTES;
        let receive_completions = completions + sends * ENTRY_BYTES;
        let receive_ring = receive_completions + receives * ENTRY_BYTES;
        let record = receive_ring + receives * RECEIVE_BYTES;
        Offsets {
            completions,
            receive_completions,
            receives: receive_ring,
            record,
            completion_record: record + LINE_BYTES,
            receive_completion_record: record + 2 * LINE_BYTES,
            doorbell: record + 3 * LINE_BYTES,
            end: record + 4 * LINE_BYTES,
        }
    }
}

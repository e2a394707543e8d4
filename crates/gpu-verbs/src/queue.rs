//! The memory of a queue pair: one piece with rings, doorbell and doorbell records, another with the words that only kernels use.

use crate::entry::{Raw, NO_COMPLETION};
use crate::memory::ZeroedMemory;
use crate::view::*;
use crate::GpuVerbsError;
use rgaps_layout::Domain;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// A cache line. Words that different sides write lie on different lines.
const LINE_BYTES: u64 = 64;
/// The key that marks a receive without memory in mlx5 (`MLX5_INVALID_LKEY`).
const NO_KEY: u32 = 0x100;

/// The number of entries of each queue, as powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// Entries of the send queue, and of its completion queue.
    pub sends_log2: u32,
    /// Entries of the receive queue, and of its completion queue.
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
    /// In the memory of the kernels' domain, where no back end reads them. For measuring what posting costs.
    WithKernels,
}

/// The memory of one queue pair.
pub struct QueueMemory {
    rings: Arc<ZeroedMemory>,
    state: Arc<ZeroedMemory>,
    depths: Depths,
    number: u32,
}

impl QueueMemory {
    /// Allocates and initialises unused queues. `number` is the queue pair's number.
    pub fn new(
        kernels: Domain,
        rings: Rings,
        depths: Depths,
        number: u32,
    ) -> Result<QueueMemory, GpuVerbsError> {
        let depths = depths.check()?;
        let state = ZeroedMemory::new(kernels, state_bytes(depths.sends_log2))?;
        let bytes = Offsets::of(depths).end;
        let rings = match rings {
            Rings::Host => ZeroedMemory::host(kernels, bytes)?,
            Rings::WithKernels => ZeroedMemory::new(kernels, bytes)?,
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

    /// Marks all completions as not written, and fills the receive queue with receives without memory.
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

    /// Zeroes all completions, which no driver does. For tests that kernels detect such a completion queue.
    pub fn zero_completions(&self) {
        let at = Offsets::of(self.depths);
        let bytes = (at.receives - at.completions) as usize;
        self.rings.write(at.completions, &vec![0; bytes]);
    }

    /// The parameter that kernels take. `abilities` are those of the back end.
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

    /// Bytes in use in both pieces of memory, without padding to pages.
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

    /// The doorbell's bytes; all zero until a kernel rings it.
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

    /// How many completions kernels have taken, modulo 2^24.
    pub(crate) fn taken(&self, which: Which) -> u32 {
        let at = Offsets::of(self.depths);
        let record = match which {
            Which::Sends => at.completion_record,
            Which::Receives => at.receive_completion_record,
        };
        u32::from_be(self.rings.half_word(record).load(Ordering::Acquire))
    }

    /// Writes completion `index`: first all but the last four bytes, then those, which hand it over to the kernels. Calls
    /// `between` between the two writes.
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

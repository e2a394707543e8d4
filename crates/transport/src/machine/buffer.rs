//! Receive buffers that several lanes fill at the same time, each its own chunk, without the link's lock.
//!
//! A buffer is in one of three hands, each a type of its own:
//!
//! | type | who has it | what it may do |
//! |---|---|---|
//! | [`UnfinishedBuffer`] | the machine | nobody writes; a grant may begin behind its prefix |
//! | [`GrantedBuffer`] | one grant | it lends each chunk once, as a [`WriteRange`] |
//! | `Box<dyn ReceiveBuffer>` | whoever delivers the message | all of it: every chunk has landed |
//!
//! A landed chunk is one bit, set by one atomic instruction. A new grant has a bitmap of its own, which begins with the prefix:
//! so chunks behind a hole are written again. An unfinished buffer comes back from a grant only when no range is lent.

use super::values::Checked;
use crate::payload::Payload;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Memory that a message arrives in. Dropped without [`ReceiveBuffer::deliver`], it is given up; that may happen while the link is
/// locked, so `drop` does not call the link.
pub trait ReceiveBuffer: Send + 'static {
    /// As many bytes as were asked for. Called once; lanes write there until the message is delivered or the buffer dropped.
    fn memory(&mut self) -> &mut [u8];

    /// Memory that others read while the message arrives; then lanes write there, and [`ReceiveBuffer::memory`] is not called.
    /// Called once.
    fn prefix_memory(&mut self) -> Option<Arc<PrefixMemory>> {
        None
    }

    /// Follows the chunks as they land, and may have memory on a GPU that the peer's network card should write instead. Called once,
    /// before `memory`, for large messages.
    fn on_card(&mut self) -> Option<Arc<dyn CardBuffer>> {
        None
    }

    /// The message is complete, and it is its turn. It does not block: `Err` gives the buffer back if the message cannot be
    /// delivered now (back-pressure).
    fn deliver(
        self: Box<Self>,
        sequence: u64,
        description: &[u8],
    ) -> Result<(), Box<dyn ReceiveBuffer>>;
}

/// Follows the chunks of a receive buffer, and may have memory for them that network cards reach and the CPU does not, with as many
/// bytes as the buffer. Each chunk is written there or to [`ReceiveBuffer::memory`], or first to one and later to the other: then
/// the later one counts.
pub trait CardBuffer: Send + Sync + 'static {
    /// The address of its first byte, as the endpoint's cards know it; none if all chunks are written to [`ReceiveBuffer::memory`].
    fn address(&self) -> Option<u64>;

    /// These bytes have landed, in its own memory (`directly`) or in [`ReceiveBuffer::memory`]: in any order, from lanes' threads.
    fn landed(&self, from: u64, bytes: u64, directly: bool);
}

/// The user's buffer, and where its bytes are.
struct Memory {
    /// From `Box::into_raw`; taken back once, by `take` or `drop`.
    owner: Mutex<Option<*mut dyn ReceiveBuffer>>,
    start: *mut u8,
    bytes: usize,
    card: Option<Arc<dyn CardBuffer>>,
    /// If others read it: the bytes are its own.
    prefix: Option<Arc<PrefixMemory>>,
}

// SAFETY: `owner` is a `Box` as a pointer, and the trait makes that box `Send`. `start` points to bytes that the box owns, or
// `prefix`, so they move with it. `card`, `prefix` and `bytes` are `Send` themselves.
unsafe impl Send for Memory {}
// SAFETY: threads that share a `Memory` reach the buffer in two ways. `take` moves the pointer out of the option under the mutex,
// so one thread gets it. `WriteRange::as_mut_slice` writes bytes: `GrantedBuffer::lend`, which the link's lock serialises, gives each
// chunk to one range, and chunks do not overlap. `card` is `Sync` by its trait.
unsafe impl Sync for Memory {}

impl Memory {
    fn take(&self) -> Option<Box<dyn ReceiveBuffer>> {
        let owner = self.owner.lock().expect("nobody panics with it").take()?;
        // SAFETY: `UnfinishedBuffer::new` made the pointer by `Box::into_raw` and put it into the option. It leaves the option here,
        // so nobody takes it twice. No range is lent: `into_whole` needs every chunk landed, and `landed` consumes a chunk's range;
        // `drop` needs the last `Arc`, and each range holds one.
        Some(unsafe { Box::from_raw(owner) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// A receive buffer that nobody writes, with its prefix: bytes from the start on that have landed.
pub(super) struct UnfinishedBuffer {
    memory: Arc<Memory>,
    prefix: u64,
}

impl UnfinishedBuffer {
    /// `None` if the buffer does not have so many bytes.
    pub(super) fn new(mut buffer: Box<dyn ReceiveBuffer>, bytes: u64) -> Option<Self> {
        let card = buffer.on_card();
        let prefix = buffer.prefix_memory();
        let owner = Box::into_raw(buffer);
        let (start, length) = match &prefix {
            Some(prefix) => {
                let start = prefix.start();
                start.map_or((std::ptr::null_mut(), 0), |start| (start, prefix.bytes()))
            }
            None => {
                // SAFETY: `Box::into_raw` above made a pointer to a live value, and no other pointer to it exists yet. The
                // reference ends when start and length are copied out of it.
                let memory = unsafe { (*owner).memory() };
                (memory.as_mut_ptr(), memory.len())
            }
        };
        let memory = Memory {
            start,
            bytes: length,
            owner: Mutex::new(Some(owner)),
            card,
            prefix,
        };
        let has_all = memory.bytes as u64 == bytes;
        let memory = Arc::new(memory);
        has_all.then_some(Self { memory, prefix: 0 })
    }

    /// Bytes of the message.
    pub(super) fn bytes(&self) -> u64 {
        self.memory.bytes as u64
    }

    /// Bytes that have landed, from the start on without a hole.
    pub(super) fn prefix(&self) -> u64 {
        self.prefix
    }

    /// Gives the buffer, which is not whole, to a grant. Where others read the prefix, it has to end with a chunk: as it does if all
    /// grants have one chunk size. Also returns the first missing chunk, and what `remote` makes of the address where the peer's card is
    /// to write: in the memory of the [`CardBuffer`] if that is possible, else in the host's.
    pub(super) fn grant<T>(
        self,
        chunk_bytes: u32,
        remote: impl Fn(u64) -> Option<T>,
    ) -> (GrantedBuffer, u32, Option<T>) {
        let (bytes, size) = (self.memory.bytes as u64, u64::from(chunk_bytes));
        let count = u32::try_from(bytes.div_ceil(size)).expect("its request was checked");
        let from = u32::try_from(self.prefix / size).expect("less than all chunks");
        let word = |at: u32| match from.saturating_sub(at * 64) {
            0 => 0,
            set @ 1..=63 => (1 << set) - 1,
            _ => u64::MAX,
        };
        let words = count.div_ceil(64);
        let card = self.memory.card.as_ref().and_then(|card| card.address());
        let on_card = card.and_then(&remote);
        let is_on_card = on_card.is_some();
        let found = on_card.or_else(|| remote(self.memory.start as u64));
        let chunks = Chunks {
            is_direct: found.is_some(),
            is_on_card,
            memory: self.memory,
            chunk_bytes,
            count,
            landed: (0..words).map(|at| AtomicU64::new(word(at))).collect(),
            missing: AtomicU32::new(count - from),
            prefix: AtomicU32::new(from),
        };
        let lent = (0..words).map(word).collect();
        let granted = GrantedBuffer {
            chunks: Arc::new(chunks),
            lent,
        };
        (granted, from, found)
    }

    /// The whole message.
    ///
    /// # Panics
    /// If bytes are missing: our own books are wrong.
    pub(super) fn into_whole(self) -> Box<dyn ReceiveBuffer> {
        assert_eq!(self.prefix, self.bytes(), "the message is not complete");
        self.memory.take().expect("it is taken once")
    }
}

/// Which chunks of a grant have landed.
struct Chunks {
    memory: Arc<Memory>,
    /// The peer's card may write the chunks by itself, in the memory of the [`CardBuffer`] or else of [`ReceiveBuffer::memory`].
    is_direct: bool,
    is_on_card: bool,
    chunk_bytes: u32,
    count: u32,
    landed: Box<[AtomicU64]>,
    /// Chunks that have not landed.
    missing: AtomicU32,
    /// Chunks without a hole before them: at least so many.
    prefix: AtomicU32,
}

impl Chunks {
    fn range(&self, chunk: u32) -> (usize, usize) {
        let start = chunk as usize * self.chunk_bytes as usize;
        let end = start.saturating_add(self.chunk_bytes as usize);
        (start, end.min(self.memory.bytes))
    }

    /// Chunks that have landed without a hole before them.
    fn prefix(&self) -> u32 {
        let mut at = self.prefix.load(Ordering::Relaxed);
        while at < self.count {
            // SYNC POINT landed: what the chunk's lane wrote is visible to whoever sees its bit.
            let word = self.landed[(at / 64) as usize].load(Ordering::Acquire);
            let ones = (word >> (at % 64)).trailing_ones();
            at += ones;
            if ones == 0 || at % 64 != 0 {
                break;
            }
        }
        self.prefix.fetch_max(at, Ordering::Relaxed);
        at
    }

    fn prefix_bytes(&self) -> u64 {
        match self.prefix() {
            0 => 0,
            count => self.range(count - 1).1 as u64,
        }
    }
}

/// A receive buffer that a grant's lanes fill. Owned by the link's lock.
pub(super) struct GrantedBuffer {
    chunks: Arc<Chunks>,
    /// Chunks that were lent, or had landed before the grant.
    lent: Box<[u64]>,
}

impl GrantedBuffer {
    /// The right to write a chunk, or what is wrong with it.
    pub(super) fn lend(&mut self, grant: u64, chunk: u32, bytes: u32) -> Checked<WriteRange> {
        if chunk >= self.chunks.count {
            return Err("it lies outside its message");
        }
        let (start, end) = self.chunks.range(chunk);
        if end - start != bytes as usize {
            return Err("it has another length");
        }
        let (word, bit) = ((chunk / 64) as usize, 1 << (chunk % 64));
        if self.lent[word] & bit != 0 {
            return Err("it arrived before");
        }
        self.lent[word] |= bit;
        let chunks = Arc::clone(&self.chunks);
        Ok(WriteRange {
            chunks,
            grant,
            chunk,
        })
    }

    pub(super) fn is_whole(&self) -> bool {
        // SYNC POINT missing: whoever sees zero sees all that was written before each chunk was counted.
        self.chunks.missing.load(Ordering::Acquire) == 0
    }

    /// The grant ended. `None` if ranges of it are lent still: then the last of them frees the memory.
    pub(super) fn into_unfinished(mut self) -> Option<UnfinishedBuffer> {
        // Each range that is lent has a clone of the `Arc`; without any, `get_mut` sees the last write of each. Nobody lends another: `self`
        // is here.
        if !self.is_whole() && Arc::get_mut(&mut self.chunks).is_none() {
            return None;
        }
        let prefix = self.chunks.prefix_bytes();
        let memory = Arc::clone(&self.chunks.memory);
        Some(UnfinishedBuffer { memory, prefix })
    }
}

/// The right to write one chunk. Nobody else reads or writes these bytes as long as it exists.
pub struct WriteRange {
    chunks: Arc<Chunks>,
    grant: u64,
    chunk: u32,
}

impl WriteRange {
    /// The chunk's bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let (start, end) = self.chunks.range(self.chunk);
        // SAFETY: `start..end` lies within the memory that the buffer gave: `lend` checked the chunk's number, and `range`
        // ends at its length. The memory stays valid until the buffer is taken back. That needs every chunk landed, and `landed`
        // consumes this range; or the last `Arc` dropped, and this range holds one. No other reference has these bytes: `lend` gives
        // each chunk of a grant once, and `into_unfinished` lets the next grant begin only when no range is lent. A peer's card may
        // write here too, but a peer that keeps to the protocol sends a chunk one way; RDMA is for trusted peers only
        // (`links.trusted_fabric`).
        unsafe { std::slice::from_raw_parts_mut(self.chunks.memory.start.add(start), end - start) }
    }

    /// Whether the peer's card may have written these bytes by itself: GRANT named an address.
    pub fn may_be_direct(&self) -> bool {
        self.chunks.is_direct
    }

    /// All its bytes are there: written through this range, or directly by the peer's card. If it is the last of its message, the grant's
    /// number, for [`super::LinkMachine::landed`].
    pub fn landed(self, directly: bool) -> Option<u64> {
        let chunks = &*self.chunks;
        let (start, end) = chunks.range(self.chunk);
        if let Some(card) = &chunks.memory.card {
            let on_card = directly && chunks.is_on_card;
            card.landed(start as u64, (end - start) as u64, on_card);
        }
        let (word, bit) = ((self.chunk / 64) as usize, 1 << (self.chunk % 64));
        // SYNC POINT landed.
        chunks.landed[word].fetch_or(bit, Ordering::Release);
        let shared = chunks.memory.prefix.as_ref();
        shared.inspect(|shared| shared.advance(chunks.prefix_bytes() as usize));
        // SYNC POINT missing.
        let is_last = chunks.missing.fetch_sub(1, Ordering::AcqRel) == 1;
        if let Some(shared) = shared.filter(|_| is_last) {
            // Two lanes that ended at the same time may each have missed the other's chunk.
            shared.advance(shared.bytes());
        }
        is_last.then_some(self.grant)
    }
}

impl std::fmt::Debug for WriteRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { chunk, grant, .. } = self;
        write!(f, "WriteRange(chunk {chunk} of grant {grant})")
    }
}

/// Memory of a message that goes on to other hosts while it arrives: lanes of one link write it, and lanes of others read what is
/// complete.
///
/// | bytes | who touches them |
/// |---|---|
/// | below [`PrefixMemory::ready`] | everyone reads, nobody writes again |
/// | the rest | the machine whose receive buffer it is, chunk by chunk |
pub struct PrefixMemory {
    bytes: Box<[UnsafeCell<u8>]>,
    ready: AtomicUsize,
    /// A machine writes it, or did.
    is_lent: AtomicBool,
    grew: Box<dyn Fn(usize) + Send + Sync>,
}

// SAFETY: the bytes are written through `start` and `fill` only. `is_lent` gives one of the two, once; whoever has it writes no
// byte below `ready`, and `slice` reads no byte above: `ready` rises with Release after these bytes were written, and is read with
// Acquire. `grew` is `Sync` by its bound.
unsafe impl Sync for PrefixMemory {}

impl PrefixMemory {
    /// Memory for a message of so many bytes, at least one. `grew` learns how many are there whenever there are more, from lanes'
    /// threads: it does not block.
    pub fn new(bytes: usize, grew: impl Fn(usize) + Send + Sync + 'static) -> Arc<PrefixMemory> {
        let bytes: Box<[u8]> = vec![0; bytes.max(1)].into();
        let bytes = Box::into_raw(bytes) as *mut [UnsafeCell<u8>];
        Arc::new(PrefixMemory {
            // SAFETY: `Box::into_raw` on the line before made the pointer, which nobody else has. An `UnsafeCell<u8>` has the
            // size and alignment of its `u8`.
            bytes: unsafe { Box::from_raw(bytes) },
            ready: AtomicUsize::new(0),
            is_lent: AtomicBool::new(false),
            grew: Box::new(grew),
        })
    }

    /// Where the first byte is, for one receive buffer. It writes no byte of which it has said [`PrefixMemory::advance`].
    fn start(&self) -> Option<*mut u8> {
        let is_first = !self.is_lent.swap(true, Ordering::AcqRel);
        is_first.then(|| self.bytes.as_ptr().cast_mut().cast())
    }

    /// So many bytes have landed, from the start on without a hole, and are not written again.
    fn advance(&self, prefix: usize) {
        // SYNC POINT ready: whoever sees so many bytes finds them.
        if self.ready.fetch_max(prefix, Ordering::AcqRel) < prefix {
            (self.grew)(prefix);
        }
    }

    /// Copies a whole message here. False: it has another length, or is here already.
    pub(crate) fn fill(&self, bytes: &[u8]) -> bool {
        if bytes.len() != self.bytes.len() {
            return false;
        }
        let Some(start) = self.start() else {
            return false;
        };
        // SAFETY: `start` gives the memory to one caller, so nobody else writes it, and nobody reads it: nothing is ready. It has as
        // many bytes as the source, which the caller borrows from elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
        self.advance(bytes.len());
        true
    }
}

impl Payload for PrefixMemory {
    fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn ready(&self) -> usize {
        // SYNC POINT ready.
        self.ready.load(Ordering::Acquire)
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        assert!(from <= to && to <= self.ready(), "these bytes have landed");
        let bytes = &self.bytes[from..to];
        // SAFETY: the range lies in the box, which `self` keeps, and below `ready`: nobody writes these bytes again.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) }
    }
}

#[cfg(test)]
#[path = "buffer_tests.rs"]
mod tests;

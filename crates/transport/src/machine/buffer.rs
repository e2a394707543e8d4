//! Receive buffers, which several lanes fill at the same time without the link's lock, each lane its own chunk.
//!
//! A buffer has one of three owners, each a type of its own:
//!
//! | type | owner | what the owner may do |
//! |---|---|---|
//! | [`UnfinishedBuffer`] | the machine | give it to a grant, which begins behind its prefix; nobody writes |
//! | [`GrantedBuffer`] | one grant | lend each chunk once, as a [`WriteRange`] |
//! | `Box<dyn ReceiveBuffer>` | the thread that delivers the message | everything: all chunks have landed |
//!
//! A landed chunk is one bit of the grant's bitmap, set by one atomic instruction. The next grant has a new bitmap, in which only the
//! prefix is set: so chunks behind a hole are written again. A grant gives back an unfinished buffer only when no range is lent.

use super::values::Checked;
use crate::payload::Payload;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Memory for one message that arrives. The link drops it without [`ReceiveBuffer::deliver`] when the message is given up; the link
/// may be locked at that moment, so `drop` must not call the link.
pub trait ReceiveBuffer: Send + 'static {
    /// The memory, with as many bytes as were asked for. Called once; lanes write it until the message is delivered or the buffer dropped.
    fn memory(&mut self) -> &mut [u8];

    /// Memory that others read while the message arrives, if it has some. Lanes then write there, and [`ReceiveBuffer::memory`] is not
    /// called. Called once.
    fn prefix_memory(&mut self) -> Option<Arc<PrefixMemory>> {
        None
    }

    /// An observer of the chunks as they land, which may have memory on a GPU for the peer's network card to write instead. Called once,
    /// before `memory`, for large messages only.
    fn on_card(&mut self) -> Option<Arc<dyn CardBuffer>> {
        None
    }

    /// Delivers the message, which is complete and has its turn. Must not block: `Err` gives the buffer back if the user cannot take the
    /// message now (back-pressure).
    fn deliver(
        self: Box<Self>,
        sequence: u64,
        description: &[u8],
    ) -> Result<(), Box<dyn ReceiveBuffer>>;
}

/// Observes the chunks of a receive buffer, and may have other memory for them, of the same length, that network cards reach and the
/// CPU does not. Each chunk is written there or to [`ReceiveBuffer::memory`]. A later grant may write a chunk again, to the other of
/// the two: then the later one counts.
pub trait CardBuffer: Send + Sync + 'static {
    /// The address of its first byte, as registered with the endpoint's cards; `None` if it has no such memory.
    fn address(&self) -> Option<u64>;

    /// The bytes of a chunk have landed, in its own memory (`directly`) or in [`ReceiveBuffer::memory`]. Lanes' threads call this for
    /// chunks in any order.
    fn landed(&self, from: u64, bytes: u64, directly: bool);
}

/// The user's buffer and the address of its bytes.
struct Memory {
    /// From `Box::into_raw`; taken back once, by `take` or `drop`.
    owner: Mutex<Option<*mut dyn ReceiveBuffer>>,
    start: *mut u8,
    bytes: usize,
    card: Option<Arc<dyn CardBuffer>>,
    /// The owner of the bytes, if others read them while they arrive.
    prefix: Option<Arc<PrefixMemory>>,
}

// SAFETY: `owner` is a `Box` as a pointer, and `ReceiveBuffer: Send` makes that box `Send`. `start` points to bytes that the box or
// `prefix` owns; both are fields, so the bytes' owner moves along. `card`, `prefix` and `bytes` are `Send` themselves.
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

/// A receive buffer that nobody writes. `prefix`: how many bytes have landed without a hole before them.
pub(super) struct UnfinishedBuffer {
    memory: Arc<Memory>,
    prefix: u64,
}

impl UnfinishedBuffer {
    /// `None` if the buffer does not have exactly so many bytes.
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

    /// Gives the buffer, which is not complete, to a grant. If others read the prefix, the prefix has to end at a chunk's end, as it does
    /// if all grants have the same chunk size. Also returns the first missing chunk, and the result of `remote` for the address where the
    /// peer's card may write: in the memory of the [`CardBuffer`] if `remote` accepts that, else in the host's.
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

    /// The user's buffer with the complete message.
    ///
    /// # Panics
    /// If bytes are missing: a bug of this crate.
    pub(super) fn into_whole(self) -> Box<dyn ReceiveBuffer> {
        assert_eq!(self.prefix, self.bytes(), "the message is not complete");
        self.memory.take().expect("it is taken once")
    }
}

/// The chunks of a grant's buffer, and which of them have landed.
struct Chunks {
    memory: Arc<Memory>,
    /// GRANT named an address, so the peer's card may write the chunks directly.
    is_direct: bool,
    /// That address is in the [`CardBuffer`]'s memory.
    is_on_card: bool,
    chunk_bytes: u32,
    /// How many chunks the message has.
    count: u32,
    /// One bit per chunk.
    landed: Box<[AtomicU64]>,
    /// Chunks that have not landed.
    missing: AtomicU32,
    /// A lower bound of the landed chunks without a hole before them.
    prefix: AtomicU32,
}

impl Chunks {
    fn range(&self, chunk: u32) -> (usize, usize) {
        let start = chunk as usize * self.chunk_bytes as usize;
        let end = start.saturating_add(self.chunk_bytes as usize);
        (start, end.min(self.memory.bytes))
    }

    /// How many chunks have landed without a hole before them.
    fn prefix(&self) -> u32 {
        let mut at = self.prefix.load(Ordering::Relaxed);
        while at < self.count {
            // SYNC POINT landed: a thread that sees a chunk's bit sees the bytes that the chunk's lane wrote.
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

/// A receive buffer that a grant's lanes fill. The link's lock guards it.
pub(super) struct GrantedBuffer {
    chunks: Arc<Chunks>,
    /// One bit per chunk that was lent, or had landed before the grant.
    lent: Box<[u64]>,
}

impl GrantedBuffer {
    /// Lends the range of a chunk. `Err`: what is wrong with the peer's CHUNK.
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
        // SYNC POINT missing: a thread that sees zero sees all bytes, which lanes wrote before they counted their chunks.
        self.chunks.missing.load(Ordering::Acquire) == 0
    }

    /// Takes the buffer back when the grant has ended. `None` if ranges of it are still lent: then dropping the last one frees the memory.
    pub(super) fn into_unfinished(mut self) -> Option<UnfinishedBuffer> {
        // Each lent range holds a clone of the `Arc`. If `get_mut` succeeds, there is none, and it synchronizes with their drops, so all
        // their writes are visible. Nobody can lend another range, since this function owns `self`.
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
        // ends at its length. The memory stays valid until `Memory::take` gives the buffer back. `into_whole` calls that when every chunk
        // has landed, and `landed` consumes this range; `drop` calls it after the last `Arc`, and this range holds one. No other reference
        // has these bytes: `lend` gives each chunk of a grant once, and `into_unfinished` lets the next grant begin only when no range is
        // lent. A peer's card could write here, too. A correct peer sends each chunk of a grant either in the stream or by its card, and
        // only trusted peers have RDMA (`links.trusted_fabric`).
        unsafe { std::slice::from_raw_parts_mut(self.chunks.memory.start.add(start), end - start) }
    }

    /// Whether the peer's card may have written these bytes by itself: GRANT named an address.
    pub fn may_be_direct(&self) -> bool {
        self.chunks.is_direct
    }

    /// The chunk is complete: written through this range, or `directly` by the peer's card. Returns the grant's number, for
    /// [`super::LinkMachine::landed`], if this was the last missing chunk.
    pub fn landed(self, directly: bool) -> Option<u64> {
        let chunks = &*self.chunks;
        let (start, end) = chunks.range(self.chunk);
        if let Some(card) = &chunks.memory.card {
            let on_card = directly && chunks.is_on_card;
            card.landed(start as u64, (end - start) as u64, on_card);
        }
        let (word, bit) = ((self.chunk / 64) as usize, 1 << (self.chunk % 64));
        // SYNC POINT landed, with the Acquire in `Chunks::prefix`.
        chunks.landed[word].fetch_or(bit, Ordering::Release);
        let shared = chunks.memory.prefix.as_ref();
        shared.inspect(|shared| shared.advance(chunks.prefix_bytes() as usize));
        // SYNC POINT missing, with the Acquire in `is_whole`.
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

/// Memory of a message in transit, which this host sends on while it arrives (cut-through): lanes of one link write it, and lanes of
/// other links read the bytes that are complete.
///
/// | bytes | who touches them |
/// |---|---|
/// | below [`PrefixMemory::ready`] | everyone reads, nobody writes again |
/// | the rest | lanes of the one link whose receive buffer it is write, chunk by chunk |
pub struct PrefixMemory {
    bytes: Box<[UnsafeCell<u8>]>,
    ready: AtomicUsize,
    /// One receive buffer, or `fill`, has got the right to write.
    is_lent: AtomicBool,
    /// Called with the new value after each increase of `ready`.
    grew: Box<dyn Fn(usize) + Send + Sync>,
}

// SAFETY: bytes are written only through the pointer from `start`, which `is_lent` gives out once: to one receive buffer's lanes or to
// `fill`. Neither writes a byte below `ready`, and `slice` reads no byte above: `advance` raises `ready` with Release after these
// bytes were written, and `slice` reads it with Acquire. `grew` is `Sync` by its bound.
unsafe impl Sync for PrefixMemory {}

impl PrefixMemory {
    /// Memory for a message of so many bytes, at least one. Lanes' threads call `grew` with the length of the prefix whenever it has grown;
    /// it must not block.
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

    /// The address of the first byte, for the one writer; `None` if there was one already. The writer does not write a byte again that it
    /// has passed to [`PrefixMemory::advance`].
    fn start(&self) -> Option<*mut u8> {
        let is_first = !self.is_lent.swap(true, Ordering::AcqRel);
        is_first.then(|| self.bytes.as_ptr().cast_mut().cast())
    }

    /// The first `prefix` bytes have landed and are not written again.
    fn advance(&self, prefix: usize) {
        // SYNC POINT ready, with the Acquire in `ready`: a thread that reads this count sees these bytes.
        if self.ready.fetch_max(prefix, Ordering::AcqRel) < prefix {
            (self.grew)(prefix);
        }
    }

    /// Copies a whole message here. False if it has another length, or the memory has a writer already.
    pub(crate) fn fill(&self, bytes: &[u8]) -> bool {
        if bytes.len() != self.bytes.len() {
            return false;
        }
        let Some(start) = self.start() else {
            return false;
        };
        // SAFETY: `start` gave the pointer to this call only, so nobody else writes the memory, and nobody reads it: `ready` is 0 until
        // `advance` below. The check above ensures that it has as many bytes as the source. The source cannot overlap it: `slice`, the
        // only way to borrow its bytes, gives none while `ready` is 0.
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
        // SYNC POINT ready, with the Release in `advance`.
        self.ready.load(Ordering::Acquire)
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        assert!(from <= to && to <= self.ready(), "these bytes have landed");
        let bytes = &self.bytes[from..to];
        // SAFETY: the range lies in the box, which `self` keeps alive, and below `ready`, as asserted: the writer does not write these
        // bytes again.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) }
    }
}

#[cfg(test)]
#[path = "buffer_tests.rs"]
mod tests;

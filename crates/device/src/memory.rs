//! The host's accesses to the ring and words segments, which kernels use at the same time.
//!
//! In host memory each access is atomic and sequentially consistent. In the memory of a GPU it is a copy for which the thread
//! waits: all later accesses, also of others, come after it. A copy cannot clear single bits of a holder word, since kernels
//! change other bits of it at the same time: a kernel of one thread clears them.

use rgaps_cuda::{Context, CudaError, CudaStream, ForeignStreams, Kernel, Module};
use rgaps_pool::{Access, Mapping, PoolError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const WORD_BYTES: usize = size_of::<u64>();

/// `red` and not `atom`, since the old word is not needed.
const PTX: &std::ffi::CStr = c"
.version 6.3
.target sm_70
.address_size 64

.visible .entry rgaps_device_clear(
    .param .u64 address,
    .param .u64 kept
)
{
    .reg .b64 %address, %kept;

    ld.param.u64 %address, [address];
    ld.param.u64 %kept, [kept];
    cvta.to.global.u64 %address, %address;
    red.relaxed.sys.global.and.b64 [%address], %kept;
    ret;
}
";

/// The two segments that lie in the topic's domain.
pub(crate) struct Memory {
    pub(crate) ring: Box<dyn Mapping>,
    pub(crate) words: Box<dyn Mapping>,
    /// The context of the topic's GPU; `None` in host memory.
    context: Option<Arc<Context>>,
    /// Made at the first use.
    clearing: Mutex<Option<Clearing>>,
}

/// One of the two segments in the topic's domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Ring,
    Words,
}

/// The kernel that clears bits, and a stream of our own for it.
struct Clearing {
    stream: CudaStream,
    streams: ForeignStreams,
    kernel: Kernel,
}

impl Clearing {
    fn new(context: &Arc<Context>) -> Result<Clearing, CudaError> {
        Ok(Clearing {
            stream: CudaStream::new(context.clone())?,
            streams: ForeignStreams::default(),
            kernel: Module::load(context.clone(), PTX)?.kernel(c"rgaps_device_clear")?,
        })
    }

    /// # Safety
    /// `address`, a multiple of 8, is that of 8 bytes that the GPU may write until this returns.
    unsafe fn clear(&self, context: &Context, address: u64, bits: u64) -> Result<(), CudaError> {
        let on = self.streams.enter(context, self.stream.handle())?;
        // SAFETY: the kernel of `PTX` has these two parameters, and changes only the word at `address`. Our caller promises that the GPU
        // may write it until we return, and we return after the kernel has ended (`synchronize`).
        unsafe { self.kernel.launch(&on, (1, 1), &[address, !bits])? };
        on.synchronize()
    }
}

impl Memory {
    pub(crate) fn new(
        ring: Box<dyn Mapping>,
        words: Box<dyn Mapping>,
        context: Option<Arc<Context>>,
    ) -> Memory {
        Memory {
            ring,
            words,
            context,
            clearing: Mutex::default(),
        }
    }

    pub(crate) fn context(&self) -> Option<&Arc<Context>> {
        self.context.as_ref()
    }

    fn of(&self, segment: Segment) -> &dyn Mapping {
        match segment {
            Segment::Ring => &*self.ring,
            Segment::Words => &*self.words,
        }
    }

    /// A word of a segment in host memory.
    fn atomic(&self, segment: Segment, at: u64, access: Access) -> Result<&AtomicU64, PoolError> {
        let mapping = self.of(segment);
        let (end, mapped) = (at + WORD_BYTES as u64, mapping.mapped());
        if access == Access::ReadWrite && mapping.access() == Access::ReadOnly {
            return Err(PoolError::ReadOnly);
        }
        if at % WORD_BYTES as u64 != 0 || end > mapped {
            let offset = at;
            return Err(PoolError::OutOfRange {
                offset,
                end,
                mapped,
            });
        }
        // SAFETY: the word is aligned and inside the mapping, as was just checked; the mapping starts at a page, and `self`, which the
        // result borrows, keeps it. A segment that is mapped for reading is refused above for writes. All processes use the word by
        // atomic accesses only.
        Ok(unsafe { AtomicU64::from_ptr((mapping.base() + at) as *mut u64) })
    }

    /// Reads `count` words that follow each other. Each is as it was at some time during the call.
    pub(crate) fn load_all(
        &self,
        segment: Segment,
        at: u64,
        count: usize,
    ) -> Result<Vec<u64>, PoolError> {
        if self.context.is_none() {
            let offsets = (0..count).map(|word| at + (word * WORD_BYTES) as u64);
            let words = offsets.map(|at| self.atomic(segment, at, Access::ReadOnly));
            return words.map(|word| Ok(word?.load(Ordering::SeqCst))).collect();
        }
        let mut bytes = vec![0; count * WORD_BYTES];
        self.of(segment).read(at, &mut bytes)?;
        let words = bytes.chunks_exact(WORD_BYTES);
        Ok(words
            .map(|word| u64::from_le_bytes(word.try_into().expect("chunks of 8 bytes")))
            .collect())
    }

    /// Writes one word, after all that this thread wrote before.
    pub(crate) fn store(&self, segment: Segment, at: u64, value: u64) -> Result<(), PoolError> {
        if self.context.is_none() {
            self.atomic(segment, at, Access::ReadWrite)?
                .store(value, Ordering::SeqCst);
            return Ok(());
        }
        self.of(segment).write(at, &value.to_le_bytes())
    }

    /// Clears bits of a word whose other bits kernels may change.
    pub(crate) fn clear(&self, segment: Segment, at: u64, bits: u64) -> Result<(), PoolError> {
        let Some(context) = &self.context else {
            self.atomic(segment, at, Access::ReadWrite)?
                .fetch_and(!bits, Ordering::SeqCst);
            return Ok(());
        };
        let mapping = self.of(segment);
        let (end, mapped) = (at + WORD_BYTES as u64, mapping.mapped());
        if end > mapped {
            let offset = at;
            return Err(PoolError::OutOfRange {
                offset,
                end,
                mapped,
            });
        }
        let fail = |error: CudaError| error.into_pool(context.device().uuid);
        let mut clearing = self.clearing.lock().unwrap_or_else(PoisonError::into_inner);
        let clearing = match &mut *clearing {
            Some(clearing) => clearing,
            none => none.insert(Clearing::new(context).map_err(fail)?),
        };
        // SAFETY: the word is inside the mapping, as was just checked. `self` keeps the mapping, and our callers name the words segment,
        // which every process maps for writing, at multiples of 8 (`holder_at`).
        unsafe { clearing.clear(context, mapping.base() + at, bits) }.map_err(fail)
    }

    /// Copies a message into a block, and waits.
    ///
    /// # Safety
    /// `source` can be read for `bytes` bytes until this returns, by the host for a topic in host memory.
    pub(crate) unsafe fn fill(&self, at: u64, source: u64, bytes: u64) -> Result<(), PoolError> {
        // SAFETY: our caller promises that `bytes` bytes can be read at `source` until this returns, and `write_from` returns after the
        // copy.
        unsafe { self.ring.write_from(at, source, bytes) }
    }

    /// Whether the GPU runs kernels of this process and of others in turns, since there is no MPS.
    pub(crate) fn takes_turns(&self) -> bool {
        let context = self.context.as_ref();
        context.is_some_and(|context| !context.device().under_mps)
    }

    /// A stream of our own on the topic's GPU; none in host memory.
    pub(crate) fn stream(&self) -> Result<Option<CudaStream>, PoolError> {
        let Some(context) = &self.context else {
            return Ok(None);
        };
        let stream = CudaStream::new(context.clone());
        stream
            .map(Some)
            .map_err(|error| error.into_pool(context.device().uuid))
    }
}

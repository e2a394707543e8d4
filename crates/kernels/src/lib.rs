//! Kernels for tests and figures: they write patterns that depend on the place, check them, and
//! take their time.
//!
//! The text (`kernels.ptx`) is PTX for compute capability 7.0, which every driver since CUDA 10
//! compiles for its GPU when it is loaded, so nothing here needs a compiler. The test driver knows
//! the kernels by name and does the same in host memory. Nothing but figures uses them.

#![warn(clippy::too_many_lines)]

use rgaps_cuda::{Context, CudaError, ForeignStreams, Kernel, Module};
use rgaps_pool::Stream;
use std::ffi::CStr;
use std::sync::Arc;

/// The kernels' text.
pub const PTX: &CStr = match CStr::from_bytes_with_nul(TEXT.as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("the text holds a NUL"),
};
const TEXT: &str = concat!(include_str!("kernels.ptx"), "\0");

/// Threads of a block.
const THREADS: u32 = 256;
/// Most blocks, which then work on several words each.
const BLOCKS_MAX: u64 = 512;
/// Most blocks of a kernel that spins: they run at once, and leave room for the kernels that are to
/// run beside them.
const SPINNING_BLOCKS_MAX: u64 = 32;

/// What stands at a word of a pattern, as the kernels compute it.
pub fn pattern(seed: u64, word: u64) -> u64 {
    let mixed =
        (seed ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 31
}

/// The kernels, loaded into a context. Each call queues one on a stream of that context, and
/// refuses a stream that captures a graph.
#[derive(Debug)]
pub struct Kernels {
    context: Arc<Context>,
    streams: ForeignStreams,
    fill_pattern: Kernel,
    check_pattern: Kernel,
    spin: Kernel,
    spin_fill: Kernel,
    copy: Kernel,
    scribble: Kernel,
    stamp: Kernel,
}

impl Kernels {
    /// Has the driver compile and load them.
    pub fn load(context: Arc<Context>) -> Result<Kernels, CudaError> {
        let module = Module::load(context.clone(), PTX)?;
        Ok(Kernels {
            context,
            streams: ForeignStreams::default(),
            fill_pattern: module.kernel(c"rgaps_fill_pattern")?,
            check_pattern: module.kernel(c"rgaps_check_pattern")?,
            spin: module.kernel(c"rgaps_spin")?,
            spin_fill: module.kernel(c"rgaps_spin_fill")?,
            copy: module.kernel(c"rgaps_copy")?,
            scribble: module.kernel(c"rgaps_scribble")?,
            stamp: module.kernel(c"rgaps_stamp")?,
        })
    }

    /// Their context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Writes `words` words of the pattern of `seed`.
    ///
    /// # Safety
    /// `address` is a multiple of 8, of memory that the GPU may write for `words` words until the
    /// work has finished. `self` is kept until then.
    pub unsafe fn fill_pattern(
        &self,
        stream: Stream,
        address: u64,
        words: u64,
        seed: u64,
    ) -> Result<(), CudaError> {
        // SAFETY: our caller promises memory that the GPU may write for that many words until the work has finished; the kernel has these parameters.
        unsafe {
            self.launch(
                &self.fill_pattern,
                stream,
                shape(words, BLOCKS_MAX),
                &[address, words, seed],
            )
        }
    }

    /// Adds the number of words that differ from the pattern of `seed` to the number at
    /// `mismatches`, in memory of the GPU.
    ///
    /// # Safety
    /// As [`fill_pattern`](Self::fill_pattern), for reading, and `mismatches` for writing a word.
    pub unsafe fn check_pattern(
        &self,
        stream: Stream,
        address: u64,
        words: u64,
        seed: u64,
        mismatches: u64,
    ) -> Result<(), CudaError> {
        let parameters = [address, words, seed, mismatches];
        // SAFETY: our caller promises words that the GPU may read, and one that it may write, until the work has finished; the kernel has these parameters.
        unsafe {
            self.launch(
                &self.check_pattern,
                stream,
                shape(words, BLOCKS_MAX),
                &parameters,
            )
        }
    }

    /// Does nothing for so long.
    pub fn spin(&self, stream: Stream, nanoseconds: u64) -> Result<(), CudaError> {
        // SAFETY: it uses no memory. A stream that is none is what `ForeignStreams` is about; that
        // the kernels are kept follows from the driver's waiting when a module is unloaded.
        unsafe { self.launch(&self.spin, stream, (1, 1), &[nanoseconds]) }
    }

    /// Does nothing for so long, then writes a pattern.
    ///
    /// # Safety
    /// As [`fill_pattern`](Self::fill_pattern).
    pub unsafe fn spin_fill(
        &self,
        stream: Stream,
        address: u64,
        words: u64,
        seed: u64,
        nanoseconds: u64,
    ) -> Result<(), CudaError> {
        let parameters = [address, words, seed, nanoseconds];
        // SAFETY: our caller promises memory that the GPU may write for that many words until the work has finished; the kernel has these parameters.
        unsafe {
            self.launch(
                &self.spin_fill,
                stream,
                shape(words, SPINNING_BLOCKS_MAX),
                &parameters,
            )
        }
    }

    /// Copies `words` words.
    ///
    /// # Safety
    /// As [`fill_pattern`](Self::fill_pattern), for both ranges.
    pub unsafe fn copy(
        &self,
        stream: Stream,
        to: u64,
        from: u64,
        words: u64,
    ) -> Result<(), CudaError> {
        // SAFETY: our caller promises two ranges of that many words, one to read and one to write, until the work has finished; the kernel has these parameters.
        unsafe {
            self.launch(
                &self.copy,
                stream,
                shape(words, BLOCKS_MAX),
                &[to, from, words],
            )
        }
    }

    /// Writes the same value to `words` words.
    ///
    /// # Safety
    /// As [`fill_pattern`](Self::fill_pattern).
    pub unsafe fn scribble(
        &self,
        stream: Stream,
        address: u64,
        words: u64,
        value: u64,
    ) -> Result<(), CudaError> {
        // SAFETY: our caller promises memory that the GPU may write for that many words until the work has finished; the kernel has these parameters.
        unsafe {
            self.launch(
                &self.scribble,
                stream,
                shape(words, BLOCKS_MAX),
                &[address, words, value],
            )
        }
    }

    /// Writes the GPU's clock, in nanoseconds, which all processes on the GPU share, to a word.
    ///
    /// # Safety
    /// As [`fill_pattern`](Self::fill_pattern), for one word.
    pub unsafe fn stamp(&self, stream: Stream, address: u64) -> Result<(), CudaError> {
        // SAFETY: our caller promises a word that the GPU may write until the work has finished; the kernel has these parameters.
        unsafe { self.launch(&self.stamp, stream, (1, 1), &[address]) }
    }

    /// Queues a kernel, with so many blocks and threads in each.
    ///
    /// # Safety
    /// As [`Kernel::launch`].
    unsafe fn launch(
        &self,
        kernel: &Kernel,
        stream: Stream,
        shape: (u32, u32),
        parameters: &[u64],
    ) -> Result<(), CudaError> {
        let on = self.streams.enter(&self.context, stream)?;
        // SAFETY: our caller promises that the kernel takes these parameters and that what it uses stays until the work has
        // finished.
        unsafe { kernel.launch(&on, shape, parameters) }
    }
}

/// Threads for `words` words, in `most` blocks at most.
fn shape(words: u64, most: u64) -> (u32, u32) {
    let blocks = words.div_ceil(THREADS.into()).clamp(1, most);
    (blocks as u32, THREADS)
}

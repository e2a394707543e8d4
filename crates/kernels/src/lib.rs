//! Kernels for tests, `rgaps bench` and `rgaps doctor`: they write patterns in which each word depends on its index, check
//! them, copy, and spin.
//!
//! The text (`kernels.ptx`) is PTX for compute capability 7.0. Every driver since CUDA 10 compiles it for its GPU
//! when it loads the text, so building this crate needs no CUDA compiler. The test driver knows
//! the kernels by name and does the same in host memory.

#![warn(clippy::too_many_lines)]

use rgaps_cuda::{Context, CudaError, ForeignStreams, Kernel, Module};
use rgaps_pool::Stream;
use std::ffi::CStr;
use std::sync::Arc;

/// The kernels' PTX text.
pub const PTX: &CStr = match CStr::from_bytes_with_nul(TEXT.as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("the text holds a NUL"),
};
const TEXT: &str = concat!(include_str!("kernels.ptx"), "\0");

/// Threads of a block.
const THREADS: u32 = 256;
/// The most blocks of a kernel. With more words, each thread works on several.
const BLOCKS_MAX: u64 = 512;
/// The most blocks of a kernel that spins: all of them run at once, and leave room for other kernels
/// beside them.
const SPINNING_BLOCKS_MAX: u64 = 32;

/// The value of a pattern's word with the index `word`, as the kernels compute it.
pub fn pattern(seed: u64, word: u64) -> u64 {
    let mixed =
        (seed ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 31
}

/// The kernels, loaded into a context. Each method queues a kernel on a stream of that context, and
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
    /// Lets the driver compile and load the kernels.
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

    /// The context into which the kernels are loaded.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Writes `words` words of the pattern of `seed`.
    ///
    /// # Safety
    /// `address` is a multiple of 8. The GPU may write the `words` words from there on until the
    /// work has finished. The caller keeps `self` until then.
    pub unsafe fn fill_pattern(
        &self,
        stream: Stream,
        address: u64,
        words: u64,
        seed: u64,
    ) -> Result<(), CudaError> {
        // SAFETY: our caller promises memory that the GPU may write for that many words until the work has finished; the kernel
        // has these parameters.
        unsafe {
            self.launch(
                &self.fill_pattern,
                stream,
                shape(words, BLOCKS_MAX),
                &[address, words, seed],
            )
        }
    }

    /// Counts the words that differ from the pattern of `seed`, and adds the count to the word at
    /// `mismatches`, in memory of the GPU.
    ///
    /// # Safety
    /// As [`fill_pattern`](Self::fill_pattern), but the GPU reads the `words` words, and writes the word at `mismatches`.
    pub unsafe fn check_pattern(
        &self,
        stream: Stream,
        address: u64,
        words: u64,
        seed: u64,
        mismatches: u64,
    ) -> Result<(), CudaError> {
        let parameters = [address, words, seed, mismatches];
        // SAFETY: our caller promises words that the GPU may read, and one that it may write, until the work has finished; the
        // kernel has these parameters.
        unsafe {
            self.launch(
                &self.check_pattern,
                stream,
                shape(words, BLOCKS_MAX),
                &parameters,
            )
        }
    }

    /// Keeps the stream busy for so long.
    pub fn spin(&self, stream: Stream, nanoseconds: u64) -> Result<(), CudaError> {
        // SAFETY: the kernel takes one number and uses no memory. `ForeignStreams` checks the stream. The driver waits for
        // running kernels before it unloads a module, so the code stays until the kernel has finished.
        unsafe { self.launch(&self.spin, stream, (1, 1), &[nanoseconds]) }
    }

    /// Spins for so long, then writes a pattern.
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
        // SAFETY: our caller promises memory that the GPU may write for that many words until the work has finished; the kernel
        // has these parameters.
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
    /// As [`fill_pattern`](Self::fill_pattern), for both ranges; the GPU reads the one at `from`.
    pub unsafe fn copy(
        &self,
        stream: Stream,
        to: u64,
        from: u64,
        words: u64,
    ) -> Result<(), CudaError> {
        // SAFETY: our caller promises two ranges of that many words, one to read and one to write, until the work has finished;
        // the kernel has these parameters.
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
        // SAFETY: our caller promises memory that the GPU may write for that many words until the work has finished; the kernel
        // has these parameters.
        unsafe {
            self.launch(
                &self.scribble,
                stream,
                shape(words, BLOCKS_MAX),
                &[address, words, value],
            )
        }
    }

    /// Writes the time of the GPU's clock, in nanoseconds, to a word. All processes on the GPU share that clock.
    ///
    /// # Safety
    /// As [`fill_pattern`](Self::fill_pattern), for one word.
    pub unsafe fn stamp(&self, stream: Stream, address: u64) -> Result<(), CudaError> {
        // SAFETY: our caller promises a word that the GPU may write until the work has finished; the kernel has these parameters.
        unsafe { self.launch(&self.stamp, stream, (1, 1), &[address]) }
    }

    /// Queues a kernel. `shape` is the number of blocks, and of threads in each.
    ///
    /// # Safety
    /// As [`Kernel::launch`]: the kernel takes these parameters, and the memory that it uses stays until the work has finished.
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

/// The numbers of blocks and of threads in each for `words` words: one thread for each word, up to `most` blocks.
fn shape(words: u64, most: u64) -> (u32, u32) {
    let blocks = words.div_ceil(THREADS.into()).clamp(1, most);
    (blocks as u32, THREADS)
}

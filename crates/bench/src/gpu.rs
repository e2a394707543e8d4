//! A GPU with a stream, kernels and memory for a benchmark.
//!
//! All work is queued on the one stream. Memory that it uses must outlive it. rgaps keeps messages until the stream has
//! passed. Callers keep the [`DeviceBuffer`] and [`CudaMapping`] of this process until they have waited for the work, or
//! fail, which ends the process.

use crate::board::{Board, PinnedBoard};
use anyhow::Context as _;
use rgaps::{Domain, GpuUuid, Loan, Sample, Stream};
use rgaps_cuda::{
    Context, CudaMapping, CudaSource, CudaStream, DeviceBuffer, Driver, ForeignStreams,
    PinnedBuffer,
};
use rgaps_kernels::Kernels;
use rgaps_pool::{Access, Mapping, SegmentSource};
use rgaps_session::MpsControl;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limit of each wait for the stream.
pub const LIMIT: Duration = Duration::from_secs(30);
/// How long MPS may take to list its clients.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// Bytes of a word.
const WORD: u64 = 8;

/// A GPU as a benchmark uses it.
pub struct Gpu {
    // Fields drop in this order: the stream's work has been waited for by then, or the process ends.
    stream: CudaStream,
    streams: ForeignStreams,
    kernels: Kernels,
    context: Arc<Context>,
}

impl Gpu {
    /// The GPU with this UUID.
    pub fn open(uuid: GpuUuid) -> anyhow::Result<Gpu> {
        let context = Context::retain(Driver::load()?, uuid)?;
        Ok(Gpu {
            stream: CudaStream::new(context.clone())?,
            streams: ForeignStreams::default(),
            kernels: Kernels::load(context.clone())?,
            context,
        })
    }

    /// The GPU of a domain; None for the host.
    pub fn of(domain: Domain) -> anyhow::Result<Option<Gpu>> {
        match domain {
            Domain::Host => Ok(None),
            Domain::Cuda(uuid) => Gpu::open(uuid).map(Some),
        }
    }

    /// Its context in this process.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn name(&self) -> &str {
        &self.context.device().name
    }

    /// The stream on which all work is queued.
    pub fn handle(&self) -> Stream {
        self.stream.handle()
    }

    /// Waits for all queued work, by polling. `what` names the work in the error.
    pub fn finish(&self, what: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        while !self.stream.is_idle()? {
            anyhow::ensure!(Instant::now() < deadline, "waited in vain for {what}");
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Allocates zeroed GPU memory for `count` numbers of 8 bytes.
    pub fn numbers(&self, count: usize) -> anyhow::Result<DeviceBuffer> {
        self.buffer(count as u64 * WORD)
    }

    /// Allocates zeroed GPU memory.
    pub fn buffer(&self, bytes: u64) -> anyhow::Result<DeviceBuffer> {
        let zeros = vec![0u8; bytes as usize];
        // SAFETY: the slice is readable for its length; the call returns when it is copied.
        let copy = unsafe {
            DeviceBuffer::copy_of(self.context.clone(), zeros.as_ptr().addr() as u64, bytes)
        };
        copy.context("memory of the GPU")
    }

    /// Waits for the work queued so far, and reads the numbers.
    pub fn read_numbers(&self, numbers: &DeviceBuffer) -> anyhow::Result<Vec<u64>> {
        self.finish("the kernels that write numbers")?;
        let mut bytes = vec![0; numbers.bytes() as usize];
        numbers.read_at(0, &mut bytes)?;
        let words = bytes.chunks_exact(WORD as usize);
        Ok(words
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
            .collect())
    }

    /// Queues filling a loan with the contents of `seed`. Its length is whole words. The caller publishes it on this stream, or
    /// waits for the stream first.
    pub fn fill(&self, loan: &mut Loan, seed: u64) -> anyhow::Result<()> {
        // SAFETY: the caller borrows the loan exclusively, so nobody else uses its bytes until it is published, which
        // happens behind this work. If a benchmark fails before that, its process ends.
        unsafe {
            self.kernels
                .fill_pattern(self.handle(), loan.address(), loan.len() / WORD, seed)?
        };
        Ok(())
    }

    /// Queues a check that adds the number of words of a sample that differ from the contents of `seed` to number `index`
    /// of `wrong`. rgaps keeps the sample until the check has ended, also when it is dropped.
    pub fn check(
        &self,
        sample: &Sample,
        seed: u64,
        wrong: &DeviceBuffer,
        index: usize,
    ) -> anyhow::Result<()> {
        sample.record_stream(self.handle());
        let (address, words) = (sample.address(), sample.len() / WORD);
        // SAFETY: rgaps maps a sample's bytes readable at its address, and `record_stream` keeps them until this
        // stream has passed. `number` checked the word of `wrong`, and freeing that buffer waits for all work.
        unsafe {
            self.kernels
                .check_pattern(self.handle(), address, words, seed, number(wrong, index))?
        };
        Ok(())
    }

    /// The same for a buffer of this process.
    pub fn check_buffer(
        &self,
        buffer: &DeviceBuffer,
        seed: u64,
        wrong: &DeviceBuffer,
        index: usize,
    ) -> anyhow::Result<()> {
        let (address, words) = (buffer.address(), buffer.bytes() / WORD);
        // SAFETY: this process allocated the buffer, and freeing it waits for all work of the GPU; the kernel
        // touches whole words inside it.
        unsafe {
            self.kernels
                .check_pattern(self.handle(), address, words, seed, number(wrong, index))?
        };
        Ok(())
    }

    /// Queues filling a buffer of this process with the contents of `seed`.
    pub fn fill_buffer(&self, buffer: &DeviceBuffer, seed: u64) -> anyhow::Result<()> {
        let (address, words) = (buffer.address(), buffer.bytes() / WORD);
        // SAFETY: this process allocated the buffer, and freeing it waits for all work of the GPU; the kernel
        // touches whole words inside it.
        unsafe {
            self.kernels
                .fill_pattern(self.handle(), address, words, seed)?
        };
        Ok(())
    }

    /// Queues writing the GPU's clock to number `index`.
    pub fn stamp(&self, stamps: &DeviceBuffer, index: usize) -> anyhow::Result<()> {
        // SAFETY: `number` checked that the word lies in the buffer, and freeing the buffer waits for all work.
        unsafe { self.kernels.stamp(self.handle(), number(stamps, index))? };
        Ok(())
    }

    /// Queues a kernel that spins for `nanoseconds`; queues nothing for 0.
    pub fn spin(&self, nanoseconds: u64) -> anyhow::Result<()> {
        if nanoseconds > 0 {
            self.kernels.spin(self.handle(), nanoseconds)?;
        }
        Ok(())
    }

    /// Queues writing a number to the first word of a line of the board.
    pub fn write(&self, board: &PinnedBoard, line: usize, value: u64) -> anyhow::Result<()> {
        let on = self.streams.enter(&self.context, self.handle())?;
        // SAFETY: `line_offset` checked that the word lies in the board, whose words are atomics. The registration
        // ends only after the work, for which the driver waits.
        unsafe { on.write_value(board.device_address() + Board::line_offset(line), value) }
            .context("a stream cannot write numbers to memory here")
    }

    /// Queues waiting until the first word of a line of the board is at least `value`, in cyclic comparison.
    pub fn wait(&self, board: &PinnedBoard, line: usize, value: u64) -> anyhow::Result<()> {
        let on = self.streams.enter(&self.context, self.handle())?;
        // SAFETY: `line_offset` checked that the word lies in the board, which stays registered until the driver
        // has waited for the work. The stream only reads it.
        unsafe { on.wait_value(board.device_address() + Board::line_offset(line), value) }
            .context("a stream cannot wait for numbers in memory here")
    }

    /// Whether all queued work has ended.
    pub fn is_idle(&self) -> anyhow::Result<bool> {
        Ok(self.stream.is_idle()?)
    }

    /// Queues copying all of a buffer to registered memory from `offset` on.
    pub fn copy_out(
        &self,
        to: &PinnedBoard,
        offset: u64,
        from: &DeviceBuffer,
    ) -> anyhow::Result<()> {
        assert!(offset + from.bytes() <= to.bytes());
        // SAFETY: the range of the board was just checked, and that of the buffer is all of it. Both exist until the work has
        // finished: freeing either waits for it. The caller has the turn to write that part of the board.
        unsafe {
            self.stream
                .copy(to.device_address() + offset, from.address(), from.bytes())?
        };
        Ok(())
    }

    /// Queues copying registered memory from `offset` on to all of a buffer.
    pub fn copy_in(
        &self,
        to: &DeviceBuffer,
        from: &PinnedBoard,
        offset: u64,
    ) -> anyhow::Result<()> {
        assert!(offset + to.bytes() <= from.bytes());
        // SAFETY: the range of the board was just checked, and that of the buffer is all of it. Both exist until the work has
        // finished: freeing either waits for it. The caller has the turn to read that part of the board.
        unsafe {
            self.stream
                .copy(to.address(), from.device_address() + offset, to.bytes())?
        };
        Ok(())
    }

    /// Copies from pageable host memory to a buffer, and waits.
    pub fn copy_in_pageable(&self, to: &DeviceBuffer, from: &[u8]) -> anyhow::Result<()> {
        assert!(from.len() as u64 <= to.bytes());
        let (address, bytes) = (from.as_ptr().addr() as u64, from.len() as u64);
        // SAFETY: slice and buffer are borrowed until `finish` has waited for the copy. The slice is no longer than the
        // buffer, which was just checked.
        unsafe { self.stream.copy(to.address(), address, bytes)? };
        self.finish("a copy from pageable memory")
    }

    /// Copies from a buffer to pageable host memory, and waits.
    pub fn copy_out_pageable(&self, to: &mut [u8], from: &DeviceBuffer) -> anyhow::Result<()> {
        assert!(to.len() as u64 <= from.bytes());
        let (address, bytes) = (to.as_mut_ptr().addr() as u64, to.len() as u64);
        // SAFETY: the slice is borrowed exclusively and the buffer borrowed until the copy was waited for; the slice is
        // no longer than the buffer, which was just checked.
        unsafe { self.stream.copy(address, from.address(), bytes)? };
        self.finish("a copy to pageable memory")
    }

    /// Queues copying `bytes` bytes between memory that this GPU reaches.
    pub(crate) fn copy_between(
        &self,
        to: &CopyMemory,
        from: &CopyMemory,
        bytes: u64,
    ) -> anyhow::Result<()> {
        assert!(bytes <= to.bytes() && bytes <= from.bytes());
        // SAFETY: both have at least `bytes` bytes, which was just checked. Callers keep both until they have waited for the
        // copy, and no other code uses them.
        unsafe { self.stream.copy(to.address(), from.address(), bytes)? };
        Ok(())
    }
}

fn number(numbers: &DeviceBuffer, index: usize) -> u64 {
    assert!((index as u64 + 1) * WORD <= numbers.bytes());
    numbers.address() + index as u64 * WORD
}

/// Memory of this process for a bare copy, of the same kind as pools.
pub(crate) enum CopyMemory {
    Device(CudaMapping),
    /// Memory of a GPU that the copying GPU cannot reach directly: the driver chooses how to copy.
    Far(DeviceBuffer),
    Pinned(PinnedBuffer, u64),
}

impl CopyMemory {
    /// Allocates memory in a domain, for copies by the GPU `reached_by`.
    pub fn new(domain: Domain, reached_by: &Gpu, bytes: u64) -> anyhow::Result<CopyMemory> {
        let context = reached_by.context();
        let driver = context.driver();
        let Domain::Cuda(uuid) = domain else {
            let bytes = bytes.next_multiple_of(4096);
            return Ok(CopyMemory::Pinned(
                PinnedBuffer::new(context.clone(), bytes)?,
                bytes,
            ));
        };
        let near = context.device();
        if !driver.reaches(near, uuid)? {
            return Ok(CopyMemory::Far(Gpu::open(uuid)?.buffer(bytes)?));
        }
        let mut source = CudaSource::new(driver.clone(), uuid)?;
        let bytes = bytes.next_multiple_of(source.granularity());
        let mapping = CudaMapping::new(driver.clone(), near.uuid, bytes, Access::ReadWrite)?;
        let segment = source.create(bytes)?;
        mapping.extend(segment.fd.as_fd(), bytes)?;
        Ok(CopyMemory::Device(mapping))
    }

    fn address(&self) -> u64 {
        match self {
            CopyMemory::Device(mapping) => mapping.base(),
            CopyMemory::Far(buffer) => buffer.address(),
            CopyMemory::Pinned(buffer, _) => buffer.address(),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            CopyMemory::Device(mapping) => mapping.mapped(),
            CopyMemory::Far(buffer) => buffer.bytes(),
            CopyMemory::Pinned(_, bytes) => *bytes,
        }
    }
}

/// Whether this process, which has a context, is a client of MPS. Asks MPS's control for its clients.
pub fn is_under_mps() -> bool {
    let control = MpsControl::of_this_process();
    let servers = control.and_then(|control| control.servers(ASK_LIMIT).ok());
    let clients = servers
        .into_iter()
        .flatten()
        .flat_map(|server| server.clients);
    clients.into_iter().any(|pid| pid == std::process::id())
}

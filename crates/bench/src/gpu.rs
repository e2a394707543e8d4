//! A GPU with a stream, kernels and memory of a benchmark's own.
//!
//! Everything is queued on the one stream. What it uses is kept until the stream has passed: memory of
//! this process by [`DeviceBuffer`] and [`CudaMapping`], which callers drop after they have waited or
//! fail and end; messages by rgaps.

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

/// No work that is waited for takes longer.
pub const LIMIT: Duration = Duration::from_secs(30);
/// How long MPS may take to say who its clients are.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// Bytes of a word.
const WORD: u64 = 8;

/// The GPU.
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

    /// The GPU of a domain; none of the host's.
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

    /// The stream on which all is queued.
    pub fn handle(&self) -> Stream {
        self.stream.handle()
    }

    /// Waits for all work, looking all the time.
    pub fn finish(&self, what: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        while !self.stream.is_idle()? {
            anyhow::ensure!(Instant::now() < deadline, "waited in vain for {what}");
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Zeroed memory of this process's own for `count` numbers.
    pub fn numbers(&self, count: usize) -> anyhow::Result<DeviceBuffer> {
        self.buffer(count as u64 * WORD)
    }

    /// Zeroed memory of this process's own.
    pub fn buffer(&self, bytes: u64) -> anyhow::Result<DeviceBuffer> {
        let zeros = vec![0u8; bytes as usize];
        // SAFETY: the slice is readable for its length; the call returns when it is copied.
        let copy = unsafe {
            DeviceBuffer::copy_of(self.context.clone(), zeros.as_ptr().addr() as u64, bytes)
        };
        copy.context("memory of the GPU")
    }

    /// The numbers, after the work queued so far.
    pub fn read_numbers(&self, numbers: &DeviceBuffer) -> anyhow::Result<Vec<u64>> {
        self.finish("kernels whose results are wanted")?;
        let mut bytes = vec![0; numbers.bytes() as usize];
        numbers.read_at(0, &mut bytes)?;
        let words = bytes.chunks_exact(WORD as usize);
        Ok(words
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
            .collect())
    }

    /// Queues filling a loan, of whole words, with the contents of `seed`. It is published on this stream.
    pub fn fill(&self, loan: &mut Loan, seed: u64) -> anyhow::Result<()> {
        // SAFETY: the loan is exclusively ours, and is published behind this work; where a benchmark
        // fails before, its process ends.
        unsafe {
            self.kernels
                .fill_pattern(self.handle(), loan.address(), loan.len() / WORD, seed)?
        };
        Ok(())
    }

    /// Queues adding how many words of a sample differ from the contents of `seed` to number `index`.
    /// The sample is kept until that is done, also when it is dropped.
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

    /// The same with memory of this process's own.
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

    /// Queues filling memory of this process's own with the contents of `seed`.
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

    /// Queues a kernel that takes so long; none of no time.
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

    /// Queues waiting for a number there.
    pub fn wait(&self, board: &PinnedBoard, line: usize, value: u64) -> anyhow::Result<()> {
        let on = self.streams.enter(&self.context, self.handle())?;
        // SAFETY: `line_offset` checked that the word lies in the board, which stays registered until the driver
        // has waited for the work. The stream only reads it.
        unsafe { on.wait_value(board.device_address() + Board::line_offset(line), value) }
            .context("a stream cannot wait for numbers in memory here")
    }

    /// Whether work is queued.
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
        // SAFETY: both ranges are there until the work has finished: freeing either waits for it. Who
        // else uses that part of the board is told after the copy.
        unsafe {
            self.stream
                .copy(to.device_address() + offset, from.address(), from.bytes())?
        };
        Ok(())
    }

    /// Queues the reverse.
    pub fn copy_in(
        &self,
        to: &DeviceBuffer,
        from: &PinnedBoard,
        offset: u64,
    ) -> anyhow::Result<()> {
        assert!(offset + to.bytes() <= from.bytes());
        // SAFETY: the range of the board was just checked, and that of the buffer is all of it. Both are there until
        // the work has finished: freeing either waits for it. The caller has the turn to read that part of the board.
        unsafe {
            self.stream
                .copy(to.address(), from.device_address() + offset, to.bytes())?
        };
        Ok(())
    }

    /// Copies from host memory that the driver does not know, and waits.
    pub fn copy_in_pageable(&self, to: &DeviceBuffer, from: &[u8]) -> anyhow::Result<()> {
        assert!(from.len() as u64 <= to.bytes());
        let (address, bytes) = (from.as_ptr().addr() as u64, from.len() as u64);
        // SAFETY: the slice is borrowed, and the buffer there, until the copy was waited for.
        unsafe { self.stream.copy(to.address(), address, bytes)? };
        self.finish("a copy from pageable memory")
    }

    /// The reverse.
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
        // SAFETY: both are kept until the copy was waited for, and nobody else knows them.
        unsafe { self.stream.copy(to.address(), from.address(), bytes)? };
        Ok(())
    }
}

fn number(numbers: &DeviceBuffer, index: usize) -> u64 {
    assert!((index as u64 + 1) * WORD <= numbers.bytes());
    numbers.address() + index as u64 * WORD
}

/// Memory of this process's own for a bare copy, of the kind that pools are made of.
pub(crate) enum CopyMemory {
    Device(CudaMapping),
    /// On a GPU that `reached_by` does not reach: the driver finds a way.
    Far(DeviceBuffer),
    Pinned(PinnedBuffer, u64),
}

impl CopyMemory {
    /// In a domain, for copies that the GPU `reached_by` makes.
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

/// Whether this process, which has a context, is a client of MPS: its control says so.
pub fn is_under_mps() -> bool {
    let control = MpsControl::of_this_process();
    let servers = control.and_then(|control| control.servers(ASK_LIMIT).ok());
    let clients = servers
        .into_iter()
        .flatten()
        .flat_map(|server| server.clients);
    clients.into_iter().any(|pid| pid == std::process::id())
}
